"""Products by mma.sync: every dtype, shapes that wgmma does not take, operands from registers, rings and products."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.testing import rel_error

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
#: Products are exact (tf32 loses 13 bits of its inputs), sums in fp32.
BOUNDS = {np.float16: 1e-6, BF16: 1e-6, np.float32: 2e-3, np.int8: 0.0, np.uint8: 0.0, E4M3: 2e-3, E5M2: 2e-3}


@tilejit.kernel
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, B_ROWS: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    if B_ROWS:
        y = tl.load(b + k[:, None] * N + n[None, :])
    else:
        y = tl.load(b + n[None, :] * K + k[:, None])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))


@tilejit.kernel
def blocks(a_desc, b_desc, c_desc, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((M, N), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def chained(a, b, c, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x, y = tl.load(a + m[:, None] * N + n[None, :]), tl.load(b + n[:, None] * N + n[None, :])
    s = tl.maximum(tl.dot(x, y), 0.0)
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(s.to(tl.float16), y))


@pytest.fixture(autouse=True)
def emulated():
    with tilejit.knobs(target="emulator"):
        yield


def numbers(dtype, *shapes):
    rng = np.random.default_rng(0)
    if dtype in (np.int8, np.uint8):
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max, s, endpoint=True).astype(dtype) for s in shapes]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("m, n, warps", [(16, 8, 1), (32, 32, 4), (64, 32, 2), (64, 64, 4)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products(dtype, m, n, warps, target):
    """K of 64 and, for one shape, of half a step of mma.sync; B in both orders."""
    if dtype in (E4M3, E5M2) and target == "sm_80":
        pytest.skip("no fp8 before sm_89")
    for k, b_rows in ((64, True), (64, False), (16 // np.dtype(dtype).itemsize, True)):
        a, b = numbers(dtype, (m, k), (k, n))
        c = np.zeros((m, n), np.int32 if dtype in (np.int8, np.uint8) else np.float32)
        made = product[(1,)](a, b if b_rows else np.ascontiguousarray(b.T), c, m, n, k, b_rows, num_warps=warps,
                             target=target)
        by_mma = target == "sm_80" or warps % 4 or m % 64 or k * np.dtype(dtype).itemsize % 32
        assert ("mma.sync" in made.ptx) == bool(by_mma)
        assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) <= BOUNDS[dtype]


@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, E4M3], ids=lambda d: np.dtype(d).name)
def test_few_rows_through_rings(m, dtype):
    """On sm_90a TMA fills the ring, ldmatrix reads it and mma.sync multiplies; the sanitizer has no objections."""
    k = 256
    a, b = numbers(dtype, (m, k), (64, k))
    c = np.zeros((m, 64), np.float32)
    bk = 128 // np.dtype(dtype).itemsize
    descs = [tilejit.TensorDescriptor.from_tensor(x, s) for x, s in ((a, (m, bk)), (b, (64, bk)), (c, (m, 64)))]
    made = blocks.compile(*descs, k, m, 64, bk)
    ptx = made.ptx
    assert "cp.async.bulk.tensor" in ptx and "ldmatrix" in ptx and "mma.sync" in ptx and "wgmma" not in ptx
    assert not re.search(r"ld\.shared", ptx), "operands come from the ring by ldmatrix"
    tilejit.check(blocks, (1,), *descs, k, m, 64, bk, seeds=range(2)).check()
    blocks[(1,)](*descs, k, m, 64, bk)
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64).T) <= BOUNDS[dtype]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products_of_products(target):
    """The first result is the second's left operand without leaving its registers."""
    a, b = numbers(np.float16, (16, 32), (32, 32))
    c = np.zeros((16, 32), np.float32)
    made = chained[(1,)](a, b, c, 16, 32, num_warps=1, target=target)
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert rel_error(c, np.maximum(x @ y, 0).astype(np.float16).astype(np.float64) @ y) <= 1e-3
    assert not any("for dot" in line and "fp16[16x32" in line for line in made.report_lines[1:])


def test_accumulators_stay_where_they_are():
    """Inside the loop no register of the accumulator is copied."""
    ptx = blocks.compile("desc<fp16[32x64]>", "desc<fp16[64x64]>", "desc<fp32[32x64]>", "int32", 32, 64, 64,
                         target="sm_80").ptx
    loop = re.split(r"\$loop\w*:", ptx)[1]
    pairs = re.findall(r"mma\.sync\S+ (\{.*?\}), .*(\{.*?\});", loop)
    assert pairs and all(d == c for d, c in pairs)
    assert "mov.f32" not in loop.split("mma.sync", 1)[1]
