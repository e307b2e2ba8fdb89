"""Waits for products: where they end up, how many groups stay in flight at each, and what the verifier refuses."""
import re

import pytest
from test_schedule import matmul, scheduled

from tilejit.errors import VerificationError
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.sink_waits import sink_waits

ACC, HALF = "fp32[64x64]", "bf16[64x64]"
VIEW = "buffer<view bf16[64x64], swizzle=128, order=1x0>"
HEAD = f"""
kernel @k(%d: desc<{HALF}>, %out: ptr<fp32>, %n: int32) {{num_warps=4}} {{
  %full = barriers {{name="a.full"}} : barrier<2, count=1>
  %empty = barriers {{name="a.empty"}} : barrier<2, count=1>
  %a = alloc {{name="a"}} : buffer<2x{HALF}, swizzle=128, order=1x0>
  %0 = const {{value=0}} : int32
  %1 = const {{value=1}} : int32
  %z = const {{value=0.0, type={ACC}}} : {ACC}
  %s = alloc {{name="b"}} : buffer<1x{HALF}, swizzle=128, order=1x0>
  %b = view %s, %0
"""


def function(*lines: str) -> str:
    """A function of these lines, `issue X SLOT` short for a product X that reads a slot of the ring a."""
    out = []
    for line in lines:
        found = re.match(r"( *)issue (\w+) (\S+)$", line)
        out += [f"{found[1]}%v{found[2]} = view %a, {found[3]}", f"{found[1]}%p{found[2]} = pend %z",
                f"{found[1]}%{found[2]} = dot_async %v{found[2]}, %b, %p{found[2]}"] if found else [line]
    return HEAD + "\n".join(f"  {line}" for line in out) + \
        "\n  tma_load %a, %0, %full, %d, %0, %0\n  return\n}\n"


ARRIVE = 'mbar_arrive %empty, {} {{per="warpgroup", ctas=1}}'


def shape(fn) -> list[str]:
    """Names of the ops that matter, in order; waits with what they wait for and how many groups stay."""
    out = []
    for op in walk(fn.body):
        if op.name in ("dot_wait", "dot_fence"):
            out.append(f"{op.name} {' '.join(v.name for v in op.operands)} {op.attrs['pending']}")
        elif op.name in ("dot_async", "mbar_arrive", "mul", "exp2", "reduce"):
            out.append(op.name)
    return out


def test_a_wait_sinks_with_its_release_to_the_first_use():
    fn = parse_function(function("issue x %0", "%xs = dot_wait %x", ARRIVE.format("%0"), "issue y %1", "%ys = dot_wait %y",
                                 ARRIVE.format("%1"), "%u = exp2 %xs", "%v = mul %u, %ys"))
    with pytest.raises(VerificationError, match="needs the attribute pending"):
        verify(fn)
    sink_waits(fn)
    verify(fn)
    assert shape(fn) == ["dot_async", "dot_async", "dot_wait x 1", "mbar_arrive", "exp2", "dot_wait y 0", "mbar_arrive", "mul"]


@pytest.mark.parametrize("slots", [1, 2])
def test_the_only_slot_of_a_ring_is_given_back_under_the_next_product(slots):
    """It is filled again meanwhile; where there is another slot the wait sinks on."""
    text = function("issue x %0", "%xs = dot_wait %x", ARRIVE.format("%0"), "issue y %1", "%ys = dot_wait %y",
                    "%w = exp2 %z", "%u = mul %xs, %ys").replace("barrier<2", f"barrier<{slots}")
    fn = sink_waits(parse_function(text))
    verify(fn)
    given = ["dot_wait x 1", "mbar_arrive"]
    assert shape(fn) == (["dot_async", "dot_async", *given, "exp2", "dot_wait y 0", "mul"] if slots == 1 else
                         ["dot_async", "dot_async", "exp2", "dot_wait x y 0", "mbar_arrive", "mul"])


def test_one_slot_that_two_products_read_is_released_behind_the_second():
    fn = sink_waits(parse_function(function("issue x %0", "%xs = dot_wait %x", "issue y %0", "%ys = dot_wait %y",
                                            ARRIVE.format("%0"), "%u = exp2 %xs", "%v = mul %u, %ys")))
    verify(fn)
    assert shape(fn) == ["dot_async", "dot_async", "dot_wait x 1", "exp2", "dot_wait y 0", "mbar_arrive", "mul"]


def test_folds_are_passed_and_loops_are_not():
    fn = sink_waits(parse_function(function(
        "issue x %0", "%xs = dot_wait %x", "issue y %1", "%ys = dot_wait %y",
        "%m = reduce %xs {axis=1} : fp32[64] {(%i: fp32, %j: fp32)", "  %k = maximum %i, %j", "  yield %k", "}",
        "%r = for %0, %n, %1, %m : fp32[64] {(%t: int32, %c: fp32[64])", "  %e = exp2 %c", "  yield %e", "}")))
    verify(fn)
    assert shape(fn) == ["dot_async", "dot_async", "dot_wait x 1", "reduce", "dot_wait y 0", "exp2"]


@pytest.mark.parametrize("edit, message", [
    (("dot_wait %x {pending=1}", "dot_wait %x {pending=2}"), r"the product x may still be in flight: only 1 groups"),
    (("dot_wait %y {pending=0}", "dot_wait %y {pending=1}"), r"the product y may still be in flight: only 0 groups"),
    (("mbar_arrive %empty, %1", "mbar_arrive %empty, %3"), "")])
def test_the_verifier_counts_again(edit, message):
    """Twins: one wait weakened; a release moved is another test's."""
    text = str(sink_waits(parse_function(function(
        "issue x %0", "%xs = dot_wait %x", "issue y %1", "%ys = dot_wait %y", ARRIVE.format("%1"), "%u = exp2 %xs",
        "%v = mul %u, %ys"))))
    verify(parse_function(text))
    if message:
        assert edit[0] in text
        with pytest.raises(VerificationError, match=message):
            verify(parse_function(text.replace(*edit)))


def lines_of(fn) -> list[str]:
    return str(fn).split("\n")


@pytest.mark.parametrize("weaker", ["dot_fence", "dot_wait"])
def test_chains_round_a_loop(weaker):
    """The product that stays in flight: its fence keeps one group, which is what the release of the slot before needs."""
    lines = lines_of(scheduled(matmul))
    at = next(i for i, line in enumerate(lines) if f" = {weaker} " in line)
    number = int(re.search(r"pending=(\d+)", lines[at])[1])
    assert number == (1 if weaker == "dot_fence" else 0)
    lines[at] = re.sub(r"pending=\d+", f"pending={number + 1}", lines[at])
    with pytest.raises(VerificationError, match="may still"):
        verify(parse_function("\n".join(lines)))


def test_a_release_ahead_of_its_wait_is_refused():
    lines = lines_of(scheduled(matmul))
    fence = next(i for i, line in enumerate(lines) if " = dot_fence " in line)
    arrive = next(i for i, line in enumerate(lines) if i > fence and "mbar_arrive" in line)
    issue = max(i for i in range(fence) if "= dot_async" in lines[i])
    early = [*lines[:issue + 1], *lines[fence + 1:arrive + 1], *lines[issue + 1:fence + 1], *lines[arrive + 1:]]
    with pytest.raises(VerificationError, match="may still read the slot that is given back"):
        verify(parse_function("\n".join(early)))
