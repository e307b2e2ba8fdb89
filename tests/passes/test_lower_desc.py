"""Which descriptors stay with TMA, and that the others mean the same through pointers."""
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tilejit.errors import CompilationError
from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.axis import analyse
from tilejit.passes.lower_desc import lower_desc
from tilejit.passes.simplify import simplify

KERNEL = """
kernel @f(%a: ptr<bf16>, %o: ptr<bf16>, %M: int32, %K: int32, %i: int32, %j: int32) {
  %pid = program_id {axis=0} : int32
  %1 = const {value=1} : int32
  SETUP
  %d = make_desc BASE, ROWS, %K, STRIDE, INNER {block_shape=(4, COLS), padding="nan"}
  %e = make_desc %o, %M, %K, %K, %1 {block_shape=(4, 8), padding="zero"}
  %t = desc_load %d, %i, %j
  store_here
  return
}
"""


def kernel(setup="", base="%a", rows="%M", stride="%K", inner="%1", cols=8, store="desc_store %e, %t, %i, %j"):
    text = KERNEL.replace("SETUP", setup).replace("BASE", base).replace("ROWS", rows).replace("STRIDE", stride)
    return parse_function(text.replace("INNER", inner).replace("COLS", str(cols)).replace("store_here", store))


def lowered(fn):
    verify(fn)
    lower_desc(fn)
    verify(fn)
    simplify(fn)
    verify(fn)
    return [op.name for op in walk(fn.body)], fn.attrs.get("report", [])


def test_arguments_and_arithmetic_on_them_stay():
    names, report = lowered(kernel("%s = add %M, %K\n  %r = idiv %s, %K\n  %m = minimum %r, %M", rows="%m"))
    assert "desc_load" in names and "desc_store" in names and report == []


@pytest.mark.parametrize("kwargs, why", [
    ({"setup": "%s = mul %pid, %K", "stride": "%s"}, "depend on program_id"),
    ({"setup": "%l = load %a\n  %s = cast %l {dtype=int32}", "rows": "%s"}, "depend on load"),
    ({"setup": "%b = ptr_add %a, %pid", "base": "%b"}, "base is not a kernel argument"),
    ({"setup": "%s = const {value=12} : int32", "stride": "%s"}, "a stride of 12 elements is 24 bytes"),
    ({"inner": "%K"}, "innermost stride is not known to be 1"),
    ({"cols": 4, "store": "%n = arange {start=0, end=4}"}, "innermost block is 8 bytes"),
])
def test_why_a_descriptor_goes_through_pointers(kwargs, why):
    names, report = lowered(kernel(**kwargs))
    assert "desc_load" not in names
    assert len(report) == 1 and report[0].startswith("descriptor d goes") and why in report[0]


@pytest.mark.parametrize("use, kept", [
    ("%t2 = desc_load %d, %i, %n8\n  desc_store %e, %t2, %i, %j", True), ("%t2 = desc_load %d, %n2, %n8\n  desc_store %e, %t2, %i, %j", True),
    ("%t2 = desc_load %d, %i, %n2", False), ("%t2 = desc_load %d, %i, %n4", False), ("desc_store %d, %t, %n8, %n8", True), ("desc_store %d, %t, %n2, %i", False),
    ("desc_store %d, %t, %i, %n8", True), ("desc_atomic %d, %t, %n2, %n8 {kind=\"add\"}", False)])
def test_constant_offsets_decide(use, kept):
    fn = kernel("%n8 = const {value=8} : int32\n  %n4 = const {value=4} : int32\n  %n2 = const {value=-2} : int32", store=use)
    names, report = lowered(fn)
    assert ("desc_load" in names or "desc_store" in names) == kept and len(report) == (not kept)
    assert kept or "a block starts at byte" in report[0] or "starts before the tensor" in report[0]


@pytest.mark.parametrize("attr, why", [
    ("%K: int32 {divisible=4}", "its stride K is a multiple of 4 elements only"),
    ("%K: int32 {divisible=8}", None),
    ("%a: ptr<bf16> {divisible=2}", "its base a is aligned to 2 bytes only"),
    ("%a: ptr<bf16> {divisible=16}", None),
])
def test_argument_facts_decide(attr, why):
    name = attr.split(" {")[0]
    fn = kernel()
    fn.arg_attrs[[a.name for a in fn.body.args].index(name[1:name.index(":")])] = {
        "divisible": int(attr.split("=")[1][:-1])}
    report = lowered(fn)[1]
    assert [why in line for line in report if line.startswith("descriptor d")] == ([True] if why else [])


@pytest.mark.parametrize("i, j", [(0, 0), (3, 2), (-2, 5), (9, 0)])
def test_pointers_mean_the_same(i, j):
    a = np.arange(30, dtype=np.float32).reshape(5, 6).astype(ml_dtypes.bfloat16)
    results = []
    for lower in (False, True):
        fn = kernel("%s = add %K, %pid", stride="%s")
        if lower:
            assert "load" in lowered(fn)[0]
        o = np.zeros((5, 6), ml_dtypes.bfloat16)
        evaluate(fn, 1, {"a": a, "o": o, "M": 5, "K": 6, "i": i, "j": j})
        results.append(o.astype(np.float32))
    np.testing.assert_array_equal(*results)
    if i == j == 0:
        assert np.isnan(results[0]).sum() == 0 and results[0][3, 5] == 23


def test_no_tma_parameter():
    fn = parse_function("""
kernel @f(%a: desc<fp32[8], no_tma> {padding="nan"}, %b: desc<fp32[8], no_tma>, %i: int32) {
  %t = desc_load %a, %i
  desc_store %b, %t, %i
  return
}
""")
    names, report = lowered(fn)
    assert not {"desc_load", "desc_store", "desc_stride"} & set(names) and len(report) == 2
    store = next(op for op in walk(fn.body) if op.name == "store")
    assert analyse(fn)[store.operands[0]].contiguity == (8,)     # the host takes no other last strides than 1
    a, b = np.arange(5, dtype=np.float32), np.zeros(12, np.float32)
    args = {k: SimpleNamespace(base=v, shape=v.shape, strides=(1,), block_shape=(8,)) for k, v in
            {"a": a, "b": b}.items()}
    evaluate(fn, 1, {**args, "i": 2})
    np.testing.assert_array_equal(b, [0, 0, 2, 3, 4, *[float("nan")] * 5, 0, 0])


def test_queries_of_a_made_descriptor_are_its_operands():
    fn = kernel("", store="%x = desc_shape %d {dim=0}\n  %y = desc_stride %d {dim=0}\n  %b = desc_base %d\n"
                          "  %z = ptr_add %b, %y\n  %v = cast %x {dtype=bf16}\n  store %z, %v")
    names, _ = lowered(fn)
    assert not {"desc_shape", "desc_stride", "desc_base"} & set(names)


def test_descriptor_chosen_at_run_time_is_an_error():
    fn = parse_function("""
kernel @f(%a: desc<fp32[8]>, %b: desc<fp32[8]>, %c: int1, %i: int32) {
  %d = if %c : desc<fp32[8]> {
    yield %a
  } {
    yield %b
  }
  %t = desc_load %d, %i
  desc_store %a, %t, %i
  return
}
""")
    with pytest.raises(CompilationError, match="chosen while the kernel runs"):
        lower_desc(fn)


def test_facts_are_those_of_the_function_before_anything_is_rewritten():
    """The first load becomes pointers; whether the second descriptor is worth writing asks about the whole function."""
    fn = parse_function("""
kernel @f(%a: ptr<fp32>, %o: ptr<fp32>, %M: int32, %K: int32, %i: int32) {
  %pid = program_id {axis=0} : int32
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %s = mul %pid, %K
  %d = make_desc %a, %M, %K, %s, %1 {block_shape=(4, 8), padding="zero"}
  %t = desc_load %d, %i, %i
  %u = neg %t
  for %0, %M, %1 {(%n: int32)
    %b = ptr_add %a, %pid
    %e = make_desc %b, %M, %K, %s, %1 {block_shape=(4, 8), padding="zero"}
    for %0, %M, %1 {(%m: int32)
      %v = desc_load %e, %m, %i
      %w = add %u, %v
      %x = make_desc %o, %M, %K, %K, %1 {block_shape=(4, 8), padding="zero"}
      desc_store %x, %w, %m, %i
      yield
    }
    yield
  }
  return
}
""")
    names, report = lowered(fn)
    assert "desc_load" not in names and [line.split()[1] for line in report] == ["d", "e"]
