"""Reductions and scans over random and named layouts: any region, several operands, every dtype."""
import numpy as np
import pytest
from hand_built import Kernel, same
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shape import layouts

from tilejit.errors import CompilationError
from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked, wgmma_accumulator
from tilejit.passes.layouts_rules import forward


def binary(name, **attrs):
    return lambda k: lambda a, b: [k(name, a, b, **attrs)]


def arg_max(k):
    """The larger value with its index; of equal values the left one's, so the two sides are not alike."""
    def region(a, i, b, j):
        left = k("cmp", a, b, pred="ge")
        return [k("select", left, a, b), k("select", left, i, j)]
    return region


def extreme(k, pred):
    """As `tl.argmax` or `tl.argmin`: a NaN loses, of equal values the one with the least index stays."""
    def region(a, i, b, j):
        tie = k("and", k("cmp", a, b, pred="eq"), k("cmp", i, j, pred="lt"))
        left = k("or", k("or", k("cmp", a, b, pred=pred), k("cmp", b, b, pred="ne")), tie)
        return [k("select", left, a, b), k("select", left, i, j)]
    return region


def affine(k):
    """x -> a x + b, composed: associative, not commutative, on wrapping integers."""
    def region(a, b, c, d):
        return [k("mul", a, c), k("add", k("mul", b, c), d)]
    return region


def folded(name, layout, operands, region, warps, **attrs):
    """The kernel of one fold; operands are (array, dtype)."""
    axis = attrs["axis"]
    out = layout.shape if name == "scan" else tuple(s for d, s in enumerate(layout.shape) if d != axis)
    n = int(np.prod(out))
    k = Kernel(warps, **{f"x{i}": x for i, x in enumerate(operands)},
               **{f"y{i}": (np.zeros(n, x.dtype), t) for i, (x, t) in enumerate(operands)})
    results = k.fold(name, [k.load(f"x{i}", layout) for i in range(len(operands))], region(k), **attrs)
    for i, r in enumerate(results):
        k.store(f"y{i}", r)
    return k


def ints(shape, t=T.int32, seed=0):
    dtype = numeric.np_dtype(t)
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, int(np.prod(shape)), dtype, endpoint=True)


SHAPES = [((64, 64), 4, wgmma_accumulator((64, 64), 4)), ((16, 64), 4, blocked((16, 64), 4, 4)),
          ((256,), 4, blocked((256,), 4, 2)), ((16,), 2, blocked((16,), 2)), ((4, 4), 4, blocked((4, 4), 4)),
          ((8, 4, 8), 2, blocked((8, 4, 8), 2, 2)), ((1024,), 16, blocked((1024,), 16, 2)),
          ((1024,), 32, blocked((1024,), 32)), ((2, 512), 32, blocked((2, 512), 32))]

CASES = [pytest.param(*row, axis, id=f"{'x'.join(map(str, row[0]))}-{axis}")
         for row in SHAPES for axis in range(len(row[0]))]


@pytest.mark.parametrize("shape, warps, layout, axis", CASES)
def test_sum(shape, warps, layout, axis):
    same(*folded("reduce", layout, [(ints(shape), T.int32)], binary("add"), warps, axis=axis).run())


@pytest.mark.parametrize("t", [T.int8, T.uint8, T.int16, T.uint32, T.int64, T.uint64], ids=str)
@pytest.mark.parametrize("name", ["add", "minimum", "maximum", "xor"])
def test_integers(t, name):
    layout = blocked((32, 8), 2, 2)
    same(*folded("reduce", layout, [(ints((32, 8), t), t)], binary(name), 2, axis=0).run())


@pytest.mark.parametrize("t", [T.fp16, T.bf16, T.fp32, T.fp64], ids=str)
@pytest.mark.parametrize("nan", [True, False])
def test_maximum(t, nan):
    x = np.random.default_rng(1).normal(size=1024)
    x[[3, 500, 700]] = [np.nan, np.inf, -np.inf]
    same(*folded("reduce", blocked((16, 64), 4, 2), [(numeric.round_to(x, t), t)],
                 binary("maximum", nan=nan), 4, axis=1).run())


def test_float_sum():
    x = np.random.default_rng(1).normal(size=4096).astype(np.float32)
    meant, made = folded("reduce", blocked((4, 1024), 4, 4), [(x, T.fp32)], binary("add"), 4, axis=1).run()
    np.testing.assert_allclose(made["y0"], meant["y0"], 1e-4, 1e-4)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_booleans(name):
    x = np.random.default_rng(1).random(512) < 0.5
    same(*folded("reduce", blocked((8, 64), 2), [(x, T.int1)], binary(name), 2, axis=1).run())


quick = settings(max_examples=40, deadline=None)


@quick
@given(layouts((8, 16)), st.sampled_from([0, 1]), st.integers(0, 9))
def test_random_layouts(layout, axis, seed):
    k = folded("reduce", layout, [(ints((8, 16)), T.int32)], binary("add"), 2, axis=axis)
    same(*k.run(assemble=False, policy="random", seed=seed))


def test_all_threads_agree():
    """Of equal maxima any index may come out, but the same one in every thread: they may branch on it."""
    x = np.resize(np.array([3, 7, 7, 1], np.int32), 256)
    k = Kernel(4, x=(x, T.int32), i=(np.arange(256, dtype=np.int32), T.int32), y=(np.zeros(1, np.int32), T.int32),
               z=(np.zeros(256, np.int32), T.int32))
    layout = blocked((256,), 4)
    v, i = k.fold("reduce", [k.load("x", layout), k.load("i", layout)], arg_max(k), axis=0)
    k.store("y", v)
    k.store("z", k.tile("splat", i, layout=layout, shape=(256,)))
    meant, made = k.run()
    assert made["y"][0] == 7 and len(set(made["z"].tolist())) == 1 and x[made["z"][0]] == 7


def extremes(layout, axis, warps, t, counted, value, pred):
    """A kernel of the extremes along one of two dimensions, with indices that count or any ones."""
    shape, rng = layout.shape, np.random.default_rng(1)
    x = rng.choice([-np.inf, -1, -0.0, 0, 1, np.nan], shape)
    if counted:
        x[:, 0] = x[0, :] = np.nan
    n = shape[1 - axis]
    k = Kernel(warps, x=(numeric.round_to(x, t).ravel(), t), i=(rng.permutation(x.size).astype(np.int32), T.int32),
               y=(numeric.round_to(np.zeros(n), t), t), z=(np.zeros(n, np.int32), T.int32))
    index = k.load("i", layout)
    if counted:
        row = k.tile("arange", layout=layout.reduce(1 - axis), start=3, end=3 + shape[axis])
        wide = k("expand_dims", row, axis=1 - axis)
        wide.type = wide.type.with_layout(forward(wide.op, row.layout))
        index = k.tile("broadcast", wide, layout=layout, shape=shape)
    v, i = k.fold("reduce", [k.load("x", layout), index], extreme(k, pred), axis=axis)
    if value:
        k.store("y", v)
    k.store("z", i)
    return k


@pytest.mark.parametrize("axis, counted, value, pred", [(0, True, False, "gt"), (0, False, True, "lt"),
                                                        (1, True, True, "gt"), (1, False, False, "lt")])
@pytest.mark.parametrize("shape, warps, layout", [r for r in SHAPES if len(r[0]) == 2])
def test_extremes(shape, warps, layout, axis, counted, value, pred):
    k = extremes(layout, axis, warps, (T.fp32, T.bf16, T.fp16)[(axis + warps // 4) % 3], counted, value, pred)
    same(*k.run())


@quick
@given(layouts((8, 16)), st.sampled_from([0, 1]), st.booleans(), st.booleans(), st.integers(0, 9))
def test_extremes_of_random_layouts(layout, axis, counted, value, seed):
    k = extremes(layout, axis, 2, T.fp32, counted, value, "gt")
    same(*k.run(assemble=False, policy="random", seed=seed))


def test_two_folds_share_scratch():
    x = ints((256,))
    layout = blocked((256,), 4)
    k = Kernel(4, x=(x, T.int32), y=(np.zeros(256, np.int32), T.int32))
    v = k.load("x", layout)
    (s,) = k.fold("reduce", [v], binary("add")(k), axis=0)
    w = k("xor", v, k.tile("splat", s, layout=layout, shape=(256,)))
    (m,) = k.fold("reduce", [w], binary("maximum")(k), axis=0)
    k.store("y", k("sub", w, k.tile("splat", m, layout=layout, shape=(256,))))
    for seed in range(4):
        same(*k.run(policy="random", seed=seed))


# -- scan -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, warps, layout, axis", CASES)
def test_prefix_sum(shape, warps, layout, axis, reverse):
    same(*folded("scan", layout, [(ints(shape), T.int32)], binary("add"), warps, axis=axis, reverse=reverse).run())


@quick
@given(layouts((8, 16)), st.sampled_from([0, 1]), st.booleans(), st.integers(0, 9))
def test_scan_keeps_the_order(layout, axis, reverse, seed):
    """Composition of affine maps needs every element at its place in the order."""
    x = [(ints((8, 16), seed=s), T.int32) for s in (1, 2)]
    k = folded("scan", layout, x, affine, 2, axis=axis, reverse=reverse)
    same(*k.run(assemble=False, policy="random", seed=seed))


@pytest.mark.parametrize("t", [T.int1, T.int8, T.uint16, T.int64], ids=str)
def test_scan_dtypes(t):
    x = np.random.default_rng(1).random(256) < 0.5 if t == T.int1 else ints((256,), t)
    same(*folded("scan", blocked((256,), 2, 2), [(x, t)], binary("xor"), 2, axis=0, reverse=False).run())


def test_mixed_bits_are_an_error():
    layout = LinearLayout.from_bases({"register": [(1, 1)], "lane": [(0, 2), (1, 0), (0, 4), (0, 8), (0, 16)],
                                      "warp": [(0, 1)]}, (2, 32))
    for name, extra in (("reduce", {}), ("scan", {"reverse": False})):
        with pytest.raises(CompilationError, match="one bit at a time"):
            folded(name, layout, [(ints((2, 32)), T.int32)], binary("add"), 2, axis=0, **extra).ptx()


def test_scans_meet_once_for_all_bits_behind_the_first_of_warps():
    """Rows over registers, lanes, warps and registers again: two barriers, and a vector of every chunk's totals."""
    layout = LinearLayout.parse("<64x32 register=[[0,1],[0,2],[0,4],[16,0],[32,0]] "
                                "lane=[[0,8],[0,16],[1,0],[2,0],[4,0]] warp=[[8,0]]>")
    k = folded("scan", layout, [(ints((64, 32)), T.int32)], binary("add"), 2, axis=0, reverse=False)
    same(*k.run())
    text, _ = k.ptx()
    assert text.count("bar.sync") == 2 and text.count("st.shared") == 8
