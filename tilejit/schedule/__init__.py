"""When and where: turns tile IR with layouts into tile IR with rings, barriers, roles and addresses.

    plan        the schedule as data
    copies      loads through pointers that are asynchronous copies
    decide      which loads go through which ring, how deep, inline or specialised, and why
    consumers   products that stay in flight, groups of warps that take turns
    cluster     programs of several CTAs
    stores      how TMA stores are staged
    outlets     stores by a role of their own
    rewrite     clones the function for a role (role, channels, products), with the protocol in place of loads,
                products and stores
    allocate    gives every buffer, barrier and scratch area its place in shared memory
"""
from __future__ import annotations

from dataclasses import replace

from tilejit.ir import Function
from tilejit.ir.dead import drop_dead
from tilejit.ir.target import target_of
from tilejit.schedule.allocate import allocate, check_size, limit
from tilejit.schedule.copies import unmark
from tilejit.schedule.decide import Wishes, make_plan
from tilejit.schedule.plan import Plan
from tilejit.schedule.rewrite import carry_out

__all__ = ["run"]

#: Slots of a ring where the author leaves the depth open: at most, and where no role of its own fills the ring.
MOST_SLOTS, INLINE_SLOTS = 8, 3


def run(fn: Function) -> Function:
    """Schedule a function whose tiles have layouts; decisions are appended to `attrs["report"]`.

    Where `num_stages` is not given, rings are as deep as shared memory allows. Raises CompilationError for a
    schedule that was asked for and cannot be, or that needs more shared memory than there is."""
    notes = list(fn.attrs.get("report", []))
    wishes = Wishes(fn.attrs.get("num_stages"), fn.attrs.get("num_consumer_groups"))
    new, plan = _attempt(fn, replace(wishes, slots=wishes.slots or 2), notes)
    slots = 2
    if wishes.slots is None:
        most = MOST_SLOTS if plan.specialised else INLINE_SLOTS
        spare = limit(new) - new.attrs["shared_bytes"]
        slots = max(1, min(2 + spare // max(1, sum(r.ticket_bytes for r in plan.rings if r.open)), most))
        new, plan = _attempt(fn, replace(wishes, slots=slots), notes)
    while wishes.slots and wishes.slots > 1 and new.attrs["shared_bytes"] > limit(new) and not target_of(fn).hopper:
        wishes = replace(wishes, slots=wishes.slots - 1)         # depths are chosen for Hopper's larger shared memory
        new, plan = _attempt(fn, wishes, [*notes, f"num_stages={wishes.slots}: more do not fit {target_of(fn).name}"])
    excess, side = new.attrs["shared_bytes"] - limit(new), [r for r in plan.rings if r.side]
    if excess > 0 and side:      # small rings beside those that feed products give way first
        caps = (n for n in range(max(r.slots for r in side), 1, -1)
                if sum(r.ticket_bytes * max(0, r.slots - n) for r in side) >= excess)
        wishes = replace(wishes, slots=wishes.slots or slots, side=next(caps, None))
        if wishes.side:
            new, plan = _attempt(fn, wishes, notes)
    if plan.groups > 1 and wishes.groups is None and new.attrs["shared_bytes"] > limit(new):
        new, plan = _attempt(fn, replace(wishes, slots=wishes.slots or 2, groups=1), [
            *notes, "consumers do not take turns: there is no shared memory for two to store their tiles"])
    copies = [op for r in plan.rings if r.open for op in r.loads if "copy" in op.attrs]
    if new.attrs["shared_bytes"] > limit(new) and copies:
        for load in copies:
            unmark(load, "there is no shared memory for two slots", notes)
        fn.attrs["report"] = notes
        return run(fn)
    check_size(new, plan)
    drop_dead(new)
    new.attrs["num_stages"] = max((r.slots for r in plan.rings), default=1)
    return new


def _attempt(fn: Function, wishes: Wishes, notes: list[str]) -> tuple[Function, Plan]:
    fn.attrs["report"] = list(notes)
    plan = make_plan(fn, wishes)
    return allocate(carry_out(fn, plan), plan), plan
