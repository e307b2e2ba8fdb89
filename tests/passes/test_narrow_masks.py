"""Masks of 64-bit indices are compared in 32 bits where that says the same."""
import numpy as np
import pytest

from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.narrow_masks import narrow_masks

LAYOUT = """#l = <64 register=[[8],[16],[32]] lane=[[1],[2],[4],[0],[0]] warp=[]>
#m = <64x1 register=[[8,0],[16,0],[32,0]] lane=[[1,0],[2,0],[4,0],[0,0],[0,0]] warp=[]>
"""
TEXT = LAYOUT + """kernel @k(%y: ptr<int8>, %start: WIDE, %n: WIDE) {num_warps=1} {
  %r = arange {start=0, end=64} : int32[64, #l]
  %w = cast %r {dtype=int64} : int64[64, #l]
  FIRST
  %s = splat %first {shape=(64,)} : int64[64, #l]
  %o = add %s, %w : int64[64, #l]
  %limit = splat %last {shape=(64,)} : int64[64, #l]
  %c = cmp SIDES {pred="PRED"} : int1[64, #l]
  %b = cast %c {dtype=int8} : int8[64, #l]
  %z = splat %y {shape=(64,)} : ptr<int8>[64, #l]
  %p = ptr_add %z, %r : ptr<int8>[64, #l]
  store %p, %b {cache="", evict="", vec=1}
  return
}
"""
NARROW = "%a = cast %start {dtype=int64} : int64\n %first = mul %a, %a : int64\n %last = cast %n {dtype=int64} : int64"
WIDE = "%zero = const {value=0} : int64\n %first = add %start, %zero : int64\n %last = add %n, %zero : int64"


def made(first: str, wide: str, pred: str, sides: str = "%o, %limit"):
    text = TEXT.replace("FIRST", first).replace("WIDE", wide).replace("PRED", pred).replace("SIDES", sides)
    fn = narrow_masks(parse_function(text))
    verify(fn)
    return fn, next(op for op in walk(fn.body) if op.name == "cmp")


@pytest.mark.parametrize("sides", ["%o, %limit", "%limit, %o"])
@pytest.mark.parametrize("pred", ["lt", "le", "gt", "ge"])
def test_a_comparison_in_32_bits_is_the_one_in_64(pred, sides):
    fn, cmp = made(NARROW, "int32", pred, sides)
    assert all(str(v.type).startswith("int32") for v in cmp.operands)
    compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[pred]
    for start in (0, 5, 40, 46341, -(1 << 31)):
        for n in (start * start + d for d in (-1, 0, 1, 30, 63, 64, 65, 1000)):
            if not -(1 << 31) <= n < 1 << 31:
                n = (1 << 31) - 1
            out = np.zeros(64, np.int8)
            evaluate(fn, 1, {"y": out, "start": start, "n": n})
            index = start * start + np.arange(64, dtype=np.int64)
            want = compare(index, n) if sides.startswith("%o") else compare(n, index)
            assert (out == want).all(), (start, n)


@pytest.mark.parametrize("pred", ["lt", "le", "gt", "ge"])
def test_two_indices_are_compared_in_32_bits(pred):
    """Rows with columns, as a causal mask does: the side of fewer registers has the difference of both starts added."""
    rows = "#r = <8 register=[[1]] lane=[[2],[4],[0],[0],[0]] warp=[]>\n#c = <16 register=[[1],[2]] " \
        "lane=[[0],[0],[4],[8],[0]] warp=[]>\n#rc = <8x1 register=[[1,0]] lane=[[2,0],[4,0],[0,0],[0,0],[0,0]] warp=[]>\n" \
        "#cc = <1x16 register=[[0,1],[0,2]] lane=[[0,0],[0,0],[0,4],[0,8],[0,0]] warp=[]>\n" \
        "#t = <8x16 register=[[0,1],[0,2],[1,0]] lane=[[2,0],[4,0],[0,4],[0,8],[0,0]] warp=[]>\n"
    sides = {x: f"""
  %{x}r = arange {{start=0, end={size}}} : int32[{size}, #{x}]
  %{x}w = cast %{x}r {{dtype=int64}} : int64[{size}, #{x}]
  %{x}s = splat %{x}from {{shape=({size},)}} : int64[{size}, #{x}]
  %{x}o = add %{x}s, %{x}w : int64[{size}, #{x}]
  %{x}e = expand_dims %{x}o {{axis={axis}}} : int64[{shape}, #{x}c]
  %{x} = broadcast %{x}e {{shape=(8, 16)}} : int64[8x16, #t]
  %{x}i = expand_dims %{x}r {{axis={axis}}} : int32[{shape}, #{x}c]""" for x, size, axis, shape in (
        ("r", 8, 1, "8x1"), ("c", 16, 0, "1x16"))}
    fn = narrow_masks(parse_function(rows + """kernel @k(%y: ptr<int8>, %m: int32, %n: int32) {num_warps=1} {
  %rfrom = cast %m {dtype=int64} : int64
  %cfrom = cast %n {dtype=int64} : int64""" + sides["r"] + sides["c"] + """
  %mask = cmp %r, %c {pred="PRED"} : int1[8x16, #t]
  %b = cast %mask {dtype=int8} : int8[8x16, #t]
  %k = const {value=16, type=int32[8x1]} : int32[8x1, #rc]
  %ri2 = mul %ri, %k : int32[8x1, #rc]
  %rb = broadcast %ri2 {shape=(8, 16)} : int32[8x16, #t]
  %cb = broadcast %ci {shape=(8, 16)} : int32[8x16, #t]
  %at = add %rb, %cb : int32[8x16, #t]
  %z = splat %y {shape=(8, 16)} : ptr<int8>[8x16, #t]
  %p = ptr_add %z, %at : ptr<int8>[8x16, #t]
  store %p, %b {cache="", evict="", vec=1}
  return
}
""".replace("PRED", pred)))
    verify(fn)
    cmp = next(op for op in walk(fn.body) if op.name == "cmp")
    assert all(str(v.type).startswith("int32") for v in cmp.operands)
    added = [op.result.type for op in walk(fn.body) if op.name == "add"]
    assert any(x.shape == (8,) and x.elem.bits == 32 for x in added)
    compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[pred]
    far = 1 << 31
    for m, n in [(0, 0), (-far, far - 1), (far - 1, -far), *((100 + d, 100) for d in range(-20, 20))]:
        out = np.zeros((8, 16), np.int8)
        evaluate(fn, 1, {"y": out.reshape(-1), "m": m, "n": n})
        want = compare(m + np.arange(8)[:, None], n + np.arange(16)[None, :])
        assert (out == want).all(), (m, n)


def test_sums_that_may_wrap_stay():
    _, cmp = made(WIDE, "int64", "lt")
    assert all(str(v.type).startswith("int64") for v in cmp.operands)


def test_an_index_as_a_column():
    column = TEXT.replace("FIRST", NARROW).replace("WIDE", "int32").replace(
        '%c = cmp SIDES {pred="PRED"} : int1[64, #l]',
        '%oc = expand_dims %o {axis=1} : int64[64x1, #m]\n %lc = expand_dims %limit {axis=1} : int64[64x1, #m]\n'
        '%cc = cmp %oc, %lc {pred="lt"} : int1[64x1, #m]\n %c = reshape %cc {shape=(64,)} : int1[64, #l]')
    fn = narrow_masks(parse_function(column))
    verify(fn)
    cmp = next(op for op in walk(fn.body) if op.name == "cmp")
    assert all(str(v.type).startswith("int32[64x1") for v in cmp.operands)
    out = np.zeros(64, np.int8)
    evaluate(fn, 1, {"y": out, "start": 3, "n": 20})
    assert out.sum() == 11


def test_few_comparisons_stay():
    """Vectors that have one comparison for eight registers."""
    text = TEXT.replace('pred="PRED"', 'pred="lt", runs=2').replace("FIRST", NARROW).replace("WIDE", "int32")
    fn = narrow_masks(parse_function(text.replace("SIDES", "%o, %limit")))
    cmp = next(op for op in walk(fn.body) if op.name == "cmp")
    assert all(str(v.type).startswith("int64") for v in cmp.operands)
