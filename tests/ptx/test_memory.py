"""Global loads, stores and atomics: widths, masks, hints, copies of elements, old values."""
import numpy as np
import pytest
from hand_built import Kernel, same
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shape import layouts

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked
from tilejit.runtime import compile as line

ALL = [t for t in T.DTYPES.values() if t != T.tf32]


def data(t, n, seed=0):
    rng = np.random.default_rng(seed)
    if t == T.int1:
        return rng.random(n) < 0.5
    if t.is_float:
        return numeric.round_to(rng.normal(size=n), t)
    return rng.integers(-100 if t.is_signed else 0, 100, n).astype(numeric.np_dtype(t))


@pytest.mark.parametrize("t", ALL, ids=str)
def test_every_width(t):
    """One to sixteen bytes an access: copies, masked copies, and masked with other values."""
    n, vec = 512, 1
    while vec * t.bytes <= 16:
        names = ("y", "masked", "other")
        k = Kernel(1, x=(data(t, n), t), o=(data(t, n, 1), t), m=(np.repeat(data(T.int1, n // vec), vec), T.int1),
                   **{name: (data(t, n, 2), t) for name in names})
        layout = blocked((n,), 1, vec)
        p, mask, other = k.pointers("x", layout), k.load("m", layout), k.load("o", layout)
        k.store("y", k("load", p, vec=vec), vec=vec)
        k.store("masked", k("load", p, mask, vec=vec), vec=vec)
        k.op("store", k.pointers("other", layout), k("load", p, mask, other, vec=vec), mask, vec=vec)
        same(*k.run())
        text, _ = k.ptx()
        size = vec * t.bytes
        wide = {8: ".v2.b32", 16: ".v4.b32"} if t.bytes < 8 else {16: ".v2.b64"}
        assert size not in wide or f"ld.global{wide[size]}" in text and f"st.global{wide[size]}" in text
        vec *= 2


@settings(max_examples=30, deadline=None)
@given(layouts((8, 16)), st.sampled_from([T.int8, T.fp32]))
def test_one_thread_writes_an_element(layout, t):
    """Of the holders of an element one stores it and one increments its counter."""
    k = Kernel(2, x=(data(t, 128), t), y=(np.zeros(128, numeric.np_dtype(t)), t),
               count=(np.zeros(128, np.int32), T.int32))
    k.store("y", k.load("x", layout))
    one = k.const(1, T.Tile((8, 16), T.int32, layout))
    k("atomic_rmw", k.pointers("count", layout), one, kind="add", sem="relaxed", scope="gpu")
    same(*k.run(assemble=False))


@pytest.mark.parametrize("attrs, opcode", [
    ({"cache": ".ca"}, "ld.global.ca"), ({"cache": ".cg"}, "ld.global.cg"), ({"cache": "cs"}, "ld.global.cs"),
    ({"cache": ".cv"}, "ld.global.cv"), ({"evict": "evict_last"}, "ld.global.L1::evict_last"),
    ({"evict": "evict_first"}, "ld.global.L1::evict_first"), ({"volatile": True}, "ld.volatile.global")])
def test_load_hints(attrs, opcode):
    k = Kernel(1, x=(data(T.fp32, 128), T.fp32), y=(np.zeros(128, np.float32), T.fp32))
    layout = blocked((128,), 1, 4)
    k.store("y", k.load("x", layout, vec=4, **attrs), vec=4)
    same(*k.run())
    assert f"{opcode}.v4.b32" in k.ptx()[0]


@pytest.mark.parametrize("attrs, opcode", [
    ({"cache": ".wb"}, "st.global.wb"), ({"cache": ".wt"}, "st.global.wt"), ({"cache": ".cs"}, "st.global.cs"),
    ({"evict": "evict_first"}, "st.global.L1::evict_first")])
def test_store_hints(attrs, opcode):
    k = Kernel(1, x=(data(T.fp32, 128), T.fp32), y=(np.zeros(128, np.float32), T.fp32))
    k.store("y", k.load("x", blocked((128,), 1, 4)), vec=4, **attrs)
    same(*k.run())
    assert f"{opcode}.v4.b32" in k.ptx()[0]


def test_an_unknown_hint_is_an_error():
    k = Kernel(1, x=(data(T.fp32, 32), T.fp32))
    k.load("x", blocked((32,), 1), cache=".zz")
    with pytest.raises(CompilationError, match="unknown cache hint"):
        k.ptx()


@pytest.mark.parametrize("t", ALL, ids=str)
def test_scalars(t):
    k = Kernel(2, x=(data(t, 4), t), y=(np.zeros(1, numeric.np_dtype(t)), t), m=(np.array([False]), T.int1),
               z=(np.zeros(1, numeric.np_dtype(t)), t))
    v = k("load", k("ptr_add", k.args["x"], k.int(3)))
    k.store("y", v)
    k.store("z", k("load", k.args["x"], k("load", k.args["m"]), v))
    same(*k.run())


@pytest.mark.parametrize("t", ALL, ids=str)
def test_scalar_parameters(t):
    value = data(t, 3, 4)[2]
    k = Kernel(1, {"v": (value, t)}, y=(np.zeros(64, numeric.np_dtype(t)), t))
    k.store("y", k.tile("splat", k.args["v"], layout=blocked((64,), 1), shape=(64,)))
    same(*k.run())


# -- atomics --------------------------------------------------------------------------------------------
KINDS = [(k, t) for t in (T.int32, T.uint32, T.int64, T.uint64)
         for k in ("add", "max", "min", "and", "or", "xor", "xchg")]
KINDS += [(k, t) for t in (T.fp32, T.fp64) for k in ("add", "max", "min", "xchg")]
KINDS += [("add", T.fp16), ("add", T.bf16)]


@pytest.mark.parametrize("kind, t", KINDS, ids=str)
def test_read_modify_write(kind, t):
    """New memory and the old values, with a mask, on distinct addresses."""
    n = 256
    before, value = data(t, n), data(t, n, 1)
    if t.is_float:
        before[:6] = [0.0, -0.0, np.inf, -np.inf, -1.0, 1.0]
        value[:6] = [-0.0, 0.0, 1.0, -1.0, np.inf, np.inf]
        if kind != "add":
            value[6:9] = np.nan if kind != "xchg" else 1
    k = Kernel(2, x=(before, t), v=(value, t), m=(data(T.int1, n), T.int1), old=(data(t, n, 3), t))
    layout = blocked((n,), 2, 2)
    old = k("atomic_rmw", k.pointers("x", layout), k.load("v", layout), k.load("m", layout), kind=kind,
            sem="acq_rel", scope="gpu")
    k.store("old", old)
    same(*k.run())


@pytest.mark.parametrize("t", [T.int32, T.int64, T.fp32, T.fp16], ids=str)
def test_compare_and_swap(t):
    x, c = data(t, 128), data(t, 128)
    c[::3] = x[::3] + 1
    k = Kernel(2, x=(x, t), c=(c, t), v=(data(t, 128, 5), t), old=(np.zeros_like(x), t))
    layout = blocked((128,), 2)
    k.store("old", k("atomic_cas", k.pointers("x", layout), k.load("c", layout), k.load("v", layout),
                     sem="acquire", scope="sys"))
    same(*k.run())


def every_thread(k, name, value):
    """Store what each thread holds of a scalar, at the thread's own index."""
    own = LinearLayout.from_bases({"register": [], "lane": [(1 << i,) for i in range(5)],
                                   "warp": [(32 << i,) for i in range(k.num_warps.bit_length() - 1)]},
                                  (32 * k.num_warps,))
    k.store(name, k.tile("splat", value, layout=own, shape=own.shape))


def test_a_scalar_atomic_happens_once_and_all_threads_know():
    k = Kernel(4, x=(np.array([5], np.int32), T.int32), y=(np.zeros(128, np.int32), T.int32),
               tickets=(np.zeros(3, np.int32), T.int32))
    old = k("atomic_rmw", k.args["x"], k.int(1), kind="add", sem="acq_rel", scope="gpu")
    every_thread(k, "y", old)
    k.op("store", k("ptr_add", k.args["tickets"], k("sub", old, k.int(5))), old)
    same(*k.run(grid=3))


@settings(max_examples=40, deadline=None)
@given(layouts((4, 8), 4), st.sampled_from([T.int32, T.int64, T.fp16]), st.integers(0, 9))
def test_copies_get_the_old_value(layout, t, seed):
    """Every holder of an element sees what its one atomic saw: a thread that does not traps."""
    k = Kernel(4, x=(data(t, 32), t), y=(np.zeros(32, numeric.np_dtype(t)), t))
    one = k.const(1, T.Tile((4, 8), t, layout))
    old = k("atomic_rmw", k.pointers("x", layout), one, kind="add", sem="relaxed", scope="gpu")
    k.store("y", old)
    k.op("debug_barrier")
    first = k.load("y", layout, volatile=True)               # what the storing holder has, in all of them
    k.op("device_assert", k("cmp", old, first, pred="eq"), message="a copy differs")
    same(*k.run(assemble=False, policy="random", seed=seed))


@pytest.mark.parametrize("op, operands, attrs, words", [
    ("atomic_rmw", (T.fp32,), {"kind": "and"}, "integers"),
    ("atomic_rmw", (T.int16,), {"kind": "add"}, "32- and 64-bit"),
    ("atomic_rmw", (T.fp16,), {"kind": "max"}, "use fp32 or fp64"),
    ("atomic_cas", (T.int8, T.int8), {}, "16 to 64 bits"),
    ("atomic_rmw", (T.int32,), {"kind": "add", "scope": "world"}, "scope")], ids=str)
def test_what_has_no_atomic(op, operands, attrs, words):
    k = Kernel(1, x=(data(operands[0], 4), operands[0]))
    k(op, k.args["x"], *(k.const(1, t) for t in operands), **{"sem": "relaxed", "scope": "gpu", **attrs})
    with pytest.raises(CompilationError, match=words):
        k.ptx()


@tilejit.kernel(do_not_specialize=("M", "N"))
def ragged_halves(x, out, M, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16), (at // 64 < M) & (at % 64 < N))


def test_a_kernel_has_one_text():
    """Whatever the addresses are of the objects that stand for it."""
    k = ragged_halves.compile("*fp32", "*bf16", "int32", "int32", B=512)
    texts = {line.emit(line.schedule(line.tile_ir(k.kernel, k.args, k.options)))[0] for _ in range(16)}
    assert len(texts) == 1 and texts.pop().count("or.pred") == 2
