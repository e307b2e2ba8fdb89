"""Runs of elementwise ops around renamed registers."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def transposed_behind_a_scan(x, y, sums, N: tl.constexpr):
    """The scan asks for the run's values before the store that the transpose is for."""
    v = tl.make_tensor_descriptor(x, [16, N], [N, 1], [16, N]).load([0, 0]) + 5
    running = tl.cumsum(v, 0)
    turned = tl.trans(~v)
    folded = tl.xor_sum(running, 0)
    tl.make_tensor_descriptor(y, [N, 16], [16, 1], [N, 16]).store([0, 0], turned)
    tl.store(sums + tl.arange(0, N), folded)


@pytest.mark.parametrize("warps", [2, 4])
def test_transpose_behind_a_scan(warps):
    x = np.random.default_rng(0).integers(-9, 9, (16, 32)).astype(np.int32)
    y, sums = np.zeros((32, 16), np.int32), np.zeros(32, np.int32)
    with tilejit.knobs(target="emulator"):
        transposed_behind_a_scan[(1,)](x, y, sums, 32, num_warps=warps)
    np.testing.assert_array_equal(y, ~(x + 5).T)
    np.testing.assert_array_equal(sums, np.bitwise_xor.reduce((x + 5).cumsum(0), 0))
