"""When and where: turns tile IR with layouts into tile IR with rings, barriers, roles and addresses."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Function, listed
from tilejit.ir.dead import drop_dead
from tilejit.schedule.allocate import check_size
from tilejit.schedule.annotate import annotate
from tilejit.schedule.fit import Candidate, See, fitted
from tilejit.schedule.in_flight import in_flight
from tilejit.schedule.launch import await_launch
from tilejit.schedule.programs import without_producer
from tilejit.schedule.rotate import copy_function, rotate
from tilejit.schedule.sink_runs import sink_runs
from tilejit.schedule.stages import is_staged
from tilejit.schedule.stepped import step_addresses

__all__ = ["run"]


def run(fn: Function, see: See | None = None) -> Function:
    """Schedule a function whose tiles have layouts; decisions are lines of its `attrs["report"]`."""
    fn = without_producer(fn)
    staged = annotate(fn)
    given = see("annotated", staged) if see is not None else staged
    if any(is_staged(op) for op in listed(given.body)):
        rotated = rotate(given)
        if see is not None:
            rotated = see("rotated", rotated)
        found = fitted(rotated, see)
        if found.specialised and found.fits and found.flows:
            return _finished(found)
        problem = "no role of its own loads" if found.fits and found.flows else "there is no shared memory for it"
        fn = copy_function(fn)
        fn.say("no_overlap", f"products and what is between them do not overlap: {problem}")
        if given is not staged:
            raise CompilationError(f"the stages that were given cannot be: {problem}", fn.loc)
    else:
        fn = given
    found = fitted(fn, see)
    check_size(found.new)
    return _finished(found)


def _finished(found: Candidate) -> Function:
    drop_dead(found.new)
    flight = in_flight(found.new)
    if flight is not None:
        found.new.attrs["report"].append(flight)
    await_launch(step_addresses(sink_runs(found.new)))
    found.new.attrs["num_stages"] = max((r["slots"] + r["tight"] for r in found.rings.values()), default=1)
    return found.new
