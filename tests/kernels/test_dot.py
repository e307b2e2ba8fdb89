"""tl.dot of any size, dtype, precision and number of warps, against float64: drawn at random, run in the evaluator and,
assembled, in the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.testing import rel_error

BF16, F16, F32, F64, I8 = ml_dtypes.bfloat16, np.float16, np.float32, np.float64, np.int8
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
#: (dtype of a, of b, input_precision) and the relative error (of norms) that it may have.
KINDS = {("fp16", F16, F16, None): 1e-6, ("bf16", BF16, BF16, None): 1e-6, ("tf32", F32, F32, "tf32"): 2e-3,
         ("tf32x3", F32, F32, "tf32x3"): 3e-6, ("bf16x3", F32, F32, "bf16x3"): 3e-5,
         ("bf16x6", F32, F32, "bf16x6"): 1e-6, ("ieee", F32, F32, "ieee"): 1e-6, ("fp64", F64, F64, None): 1e-14,
         ("int8", I8, I8, None): 0.0, ("e4m3", E4M3, E4M3, None): 1e-3, ("e4m3 x e5m2", E4M3, E5M2, None): 1e-3}


@tilejit.kernel
def product(a, b, c, extra, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
            PRECISION: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr, END: tl.constexpr, OUT: tl.constexpr):
    """C[B] = END(A[B] @ B[B]) of whole tensors; A and B in memory as they are or transposed."""
    g, m = tl.arange(0, B)[:, None, None], tl.arange(0, M)
    n, k = tl.arange(0, N), tl.arange(0, K)
    if A_T:
        x = tl.load(a + g * (M * K) + k[None, :, None] * M + m[None, None, :]).permute(0, 2, 1)
    else:
        x = tl.load(a + g * (M * K) + m[None, :, None] * K + k[None, None, :])
    if B_T:
        y = tl.load(b + g * (K * N) + n[None, :, None] * K + k[None, None, :]).permute(0, 2, 1)
    else:
        y = tl.load(b + g * (K * N) + k[None, :, None] * N + n[None, None, :])
    if B == 1:
        x, y = x.reshape(M, K), y.reshape(K, N)
    z = tl.dot(x, y, input_precision=PRECISION, out_dtype=OUT)
    if B == 1:
        z = z.reshape(1, M, N)
    if END == "rows":
        z += tl.load(extra + m)[None, :, None].to(z.dtype)
    elif END == "columns":
        z += tl.load(extra + n)[None, None, :].to(z.dtype)
    elif END == "softmax":
        z = tl.exp((z - tl.max(z, 2)[:, :, None]).to(tl.float32))
        z = z / tl.sum(z, 2)[:, :, None]
    elif END == "chain":
        w = tl.load(b + g * 0 + n[None, :, None] * 0 + n[None, None, :])
        z = tl.dot(z.to(w.dtype), tl.broadcast_to(w, (B, N, N)), input_precision=PRECISION, out_dtype=OUT)
    if END == "trans":
        tl.store(c + g * (M * N) + n[None, :, None] * M + m[None, None, :], z.permute(0, 2, 1))
    else:
        tl.store(c + g * (M * N) + m[None, :, None] * N + n[None, None, :], z)


def drawn(seed):
    """One case: at most 2^17 multiplications, and 32 elements a thread of each tile."""
    rng = np.random.default_rng(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    while True:
        batch = int(2 ** max(0, rng.integers(-3, 4)))
        m, n, k = (int(2 ** rng.integers(0, 8)) for _ in range(3))
        warps = int(rng.choice([1, 2, 4, 8, 16]))
        if 256 <= batch * m * n * k <= 1 << 17 and batch * max(m * n, m * k, k * n) <= 1024 * warps:
            break
    end = str(rng.choice(["none", "none", "trans", "rows", "columns", "softmax", "chain"]))
    if end == "softmax" and kind[0] in ("int8", "fp64") or end == "chain" and kind[0] not in ("fp16", "bf16", "tf32"):
        end = "none"
    return rng, kind, (batch, m, n, k), warps, end, bool(rng.integers(2)), bool(rng.integers(2))


@pytest.mark.parametrize("seed", range(44))
def test_drawn(seed):
    rng, kind, (batch, m, n, k), warps, end, a_t, b_t = drawn(seed)
    _, da, db, precision = kind

    def matrix(rows, columns, dtype, turned):
        x = rng.integers(-8, 8, (batch, rows, columns)) if dtype == I8 else rng.standard_normal((batch, rows, columns))
        x = x.astype(dtype)
        return (np.ascontiguousarray(x.swapaxes(1, 2)) if turned else x), x.astype(np.float64)

    (a, x), (b, y) = matrix(m, k, da, a_t), matrix(k, n, db, b_t)
    extra = rng.standard_normal(max(m, n)).astype(np.float32)
    z = x @ y
    if end == "rows":
        z = z + extra[None, :m, None].astype(np.int32 if da == I8 else np.float32)
    elif end == "columns":
        z = z + extra[None, None, :n].astype(np.int32 if da == I8 else np.float32)
    elif end == "softmax":
        z = np.exp(z - z.max(2, keepdims=True))
        z /= z.sum(2, keepdims=True)
    elif end == "chain":
        first = b.reshape(-1)[:n].astype(np.float64)
        z = z.astype(da).astype(np.float64).sum(2, keepdims=True) * first
    elif end == "trans":
        z = z.swapaxes(1, 2)
    out = np.int32 if da == I8 else np.float64 if da == F64 else np.float32
    tolerance = KINDS[kind] * (20 if end in ("softmax", "chain") else 1)
    for target in ("evaluator", "emulator"):
        c = np.zeros(z.shape, out)
        with tilejit.knobs(target=target):
            product[(1,)](a, b, c, extra, batch, m, n, k, precision, a_t, b_t, end, None, num_warps=warps)
        assert rel_error(c, z) <= max(tolerance, 5e-3 if end == "chain" else 0), (target, kind[0], z.shape, k, warps, end)


@pytest.mark.parametrize("batch,m,n,k", [(1, 512, 8, 4), (1, 8, 1024, 2), (2, 4, 512, 4)])
def test_multiply_adds_of_many_rows_or_columns(batch, m, n, k):
    """Beyond 256 of them operands lie in scratch in several parts, as blocks of TMA do."""
    rng = np.random.default_rng(batch)
    a, b = (rng.standard_normal((batch, *s)).astype(F32) for s in ((m, k), (k, n)))
    c = np.zeros((batch, m, n), F32)
    with tilejit.knobs(target="emulator"):
        product[(1,)](a, b, c, np.zeros(1, F32), batch, m, n, k, "ieee", False, False, "none", None)
    assert rel_error(c, a.astype(F64) @ b.astype(F64)) < 1e-6


@tilejit.kernel
def promoted(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVERY: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, y = tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + n[:, None] * K + k[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y.T, max_num_imprecise_acc=EVERY))


def test_promoted_sums_are_added_apart():
    """As Triton's: one addition for each accumulator and each part of K; and the sums are nearer to the truth."""
    m, n, k = 64, 32, 256
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((r, k)).astype(E4M3) for r in (m, n))
    want, errors = a.astype(np.float64) @ b.astype(np.float64).T, {}
    for every in (None, 128, 32):
        c = np.zeros((m, n), np.float32)
        with tilejit.knobs(target="emulator"):
            promoted[(1,)](a, b, c, m, n, k, every)
            made = promoted.compile(a, b, c, m, n, k, every)
        assert made.ptx.count("add.rn.f32") == (0 if every is None else m * n // 128 * (k // every))
        errors[every] = rel_error(c, want)
    assert errors[32] < errors[None] / 2


def test_infinities_of_divided_numbers():
    """1 x inf + 1 x 1 is inf also where fp32 numbers are sums of parts, of which one is 0."""
    a, b = np.ones((1, 16, 16), np.float32), np.ones((1, 16, 16), np.float32)
    b[0, 0, :8] = np.inf
    for precision in ("tf32x3", "bf16x3", "bf16x6", "ieee"):
        for target in ("evaluator", "emulator"):
            c = np.zeros((1, 16, 16), np.float32)
            with tilejit.knobs(target=target):
                product[(1,)](a, b, c, a, 1, 16, 16, 16, precision, False, False, "none", None)
            assert np.array_equal(c[0], np.broadcast_to([np.inf] * 8 + [16.0] * 8, (16, 16))), (precision, target)


@tilejit.kernel
def of_two(a, b, c, DA: tl.constexpr, DB: tl.constexpr, ACC: tl.constexpr, OUT: tl.constexpr):
    x, y = tl.zeros((16, 32), DA), tl.zeros((32, 16), DB)
    z = tl.dot(x, y, out_dtype=OUT) if ACC is None else tl.dot(x, y, tl.zeros((16, 16), ACC), out_dtype=OUT)
    tl.store(c + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], z)


@pytest.mark.parametrize("da, db, acc, out, says", [
    (tl.int32, tl.int32, None, None, "Unsupported lhs dtype int32"),
    (tl.float16, tl.float16, None, tl.bfloat16, "out_dtype=bfloat16 is unsupported"),
    (tl.float16, tl.float16, tl.float16, tl.float32, "expected accumulator dtype fp32, got fp16"),
])
def test_what_does_not_go_together(da, db, acc, out, says):
    c = np.zeros((16, 16), np.float32)
    with pytest.raises(CompilationError, match=says):
        of_two.compile(c, c, c, da, db, acc, out)


@tilejit.kernel
def converted(a, b, c):
    i, k = tl.arange(0, 16), tl.arange(0, 32)
    x, y = tl.load(a + i[:, None] * 32 + k), tl.load(b + k[:, None] * 16 + i)
    tl.store(c + i[:, None] * 16 + i, tl.dot(x, y, input_precision="ieee"))


@pytest.mark.parametrize("da, db", [(np.float16, BF16), (E4M3, np.float16), (BF16, E4M3), (np.float32, np.float16),
                                    (np.int8, BF16), (np.float64, np.int8)])
def test_two_types_become_one_that_holds_both(da, db):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((32, 16)) * (1e30 if t is BF16 else 3) for t in (da, db))
    a, b = a.T.astype(da), b.astype(db)
    c = np.zeros((16, 16), np.float64)
    with tilejit.knobs(target="emulator"):
        converted[(1,)](np.ascontiguousarray(a), b, c)
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


@tilejit.kernel
def of_some(a, b, c, S: tl.constexpr, M: tl.constexpr, K: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, K)
    s = 0 if S == 1 else tl.arange(0, S)[:, None, None]
    x, y = tl.load(a + s * (M * K) + m[:, None] * K + k), tl.load(b + s * (M * K) + k[:, None] * M + m)
    tl.store(c + s * (M * M) + m[:, None] * M + m, tl.dot(x, y, depth=DEPTH, input_precision=PRECISION))


@pytest.mark.parametrize("s, m, k, depth, precision, dtype", [
    (1, 64, 1024, 96, None, np.float16), (2, 32, 1024, None, "tf32", np.float32),
    (1, 32, 512, None, "tf32x3", np.float32),
    (1, 32, 1024, None, "ieee", np.float32)])
def test_operands_that_do_not_fit_go_through_a_loop(s, m, k, depth, precision, dtype):
    """Also of some of K, batched, and in parts of which each would fit."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((s, m, k), (s, k, m)))
    c = np.zeros((s, m, m), np.float32)
    with tilejit.knobs(target="emulator"):
        of_some[(1,)](a, b, c, s, m, k, depth, precision)
    some = slice(depth)
    want = a[..., some].astype(np.float64) @ b[:, some].astype(np.float64)
    assert rel_error(c, want) < (1e-3 if precision == "tf32" else 1e-5)


@tilejit.kernel
def of_blocks(a, b, c, A: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    """A [A, M // A, K] or, A = 0, [M, 1, K], as a matrix."""
    m, k = tl.arange(0, M), tl.arange(0, K)
    if A:
        at = tl.arange(0, A)[:, None, None] * (M // A * K) + tl.arange(0, M // A)[None, :, None] * K + k
    else:
        at = m[:, None, None] * K + k
    z = tl.dot(tl.load(a + at).reshape(M, K), tl.load(b + (k[:, None] * M + m)[None]).reshape(K, M))
    tl.store(c + (m[:, None] * M + m)[None], z[None])


@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.remarks(
    "spills", "stack", reason="chunks are along the first dimension: two of 128 rows, 256 sums a thread"))])
def test_reshaped_operands_that_do_not_fit_go_through_a_loop(a):
    x, y = (np.random.default_rng(a).integers(-3, 4, (256, 256)).astype(np.float32) for _ in "xy")
    c = np.zeros((256, 256), np.float32)
    with tilejit.knobs(target="evaluator"):
        of_blocks[(1,)](x, y, c, a, 256, 256)
    np.testing.assert_array_equal(c, x @ y)


def test_an_accumulator_gives_the_result_its_type():
    c = np.zeros((16, 16), np.float16)
    assert "f16" in of_two.compile(c, c, c, tl.float16, tl.float16, tl.float16, None).ptx


def test_sums_that_do_not_fit_are_said_to():
    """2 x 256 x 128 of four warps: 256 registers a thread for each of the two, right all the same, and said in the report."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((2, n, 16)).astype(BF16) for n in (256, 128))
    c = np.zeros((2, 256, 128), np.float32)
    with tilejit.knobs(target="emulator"):
        args = (a, b, c, c, 2, 256, 128, 16, None, False, True, "none", None)
        product[(1,)](*args)
        report = product.compile(*args).report()
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)) < 1e-6
    assert "takes 256 registers a thread" in report


@tilejit.kernel
def halves(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float16)
    for i in range(0, K, BK):
        acc = tl.dot(tl.load(a + m[:, None] * K + i + k[None, :]), tl.load(b + n[:, None] * K + i + k[None, :]).T, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("m, n, unit", [(128, 64, "m64n64k16.f16.f16.f16"), (32, 16, "k16.row.col.f16.f16.f16.f16"),
                                        (8, 2, "k16.row.col.f16.f16.f16.f16")])
def test_sums_of_fp16(m, n, unit):
    """The tensor cores' own sums of fp16, two to a register, carried through a loop."""
    rng = np.random.default_rng(5)
    for k in (128, 0):
        a, b = (rng.standard_normal((r, k)).astype(F16) for r in (m, n))
        want = a.astype(np.float64) @ b.astype(np.float64).T
        for target in ("evaluator", "emulator"):
            c = np.ones((m, n), F16)
            with tilejit.knobs(target=target):
                halves[(1,)](a, b, c, m, n, k, 32)
            assert rel_error(c, want) < 2e-3 if k else not c.any()
        assert unit in halves.compile(a, b, c, m, n, k, 32).ptx or not k


@tilejit.kernel
def running(a, b, c, before, n, N: tl.constexpr, KEPT: tl.constexpr):
    """Sums of products, and, KEPT, what they were ahead of the last one."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    total = tl.zeros([N, N], tl.float32)
    last = total
    for k in range(n):
        new = tl.dot(tl.load(a + k * N * N + at), tl.load(b + k * N * N + at), total)
        if KEPT:
            last = total
        total = tl.where(new > 1e9, 0.0, new)    # so that the product is awaited in every iteration
    tl.store(c + at, total)
    tl.store(before + at, last)


@pytest.mark.parametrize("kept", [False, True])
def test_sums_that_something_else_needs(kept):
    """A loop's sum that only its product reads is added to where it is; any other is not lost."""
    rng, n = np.random.default_rng(3), 64
    a, b = (rng.standard_normal((3, n, n), F32).astype(BF16) for _ in range(2))
    c, before = np.zeros((n, n), F32), np.zeros((n, n), F32)
    with tilejit.knobs(target="emulator"):
        running[(1,)](a, b, c, before, 3, n, kept, num_warps=4)
    each = np.einsum("kij,kjl->kil", a.astype(F64), b.astype(F64))
    assert rel_error(c, each.sum(0)) < 1e-6
    assert rel_error(before, each[:2].sum(0)) < 1e-6 if kept else not before.any()
