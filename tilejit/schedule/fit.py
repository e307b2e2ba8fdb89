"""Makes a schedule that fits shared memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.ir import Function, listed
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.records import dataclass, replace
from tilejit.schedule.allocate import ENOUGH_SLOTS, WAIT, Allocator, allocate, fits
from tilejit.schedule.asyncify import asyncify
from tilejit.schedule.cluster_barrier import meet
from tilejit.schedule.decide import decide
from tilejit.schedule.depth import bind
from tilejit.schedule.early import issue_early
from tilejit.schedule.loads import groups_of
from tilejit.schedule.order import order
from tilejit.schedule.prefetch import prefetch
from tilejit.schedule.release import release
from tilejit.schedule.rings import rings_of
from tilejit.schedule.rotate import copy_function
from tilejit.schedule.sink_waits import sink_waits
from tilejit.schedule.split import split
from tilejit.schedule.stores import stage_stores
from tilejit.schedule.strips import strip_rows

#: Slots of a ring where the author leaves the depth open: at most, and where no role of its own fills the ring.
MOST_SLOTS, INLINE_SLOTS = 8, 3
#: Warps whose threads have the most registers that a multiprocessor has room for.
FULL_WARPS = 8
#: What a candidate goes through.
PASSES: dict[str, Callable[[Function], Function]] = {
    "planned": decide, "asyncify": asyncify, "stores": stage_stores, "cluster": meet, "prefetch": prefetch,
    "split": split, "release": release, "sink_waits": sink_waits, "ping_pong": order, "early": issue_early,
    "strips": strip_rows}

#: Sees what a pass made, by the pass's name, and gives what to go on with.
See = Callable[[str, Function], Function]
#: What the text says of a ring (`decide.py`), by the ring's name.
Rings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Candidate:
    """A schedule and what may be changed of it (docs/modules.md)."""

    fn: Function
    limits: dict[str, Any]
    notes: list[Record]
    new: Function
    rings: Rings
    written: dict[str, Any]
    lean_depth: int

    @property
    def fits(self) -> bool:
        return fits(self.new)

    @property
    def specialised(self) -> bool:
        return "producers" in self.new.attrs

    @property
    def flows(self) -> bool:
        """Whether rings of which a slot is read once more, a trip later, have another slot meanwhile."""
        return all(r["slots"] > 1 for r in self.rings.values() if r["again"])

    @property
    def depth(self) -> int:
        """Slots of the shortest ring whose depth is open; 0: there is none."""
        return min((r["slots"] + r["tight"] for r in self.rings.values() if r["open"] and not r["side"]), default=0)

    def but(self, *notes: Record, **limits: Any) -> Candidate:
        return _candidate(self.fn, {**self.limits, **limits}, [*self.notes, *notes])


def fitted(fn: Function, see: See | None = None) -> Candidate:
    """The first candidate that fits, else the last one; `see` is shown its passes. The function stays as it is."""
    found = _candidate(fn, {}, list(fn.attrs.get("report", ())))
    for change in (_with_single_slots, _with_less_kept, _with_tight_rings, _without_store_role,
                   _with_one_staging_tile, _with_one_group, _with_fewer_slots, _without_copies):
        while (other := change(found)) is not None:
            found = other
    if see is None:
        return found
    new, rings = _written(found.fn, found.written, found.notes, see)
    return replace(found, new=allocate(new), rings=rings)


def _with_single_slots(c: Candidate) -> Candidate | None:
    return c.but(once=True) if not c.flows and "once" not in c.limits else None


def _with_less_kept(c: Candidate) -> Candidate | None:
    """Operands that a trip hands on are in registers, and those that a loop does not change are written in every
    iteration, where keeping them costs too much memory."""
    said = [line for line in c.new.attrs["report"] if isinstance(line, Record)]
    handed = any(line.kind == "operand" and "slots" in line.numbers for line in said)
    kept = handed or any(line.kind == "operand_kept" for line in said)
    less = {"hand_on" if handed else "keep_operands": False}
    return c.but(**less) if kept and (not c.fits or c.depth == 1) else None


def _with_tight_rings(c: Candidate) -> Candidate | None:
    """Rings with a slot less, as many iterations ahead, where more programs share a multiprocessor so."""
    share = c.fn.attrs["num_warps"] * target_of(c.fn).shared_bytes // FULL_WARPS
    prompt = any(r["prompt"] for r in c.rings.values()) and "tight" not in c.limits and not c.specialised
    return c.but(tight=True) if prompt and c.new.attrs["shared_bytes"] > share else None


def _without_store_role(c: Candidate) -> Candidate | None:
    """What a store role stages shares no bytes with rings."""
    if not _stores(c.new) or c.fits:
        return None
    note = Record("no_store_role", "no store role: there is no shared memory for it")
    return c.but(*[note] * bool(c.fn.attrs.get("store_role")), store_role=False)


def _with_one_staging_tile(c: Candidate) -> Candidate | None:
    """Stores with one staging tile, where that gives short rings a slot."""
    if "staging" in c.limits or not c.specialised or \
            not 1 < c.depth < min(ENOUGH_SLOTS, c.lean_depth) or "store_stages" in c.fn.attrs:
        return None
    lean = c.but(staging=1)
    return lean if lean.depth > c.depth else None


def _with_fewer_slots(c: Candidate) -> Candidate | None:
    """Rings less deep than asked for."""
    given = {name: r for name, r in c.rings.items() if r["slots"] > 1 and not r["open"]}
    if c.fits or not given or c.limits.get("most") == 1:
        return None
    slots = Allocator(c.new).fewer(_each(given), max(r["slots"] for r in given.values()))
    slots += all(r["tight"] for r in given.values())
    notes = [note for note in c.notes if note.kind != "fewer_slots"]
    return replace(c, notes=notes).but(Record(
        "fewer_slots", f"num_stages={slots}: more do not fit {target_of(c.fn).name}", slots=slots), most=slots)


def _with_one_group(c: Candidate) -> Candidate | None:
    if groups_of(c.new) == 1 or "num_consumer_groups" in c.fn.attrs or c.fits:
        return None
    return c.but(Record("no_ping_pong", "no ping-pong: there is no shared memory for two to store their "
                        "tiles"), num_consumer_groups=1)


def _without_copies(c: Candidate) -> Candidate | None:
    """Loads through pointers that are copies (`passes/copies.py` marks them) stay ordinary ones."""
    shallow = c.limits.get("most") == 1
    if c.fits or not any((r["open"] or shallow) and r["kind"] == "async" for r in c.rings.values()):
        return None
    fn, notes = copy_function(c.fn), list(c.notes)
    for op, twin in zip(listed(fn.body), listed(decide(_limited(c.fn, c.written, [])).body)):
        if "copy" in op.attrs and (shallow or c.rings[twin.attrs["channel"]]["open"]):
            del op.attrs["copy"]
            notes.append(Record(
                "not_pipelined", f"load {twin.result.name or 'of a tile'} at {op.place}: not pipelined, there is no "
                "shared memory for two slots", op.place))
    fn.attrs["report"] = notes
    return fitted(fn)


def _candidate(fn: Function, limits: dict[str, Any], notes: list[Record]) -> Candidate:
    """Written, with its shared memory laid out: rings as deep as asked for or, where that is open, as fit."""
    written = dict(limits)
    new, rings = _written(fn, written, notes)
    allocator, lean = Allocator(new), MOST_SLOTS
    roles = "producers" in new.attrs

    def give(which: Rings, count: int, **limit: int) -> None:
        """Give rings so many slots where they are written or, in another form, by writing all again (`limit`)."""
        nonlocal new, rings, allocator
        written.update(limit)
        if count > 1 and all(r["role"] for r in which.values()):
            bind(new, which, count)
            rings = {**rings, **{name: {**r, "slots": count} for name, r in which.items()}}
            allocator.bound(_each(which), count)
        else:
            new, rings = _written(fn, written, notes)
            allocator = Allocator(new)

    deep = {name: r for name, r in rings.items() if r["open"] and (r["slots"] > 1 or r["tight"])}
    if deep:
        tight = all(r["tight"] for r in deep.values())
        most = MOST_SLOTS if roles else INLINE_SLOTS - tight
        slots = allocator.slots(_each(deep), most) + tight
        if roles and slots < ENOUGH_SLOTS and not _stores(new):
            lean = allocator.slots(_each(deep), most, lean=True)
        if slots != 2:
            give(deep, slots, slots=slots)
    side = {name: r for name, r in rings.items() if r["side"] and r["slots"] > 1}
    if side and allocator.best().total > allocator.limit:  # what feeds products comes first
        less = max(2, allocator.deepest(WAIT, _each(side), max(r["slots"] for r in side.values()) - 1))
        give(side, less, side=less + all(r["tight"] for r in side.values()))
    return Candidate(fn, limits, notes, allocate(new, allocator), rings, written, lean)


def _each(rings: Rings) -> dict[str, int]:
    """Names of rings, and how many of each there are: one for each group that fills its own."""
    return {name: r["groups"] for name, r in rings.items()}


def _stores(fn: Function) -> bool:
    return any("store" in op.attrs["names"] for op in fn.body.ops if op.name == "roles")


def _limited(fn: Function, limits: dict[str, Any], notes: list[Record]) -> Function:
    fn = copy_function(fn)
    fn.attrs.update(limits, report=list(notes))
    return fn


def _written(fn: Function, limits: dict[str, Any], notes: list[Record], see: See | None = None,
             ) -> tuple[Function, Rings]:
    """Written by the passes, one after another, with the rings as decided; `see` is shown what each made."""
    fn, rings = _limited(fn, limits, notes), {}
    for name, step in PASSES.items():
        fn = step(fn)
        if see is not None:
            report = fn.attrs["report"]
            fn = see(name, fn)
            fn.attrs["report"] = report
        if name == "planned":
            rings = rings_of(fn)
    return fn, rings
