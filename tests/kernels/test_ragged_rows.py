"""TMA writes whole units of 16 bytes: what lies beside a tensor whose rows end within one stays as it is."""
from __future__ import annotations

import importlib

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import kernels
from tilejit.errors import CompilationError

D = tilejit.TensorDescriptor
RNG = np.random.default_rng(3)
TARGETS = ("evaluator", "emulator")


@tilejit.kernel
def copy(src, dst, ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    if ADD:
        dst.atomic_add([m, n], src.load([m, n]))
    else:
        dst.store([m, n], src.load([m, n]))


@tilejit.kernel
def copy_made(x, y, M, N, S, ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    src = tl.make_tensor_descriptor(x, [M, N], [S, 1], [BM, BN])
    dst = tl.make_tensor_descriptor(y, [M, N], [S, 1], [BM, BN])
    copy(src, dst, ADD, BM, BN)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("dtype, n", [(np.float32, 5), (np.float32, 3), (np.float32, 53), (np.int32, 101), (np.float16, 100),
                                      (np.int8, 37), (np.int8, 48)])
def test_nothing_is_written_beside(target, add, dtype, n):
    if add and np.dtype(dtype).itemsize < 4:
        pytest.skip("pointer atomics take 32- and 64-bit elements")
    x, y = RNG.integers(1, 50, (20, 128)).astype(dtype), RNG.integers(1, 50, (20, 128)).astype(dtype)
    want = y.copy()
    want[:, :n] = x[:, :n] + (y[:, :n] if add else 0)
    for made in (False, True):
        got = y.copy()
        with tilejit.knobs(target=target):
            if made:
                copy_made[(2, 4)](x, got, 20, n, 128, add, 16, 32)
            else:
                copy[(2, 4)](D(x, (20, n), (128, 1), (16, 32)), D(got, (20, n), (128, 1), (16, 32)), add, 16, 32)
        assert np.array_equal(got, want), made


def test_whole_units_go_by_tma_and_only_ends_through_pointers():
    ragged, whole = (D(np.zeros((32, 64), np.float16), (32, n), (64, 1), (16, 32)) for n in (53, 56))
    assert ragged.signature != whole.signature
    split, plain = (copy.compile(d, d, False, 16, 32) for d in (ragged, whole))
    assert "end through pointers" in split.report() and "end through pointers" not in plain.report()
    for compiled in (split, plain):
        assert "cp.async.bulk.tensor.2d.global.shared::cta" in compiled.ptx
    assert "st.global" in split.ptx and "st.global" not in plain.ptx


def test_an_atomic_that_pointers_do_not_have_says_so():
    d = D(np.zeros((16, 64), np.float16), (16, 53), (64, 1), (16, 32))

    @tilejit.kernel
    def least(a):
        a.atomic_min([0, 0], tl.zeros((16, 32), tl.float16))

    with pytest.raises(CompilationError, match="end within 16 bytes"):
        least.compile(d)


def products(out, m, n, k):
    """Every family of products into views: (name, function of the result's view, whether stacked)."""
    a, b = (RNG.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    b = np.asfortranarray(b)
    want = a.astype(np.float32) @ b.astype(np.float32)
    streamk = importlib.import_module("tilejit.kernels.streamk").matmul_streamk
    yield "matmul", lambda: kernels.matmul(a, b, out=out), want
    yield "streamk", lambda: streamk(a, b, out=out), want
    yield "fused", lambda: kernels.fused_matmul(a, b, residual=np.ones_like(out), out=out), want + 1


@pytest.mark.parametrize("m, n, k", [(70, 100, 64), (8, 20, 512)])
def test_products_into_views(m, n, k):
    wide = np.empty((m, (n + 28) // 8 * 8), ml_dtypes.bfloat16)
    out = wide[:, :n]
    assert n * 2 % 16
    for name, run, want in products(out, m, n, k):
        wide[:] = 7
        run()
        assert np.array_equal(out.astype(np.float32), want), name
        assert (wide[:, n:] == 7).all(), name


@pytest.mark.remarks("spills", "stack", reason="rows without a whole unit go through pointers, all of them")
@pytest.mark.parametrize("n", [77, 5])
def test_grouped_and_batched_products_into_views(n):
    offsets = np.array([3, 3, 80, 81, 140], np.int32)
    a, b = RNG.integers(-3, 4, (150, 64)).astype(ml_dtypes.bfloat16), RNG.integers(-3, 4, (4, 64, 80)).astype(ml_dtypes.bfloat16)
    b = b[:, :, :n]
    wide = np.full((150, 88), 7, ml_dtypes.bfloat16)
    kernels.grouped_matmul(a, b, offsets, wide[:, :n])
    for e in range(4):
        rows = slice(offsets[e], offsets[e + 1])
        want = a[rows].astype(np.float32) @ b[e].astype(np.float32)
        assert offsets[e] == offsets[e + 1] or np.array_equal(wide[rows, :n].astype(np.float32), want)
    assert (wide[:, n:] == 7).all() and (wide[:3] == 7).all() and (wide[140:] == 7).all()
    stacked = np.full((4, 80, 88), 7, ml_dtypes.bfloat16)
    kernels.batched_matmul(b.transpose(0, 2, 1), b, out=stacked[:, :n, :n])
    want = (b.transpose(0, 2, 1).astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(stacked[:, :n, :n], want)
    assert (stacked[:, :n, n:] == 7).all() and (stacked[:, n:] == 7).all()
