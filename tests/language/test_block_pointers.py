"""Block pointers: loads and stores at edges, moved in loops, in any order of dimensions; TMA where that means the same."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@tilejit.kernel
def product(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    pa = tl.make_block_ptr(a, (M, K), (sam, sak), (m, 0), (BM, BK), (1, 0))
    pb = tl.make_block_ptr(b, (K, N), (sbk, sbn), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(pa, boundary_check=(0, 1)), tl.load(pb, boundary_check=(0, 1), padding_option="zero"))
        pa = tl.advance(pa, (0, BK))
        pb = pb.advance((BK, 0))
    pc = tl.make_block_ptr(c, (M, N), (scm, scn), (m, n), (BM, BN), (1, 0))
    pc.store(acc.to(pc.dtype.element_ty), boundary_check=(0, 1))


@pytest.mark.parametrize("columns", ["b", "a b", ""])
def test_product(target, columns):
    """Ragged sizes; with a matrix in columns its descriptor is that of the transpose."""
    m, n, k, bf16 = 80, 112, 96, ml_dtypes.bfloat16
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)).astype(bf16), rng.normal(size=(k, n)).astype(bf16)
    a, b = (np.asfortranarray(x) if name in columns.split() else x for name, x in (("a", a), ("b", b)))
    c = np.zeros((m, n), bf16)
    strides = [s // 2 for x in (a, b, c) for s in x.strides]
    k_ = product[(2, 2)](a, b, c, m, n, k, *strides, 64, 64, 32, num_warps=4)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(c.astype(np.float32), expected, rtol=2e-2, atol=5e-2)
    assert not any("through pointers" in line for line in k_.report_lines)
    assert k_.ptx.count("cp.async.bulk.tensor") >= 3


@tilejit.kernel
def window(x, y, rows, columns, sx, at, CHECK: tl.constexpr, PAD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    p = tl.make_block_ptr(x, (rows, columns), (sx, 1), (at, at), (BR, BC), (1, 0))
    v = tl.load(p, boundary_check=CHECK, padding_option=PAD)
    out = tl.make_block_ptr(y, (BR, BC), (BC, 1), (0, 0), (BR, BC), (1, 0))
    tl.store(out, v)


@pytest.mark.parametrize("check, pad, at", [((0, 1), "zero", -3), ((0, 1), "nan", 5), ((0, 1), "nan", 4),
                                            ((1,), "zero", 0), ((0,), "", 5)])
def test_boundary_check(target, check, pad, at):
    """What is not checked is read wherever it lies (here: inside of a larger array)."""
    big = np.arange(40 * 48, dtype=np.float32).reshape(40, 48)
    x, (rows, columns), (br, bc) = big[8:, 16:], (10, 11), (8, 16)
    y = np.zeros((br, bc), np.float32)
    k = window[(1,)](x, y, rows, columns, 48, at, check, pad, br, bc)
    i, j = np.meshgrid(np.arange(at, at + br), np.arange(at, at + bc), indexing="ij")
    outside = ((i < 0) | (i >= rows)) & (0 in check) | ((j < 0) | (j >= columns)) & (1 in check)
    np.testing.assert_array_equal(y, np.where(outside, np.nan if pad == "nan" else 0, big[8 + i, 16 + j]))
    why = [line for line in k.report_lines if "neither in boundary_check nor known to be inside" in line]
    assert len(why) == (check != (0, 1))


@tilejit.kernel
def vector(x, y, n, stride, N: tl.constexpr):
    p = tl.make_block_ptr(x, (n,), (stride,), (tl.program_id(0) * N,), (N,), (0,))
    if tl.program_id(0) > 0:
        p = tl.advance(p, (1,))
    q = tl.make_block_ptr(y, (n,), (1,), (tl.program_id(0) * N,), (N,), (0,))
    tl.store(q, tl.load(p, boundary_check=(0,)), boundary_check=(0,))


@pytest.mark.parametrize("stride", [1, 3])
def test_rank_one_moved_by_if(target, stride):
    x, y = np.random.default_rng(0).normal(size=150).astype(np.float32), np.zeros(50, np.float32)
    vector[(2,)](x, y, 50, stride, 32)
    rows = np.append(x[:50 * stride:stride], np.zeros(20, np.float32))
    np.testing.assert_array_equal(y, np.concatenate([rows[:32], rows[33:51]]))


@tilejit.kernel
def bad_order(x):
    tl.make_block_ptr(x, (4, 4), (4, 1), (0, 0), (4, 4), (1, 1))


@tilejit.kernel
def bad_ranks(x):
    tl.make_block_ptr(x, (4, 4), (4,), (0, 0), (4, 4), (1, 0))


@tilejit.kernel
def bad_check(x):
    tl.load(tl.make_block_ptr(x, (4, 4), (4, 1), (0, 0), (4, 4), (1, 0)), boundary_check=(2,))


@tilejit.kernel
def bad_mask(x):
    tl.load(tl.make_block_ptr(x, (4, 4), (4, 1), (0, 0), (4, 4), (1, 0)), mask=True)


@tilejit.kernel
def bad_pointer(x):
    tl.load(x, boundary_check=(0,))


@pytest.mark.parametrize("kernel, words", [
    (bad_order, "order must be a permutation"), (bad_ranks, "must have one length"), (bad_check, "2 is no dimension"),
    (bad_mask, "cannot be specified for loading block pointers"), (bad_pointer, "not supported for loading a tensor")])
def test_errors(kernel, words):
    with pytest.raises(tilejit.CompilationError, match=words):
        kernel.compile("*fp32")


@tilejit.kernel
def at_the_end_of_32_bits(x, y, n, start, N: tl.constexpr):
    p = tl.make_block_ptr(x - start.to(tl.int64), (n,), (1,), (start,), (N,), (0,))
    tl.store(y + tl.arange(0, N), tl.load(p, boundary_check=(0,)))


@pytest.mark.parametrize("size", [2 ** 31, 2 ** 31 + 8, 2 ** 31 - 3])
def test_tensors_of_more_elements_than_32_bits_count(target, size):
    x, y, start = np.arange(1, 17, dtype=np.float32), np.zeros(16, np.float32), 2 ** 31 - 16
    at_the_end_of_32_bits[(1,)](x, y, size, start, 16)
    np.testing.assert_array_equal(y, np.where(start + np.arange(16) < size, x, 0))
