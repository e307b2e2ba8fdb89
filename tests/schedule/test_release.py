"""Slots are given back behind whatever retires their last reader."""
import pytest
from test_schedule import matmul, scheduled
from test_sink_waits import function

from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.release import release
from tilejit.schedule.sink_waits import sink_waits

PENDING = "pending<fp32[64x64]>"
SHOWN = ("dot_async", "dot_wait", "dot_fence", "local_load", "for", "yield", "exp2")


def given(*lines: str) -> list[str]:
    """Names of the ops that matter once slots are given back; arrivals with who arrives, and whether always."""
    fn = sink_waits(release(parse_function(function(*lines))))
    verify(fn)
    return [f"{op.attrs['per']}{' if any' * (len(op.operands) > 2)}" if op.name == "mbar_arrive" else op.name
            for op in walk(fn.body) if op.name in (*SHOWN, "mbar_arrive")]


def awaited(slot: str, *lines: str) -> list[str]:
    return [f"mbar_wait %full, {slot}, %0", *lines]


def test_loads_into_registers_are_done_where_they_are_used():
    """Behind the first use, by whatever name."""
    load, again = "%r = local_load %v {type=bf16[64x64]} : bf16[64x64]", "%v = view %a, %0"
    assert given(*awaited("%0", again, load, "%u = exp2 %r", "%w = exp2 %r")) == ["local_load", "exp2", "warp", "exp2"]
    named = ["%t = trans %r {order=(1, 0)}", "%y = exp2 %z", "%u = exp2 %t"]
    assert given(*awaited("%0", again, load, *named)) == ["local_load", "exp2", "exp2", "warp"]


def test_a_piece_is_given_back_behind_its_product():
    load = "%r = local_load %v {type=bf16[64x64], at=(0, 0)} : bf16[64x64]"
    assert given(*awaited("%0", "%v = view %a, %0", load, "%p = pend %z", "%x = dot_async %r, %b, %p", "%xs = dot_wait %x",
                          "%u = exp2 %xs")) == ["local_load", "dot_async", "warp", "dot_wait", "exp2"]


def test_a_slot_that_nothing_reads_is_given_back_at_once():
    assert given(*awaited("%0", "%u = exp2 %z")) == ["warp", "exp2"]


def test_behind_the_wait_for_the_last_product():
    assert given(*awaited("%0", "issue x %0", "%xs = dot_wait %x", "issue y %0", "%ys = dot_wait %y", "%u = exp2 %xs",
                          "%v = exp2 %ys")) == \
        ["dot_async", "dot_async", "dot_wait", "exp2", "dot_wait", "warpgroup", "exp2"]


def test_behind_a_loop_that_reads_it():
    found = given(*awaited("%0", "%v = view %a, %0"), "for %0, %n, %1 {(%i: int32)", "  %p = pend %z",
                  "  %x = dot_async %v, %b, %p", "  %xs = dot_wait %x", "  %u = exp2 %xs", "  yield", "}")
    assert found == ["for", "dot_async", "dot_wait", "exp2", "yield", "warpgroup"]


def test_a_slot_that_is_read_again_a_trip_later():
    """Nothing is given back in the trip of the wait: the loop gives back the slot of the trip before, and behind it the
    last one's is given back."""
    found = given(*awaited("%0", "issue x %0", "%xs = dot_wait %x"), "%r = for %1, %n, %1, %0 : int32 {(%i: int32, %l: int32)",
                  *awaited("%i", "issue y %i", "%ys = dot_wait %y", "issue z %l", "%zs = dot_wait %z", "%v = exp2 %zs",
                           "yield %i", "}"), "issue w %r", "%ws = dot_wait %w", "%u = exp2 %ws")
    assert found == ["dot_async", "dot_wait", "for", "dot_async", "dot_async", "dot_wait", "warpgroup", "exp2", "yield",
                     "dot_async", "dot_wait", "warpgroup", "exp2"]


def test_a_product_that_stays_in_flight_round_a_loop():
    """The slot of the trip before, behind the fence, and the last one's behind the loop: if there was a trip."""
    found = given("%p = pend %z", f"%r = for %0, %n, %1, %p : {PENDING} {{(%i: int32, %c: {PENDING})",
                  *awaited("%i", "%v = view %a, %i", "%x = dot_async %v, %b, %c", "%f = dot_fence %x", "yield %f", "}"),
                  "%s2 = dot_wait %r", "%u = exp2 %s2")
    assert found == ["for", "dot_async", "dot_fence", "warpgroup if any", "yield", "dot_wait", "warpgroup if any", "exp2"]


def test_a_product_that_is_waited_for_in_the_next_trip():
    """The slot is carried with it, and there always is one."""
    found = given(*awaited("%0", "issue x %0"), f"%r = for %0, %n, %1, %x : {PENDING} {{(%i: int32, %c: {PENDING})",
                  "  %d = dot_wait %c", *awaited("%i", "%w = view %a, %i", "%py = pend %z", "%y = dot_async %w, %b, %py",
                                                 "%u = exp2 %d", "yield %y", "}"), "%e = dot_wait %r", "%t = exp2 %e")
    assert found == ["dot_async", "for", "dot_async", "dot_wait", "warpgroup", "exp2", "yield", "dot_wait", "warpgroup", "exp2"]


@pytest.mark.parametrize("options", [{}, {"warps": 4, "bm": 64, "bn": 128}])
def test_a_scheduled_product_gives_slots_back_late(options):
    roles = next(op for op in scheduled(matmul, **options).body.ops if op.name == "roles")
    given_back = [op for op in walk(roles.regions[0]) if op.name == "mbar_arrive" and op.operands[0].name == "a_b_empty"]
    assert len(given_back) == 2 and all(len(op.operands) == 3 for op in given_back)
