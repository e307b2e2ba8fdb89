"""Descriptors of rank 1 to 3 through TMA, and the inline pipeline, run where kernels run by default."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime import driver

pytestmark = pytest.mark.skipif(driver.available(), reason="host arrays run on the CPU only without a GPU")
desc = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def copy_1d(src, dst):
    dst.store([tl.program_id(0) * 64], src.load([tl.program_id(0) * 64]) * 2.0)


@tilejit.kernel
def copy_3d(src, dst):
    i = tl.program_id(0) * 2
    dst.store([i, 0, 0], src.load([i, 0, 0]) + 1.0)


@tilejit.kernel
def row_sums(src, dst, N):
    acc = tl.zeros((16, 64), tl.float32)
    for k in range(0, N, 64):
        acc += src.load([0, k])
    dst.store([0, 0], acc)


def test_rank_1():
    """A row of several swizzle spans: sub-tiles must start on TMA's alignment."""
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    out = np.full_like(x, np.nan)
    copy_1d[(4,)](desc(x, (64,)), desc(out, (64,)))
    assert np.array_equal(out, 2 * x)


def test_rank_3():
    """Boxes that hang over the first dimension's end write only what exists."""
    x = np.random.default_rng(1).standard_normal((5, 4, 32)).astype(np.float32)
    out = np.full_like(x, np.nan)
    copy_3d[(3,)](desc(x, (2, 4, 32)), desc(out, (2, 4, 32)))
    assert np.array_equal(out, x + 1)


@pytest.mark.parametrize("blocks", [0, 1, 2, 5])
def test_inline_pipeline(blocks):
    """Loads issued ahead: fewer iterations than stages, none, and more."""
    x = np.random.default_rng(2).standard_normal((16, max(1, blocks) * 64)).astype(np.float32)
    out = np.full((16, 64), np.nan, np.float32)
    row_sums[(1,)](desc(x, (16, 64)), desc(out, (16, 64)), blocks * 64)
    ref = x.reshape(16, -1, 64).sum(1) if blocks else np.zeros((16, 64), np.float32)
    assert np.allclose(out, ref, atol=1e-5)
