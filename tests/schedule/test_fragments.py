"""Operands of mma.sync that go through shared memory stay there where registers are few, or where products follow."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param
from tilejit.ir import walk
from tilejit.ir.types import Ptr, fp32, int32
from tilejit.runtime.compile import schedule, tile_ir


@tilejit.jit
def rows_times(q, k, v, out, n, R: tl.constexpr, K: tl.constexpr, S: tl.constexpr):
    """out = sum over blocks of S rows of (q k^T) v, q held by every iteration."""
    i, j, s = tl.arange(0, R), tl.arange(0, K), tl.arange(0, S)
    held = tl.load(q + i[:, None] * K + j[None, :])
    acc = tl.zeros((R, K), tl.float32)
    for at in range(0, n, S):
        keys = tl.load(k + (at + s[:, None]) * K + j[None, :])
        scores = tl.dot(held, tl.trans(keys))
        acc = tl.dot(scores.to(held.dtype), tl.load(v + (at + s[:, None]) * K + j[None, :]), acc)
    tl.store(out + i[:, None] * K + j[None, :], acc)


@tilejit.jit
def twice(x, out, N: tl.constexpr):
    """x (x x^T): the first product's right operand is transposed on its way, the second's is x."""
    i = tl.arange(0, N)
    a = tl.load(x + i[:, None] * N + i[None, :])
    a = a + a
    tl.store(out + i[:, None] * N + i[None, :], tl.dot(tl.dot(a, tl.trans(a)).to(a.dtype), a))


def reads(kernel, warps, *args, **constants):
    """Which operands each product reads in shared memory."""
    names = list(kernel.source.signature.parameters)
    found = {n: a for n, a in zip(names, args)} | {n: Const(c) for n, c in constants.items()}
    fn = schedule(tile_ir(kernel.source, found, {"num_warps": warps}))
    kept = [line.split(" at ")[0] for line in fn.attrs["report"] if "mma.sync reads fragments of it" in line]
    return kept, [[type(v.type).__name__ for v in op.operands[:2]] for op in walk(fn.body) if op.name == "dot_mma"]


@pytest.mark.parametrize("rows, kept", [(128, True), (32, False)])
def test_what_a_loop_holds_stays_in_registers_where_there_is_room(rows, kept):
    pointer = Param(Ptr(tl.float16), 16)
    found, _ = reads(rows_times, 2, pointer, pointer, pointer, Param(Ptr(fp32), 16), Param(int32, 16), R=rows, K=128, S=32)
    assert ("held" in found) == kept


@pytest.mark.parametrize("size, kept", [(64, False), (128, True)])
def test_an_operand_whose_products_follow_takes_no_registers(size, kept):
    names, operands = reads(twice, 2, Param(Ptr(tl.float16), 16), Param(Ptr(fp32), 16), N=size)
    assert bool(names) == kept and kept == any("Buffer" in kinds for kinds in operands)


@tilejit.jit
def between(x, y, other, out, N: tl.constexpr):
    """exp2(x) is an operand of the last product, y one that is read before."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    wide = tl.exp2(tl.load(x + at).to(tl.float32))
    read = tl.load(y + at)
    tl.store(other + at, read.to(tl.float32) * 2)
    total = tl.dot(read, wide.to(read.dtype))
    tl.store(out + at, total)


def test_operands_are_written_where_nothing_else_needs_what_they_are_made_of():
    """Not where their products are: exp2(x) would be in registers meanwhile."""
    pointer, sums = Param(Ptr(tl.float16), 16), Param(Ptr(fp32), 16)
    found = {"x": pointer, "y": pointer, "other": sums, "out": sums, "N": Const(64)}
    fn = schedule(tile_ir(between.source, found, {"num_warps": 1}))
    names = [op.name for op in walk(fn.body) if op.name in ("local_store", "store", "dot_mma")]
    assert names.index("local_store") < names.index("store") < names.index("dot_mma")


@tilejit.jit
def product(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i[:, None] * N + i[None, :])
    tl.store(out + i[:, None] * N + i[None, :], tl.dot(a, a).to(a.dtype))


def test_sums_go_to_shared_memory_by_stmatrix():
    """Four words of a thread at a time, on their way to stores of whole vectors."""
    found = [product.compile("*fp16:16", "*fp16:16", N=64, num_warps=1, target=t).ptx for t in ("sm_90a", "sm_80")]
    assert ["stmatrix" in ptx for ptx in found] == [True, False]
    x = np.random.default_rng(0).integers(-3, 4, (64, 64)).astype(np.float16)
    out = np.zeros_like(x)
    with tilejit.knobs(target="emulator"):
        product[(1,)](x, out, 64, num_warps=1)
    assert np.array_equal(out, x @ x)


@pytest.mark.remarks("spills", "stack", reason="tiles that two warps have no registers for")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_results(dtype):
    """In the emulator, sanitized; fp32 as tf32, whose operands ldmatrix cannot transpose."""
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (64, 64)).astype(dtype)
    out = np.zeros((64, 64), np.float32)
    twice[(1,)](x, out, 64, num_warps=1)
    wide = 2 * x.astype(np.float64)
    assert np.array_equal(out, wide @ wide.T @ wide)
    other, y = np.zeros_like(out), x[::-1].copy()
    tilejit.check(between, (1,), x, y, other, out, 64, num_warps=1, seeds=[0]).check()
    between[(1,)](x, y, other, out, 64, num_warps=1)
    assert np.array_equal(other, 2 * y) and np.array_equal(out, y.astype(np.float64) @ np.exp2(x.astype(np.float64)))
    q, k, v = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((64, 64), (96, 64), (96, 64)))
    tilejit.check(rows_times, (1,), q, k, v, out, 96, 64, 64, 32, num_warps=2, seeds=[0]).check()
    rows_times[(1,)](q, k, v, out, 96, 64, 64, 32, num_warps=2)
    assert np.array_equal(out, q.astype(np.float64) @ k.T.astype(np.float64) @ v)
