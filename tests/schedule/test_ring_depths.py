"""Depths of rings are bound last, and nothing is planned twice for them; every pass of a schedule can be seen."""
import pytest
from test_schedule import inline_matmul, matmul, scheduled

from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule import fit
from tilejit.schedule.allocate import limit


def plans(monkeypatch):
    made = []
    decide = fit.PASSES["planned"]
    monkeypatch.setitem(fit.PASSES, "planned", lambda fn: made.append(fn.attrs.get("slots")) or decide(fn))
    return made


def test_an_open_ring_gets_what_there_is_room_for(monkeypatch):
    made = plans(monkeypatch)
    fn = scheduled(matmul, 128, 128, stages=None)
    slots = fn.attrs["num_stages"]
    assert made == [None] and slots == 6 and fn.attrs["shared_bytes"] <= limit(fn)
    for op in walk(fn.body):
        if op.name == "ticket_next":
            assert op.attrs["slots"] == slots and op.attrs["ring"] == "a_b"
        elif op.name == "barriers" and op.attrs["name"].startswith("a_b."):
            assert op.attrs["type"].slots == op.result.type.slots == slots
        elif op.name == "alloc" and op.attrs["name"] in "ab":
            assert op.attrs["type"].slots == op.result.type.slots == slots
    assert [r.numbers["slots"] for r in fn.attrs["report"] if r.kind == "ring"] == [slots]
    verify(parse_function(str(fn)))


def test_bound_is_what_would_have_been_written():
    """The same text as for a kernel that asks for that depth."""
    def body(stages):
        return str(scheduled(matmul, 128, 128, stages=stages)).split("{\n", 1)[1]

    assert body(None) == body(6)


@pytest.mark.parametrize("kernel, most", [(matmul, 2), (inline_matmul, 2)])
def test_how_often_is_planned(kernel, most, monkeypatch):
    """Once, and once more for one staging tile less, or where the depth is written into a prologue."""
    made = plans(monkeypatch)
    scheduled(kernel, stages=None)
    assert len(made) <= most


def test_candidates_leave_the_function_as_it_is(monkeypatch):
    seen = []
    one = fit._candidate
    monkeypatch.setattr(fit, "_candidate", lambda fn, wishes, notes: seen.append((fn, str(fn))) or one(fn, wishes, notes))
    scheduled(matmul, 256, 256, 128, stages=None)
    assert len({fn for fn, _ in seen}) == 1 and len({text for _, text in seen}) == 1
    assert str(seen[0][0]) == seen[0][1]
