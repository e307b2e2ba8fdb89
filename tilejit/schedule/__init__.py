"""When and where: turns tile IR with layouts into tile IR with rings, barriers, roles and addresses.

    annotate    which ops of a loop run an iteration later, and in which order (registers: what is alive at once;
                products_ahead: loops whose product is issued an iteration ahead)
    rotate      expands such loops: prologue, steady state, epilogue
    plan        the schedule as data
    decide      which loads go through which ring, how deep, inline or specialised, and why
    consumers   products that stay in flight, ping-pong groups of warps
    cluster     programs of several CTAs, how they sum (exchange) and what orders their atomics (cluster_barrier)
    stores      how TMA stores are staged
    asyncify    fills and awaits of rings in place of loads, products (products, pieces) and stores that are issued and
                waited for: still in order (context: what its parts share)
    prefetch    fills ahead of time, where one role does all
    split       roles, each a slice, and the protocol between them: rings (tickets), the store role (store_role), groups
                (ping_pong), CTAs that come together; thread carries what goes from one to the next
    release     gives slots back behind their last readers
    operands    operands that a loop does not change, written to shared memory once
    fragments   operands of mma.sync that stay in shared memory
    sink_waits  moves each wait for a product to what needs it, and counts the groups in flight
    order       ping-pong inside a loop: products of one warpgroup behind another's
    early       loads that follow products, issued before the wait for them
    strips      wide rows, which stay in shared memory, worked on strip by strip
    in_flight   how much a kernel without products asks of memory at once, for the report
    depth       binds how deep rings are, last
    fit         candidates, and the first that fits shared memory
    allocate    gives every buffer, barrier and scratch area its place in shared memory; bytes are used again
                (liveness, packing), behind separations that are there or that it puts in (separate)
    launch      when the kernel may begin, and where it waits for the one ahead of it
"""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Function, walk
from tilejit.ir.dead import drop_dead
from tilejit.ir.report import Record
from tilejit.schedule.allocate import check_size
from tilejit.schedule.annotate import annotate
from tilejit.schedule.fit import Candidate, See, fitted
from tilejit.schedule.in_flight import in_flight
from tilejit.schedule.launch import await_launch
from tilejit.schedule.rotate import copy_function, is_staged, rotate

__all__ = ["run"]


def run(fn: Function, see: See | None = None) -> Function:
    """Schedule a function whose tiles have layouts; decisions are lines of its `attrs["report"]`.

    Where `num_stages` is not given, rings are as deep as shared memory allows. `see(name, function)` is shown what each
    pass made, and gives what to go on with. Raises CompilationError for a schedule that was asked for and cannot be, or
    that needs more shared memory than there is."""
    staged = annotate(fn)
    given = see("annotated", staged) if see is not None else staged
    if any(is_staged(op) for op in walk(given.body)):
        rotated = rotate(given)
        if see is not None:
            rotated = see("rotated", rotated)
        found = fitted(rotated, see)
        if found.plan.specialised and found.fits and found.flows:
            return _finished(found)
        problem = "no role of its own loads" if found.fits and found.flows else "there is no shared memory for it"
        fn = copy_function(fn)
        fn.attrs["report"].append(Record(
            "no_overlap", f"products and what is between them do not overlap: {problem}"))
        if given is not staged:
            raise CompilationError(f"the stages that were given cannot be: {problem}", fn.loc)
    else:
        fn = given
    found = fitted(fn, see)
    check_size(found.new, found.plan)
    return _finished(found)


def _finished(found: Candidate) -> Function:
    drop_dead(found.new)
    flight = in_flight(found.new)
    if flight is not None:
        found.new.attrs["report"].append(flight)
    await_launch(found.new)
    found.new.attrs["num_stages"] = max((r.slots for r in found.plan.rings), default=1)
    return found.new
