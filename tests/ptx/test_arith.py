"""Elementwise arithmetic: every op in every dtype against its numpy meaning, on edge values."""
import re

import numpy as np
import pytest
from hand_built import Kernel, same

import tilejit
import tilejit.language as tl
from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.ir.table import OPS
from tilejit.ptx.emit import emitters

N = 256
INTS = [T.int8, T.int16, T.int32, T.int64, T.uint8, T.uint16, T.uint32, T.uint64]
FLOATS = [T.fp16, T.bf16, T.fp32, T.fp64]
EDGE = {T.fp16: 65504.0, T.bf16: 3.3895e38, T.fp32: 3.4028e38, T.fp64: 1.797e308}


def ints(t, seed, low=None, high=None):
    dtype = numeric.np_dtype(t)
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    low, high = info.min if low is None else low, info.max if high is None else high
    a = rng.integers(low, high, N, dtype, endpoint=True)
    small = rng.integers(max(low, -9), min(high, 9), N, dtype, endpoint=True)
    a = np.where(rng.random(N) < 0.5, a, small)
    a[:4] = [low, high, max(low, 1), max(low, min(high, 2))]
    return rng.permutation(a)


def floats(t, seed, low=-8.0, high=8.0, special=True):
    rng = np.random.default_rng(seed)
    a = rng.uniform(low, high, N)
    if special:
        a[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, EDGE[t], -EDGE[t]]
        a[8:16] = a[:8]
    return numeric.round_to(rng.permutation(a), t)


def apply(t, ops, operands, out=None):
    """Run ops [(label, name, operand names, attrs)] on the operands; label -> (meant, made)."""
    kernel = Kernel(2, **{n: (a, ty) for n, (a, ty) in operands.items()}, **{
        label: (np.zeros(N, numeric.np_dtype(out or t)), out or t) for label, *_ in ops})
    layout = kernel.layout((N,), 2)
    values = {n: kernel.load(n, layout) for n in operands}
    for label, name, names, attrs in ops:
        kernel.store(label, kernel(name, *(values[n] for n in names), **attrs))
    meant, made = kernel.run()
    return {label: (meant[label], made[label]) for label, *_ in ops}


def exact(results):
    same({n: m for n, (m, _) in results.items()}, {n: w for n, (_, w) in results.items()})


@pytest.mark.parametrize("t", INTS, ids=str)
def test_integers(t):
    binary = ["add", "sub", "mul", "idiv", "irem", "and", "or", "xor", "mulhi", "minimum", "maximum"]
    ops = [(f"{n}_", n, "ab", {}) for n in binary] + [(f"{n}_", n, "a", {}) for n in ("neg", "not", "abs")]
    ops += [("shl_", "shl", "as", {}), ("shr_", "shr", "as", {})]
    b = ints(t, 2)
    operands = {"a": (ints(t, 1), t), "b": (np.where(b == 0, 3, b).astype(b.dtype), t),
                "s": (ints(t, 3, 0, t.bits + 5), t)}
    # the one overflow of C division is undefined
    a = operands["a"][0]
    if t.is_signed:
        a[a == np.iinfo(a.dtype).min] += 1
    exact(apply(t, ops, operands))


@tilejit.kernel
def divided(x, quotients, rests, BY: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(quotients + at, tl.load(x + at) // BY)
    tl.store(rests + at, tl.load(x + at) % BY)


@pytest.mark.parametrize("by", [2, 8, 256, 2 ** 30])
def test_powers_of_two(by):
    """Quotients towards zero and their rests, of numbers of either sign, without a division."""
    x = ints(T.int32, 1)
    q, r = np.zeros_like(x), np.zeros_like(x)
    with tilejit.knobs(target="emulator"):
        divided[(1,)](x, q, r, by)
    wide = x.astype(np.int64)
    assert np.array_equal(q, np.sign(wide) * (abs(wide) // by)) and np.array_equal(r, wide - by * q.astype(np.int64))
    assert "div." not in divided.compile("*int32", "*int32", "*int32", by).ptx


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_floats_exact(t):
    ops = [(f"{n}_", n, "ab", {}) for n in ("add", "sub", "mul", "minimum", "maximum")]
    ops += [(f"{n}_nan", n, "ab", {"nan": True}) for n in ("minimum", "maximum")]
    ops += [(f"{n}_", n, "a", {}) for n in ("neg", "abs", "floor", "ceil")]
    ops += [("fma_", "fma", "abc", {}), ("div_ieee", "div", "ab", {"ieee": True})]
    ops += [("sqrt_ieee", "sqrt", "a", {"ieee": True})]
    exact(apply(t, ops, {n: (floats(t, i), t) for i, n in enumerate("abc")}))


@pytest.mark.parametrize("t", [*INTS, *FLOATS, T.int1], ids=str)
def test_compare_and_select(t):
    if t == T.int1:
        a, b = (np.random.default_rng(i).random(N) < 0.5 for i in (1, 2))
    else:
        a, b = (ints(t, i) if t.is_int() else floats(t, i) for i in (1, 2))
    b = np.where(np.arange(N) % 3 == 0, a, b).astype(a.dtype)
    preds = ["eq", "ne", "lt", "le", "gt", "ge"]
    exact(apply(t, [(p, "cmp", "ab", {"pred": p}) for p in preds], {"a": (a, t), "b": (b, t)}, T.int1))
    c = np.random.default_rng(5).random(N) < 0.5
    exact(apply(t, [("select_", "select", "cab", {})], {"a": (a, t), "b": (b, t), "c": (c, T.int1)}))


def test_booleans():
    a, b = (np.random.default_rng(i).random(N) < 0.5 for i in (1, 2))
    binary = ["and", "or", "xor", "add", "sub", "mul", "minimum", "maximum"]
    ops = [(f"{n}_", n, "ab", {}) for n in binary] + [(f"{n}_", n, "a", {}) for n in ("not", "neg", "abs")]
    exact(apply(T.int1, ops, {"a": (a, T.int1), "b": (b, T.int1)}))


# (op, attrs, low, high, relative and absolute error allowed in fp32)
FUNCTIONS = [("exp", -80, 80, 2e-5, 0), ("exp2", -100, 100, 1e-6, 0), ("log", 1e-3, 1e4, 3e-6, 2e-7),
             ("log2", 1e-3, 1e4, 3e-6, 2e-7), ("sqrt", 0, 1e4, 1e-6, 0), ("rsqrt", 1e-3, 1e4, 1e-6, 0),
             ("sin", -30, 30, 0, 4e-6), ("cos", -30, 30, 0, 4e-6), ("tanh", -12, 12, 0, 6e-7),
             ("erf", -5, 5, 0, 4e-7)]


@pytest.mark.parametrize("t", [T.fp16, T.bf16, T.fp32], ids=str)
@pytest.mark.parametrize("name, low, high, rel, absolute", FUNCTIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_functions(t, name, low, high, rel, absolute):
    if t == T.fp16:
        low, high = max(low, -9), min(high, 9)
        rel, absolute = rel + 2e-3, absolute + 1e-3
    if t == T.bf16:
        rel, absolute = rel + 1.6e-2, absolute + 8e-3
    (meant, made), = apply(t, [("y", name, "x", {})], {"x": (floats(t, 7, low, high, False), t)}).values()
    np.testing.assert_allclose(made.astype(np.float64), meant.astype(np.float64), rel, absolute)


@pytest.mark.parametrize("name, at", [
    ("exp", {np.inf: np.inf, -np.inf: 0.0, 0.0: 1.0, 200.0: np.inf, -200.0: 0.0}),
    ("exp2", {np.inf: np.inf, -np.inf: 0.0, 3.0: 8.0}),
    ("log", {0.0: -np.inf, np.inf: np.inf, 1.0: 0.0}), ("log2", {0.0: -np.inf, np.inf: np.inf, 8.0: 3.0}),
    ("sqrt", {0.0: 0.0, np.inf: np.inf, 4.0: 2.0}), ("rsqrt", {0.0: np.inf, np.inf: 0.0, 4.0: 0.5}),
    ("tanh", {np.inf: 1.0, -np.inf: -1.0, 0.0: 0.0, 50.0: 1.0, -50.0: -1.0}),
    ("erf", {np.inf: 1.0, -np.inf: -1.0, 0.0: 0.0, 10.0: 1.0}),
    ("sin", {0.0: 0.0}), ("cos", {0.0: 1.0})])
def test_limits(name, at):
    x = np.resize(np.array([*at, np.nan], np.float32), N)
    (_, made), = apply(T.fp32, [("y", name, "x", {})], {"x": (x, T.fp32)}).values()
    np.testing.assert_array_equal(made, np.resize(np.array([*at.values(), np.nan], np.float32), N))


@pytest.mark.parametrize("t", [T.fp16, T.bf16, T.fp32, T.fp64], ids=str)
def test_division(t):
    a, b = floats(t, 1, special=False), floats(t, 2, 0.5, 8, special=False)
    results = apply(t, [("div_", "div", "ab", {}), ("fmod_", "fmod", "ab", {})], {"a": (a, t), "b": (b, t)})
    meant, made = results["div_"]
    bound = {16: 8e-3, 32: 2.4e-7, 64: 0}[t.bits]
    np.testing.assert_allclose(made.astype(np.float64), meant.astype(np.float64), bound)
    exact({"fmod": results["fmod_"]})


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
def test_fp64(name):
    (meant, made), = apply(T.fp64, [("y", name, "x", {})], {"x": (floats(T.fp64, 1, 0.1, 9, False), T.fp64)}).values()
    np.testing.assert_allclose(made, meant, 4e-16)


@pytest.mark.parametrize("t", [*INTS, T.int1], ids=str)
def test_pointer_offsets(t):
    """Offsets extend by their own sign: each element is read through a pointer moved by it."""
    n = 100
    signed = t.family == "int"
    offsets = np.arange(N) % (2 if t == T.int1 else n) - (n // 2 if signed else 0)
    kernel = Kernel(1, x=(np.arange(n, dtype=np.int32), T.int32), o=(offsets.astype(numeric.np_dtype(t)), t),
                    y=(np.zeros(N, np.int32), T.int32))
    layout = kernel.layout((N,))
    base = kernel("ptr_add", kernel.args["x"], kernel.int(n // 2 if signed else 0))
    at = kernel("ptr_add", kernel.tile("splat", base, layout=layout, shape=(N,)), kernel.load("o", layout))
    kernel.store("y", kernel("load", at))
    same(*kernel.run())


@pytest.mark.parametrize("t, value", [(T.int8, -3), (T.uint8, 250), (T.int16, -300), (T.uint32, 2**32 - 1),
                                      (T.int64, -2**40), (T.uint64, 2**64 - 1), (T.fp32, 0.1), (T.fp64, -1e300),
                                      (T.fp16, np.inf), (T.bf16, 3.14), (T.fp8e4nv, 1.5), (T.fp8e5, -6.0),
                                      (T.int1, True), (T.int1, False), (T.fp32, float("nan"))], ids=str)
def test_constants(t, value):
    kernel = Kernel(1, y=(np.zeros(64, numeric.np_dtype(t)), t), z=(np.zeros(1, numeric.np_dtype(t)), t))
    kernel.store("y", kernel.const(value, T.Tile((64,), t, kernel.layout((64,)))))
    kernel.store("z", kernel.const(value, t))
    same(*kernel.run())


def test_every_synchronous_op_has_an_emitter():
    """All ops have one, but those that passes and scheduling replace."""
    replaced = {"desc_load", "row_load", "block_load", "desc_store", "desc_atomic", "promote_reuse",
                "fill", "await", "peek"}
    assert set(OPS) - set(emitters()) == replaced


@tilejit.kernel
def far_apart(x, y, n, W: tl.constexpr):
    """A row of x, by a number of it that has 64 bits."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, W)
    tl.store(y + row * 16 * W + at, tl.load(x + (n.to(tl.int64) - row) * 16 * W + at))


def test_addresses_of_64_bits_shift():
    """ptxas multiplies 64 bits in three instructions, and does not see that what is no number below zero has no sign."""
    made = far_apart.compile("*fp32:16", "*fp32:16", "int32", W=64, num_warps=1)
    assert not re.search(r"m(ul|ad)[.]lo[.]s64", made.ptx) and "shl.b64" in made.ptx
    assert made.ptx.count("cvt.s64.s32") == 1 == made.ptx.count("cvt.s64.u32")          # n may be below zero
    x, y = np.arange(4 * 1024, dtype=np.float32), np.zeros(4 * 1024, np.float32)
    with tilejit.knobs(target="emulator"):
        far_apart[(4,)](x, y, 3, W=64, num_warps=1)
    np.testing.assert_array_equal(y.reshape(4, 1024)[:, :64], x.reshape(4, 1024)[::-1, :64])
