"""When and where: turns tile IR with layouts into tile IR with rings, barriers, roles and addresses.

    annotate    which ops of a loop run an iteration later, and in which order (registers: what is alive at once)
    rotate      expands such loops: prologue, steady state, epilogue
    plan        the schedule as data
    copies      loads through pointers that are asynchronous copies
    decide      which loads go through which ring, how deep, inline or specialised, and why
    consumers   products that stay in flight, groups of warps that take turns
    leads       products that are issued an iteration ahead of their use
    cluster     programs of several CTAs, and how they sum (exchange) and meet for atomics (meetings)
    stores      how TMA stores are staged
    outlets     stores by a role of their own
    rewrite     clones the function for a role (role, channels, products), with the protocol in place of loads,
                products and stores
    release     gives slots back behind their last readers
    sink_waits  moves each wait for a product to what needs it, and counts the groups in flight
    order       products of warpgroups that take turns inside a loop
    early       loads that follow products, issued before the wait for them
    strips      wide rows, which stay in shared memory, worked on strip by strip
    in_flight   how much a kernel without products asks of memory at once, for the report
    allocate    gives every buffer, barrier and scratch area its place in shared memory; bytes are used again
                (liveness, packing), behind separations that are there or that it puts in (separate)
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilejit.ir import Function, walk
from tilejit.ir.dead import drop_dead
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.schedule.allocate import WAIT, Allocator, allocate, check_size, fits
from tilejit.schedule.annotate import annotate
from tilejit.schedule.copies import unmark
from tilejit.schedule.decide import Wishes, make_plan
from tilejit.schedule.early import issue_early
from tilejit.schedule.in_flight import in_flight
from tilejit.schedule.order import order
from tilejit.schedule.plan import Plan
from tilejit.schedule.release import release
from tilejit.schedule.rewrite import carry_out
from tilejit.schedule.rotate import is_staged, rotate
from tilejit.schedule.sink_waits import sink_waits
from tilejit.schedule.strips import strip_rows

__all__ = ["run"]

#: Slots of a ring where the author leaves the depth open: at most, and where no role of its own fills the ring.
MOST_SLOTS, INLINE_SLOTS = 8, 3
#: Slots of a ring below which one more is worth a store's second staging tile (products on an H200: 0 to 4% faster).
ENOUGH_SLOTS = 4


def run(fn: Function, stages: Callable[[str, Function], Function] | None = None) -> Function:
    """Schedule a function whose tiles have layouts; decisions are appended to `attrs["report"]`.

    Where `num_stages` is not given, rings are as deep as shared memory allows. `stages(name, function)` sees what
    passes make on the way, and gives what to go on with. Raises CompilationError for a schedule that was asked for and
    cannot be, or that needs more shared memory than there is."""
    notes = list(fn.attrs.get("report", []))
    staged = annotate(fn)
    if stages is not None:
        staged = stages("annotated", staged)
    if any(is_staged(op) for op in walk(staged.body)):
        rotated = rotate(staged)
        if stages is not None:
            rotated = stages("rotated", rotated)
        new, plan = _planned(rotated, list(rotated.attrs["report"]))
        if plan.specialised and fits(new):
            return _finished(new, plan)
        problem = "no role of its own loads" if fits(new) else "there is no shared memory for it"
        notes.append(Record("no_overlap", f"products and what is between them do not overlap: {problem}"))
    else:
        fn, notes = staged, list(fn.attrs.get("report", []))
    new, plan = _planned(fn, notes)
    check_size(new, plan)
    return _finished(new, plan)


def _finished(new: Function, plan: Plan) -> Function:
    drop_dead(new)
    flight = in_flight(new)
    if flight is not None:
        new.attrs.setdefault("report", []).append(flight)
    new.attrs["num_stages"] = max((r.slots for r in plan.rings), default=1)
    return new


def _planned(fn: Function, notes: list[str]) -> tuple[Function, Plan]:
    """The scheduled function and its plan, with what does not fit left out as far as the author leaves that open."""
    wishes = Wishes(fn.attrs.get("num_stages"), fn.attrs.get("num_consumer_groups"))
    new, plan = _fitted(fn, wishes, notes)
    if plan.outlets and not fits(new):        # what a store role stages shares no bytes with rings
        wishes = replace(wishes, store_role=False)
        new, plan = _fitted(fn, wishes, notes)
    if wishes.slots is None and plan.specialised and 1 < _depth(plan) < ENOUGH_SLOTS and "store_stages" not in fn.attrs:
        lean = _fitted(fn, replace(wishes, staging=1), notes)
        if _depth(lean[1]) > _depth(plan):
            wishes, (new, plan) = replace(wishes, staging=1), lean
        else:
            fn.attrs["report"] = plan.report
    while wishes.slots and wishes.slots > 1 and not fits(new) and not target_of(fn).hopper:
        wishes = replace(wishes, slots=wishes.slots - 1)         # depths are chosen for Hopper's larger shared memory
        new, plan = _fitted(fn, wishes, [*notes, Record(
            "fewer_slots", f"num_stages={wishes.slots}: more do not fit {target_of(fn).name}", slots=wishes.slots)])
    if plan.groups > 1 and wishes.groups is None and not fits(new):
        new, plan = _fitted(fn, replace(wishes, groups=1), [
            *notes, Record("no_ping_pong", "consumers do not take turns: there is no shared memory for two to store "
                           "their tiles")])
    copies = [op for r in plan.rings if r.open for op in r.loads if "copy" in op.attrs]
    if not fits(new) and copies:
        for load in copies:
            unmark(load, "there is no shared memory for two slots", notes)
        fn.attrs["report"] = notes
        return _planned(fn, notes)
    return new, plan


def _fitted(fn: Function, wishes: Wishes, notes: list[str]) -> tuple[Function, Plan]:
    """The function with its shared memory laid out, for rings as deep as asked for or, where that is open, as fit."""
    new, plan = _attempt(fn, replace(wishes, slots=wishes.slots or 2), notes)
    if wishes.slots is None:
        wishes = replace(wishes, slots=Allocator(new).slots(
            {r.name: r.groups for r in plan.rings if r.open and r.slots > 1},
            MOST_SLOTS if plan.specialised else INLINE_SLOTS))
        if wishes.slots != 2:
            new, plan = _attempt(fn, wishes, notes)
    side = [r for r in plan.rings if r.side and r.slots > 1]
    if side:                     # small rings beside those that feed products give way first
        allocator = Allocator(new)
        if allocator.best().total > allocator.limit:
            most = max(r.slots for r in side) - 1
            wishes = replace(wishes, side=max(2, allocator.deepest(WAIT, {r.name: r.groups for r in side}, most)))
            new, plan = _attempt(fn, wishes, notes)
    return allocate(new, plan), plan


def _depth(plan: Plan) -> int:
    """Slots of the shortest ring whose depth is open; 0: there is none."""
    return min((r.slots for r in plan.rings if r.open and not r.side), default=0)


def _attempt(fn: Function, wishes: Wishes, notes: list[str]) -> tuple[Function, Plan]:
    fn.attrs["report"] = list(notes)
    plan = make_plan(fn, wishes)
    new = sink_waits(release(carry_out(fn, plan)))
    issue_early(order(new), plan.report)
    strip_rows(new, plan.report)
    return new, plan
