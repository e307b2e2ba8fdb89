"""Folds of tiles whose sizes are no powers of two: sums, maxima and their places, in the evaluator and the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def rows(a_desc, b_desc, most, total, weights, K, M: tl.constexpr, N: tl.constexpr):
    """Folds of a product along its columns."""
    acc = tl.zeros([M, N], tl.float32)
    for k in tl.range(0, K, 64):
        acc = tl.dot(a_desc.load([0, k]), b_desc.load([k, 0]), acc)
    at, first = tl.arange(0, M), tl.max(acc, 1)
    tl.store(most + at, first)
    tl.store(total + at, tl.sum(acc, 1))
    tl.store(weights + at, tl.sum(tl.exp2(acc - first[:, None]), 1))


@tilejit.kernel
def columns(a_desc, b_desc, total, K, M: tl.constexpr, N: tl.constexpr):
    """The fold along its rows."""
    acc = tl.zeros([M, N], tl.float32)
    for k in tl.range(0, K, 64):
        acc = tl.dot(a_desc.load([0, k]), b_desc.load([k, 0]), acc)
    tl.store(total + tl.arange(0, N), tl.sum(acc, 0))


@tilejit.kernel
def vector(x, out, places, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.sum(v, 0))
    tl.store(out + 1, tl.max(v, 0))
    tl.store(places, tl.argmin(v, 0))


def product(m: int, n: int):
    rng = np.random.default_rng(m + n)
    a, b = rng.standard_normal((m, 128), np.float32).astype(BF16), rng.standard_normal((128, n), np.float32).astype(BF16)
    descs = [tilejit.TensorDescriptor(x, x.shape, (x.shape[1], 1), box) for x, box in ((a, (m, 64)), (b, (64, n)))]
    return descs, a.astype(np.float64) @ b.astype(np.float64)


@pytest.fixture(params=["evaluator", "emulator"], autouse=True)
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@pytest.mark.parametrize("m, n, warps", [(128, 96, 8), (64, 176, 4), (128, 80, 8), (192, 128, 12), (192, 112, 12), (384, 64, 12)])
def test_along_columns(m, n, warps):
    descs, want = product(m, n)
    most, total, weights = (np.full(m, np.nan, np.float32) for _ in range(3))
    rows[(1,)](*descs, most, total, weights, 128, M=m, N=n, num_warps=warps)
    assert np.abs(most - want.max(1)).max() < 1e-4 and np.abs(total - want.sum(1)).max() < 1e-3
    assert np.abs(weights - np.exp2(want - want.max(1, keepdims=True)).sum(1)).max() < 1e-4


@pytest.mark.parametrize("m, n, warps", [(128, 96, 8), (64, 176, 4)])
def test_along_rows(m, n, warps):
    descs, want = product(m, n)
    total = np.full(n, np.nan, np.float32)
    columns[(1,)](*descs, total, 128, M=m, N=n, num_warps=warps)
    assert np.abs(total - want.sum(0)).max() < 1e-3


def test_rows_that_three_warpgroups_divide_are_not_folded():
    descs, _ = product(192, 64)
    with pytest.raises(tilejit.CompilationError, match="reduce: warps fold in pairs, which num_warps=12 does not make"):
        columns[(1,)](*descs, np.zeros(64, np.float32), 128, M=192, N=64, num_warps=12)


@pytest.mark.parametrize("n", [48, 96, 176, 192])
@pytest.mark.parametrize("warps", [1, 4])
def test_vectors(n, warps):
    """Every element once, whichever of its copies a thread has; of equal ones the first."""
    x = np.random.default_rng(n).integers(-9, 9, n).astype(np.float32)
    out, places = np.zeros(2, np.float32), np.zeros(1, np.int32)
    vector[(1,)](x, out, places, N=n, num_warps=warps)
    assert (out == [x.sum(), x.max()]).all() and places[0] == x.argmin()
