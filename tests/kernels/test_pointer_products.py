"""Products of operands that are loaded through pointers: copies run ahead of them, in every order of memory.

Every launch runs under three policies, sanitized; results are compared with float64.
"""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from pointer_kernels import matmul

import tilejit
import tilejit.language as tl
from tilejit.testing import rel_error

BF16, F16, F32, I8 = ml_dtypes.bfloat16, np.float16, np.float32, np.int8
pytestmark = pytest.mark.one_schedule        # its launches explore by themselves


@pytest.fixture(autouse=True)
def copies():
    """Pointers stay pointers, which TMA could do too."""
    with tilejit.knobs(pointer_tma=False):
        yield


@tilejit.kernel
def gathered(table, rows, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows of a table by index, read before the loop; the address of a step comes from the loop's counter."""
    index = tl.load(rows + tl.program_id(0) * BM + tl.arange(0, BM))
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n, k = tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(table + index[:, None] * K + i + k[None, :], (index >= 0)[:, None])
        y = tl.load(b + n[:, None] * K + i + k[None, :])
        acc = tl.dot(x, y.T, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


@tilejit.kernel
def paged(table, pages, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Where the columns of a step lie is read in that step."""
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        page = tl.load(pages + i)
        x = tl.load(table + m[:, None] * K + page * BK + k[None, :])
        y = tl.load(b + n[:, None] * K + i * BK + k[None, :])
        acc = tl.dot(x, y.T, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


@tilejit.kernel
def weighted(a, q, scale, b_scale, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Weights are made of bytes and a scale for each row and step."""
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        x = tl.load(a + m[:, None] * K + i * BK + k[None, :])
        w = tl.load(q + n[:, None] * K + i * BK + k[None, :])
        s = tl.load(scale + i * BN + n)
        t = tl.load(b_scale + i * BN + n, n < BN - 16)
        acc = tl.fma(tl.dot(x, w.to(tl.bfloat16).T), (s * t)[None, :], acc)
    tl.store(c + m[:, None] * BN + n[None, :], acc)


@tilejit.kernel
def persistent(a, b, bias, c, M, N, K, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Tile after tile; a role of its own copies."""
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        m = tile // tiles_n * BM + tl.arange(0, BM)
        n = tile % tiles_n * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        a_ptrs = a + m[:, None] * am + k[None, :] * ak
        b_ptrs = b + k[:, None] * bk + n[None, :] * bn
        acc = tl.zeros((BM, BN), tl.float32)
        for i in tl.range(0, tl.cdiv(K, BK), warp_specialize=True):
            x = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - i * BK), other=0.0)
            y = tl.load(b_ptrs, mask=(k[:, None] < K - i * BK) & (n[None, :] < N), other=0.0)
            acc = tl.fma(tl.dot(x, y), tl.load(bias + i * BN + tl.arange(0, BN))[None, :], acc)
            a_ptrs += BK * ak
            b_ptrs += BK * bk
        tl.store(c + m[:, None] * N + n[None, :], acc, (m[:, None] < M) & (n[None, :] < N))


def checked(kernel, grid, *args, **options):
    """Runs the kernel under three policies with the sanitizer; its report."""
    tilejit.check(kernel, grid, *args, seeds=[1], **options).check()
    return kernel.warmup(*args, grid=grid, **options).report()


def numbers(shape, dtype, columns_first=False, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return np.asfortranarray(x) if columns_first else x


def strides(x):
    return [s // x.itemsize for s in x.strides]


@pytest.mark.parametrize("dtype, bound", [(BF16, 1e-6), (F16, 1e-6), (F32, 1e-3)], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("orders", [(False, True), (False, False), (True, False), (True, True)],
                         ids=["NT", "NN", "TN", "TT"])
def test_masked_edges_in_all_orders(dtype, bound, orders):
    """Sizes that leave blocks incomplete; 16-byte copies wherever rows (or columns) start at multiples of 16 bytes."""
    m, n, k = 80, 96, 112
    a, b = numbers((m, k), dtype, orders[0]), numbers((k, n), dtype, orders[1], 1)
    c = np.full((m, n), np.nan, F32)
    report = checked(matmul, (2, 2), a, b, c, m, n, k, *strides(a), *strides(b), BM=64, BN=64, BK=32, num_warps=4)
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < bound
    in_place = dtype != F32 or orders == (False, True)
    assert report.count("cp.async, wgmma reads the slots") == (1 if in_place else orders in ((False, False), (True, True)))
    assert "not pipelined" not in report


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_depth(stages):
    """num_stages is the number of slots; with one nothing is copied ahead."""
    m, n, k = 64, 64, 160
    a, b, c = numbers((m, k), BF16), numbers((k, n), BF16, True, 1), np.full((m, n), np.nan, F32)
    report = checked(matmul, (1, 1), a, b, c, m, n, k, *strides(a), *strides(b), BM=64, BN=64, BK=32, num_warps=4,
                     num_stages=stages)
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < 1e-6
    assert ("ring" not in report) if stages == 1 else f"ring x_y: {stages} slots x 8192 bytes, cp.async" in report


def test_short_loops():
    """No step at all, and fewer steps than slots."""
    for k in (0, 16, 48):
        a, b, c = numbers((64, k), BF16), numbers((k, 64), BF16), np.full((64, 64), np.nan, F32)
        checked(matmul, (1, 1), a, b, c, 64, 64, k, max(k, 1), 1, 64, 1, BM=64, BN=64, BK=32, num_warps=4, num_stages=4)
        assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < 1e-6 if k else not c.any()


def test_two_warpgroups():
    m, n, k = 128, 128, 160
    a, b, c = numbers((m, k), BF16), numbers((k, n), BF16, False, 1), np.full((m, n), np.nan, F32)
    report = checked(matmul, (1, 1), a, b, c, m, n, k, *strides(a), *strides(b), BM=128, BN=128, BK=64, num_warps=8)
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < 1e-6
    assert "one round of wgmma stays in flight" in report


def test_addresses_aligned_to_four_bytes():
    """Rows of 50 elements: copies of four bytes; rows of 51: none."""
    for k, copied in ((50, True), (51, False)):
        a, b, c = numbers((64, k), BF16), numbers((k, 64), BF16, True, 1), np.full((64, 64), np.nan, F32)
        hinted = pairs if copied else matmul
        report = checked(hinted, (1, 1), a, b, c, 64, 64, k, *strides(a), *strides(b), BM=64, BN=64, BK=32, num_warps=4)
        assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < 1e-6
        assert ("cp.async" in report) == copied
        assert ("not known to be aligned to 4 bytes (2 found)" in report) != copied


@tilejit.kernel
def pairs(a, b, c, M, N, K, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """`matmul` where the author says that rows and K are even."""
    am, bn, K = tl.multiple_of(am, 2), tl.multiple_of(bn, 2), tl.multiple_of(K, 2)
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        inside = i * BK + k < K
        x = tl.load(a + m[:, None] * am + i * BK + k[None, :], inside[None, :])
        y = tl.load(b + n[None, :] * bn + i * BK + k[:, None], inside[:, None])
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


def test_gathered_rows():
    rows = np.random.default_rng(2).integers(-1, 40, 128).astype(np.int32)
    table, b, c = numbers((40, 96), F16), numbers((64, 96), F16, seed=1), np.full((128, 64), np.nan, F32)
    report = checked(gathered, (2,), table, rows, b, c, 64, 96, BM=64, BN=64, BK=32, num_warps=4)
    want = np.where(rows[:, None] < 0, 0, table[rows].astype(np.float64)) @ b.T.astype(np.float64)
    assert rel_error(c, want) < 1e-6
    assert "ring x_y: 3 slots x 8192 bytes, cp.async, wgmma reads the slots" in report


def test_an_index_of_the_same_step_is_not_ahead():
    pages = np.array([2, 0, 1], np.int32)
    table, b, c = numbers((64, 96), BF16), numbers((64, 96), BF16, seed=1), np.full((64, 64), np.nan, F32)
    report = checked(paged, (1,), table, pages, b, c, 64, 96, BM=64, BN=64, BK=32, num_warps=4)
    columns = (pages[:, None] * 32 + np.arange(32)).ravel()
    assert rel_error(c, table[:, columns].astype(np.float64) @ b.T.astype(np.float64)) < 1e-6
    assert "load x at test_pointer_products.py:" in report
    assert "not pipelined, its address is loaded in the same iteration (load (test_pointer_products.py:" in report
    assert "ring y: 3 slots" in report


def test_operands_that_are_computed_and_rows_of_scales():
    """Bytes are read from their slots by threads; scales come as whole rows, one of them cut short by its mask."""
    k = 160
    a, q = numbers((64, k), BF16), np.random.default_rng(1).integers(-128, 128, (64, k)).astype(I8)
    s, t = numbers((5, 64), F32, seed=2), numbers((5, 64), F32, seed=3)
    c = np.full((64, 64), np.nan, F32)
    report = checked(weighted, (1,), a, q, s, t, c, k, BM=64, BN=64, BK=32, num_warps=4)
    want = sum(a[:, i * 32:i * 32 + 32].astype(np.float64) @ q[:, i * 32:i * 32 + 32].T * (
        s[i] * t[i] * (np.arange(64) < 48)) for i in range(5))
    assert rel_error(c, want) < 1e-6
    for line in ("ring x: 3 slots x 4096 bytes, cp.async, wgmma reads the slots",
                 "ring w: 3 slots x 2048 bytes, cp.async, read into registers",
                 "ring s_t: 3 slots x 512 bytes, bulk copies of rows, read into registers"):
        assert line in report


@pytest.mark.parametrize("warps", [4, 8])
def test_a_role_that_copies(warps):
    """Threads of a role of their own copy operands, one of them copies rows of scales; tickets run on from tile to tile."""
    m, n, k = 80, 80, 112
    a, b, c = numbers((m, k), BF16), numbers((k, n), BF16, True, 1), np.full((m, n), np.nan, F32)
    scale = numbers((4, 64), F32, seed=2)
    report = checked(persistent, (2,), a, b, scale, c, m, n, k, *strides(a), *strides(b), BM=16 * warps, BN=64, BK=32,
                     num_warps=warps)
    pad = np.zeros((4, 80))
    pad[:, :64], pad[:, 64:] = scale, scale[:, :16]
    want = sum(a[:, i * 32:i * 32 + 32].astype(np.float64) @ b[i * 32:i * 32 + 32].astype(np.float64) * pad[i]
               for i in range(4))
    assert rel_error(c, want) < 1e-6
    assert f"specialised: {warps} producer warps + 2 consumer" in report
    assert "cp.async, wgmma reads the slots" in report and "bulk copies of rows, read into registers" in report


def test_rows_that_consumers_copy_beside_operands_by_tma():
    """Scales whose rows start anywhere go by cp.async into slots of each group of consumers."""
    a, b = (numbers((96, 144), BF16, seed=seed) for seed in (0, 1))
    scale, c = numbers((5, 97), F32, seed=2), np.full((96, 96), np.nan, F32)
    descs = [tilejit.TensorDescriptor(x, x.shape, (x.shape[1], 1), (64, 32)) for x in (a, b)]
    report = checked(scaled, (1,), *descs, scale, c, 96, 96, 144, 97, BM=64, BN=64, BK=32, num_warps=4)
    want = sum(a[:, i * 32:i * 32 + 32].astype(np.float64) @ b[:, i * 32:i * 32 + 32].T.astype(np.float64)
               * scale[i, :96, None] for i in range(5))
    assert rel_error(c, want) < 1e-6
    assert "2 consumer groups" in report and "cp.async by the consumers, read into registers" in report


@tilejit.kernel
def scaled(a_desc, b_desc, scale, c, M, N, K, across, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        m = tile // tiles_n * BM
        n = tile % tiles_n * BN
        rows, columns = m + tl.arange(0, BM), n + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            x = a_desc.load([m, k * BK])
            y = b_desc.load([n, k * BK])
            s = tl.load(scale + k * across + rows, rows < M, other=0.0)
            acc = tl.fma(tl.dot(x, y.T), s[:, None], acc)
        tl.store(c + rows[:, None] * N + columns[None, :], acc, (rows[:, None] < M) & (columns[None, :] < N))
