"""Warpgroups that issue their products one after the other inside a loop (ping-pong): where, and what breaks it."""
import re

import numpy as np
import pytest
from attention_form import arguments, attend, reference
from test_sink_waits import function

import tilejit
from tilejit.errors import VerificationError
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.kernels.attention.forward_kernel import attention_kernel
from tilejit.kernels.attention.scores import Band, Options
from tilejit.runtime.ptxas import find_tool
from tilejit.schedule.order import order
from tilejit.schedule.sink_waits import sink_waits
from tilejit.testing import rel_error

NAMES = ("order_begin", "order_end", "order_wait", "order_arrive", "dot_async", "dot_wait", "exp2", "for")


def loop(*lines: str) -> str:
    return function("for %0, %n, %1 {ping_pong=2} {(%i: int32)", *(f"  {x}" for x in lines), "  yield", "}")


def shape(fn) -> list[str]:
    return [op.name for op in walk(fn.body) if op.name in NAMES]


def test_products_without_a_wait_between_them_are_one_turn():
    fn = sink_waits(parse_function(loop("issue x %0", "%xs = dot_wait %x", "issue y %1", "%ys = dot_wait %y", "%u = exp2 %xs",
                                        "%v = mul %u, %ys")))
    verify(order(fn))
    assert shape(fn) == ["order_begin", "for", "order_wait", "dot_async", "dot_async", "order_arrive", "dot_wait", "exp2", "dot_wait",
                         "order_end"]
    assert shape(parse_function(str(fn))) == shape(fn)


def test_products_behind_a_wait_have_a_place_of_their_own():
    fn = sink_waits(parse_function(loop("issue x %0", "%xs = dot_wait %x", "%u = exp2 %xs", "issue y %1", "%ys = dot_wait %y",
                                        "%v = mul %u, %ys")))
    verify(order(fn))
    issue = ["order_wait", "dot_async", "order_arrive", "dot_wait"]
    assert shape(fn) == ["order_begin", "for", *issue[:-1], "dot_wait", "exp2", *issue, "order_end"]


def test_loops_that_do_not_ask_have_none():
    lines = ("issue x %0", "%xs = dot_wait %x", "%u = exp2 %xs")
    for text in (loop(*lines).replace(" {ping_pong=2}", ""), function(*lines)):
        fn = sink_waits(parse_function(text))
        before = str(fn)
        assert str(order(fn)) == before


FOLD = ("%m = reduce %xs {axis=1} : fp32[64] {(%a0: fp32, %b0: fp32)", "  %c0 = maximum %a0, %b0 {nan=false} : fp32", "  yield %c0", "}")
LINES = ("issue x %0", "issue y %1", "%xs = dot_wait %x", *FOLD, "%u = exp2 %xs", "%ys = dot_wait %y", "%v = mul %u, %ys")


@pytest.mark.parametrize("when, want", [
    (True, ["dot_async", "dot_async", "order_arrive", "dot_wait", "reduce", "exp2", "dot_wait"]),
    ("scores", ["dot_async", "dot_async", "dot_wait", "reduce", "order_arrive", "order_stay", "exp2", "dot_wait"]),
    ("products", ["dot_async", "dot_async", "dot_wait", "reduce", "order_stay", "dot_wait", "order_arrive", "order_stay", "exp2"])])
def test_when_a_turn_goes_on(when, want):
    fn = sink_waits(parse_function(loop(*LINES)))
    fn.attrs["ping_pong"] = when
    verify(order(fn))
    body = next(op for op in walk(fn.body) if op.name == "for").regions[0]
    assert [op.name for op in body.ops if op.name in (*NAMES, "reduce", "order_stay")] == ["order_wait", *want]


@pytest.mark.remarks("spills", "stack", reason="trips with masks of three warpgroups")
def test_a_turn_of_products_ends_ahead_of_the_last_fold_of_its_own():
    """ptxas moves neither the wait up nor the arrival down (machine code)."""
    blocks = [f"desc<bf16[1x{n}x1x64]>" for n in (192, 128, 128, 192)]
    k = attention_kernel.compile(*blocks, None, "int32:16", "int32:16", "fp32", "int32", "int32", Options(Band(right="int32")),
                                 GROUP=1, PACK=1, TAIL=True, SPLIT=1, PARTED=False, PERSISTENT=True, TURNED=False, BM=192, BN=128, D=64,
                                 DV=64, num_warps=12, products_ahead=True, ping_pong="products")
    turns = k.scheduled.split("order_wait {")[1:]
    assert len(turns) == 2
    for text in turns:
        names = re.findall(r" (reduce|dot_wait|order_\w+)", text.split(" exp2 ")[0])
        assert names == ["dot_wait", "reduce", "reduce", "order_stay", "dot_wait", "order_arrive", "order_stay", "reduce", "reduce"]
    if k.resources is not None and find_tool("nvdisasm"):
        assert not k.resources.messages and k.resources.spill_stores <= 16  # in trips with masks
        for part in k.sass().split("DEPBAR.LE gsb0, 0x1")[1:]:
            names = re.findall(r"FMNMX|DEPBAR\.LE gsb0, 0x0|BAR\.ARV|SHFL", part)
            wait = names.index("DEPBAR.LE gsb0, 0x0")
            assert wait >= 48 and names[wait + 1] == "BAR.ARV"


def test_products_that_are_not_under_way_by_then_are_not_waited_for():
    lines = ("issue x %0", "%xs = dot_wait %x", *FOLD, "issue y %1", "%ys = dot_wait %y", "%v = exp2 %ys")
    fn = sink_waits(parse_function(loop(*lines)))
    fn.attrs["ping_pong"] = "products"
    verify(order(fn))
    issue = ["order_wait", "dot_async", "order_arrive", "dot_wait"]
    assert shape(fn) == ["order_begin", "for", *issue, *issue, "exp2", "order_end"]


def test_other_times_are_refused():
    _, args, constants = arguments(256, num_warps=8, bm=128, ping_pong="sums")
    with pytest.raises(tilejit.CompilationError, match="ping_pong='sums' is not legal"):
        attend.compile(*args, **constants)


@pytest.mark.parametrize("line, message", [("order_arrive", "order_wait without an order_arrive in the same block"),
                                           ("order_wait", "order_arrive without an order_wait")])
def test_an_order_that_only_some_have_is_refused(line, message):
    text = str(order(sink_waits(parse_function(loop("issue x %0", "%xs = dot_wait %x", "%u = exp2 %xs")))))
    lines = text.split("\n")
    lines.remove(next(x for x in lines if line in x))
    with pytest.raises(VerificationError, match=message):
        verify(parse_function("\n".join(lines)))


CASES = {"scores": {"length": 256, "bm": 128, "bn": 64, "num_warps": 8, "ping_pong": "scores"},
         "products": {"length": 384, "bm": 192, "bn": 64, "num_warps": 12, "ping_pong": "products"},
         "scores, two loops": {"length": 256, "bm": 128, "bn": 64, "num_warps": 8, "causal": True, "ping_pong": "scores"},
         "two warpgroups": {"length": 256, "bm": 128, "bn": 64, "num_warps": 8},
         "three": {"length": 384, "bm": 192, "bn": 64, "num_warps": 12},
         "two loops": {"length": 256, "bm": 128, "bn": 64, "num_warps": 8, "causal": True},
         "drained": {"length": 256, "bm": 128, "bn": 64, "num_warps": 8, "products_ahead": False}}


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("case", CASES)
def test_attention_ping_pong(case, target):
    options = {"ping_pong": True, **CASES[case]}
    grid, args, constants = arguments(**options)
    with tilejit.knobs(target=target):
        k = attend[grid](*args, **constants)
    want = reference(args, 1, options.get("causal", False))
    assert rel_error(args[3].base.astype(np.float64), want) < 4e-3
    if target == "emulator":
        groups = options["num_warps"] // 4
        assert k.report().count(f"{groups} warpgroups issue its products one after the other (ping-pong)") == 1 + options.get("causal", False)
        assert f"bar.arrive {16 - groups}, 256;" in k.ptx and (k.resources is None or k.resources.clean)


def test_one_warpgroup_has_no_order():
    _, args, constants = arguments(256, num_warps=4, ping_pong=True)
    assert "(ping-pong)" not in attend.compile(*args, **constants).report()
