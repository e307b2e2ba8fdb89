"""Simplify, text in, text out; and it never changes what a kernel computes."""
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_programs import structured

from tilejit import passes
from tilejit.errors import VerificationError
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.verify import verify
from tilejit.passes.simplify import simplify

HEAD = "kernel @f(%p: ptr<int32>, %n: int32, %m: int32, %q: ptr<fp32>) {\n"
PID = "%pid = program_id {axis=0} : int32\n"


def simplified(body: str) -> str:
    """The body of a kernel after simplify, dedented, without `return`."""
    fn = parse_function(HEAD + body + "\n  return\n}\n")
    verify(fn)
    simplify(fn)
    verify(fn)
    text = print_function(fn)
    assert print_function(simplify(parse_function(text))) == text, "a second run changes something"
    return "\n".join(line[2:] for line in text.splitlines()[1:-2])


def stored(expr: str, setup: str = "") -> str:
    """What `expr` becomes when its value %r is stored."""
    return simplified(f"{setup}\n  %r = {expr}\n  store %p, %r")


@pytest.mark.parametrize("expr, want", [
    ("add %n, %0", "store %p, %n"),
    ("add %0, %n", "store %p, %n"),
    ("sub %n, %0", "store %p, %n"),
    ("mul %n, %1", "store %p, %n"),
    ("idiv %n, %1", "store %p, %n"),
    ("and %n, %n", "store %p, %n"),
    ("or %n, %0", "store %p, %n"),
    ("shl %n, %0", "store %p, %n"),
    ("maximum %n, %n", "store %p, %n"),
    ("cast %n {dtype=int32}", "store %p, %n"),
    ("mul %n, %0", "%r = const {value=0} : int32\nstore %p, %r"),
    ("sub %n, %n", "%r = const {value=0} : int32\nstore %p, %r"),
    ("irem %n, %1", "%r = const {value=0} : int32\nstore %p, %r"),
    ("idiv %n, %8", "%0 = const {value=8} : int32\n%r = idiv %n, %0 : int32\nstore %p, %r"),
    ("idiv %pid, %8", PID + "%0 = const {value=3} : int32\n%r = shr %pid, %0 : int32\nstore %p, %r"),
    ("irem %pid, %8", PID + "%0 = const {value=7} : int32\n%r = and %pid, %0 : int32\nstore %p, %r"),
    ("idiv %8, %0", "%r = const {value=-1} : int32\nstore %p, %r"),
])
def test_integer_identities(expr, want):
    setup = ("  %0 = const {value=0} : int32\n  %1 = const {value=1} : int32\n  %8 = const {value=8} : int32\n"
             "  %pid = program_id {axis=0}")
    assert stored(expr, setup) == want


FLIPPED = """  %i = arange {start=0, end=256}
  %x = reshape %i {shape=(128, 2)}
  %s = reduce %x {axis=AXIS} {(%a: int32, %b: int32)
    %c = KIND %b, %a
    yield %c
  }
  %k = reshape %s {shape=SHAPE}
  %w = broadcast %k {shape=(128, 2)}
  %y = xor %w, %x
  %z = reshape %y {shape=(256,)}
  %p0 = splat %p {shape=(256,)}
  %p1 = ptr_add %p0, %i
  store %p1, %z"""


@pytest.mark.parametrize("kind, axis, shape, swaps", [("xor", 1, (128, 1), True), ("or", 1, (128, 1), False),
                                                      ("xor", 0, (1, 2), False)])
def test_a_pair_less_one_is_the_other(kind, axis, shape, swaps):
    text = simplified(FLIPPED.replace("KIND", kind).replace("AXIS", str(axis)).replace("SHAPE", str(shape)))
    assert ("xor_shuffle %x {axis=1, mask=1}" in text) == swaps == ("reduce" not in text)


@pytest.mark.parametrize("pred", ["ne", "eq"])
@pytest.mark.parametrize("end", [2, 3])
def test_truth_that_is_compared_with_a_bit(pred, end):
    text = simplified(f"""  %r = arange {{start=0, end={end}}}
  %n2 = splat %n {{shape=({end},)}}
  %c = cmp %n2, %r {{pred="lt"}}
  %d = cast %c {{dtype=int32}}
  %e = cmp %r, %d {{pred="{pred}"}}
  %p0 = splat %q {{shape=({end},)}}
  %p1 = ptr_add %p0, %r
  %f = cast %e {{dtype=fp32}}
  store %p1, %f""")
    assert ("xor %c" in text) == (end == 2) == ("cast %c" not in text)


def test_64_bit_quotients_of_numbers_that_fit_32_bits():
    setup = "  %pid = program_id {axis=0}\n  %a = cast %pid {dtype=int64}\n  %b = cast %n {dtype=int64}\n"
    for name in ("idiv", "irem"):
        text = simplified(f"{setup}  %r = {name} %a, %b\n  %s = cast %r {{dtype=int32}}\n  store %p, %s")
        assert f"= {name} %0, %1 : int32" in text
    wide = f"{setup}  %c = cast %m {{dtype=int64}}\n  %r = idiv %b, %c\n  %f = cast %r {{dtype=fp32}}\n  store %q, %f"
    assert "idiv %b, %c : int64" in simplified(wide)          # the least number by -1 fits 64 bits only


def test_constants_fold_and_sums_gather():
    assert stored("add %t, %b", "  %a = const {value=2147483647} : int32\n  %b = const {value=2} : int32\n"
                                "  %t = add %a, %n") == \
        "%0 = const {value=-2147483647} : int32\n%r = add %n, %0 : int32\nstore %p, %r"


def test_float_zero_is_kept_because_of_minus_zero():
    text = simplified("  %z = const {value=0.0} : fp32\n  %v = load %q\n  %r = add %v, %z\n  store %q, %r")
    assert "add %v, %z" in text


def test_splat_goes_through_shapes_and_constants_become_tiles():
    assert simplified("""\
  %z = const {value=4} : int32
  %t = splat %z {shape=(8,)}
  %u = expand_dims %t {axis=0}
  %v = broadcast %u {shape=(4, 8)}
  %w = splat %n {shape=(8,)}
  %x = expand_dims %w {axis=0}
  %y = broadcast %x {shape=(4, 8)}
  %s = add %y, %v
  %pp = splat %p {shape=(4, 8)}
  store %pp, %s""") == """\
%z = const {value=4} : int32
%0 = add %n, %z : int32
%s = splat %0 {shape=(4, 8)} : int32[4x8]
%pp = splat %p {shape=(4, 8)} : ptr<int32>[4x8]
store %pp, %s"""


BLOCKS = """\
  %pid = program_id {axis=0}
  %w = cast %pid {dtype=int64}
  %k = const {value=64} : int64
  %first = mul %w, %k
  %s = splat %first {shape=(64,)}
  %r = arange {start=0, end=64}
  %l = cast %r {dtype=int64}
  %i = add %s, %l
  %c = const {value=CONST, type=int64[64]}
  %v = OP %i, %c
  %pp = splat %p {shape=(64,)}
  %at = ptr_add %pp, %r
  %o = cast %v {dtype=int32}
  store %at, %o"""


@pytest.mark.parametrize("op, constant, whole", [
    ("idiv", 192, True), ("irem", 192, True), ("shr", 7, True), ("and", 127, True),
    ("idiv", 96, False), ("irem", 96, False), ("shr", 5, False), ("and", 95, False)])
def test_blocks_are_divided_as_one_number(op, constant, whole):
    """Where a block lies is a whole number of blocks, and so is the divisor."""
    text = simplified(BLOCKS.replace("OP", op).replace("CONST", str(constant)))
    assert (f"{op} %first" in text) == whole and (f"{op} %i" in text) != whole, text


def test_addresses_take_offsets_of_32_bits():
    text = simplified("""\
  %r = arange {start=0, end=64}
  %i = cast %r {dtype=int64}
  %pp = splat %p {shape=(64,)}
  %at = ptr_add %pp, %i
  store %at, %r""")
    assert "ptr_add %pp, %r : ptr<int32>[64]\n" in text and "cast" not in text, text


@pytest.mark.parametrize("pred, bound", [(p, b) for p in ("lt", "le", "gt", "ge", "eq", "ne") for b in (-1, 4, 8, 11, 12, 20)])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_comparisons_of_ranges_with_numbers(pred, bound, dtype):
    """Known where they are the same for all of 4 .. 11, and only there."""
    if dtype == "uint32" and bound < 0:
        return
    text = simplified(f"""\
  %a = arange {{start=4, end=12}} : int32[8]
  %b = expand_dims %a {{axis=0}}
  %c = cast %b {{dtype={dtype}}}
  %d = const {{value={bound}, type={dtype}[1x8]}} : {dtype}[1x8]
  %r = cmp %c, %d {{pred="{pred}"}}
  %v = cast %r {{dtype=int32}}
  %pp = splat %p {{shape=(1, 8)}}
  store %pp, %v""")
    each = {getattr(operator, pred)(x, bound) for x in range(4, 12)}
    assert ("cmp" not in text) == (len(each) == 1)
    if len(each) == 1:
        assert f"const {{value={int(each.pop())}}} : int32[1x8]" in text


def test_common_subexpressions_respect_scope():
    assert simplified("""\
  %c = cmp %n, %m {pred="lt"}
  if %c {
    %a = mul %n, %m
    store %p, %a
    yield
  } {
    %a = mul %m, %n
    store %p, %a
    yield
  }
  %x = mul %n, %m
  %y = mul %m, %n
  %s = add %x, %y
  store %p, %s""") == """\
%c = cmp %n, %m {pred="lt"} : int1
if %c {
  %a = mul %n, %m : int32
  store %p, %a
  yield
} {
  %a.1 = mul %m, %n : int32
  store %p, %a.1
  yield
}
%x = mul %n, %m : int32
%s = add %x, %x : int32
store %p, %s"""


def test_loads_are_not_merged_but_unused_ones_go():
    text = simplified("  %a = load %p\n  store %p, %n\n  %b = load %p\n  %c = load %p\n  %v = load %p {volatile=true}\n"
                      "  %s = add %a, %b\n  store %p, %s")
    assert text.count("load") == 3 and "volatile" in text


LOOP = """\
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %a, %unused, %same = for %0, %n, %1, %0, %0, %m : int32, int32, int32 {(%i: int32, %x: int32, %y: int32, %z: int32)
    %k = mul %m, %m
    %s = add %x, %k
    %s2 = add %s, %z
    %y2 = add %y, %i
    yield %s2, %y2, %z
  }
  %t = add %a, %same
  store %p, %t"""


def test_loop_invariants_and_dead_carried_values():
    assert simplified(LOOP) == """\
%0 = const {value=0} : int32
%1 = const {value=1} : int32
%k = mul %m, %m : int32
%a = for %0, %n, %1, %0 : int32 {(%i: int32, %x: int32)
  %s = add %x, %k : int32
  %s2 = add %s, %m : int32
  yield %s2
}
%t = add %a, %m : int32
store %p, %t"""


TWICE = """\
  %132 = const {value=132} : int32
  %first = sub %n, %132
  %last = for %n, %m, %132, %first : int32 {(%tile: int32, %x: int32)
    %y = add %x, %132
    store %p, %y
    yield %y
  }"""


def test_a_value_that_steps_along_with_a_loop_is_its_induction_variable():
    assert simplified(TWICE) == """\
%0 = const {value=132} : int32
for %n, %m, %0 {(%tile: int32)
  store %p, %tile
  yield
}"""
    # another step stays a carried value; one that is needed behind the loop stays one there
    assert "add %x" in simplified(TWICE.replace("add %x, %132", "add %x, %n"))
    behind = simplified(TWICE + "\n  store %p, %last")
    assert "store %p, %tile" in behind and "store %p, %last" in behind


@pytest.mark.parametrize("expr, want", [("sub %n, %8", -8), ("sub %n, %m", None)])
def test_a_difference_from_its_own_minuend(expr, want):
    found = stored("sub %x, %n", f"  %8 = const {{value=8}} : int32\n  %x = {expr}")
    assert ("%n" not in found) and (want is None or f"value={want}" in found)


@pytest.mark.parametrize("by", ["%m", "%8"])
def test_what_whole_parts_leave_is_the_remainder(by):
    found = stored("sub %n, %w", f"  %8 = const {{value=24}} : int32\n  %q = idiv %n, {by}\n  %w = mul %q, {by}")
    assert found.splitlines()[-2].startswith("%r = irem %n, ") and "mul" not in found


def test_constants_that_are_added_and_taken_away_cancel():
    assert stored("sub %x, %8", "  %8 = const {value=8} : int32\n  %x = add %n, %8") == "store %p, %n"


def test_pure_loop_disappears_but_effects_and_returns_stay():
    assert simplified("  %0 = const {value=0} : int32\n  %r = for %0, %n, %n, %n : int32 {(%i: int32, %x: int32)\n"
                      "    %y = add %x, %i\n    yield %y\n  }") == ""
    kept = simplified("  %0 = const {value=0} : int32\n  %c = cmp %n, %0 {pred=\"lt\"}\n  if %c {\n    return\n"
                      "  } {\n    yield\n  }\n  store %p, %n")
    assert "if %c {" in kept and "return" in kept


def test_known_control_is_resolved():
    assert simplified("""\
  %t = const {value=true} : int1
  %0 = const {value=0} : int32
  %8 = const {value=8} : int32
  %a = if %t : int32 {
    %x = add %n, %m
    yield %x
  } {
    store %p, %n
    yield %m
  }
  %b = for %0, %8, %8, %a : int32 {(%i: int32, %y: int32)
    %z = mul %y, %m
    yield %z
  }
  %c = for %8, %0, %8, %b : int32 {(%i: int32, %y: int32)
    store %p, %n
    yield %n
  }
  store %p, %c""") == "%x = add %n, %m : int32\n%z = mul %x, %m : int32\nstore %p, %z"


def test_while_keeps_only_what_it_needs():
    text = simplified("""\
  %0 = const {value=0} : int32
  %a, %b = while %n, %0 : int32, int32 {(%x: int32, %y: int32)
    %c = cmp %x, %m {pred="gt"}
    condition %c, %x, %y
  } {(%x: int32, %y: int32)
    %x2 = sub %x, %m
    %y2 = add %y, %x
    yield %x2, %y2
  }
  store %p, %a""")
    assert "while %n : int32 {(%x: int32)" in text and "%y" not in text


def test_meaning_is_kept():
    body = HEAD + LOOP + "\n  return\n}\n"
    before, after = np.zeros(1, np.int32), np.zeros(1, np.int32)
    q = np.zeros(1, np.float32)
    evaluate(parse_function(body), 1, {"p": before, "n": 5, "m": 3, "q": q})
    evaluate(simplify(parse_function(body)), 1, {"p": after, "n": 5, "m": 3, "q": q})
    assert before == after == 5 * 12 + 3


def test_every_pass_is_dumped_and_verified(monkeypatch):
    def breaks(fn):
        fn.body.ops.pop()
        return fn

    seen = []

    def stage(name, fn):
        seen.append(name)
        return fn

    monkeypatch.setattr(passes, "PIPELINE", (("simplify", simplify), ("breaks", breaks)))
    with pytest.raises(VerificationError, match="must end in return"):
        passes.run(parse_function(HEAD + LOOP + "\n  return\n}\n"), stage)
    assert seen == ["simplify", "breaks"]


def test_passes_go_on_with_what_replaces_a_stage(monkeypatch):
    other = parse_function(HEAD + LOOP + "\n  return\n}\n")
    met = []
    monkeypatch.setattr(passes, "PIPELINE", (("first", lambda fn: fn), ("second", lambda fn: met.append(fn) or fn)))
    made = passes.run(parse_function(HEAD + LOOP + "\n  return\n}\n"), lambda name, fn: other if name == "first" else fn)
    assert met == [other] and made is other


@settings(max_examples=150, deadline=None)
@given(structured(), st.integers(-40, 40), st.integers(-3, 4))
def test_meaning_is_kept_on_random_programs(program, n, m):
    body, last = program
    text = f"""
kernel @f(%p: ptr<int32>, %n: int32, %m: int32) {{
{body}
  %o = arange {{start=0, end=64}}
  %oo = reshape %o {{shape=(4, 16)}}
  %pp = splat %p {{shape=(4, 16)}}
  %pq = ptr_add %pp, %oo
  store %pq, %v{last}
  return
}}
"""
    fn = parse_function(text)
    verify(fn)
    assert print_function(parse_function(print_function(fn))) == print_function(fn)
    before, after = np.zeros(64, np.int32), np.zeros(64, np.int32)
    evaluate(fn, 1, {"p": before, "n": n, "m": m})
    simplify(fn)
    verify(fn)
    evaluate(fn, 1, {"p": after, "n": n, "m": m})
    np.testing.assert_array_equal(before, after)
    short = print_function(fn)
    assert print_function(simplify(parse_function(short))) == short


def test_bounds_of_counters_and_differences():
    """A counter is between its loop's ends; a difference between those of its sides."""
    from tilejit.ir import walk
    from tilejit.ir.bounds import bounds

    fn = parse_function("""kernel @k(%p: ptr<int32>, %n: int32) {num_warps=1} {
  %lo = const {value=3} : int32
  %hi = const {value=40} : int32
  %step = const {value=8} : int32
  %least = minimum %n, %hi : int32
  for %lo, %least, %step {(%i: int32)
    %far = sub %hi, %i : int32
    store %p, %far
    yield
  }
  return
}
""")
    loop = next(op for op in walk(fn.body) if op.name == "for")
    far = loop.regions[0].ops[0].result
    assert bounds(loop.regions[0].args[0]) == (3, 39) and bounds(far) == (1, 37)


@pytest.mark.parametrize("start, end, step, least, known", [
    ("at", "more", 8, "zero", True), ("more", "at", -8, "zero", True), ("more", "at", -8, "one", True),
    ("at", "more", 8, "one", False), ("more", "below", -8, "one", False), ("at", "more", "n", "zero", False)])
def test_a_condition_that_counters_always_meet_goes(start, end, step, least, known):
    """A program's place is not negative: counters from it are not, nor those above it one less than one."""
    stepped = f"%step = const {{value={step}}} : int64" if step != "n" else "%step = cast %n {dtype=int64} : int64"
    fn = parse_function(f"""kernel @k(%p: ptr<int64>, %n: int32) {{num_warps=1}} {{
  %pid = program_id {{axis=0}} : int32
  %wide = cast %pid {{dtype=int64}} : int64
  %size = const {{value=128}} : int64
  %zero = const {{value=0}} : int64
  %one = const {{value=1}} : int64
  {stepped}
  %at = mul %wide, %size : int64
  %more = add %at, %size : int64
  %below = sub %at, %one : int64
  for %{start}, %{end}, %step {{(%i: int64)
    %c = cmp %i, %{least} {{pred="ge"}} : int1
    if %c {{
      store %p, %i
      yield
    }} {{
      yield
    }}
    yield
  }}
  return
}}
""")
    assert ("cmp" not in print_function(simplify(fn))) == known
