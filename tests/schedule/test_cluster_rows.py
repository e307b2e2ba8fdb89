"""Kernels without products on clusters: the CTAs divide the longest dimension of what is loaded."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.kernels.rows.norms import norm_kernel
from tilejit.kernels.rows.softmax import softmax_kernel


def row(n, seed=0):
    return np.random.default_rng(seed).standard_normal((2, n)).astype(np.float32)


def softmax(n, block, ctas, warps):
    x, out = row(n), np.full((2, n), np.nan, np.float32)
    with tilejit.knobs(target="emulator"):
        k = softmax_kernel[(2,)](x, out, n, n, n, BLOCK=block, num_ctas=ctas, num_warps=warps)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
    return k


@pytest.mark.parametrize("n, block, ctas, warps", [(1008, 1024, 2, 4), (4000, 4096, 8, 4), (2048, 2048, 4, 1)])
def test_a_row_in_a_cluster(n, block, ctas, warps):
    k = softmax(n, block, ctas, warps)
    assert k.metadata.cluster == (ctas, 1, 1) and k.scheduled.count("cluster_fold") == 2
    load = next(line for line in k.ptx.splitlines() if "ld.global" in line)
    assert "v4" in load or block // ctas // warps < 128


def test_small_tiles_are_in_every_cta():
    k = softmax(100, 128, 2, 4)
    assert "cluster_fold" not in k.scheduled


@tilejit.kernel
def tall(x, out, best, ROWS: tl.constexpr, N: tl.constexpr):
    """Rows of a matrix less their means; the largest of each row; everything is read before anything is written."""
    at = tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    top = tl.max(v, 1)
    v = v - (tl.sum(v, 1) / N)[:, None]
    tl.debug_barrier()
    tl.store(out + at, v)
    tl.store(best + tl.arange(0, ROWS), top)


def test_a_matrix_and_the_sanitizer():
    x, best = row(512).repeat(2, 0), np.zeros(4, np.float32)
    out = x.copy()
    tilejit.check(tall, (1,), out, out, best, ROWS=4, N=512, num_ctas=2, num_warps=4, seeds=range(2)).check()
    assert np.allclose(out, x - x.mean(1, keepdims=True), atol=1e-6) and np.array_equal(best, x.max(1))


def test_weights_are_divided_as_rows_are():
    x, w, b = row(1000), row(1000, 1)[0].copy(), row(1000, 2)[0].copy()
    out = np.full_like(x, np.nan)
    tilejit.check(norm_kernel, (2,), x, w, b, out, 1000, 1000, 1000, 1e-5, True, BLOCK=1024, num_ctas=4, num_warps=2,
                  seeds=range(1)).check()
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b
    assert np.allclose(out, want, atol=1e-4)
