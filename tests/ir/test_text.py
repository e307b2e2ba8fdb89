"""The printer and the parser undo each other."""
import copy
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.errors import CompilationError, Loc
from tilejit.ir import Builder, Function
from tilejit.ir.text import parse_function, print_function, print_op
from tilejit.ir.types import DTYPES, Barrier, Buffer, Desc, Pending, Ptr, Tile, int32
from tilejit.layout.linear import LinearLayout

LOOP = """\
kernel @sum(%x: ptr<fp32> {divisible=16}, %n: int32) {num_warps=4, report=["a // b"]} {   // sum.py:3
  %pid = program_id {axis=0} : int32   // sum.py:5
  %zero = const {value=0.0} : fp32[64]
  %0 = const {value=0} : int32
  %acc = for %0, %n, %pid, %zero {num_stages=3} : fp32[64] {(%k: int32, %acc.1: fp32[64])   // sum.py:7
    %1 = cmp %k, %n {pred="lt"} : int1
    %2 = if %1 : fp32[64] {
      yield %acc.1
    } {
      %acc.2 = add %acc.1, %acc.1 : fp32[64]
      yield %acc.2
    }
    yield %2
  }
  %p = splat %x {shape=(64,)} : ptr<fp32>[64]
  store %p, %acc
  fence_async
  %A = alloc {name="A"} : buffer<2xbf16[64x64], swizzle=128, order=1x0>
  %3 = view %A, %pid : buffer<view bf16[64x64], swizzle=128, order=1x0>
  return
}
"""


def test_round_trip():
    assert print_function(parse_function(LOOP)) == LOOP


def test_structure_and_locations_survive():
    fn = parse_function(LOOP)
    assert fn.loc == Loc("sum.py", 3) and fn.arg_attrs == [{"divisible": 16}, {}]
    loop = fn.body.ops[3]
    assert loop.name == "for" and loop.loc == Loc("sum.py", 7)
    assert loop.result.name == "acc" and [a.name for a in loop.regions[0].args] == ["k", "acc"]
    assert loop.regions[0].ops[1].regions[1].terminator.operands[0].name == "acc"
    assert loop.regions[0].parent is loop and loop.parent is fn.body


def test_an_op_without_operands_ends_with_its_line():
    text = "kernel @f(%x: int32) {num_warps=4} {\n  debug_barrier\n  %0 = add %x, %x : int32\n  return\n}\n"
    assert print_function(parse_function(text)) == text


def test_types_may_be_left_out():
    fn = parse_function("kernel @f(%a: int32) {\n  %b = add %a, %a // note\n  %c = cmp %b, %a {pred=\"lt\"}\n"
                        "  return\n}\n")
    assert [str(op.result.type) for op in fn.body.ops[:2]] == ["int32", "int1"]


def test_print_op_names_the_values():
    fn = parse_function(LOOP)
    assert print_op(fn, fn.body.ops[5]) == "store %p, %acc"


@pytest.mark.parametrize("text, message", [
    ("kernel @f() {\n  %a = nosuch\n}", "line 2: no op is called nosuch"),
    ("kernel @f() {\n  %a = add %b, %b\n}", "line 2: %b is not defined here"),
    ("kernel @f(%a: int33) {\n}", "no type is called int33"),
    ("kernel @f(%a: int32, %b: fp32) {\n  %c = add %a, %b\n}", "operands differ, int32 and fp32"),
    ("kernel @f() {\n  %a = const {value=1} : int32[4, #l0]\n}", "layout #l0 is not listed"),
])
def test_errors_name_the_line(text, message):
    with pytest.raises(CompilationError, match=message):
        parse_function(text)


_DT = st.sampled_from(sorted(DTYPES.values(), key=str))
_DIMS = st.lists(st.sampled_from([1, 2, 16, 128]), min_size=1, max_size=5).map(tuple)
_TYPE = st.one_of(
    _DT, st.builds(Ptr, _DT), st.builds(Tile, _DIMS, st.one_of(_DT, st.builds(Ptr, _DT))),
    st.builds(Desc, _DT, _DIMS, st.booleans()), st.builds(Barrier, st.integers(1, 9), st.integers(1, 9)),
    st.builds(Pending, st.builds(Tile, _DIMS, _DT)),
    _DIMS.flatmap(lambda d: st.builds(Buffer, st.just(d), _DT, st.integers(0, 9), st.sampled_from([0, 128]),
                                      st.permutations(range(len(d))).map(tuple))))
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-2**64, 2**64), st.floats(), st.text(), _TYPE)
_DATA = st.recursive(_PLAIN, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
    st.dictionaries(st.from_regex(r"[a-z]\w{0,3}", fullmatch=True).filter(str.isascii), inner, max_size=2)),
    max_leaves=5)


def _same(a, b) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and repr(a) == repr(b)


@settings(max_examples=150, deadline=None)
@given(_DATA)
def test_any_plain_attribute_round_trips(data):
    fn = Function("f", [], [], attrs={"x": data})
    Builder(fn.body).op("return", note=data)
    back = parse_function(print_function(fn))
    assert _same(data, back.attrs["x"]) and _same(data, back.body.ops[0].attrs["note"])


def test_odd_names_become_printable():
    fn = Function("f", [int32, int32, int32], ["a.b", "a_b", "0x"])
    Builder(fn.body).op("return")
    text = print_function(fn)
    assert text.startswith("kernel @f(%a_b: int32, %a_b.1: int32, %0: int32)")
    assert print_function(parse_function(text)) == text


def test_unprintable_attribute_is_an_error():
    fn = Function("f", [], [], attrs={"plan": object()})
    with pytest.raises(TypeError, match="not plain data"):
        print_function(fn)



def test_layouts_are_listed_once_at_the_top():
    a = LinearLayout.from_bases({"register": [[1], [2]], "lane": [[4], [8], [16], [32], [64]]}, (128,))
    b = LinearLayout.from_bases({"register": [], "lane": [[1], [2], [4], [8], [16]], "warp": [[32], [64]]}, (128,))
    fn = Function("f", [int32], ["n"])
    at = Builder(fn.body)
    x = at.op("arange", start=0, end=128, result_types=[Tile((128,), int32, a)]).result
    y = at.op("add", x, x, result_types=[Tile((128,), int32, a)]).result
    at.op("convert", y, result_types=[Tile((128,), int32, b)])
    at.op("return")
    text = print_function(fn)
    assert text.splitlines()[0].startswith("#l0 = <128 register=[[1],[2]]")
    assert text.count("#l0 = ") == text.count("#l1 = ") == 1 and "add %0, %0 : int32[128, #l0]" in text
    back = parse_function(text)
    assert print_function(back) == text
    assert [op.result.type.layout for op in back.body.ops[:3]] == [a, a, b]


def test_a_dtype_is_one_object():
    """Dtypes are compared by identity: whoever copies or stores one, or a type made of it, gets that very object."""
    for t in DTYPES.values():
        assert copy.deepcopy(t) is t and copy.copy(t) is t and pickle.loads(pickle.dumps(t)) is t
    tile = Tile((64, 16), int32)
    assert pickle.loads(pickle.dumps(tile)) == tile and copy.deepcopy(Ptr(int32)) == Ptr(int32)
