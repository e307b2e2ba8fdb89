"""Checks at run time, and members of tensors that are also functions."""
import numpy as np
import pytest
from run import TARGETS, equal

import tilejit
import tilejit.language as tl
from tilejit.errors import TileJitError


@tilejit.kernel
def checked(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.device_assert(v > 0, "positive", mask=at < N // 2)
    (y + at).store(tl.expect_zero(v, v == 0))


@pytest.mark.parametrize("target", TARGETS)
def test_an_assertion_holds_where_its_mask_is_true(target):
    x = np.ones(64, np.int32)
    x[40] = -1
    y = np.zeros_like(x)
    with tilejit.knobs(target=target):
        checked[(1,)](y, x, N=64, debug=True)
        np.testing.assert_array_equal(y, x)
        x[7] = 0
        checked[(1,)](y, x, N=64)
        with pytest.raises(TileJitError):
            checked[(1,)](y, x, N=64, debug=True)


@tilejit.kernel
def logical(y, z, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(y + at, v.logical_and(at > 3))
    tl.store(z + at, v.logical_or(at > 3))


def test_logic_of_numbers():
    x = np.arange(32, dtype=np.int32) % 3
    late = np.arange(32) > 3
    equal(logical, [(x != 0) & late, (x != 0) | late], x, N=32)
