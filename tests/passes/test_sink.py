"""Cheap values are computed behind the loops that they are not used in."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.sink import sink

LAYOUT = "#l = <256 register=[[128]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]]>\n"


def sunk(*lines: str) -> list[str]:
    """Names of a body's ops behind the pass; those of regions are indented."""
    text = LAYOUT + "kernel @k(%x: ptr<fp32>, %n: int32) {num_warps=4} {\n  " + "\n  ".join(lines) + "\n  return\n}\n"
    fn = sink(parse_function(text))
    verify(fn)
    return [f"{'  ' * (op.parent is not fn.body)}{op.name}" for op in walk(fn.body)]


RANGE = "%r = arange {start=0, end=256} : int32[256, #l]"
ADDRESS = ["%b = splat %x {shape=(256,)} : ptr<fp32>[256, #l]", "%p = ptr_add %b, %r : ptr<fp32>[256, #l]"]
START = ["%z = const {value=0} : int32", "%one = const {value=1} : int32",
         "%s0 = const {value=0.0, type=fp32[256]} : fp32[256, #l]"]
LOOP = ["%s = for %z, %n, %one, %s0 : fp32[256, #l] {(%i: int32, %c: fp32[256, #l])", "  %t = add %c, %c : fp32[256, #l]",
        "  yield %t", "}"]
STORE = 'store %p, %s {cache="", evict="", vec=1}'


def test_an_address_that_is_stored_to_behind_a_loop():
    assert sunk(RANGE, *ADDRESS, *START, *LOOP, STORE) == \
        ["const", "const", "const", "for", "  add", "  yield", "splat", "arange", "ptr_add", "store", "return"]


def test_what_the_loop_needs_stays():
    inside = [*LOOP[:1], '  %v = load %p {cache="", evict="", volatile=false, vec=1} : fp32[256, #l]',
              "  %t = add %c, %v : fp32[256, #l]", *LOOP[2:]]
    assert sunk(RANGE, *ADDRESS, *START, *inside, STORE)[:3] == ["arange", "splat", "ptr_add"]


def test_what_is_loaded_stays_and_what_takes_no_fewer_registers_too():
    load = '%v = load %p {cache="", evict="", volatile=false, vec=1} : fp32[256, #l]'
    twice = "%w = add %v, %v : fp32[256, #l]"
    found = sunk(RANGE, *ADDRESS, load, twice, *START, *LOOP, 'store %p, %w {cache="", evict="", vec=1}', STORE)
    assert found.count("load") == found.count("add") == 1 and found.index("add") < found.index("for")
    assert found[found.index("for") + 3:] == ["splat", "arange", "ptr_add", "store", "store", "return"]


def test_a_value_that_is_needed_before_and_behind_is_computed_twice():
    load = '%s0 = load %p {cache="", evict="", volatile=false, vec=1} : fp32[256, #l]'
    found = sunk(RANGE, *ADDRESS, *START[:2], load, *LOOP, STORE)
    assert found.count("ptr_add") == 2 and found.index("for") < len(found) - found[::-1].index("ptr_add")


@tilejit.kernel
def sums(x, y, z, rows, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    there = at < rows * 9
    out = y + at * 2
    for i in range(rows):
        total += tl.load(x + i * BLOCK + at)
    tl.store(out, total, there)
    for i in range(rows):
        total *= tl.load(x + i * BLOCK + at)
    tl.store(z + at, total, there)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_the_same_results(target):
    x = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    y, z = np.zeros(1024, np.float32), np.zeros(512, np.float32)
    with tilejit.knobs(target=target):
        sums[(1,)](x, y, z, 3, BLOCK=512)
    total, there = x[0] + x[1] + x[2], np.arange(512) < 27
    assert np.array_equal(y[::2], np.where(there, total, 0))
    assert np.array_equal(z, np.where(there, ((total * x[0]) * x[1]) * x[2], 0))


MASKED = "#a = <16x16 register=[[0,1],[8,0],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[]>\n" \
    "#m = <16x1 register=[[8,0]] lane=[[0,0],[0,0],[1,0],[2,0],[4,0]] warp=[]>\n"


@pytest.mark.parametrize("mask, sinks", [
    ("cmp %wide, %seven {pred=\"lt\"} : int1[16x16, #a]", True),            # of two registers, eight predicates
    ("cmp %sums, %zero {pred=\"lt\"} : int1[16x16, #a]", False)])            # of eight
def test_masks_behind_products(mask, sinks):
    text = MASKED + "kernel @k(%a: ptr<fp32>, %n: int32) {num_warps=1} {\n  " + "\n  ".join([
        "%x = const {value=1.0, type=bf16[16x16]} : bf16[16x16, #a]", "%acc = const {value=0.0, type=fp32[16x16]} : fp32[16x16, #a]",
        "%zero = const {value=0.0, type=fp32[16x16]} : fp32[16x16, #a]",
        "%seven = const {value=7, type=int32[16x16]} : int32[16x16, #a]", "%one = splat %n {shape=(16, 1)} : int32[16x1, #m]",
        "%wide = broadcast %one {shape=(16, 16)} : int32[16x16, #a]", "%sums = add %acc, %acc : fp32[16x16, #a]", f"%m = {mask}",
        "%s = dot %x, %x, %acc {precision=\"ieee\"} : fp32[16x16, #a]", "%t = add %s, %s : fp32[16x16, #a]",
        "%u = select %m, %t, %zero : fp32[16x16, #a]", "%p = splat %a {shape=(16, 16)} : ptr<fp32>[16x16, #a]",
        'store %p, %u {cache="", evict="", vec=1}', "return"]) + "\n}\n"
    names = [op.name for op in sink(parse_function(text)).body.ops]
    assert (names.index("cmp") == names.index("select") - 1) == sinks
    assert (names.index("cmp") < names.index("dot")) == (not sinks)
