"""Each rule of the verifier accepts right IR and names the op of wrong IR."""
import pytest

from tilejit.errors import VerificationError
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify

HEAD = "kernel @f(%n: int32, %p: ptr<fp32>, %c: int1) {\n"
TAIL = "  return\n}\n"

GOOD = HEAD + """\
  %t = arange {start=0, end=8}
  %z = const {value=0} : int32
  %s = for %z, %n, %n, %t : int32[8] {(%i: int32, %a: int32[8])
    %b = add %a, %a
    yield %b
  }
  %w = while %n : int32 {(%x: int32)
    %y = cmp %x, %n {pred="lt"}
    condition %y, %x
  } {(%x: int32)
    yield %x
  }
  %r = reduce %s {axis=0} : int32 {(%u: int32, %v: int32)
    %m = maximum %u, %v
    yield %m
  }
  if %c {
    return
  } {
    yield
  }
""" + TAIL


def test_good_ir_passes():
    verify(parse_function(GOOD))


@pytest.mark.parametrize("body, message", [
    ("  %a = add %n : int32\n", r"add takes lhs rhs, found 1 operands, in: %a = add %n : int32"),
    ("  %a = add %n, %n : int64\n", r"type rule gives \(int32\), the results have \(int64\)"),
    ("  %a = cmp %n, %n : int1\n", "cmp needs the attribute pred"),
    ("  if %c {\n    yield\n  }\n", "if has 2 regions, found 1"),
    ("  if %n {\n    yield\n  } {\n    yield\n  }\n", r"condition: expected \(int1\), found \(int32\)"),
    ("  %a = for %n, %n, %n, %c : int1 {(%i: int32, %x: int1)\n    yield %i\n  }\n",
     r"yielded values: expected \(int1\), found \(int32\)"),
    ("  %a = for %n, %n, %n, %c : int1 {(%i: int32, %x: int1)\n  }\n", "must end in yield"),
    ("  for %n, %n, %c {(%i: int32)\n    yield\n  }\n", "bounds"),
    ("  return\n", "terminator must be the last"),
    ("  condition %c\n", "condition ends the first region"),
    ("  %t = arange {start=0, end=8}\n  %r = reduce %t {axis=1} : int32 {(%u: int32, %v: int32)\n    yield %u\n  }\n",
     "axis 1 is outside"),
    ("  %a = const {value=0.0} : fp32[64x64]\n  %q = pend %a\n  %b = add %q, %q : pending<fp32[64x64]>\n",
     "is pending: only dot_wait"),
])
def test_broken_rule_is_named(body, message):
    with pytest.raises(VerificationError, match=message):
        verify(parse_function(HEAD + body + TAIL))


def test_scope():
    fn = parse_function(GOOD)
    loop = fn.body.ops[2]
    fn.body.ops[-2].operands[0] = loop.regions[0].args[0]
    with pytest.raises(VerificationError, match="not defined before its use"):
        verify(fn)


def test_use_before_definition():
    fn = parse_function(HEAD + "  %a = add %n, %n\n  %b = add %a, %n\n" + TAIL)
    fn.body.ops[:2] = fn.body.ops[1::-1]
    with pytest.raises(VerificationError, match=r"%<undefined a>, %n"):
        verify(fn)


def test_body_must_end():
    with pytest.raises(VerificationError, match="must end in return"):
        verify(parse_function("kernel @f() {\n}\n"))


def test_pending_through_a_loop_is_fine():
    verify(parse_function("""
kernel @f(%n: int32) {
  %z = const {value=0.0} : fp32[64x64]
  %b = alloc {name="A"} : buffer<2xbf16[64x64], swizzle=128, order=1x0>
  %v = view %b, %n
  %q = pend %z
  %r = for %n, %n, %n, %q : pending<fp32[64x64]> {(%i: int32, %a: pending<fp32[64x64]>)
    %d = dot_async %v, %v, %a
    yield %d
  }
  %w = dot_wait %r {pending=0}
  return
}
"""))
