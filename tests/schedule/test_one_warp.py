"""Programs of one warp: what waits before a slot is filled again with what its threads have read."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def scaled_products(x, scales, out, n):
    """Reads one ring by TMA, one by bulk copies of rows."""
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, 256)[None, :]
    acc = tl.zeros([32, 32], tl.float32)
    for k in range(n):
        v = tl.load(x + k * 8192 + i * 256 + j)
        scale = tl.load(scales + k * 32 + tl.arange(0, 32))
        acc = acc * scale[None, :] + tl.dot(v, v.T)
    tl.store(out + i * 32 + tl.arange(0, 32)[None, :], acc)


@pytest.mark.one_schedule
def test_bulk_copies_wait_for_the_warp_that_reads():
    """`bar.warp.sync` is no such wait: copies overtake the reads in the warp's queue (an H200 gave wrong sums)."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 32, 256)).astype(np.float16)
    scales, out = rng.random((6, 32)).astype(np.float32), np.full((32, 32), np.nan, np.float32)
    kernel = scaled_products.warmup(x, scales, out, 6, grid=(1,), num_warps=1, num_stages=2)
    assert "ring scale: 1 slots" in kernel.report()          # each is filled again behind the read of the same trip
    tilejit.check(scaled_products, (1,), x, scales, out, 6, num_warps=1, num_stages=2, seeds=range(2)).check()
    scaled_products[(1,)](x, scales, out, 6, num_warps=1, num_stages=2)
    want = np.zeros((32, 32))
    for v, scale in zip(x.astype(np.float64), scales):
        want = want * scale + v @ v.T
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-2)
