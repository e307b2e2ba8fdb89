"""Makes a schedule that fits shared memory: a candidate is planned and written, and its rings get the depth there is
room for. Where it does not fit, or another one is better, the next candidate leaves something out that the author left
open."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tilejit.ir import Function, listed
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.schedule.allocate import WAIT, Allocator, allocate, fits
from tilejit.schedule.asyncify import asyncify
from tilejit.schedule.decide import Wishes, make_plan
from tilejit.schedule.depth import bind, can_bind
from tilejit.schedule.early import issue_early
from tilejit.schedule.order import order
from tilejit.schedule.plan import Plan, Ring, place
from tilejit.schedule.planned import write_plan
from tilejit.schedule.prefetch import prefetch
from tilejit.schedule.release import release
from tilejit.schedule.rotate import copy_function
from tilejit.schedule.sink_waits import sink_waits
from tilejit.schedule.split import split
from tilejit.schedule.strips import strip_rows

#: Slots of a ring where the author leaves the depth open: at most, and where no role of its own fills the ring.
MOST_SLOTS, INLINE_SLOTS = 8, 3
#: Slots of a ring below which one more is worth a store's second staging tile (products on an H200: 0 to 4% faster).
ENOUGH_SLOTS = 4

#: Warps whose threads have the most registers that a multiprocessor has room for.
FULL_WARPS = 8

#: What carries a plan out, pass by pass.
PASSES: dict[str, Callable[[Function], Function]] = {
    "asyncify": asyncify, "prefetch": prefetch, "split": split, "release": release, "sink_waits": sink_waits,
    "ping_pong": order, "early": issue_early, "strips": strip_rows}

#: Sees what a pass made, by the pass's name, and gives what to go on with.
See = Callable[[str, Function], Function]


@dataclass(frozen=True)
class Candidate:
    """A schedule: `new` is the function `fn` scheduled as `wishes` say, by `plan`; `notes` come first in its report.
    `written`: the same wishes with all depths. `lean_depth` is what `depth` may be at most with one staging tile for
    stores."""

    fn: Function
    wishes: Wishes
    notes: list[Record]
    new: Function
    plan: Plan
    written: Wishes
    lean_depth: int = MOST_SLOTS

    @property
    def fits(self) -> bool:
        """Whether there is shared memory for it."""
        return fits(self.new)

    @property
    def flows(self) -> bool:
        """Whether rings of which a slot is read once more, a trip later, have another slot meanwhile."""
        again = {op.attrs["ring"] for op in listed(self.fn.body) if "again" in op.attrs}
        return all(r.slots > 1 for r in self.plan.rings if again.intersection(r.text))

    @property
    def depth(self) -> int:
        """Slots of the shortest ring whose depth is open; 0: there is none."""
        return min((r.slots + r.tight for r in self.plan.rings if r.open and not r.side), default=0)

    def but(self, *notes: Record, **wishes: object) -> Candidate:
        """The same with other wishes, and more to say."""
        return _candidate(self.fn, replace(self.wishes, **wishes), [*self.notes, *notes])  # type: ignore[arg-type]


def fitted(fn: Function, see: See | None = None) -> Candidate:
    """The first candidate that fits, else the last one. `see` is shown each pass of that one.

    The function stays as it is."""
    found = _candidate(fn, Wishes(fn.attrs.get("num_stages"), fn.attrs.get("num_consumer_groups")),
                       list(fn.attrs.get("report", ())))
    for change in (_with_operands_each_time, _with_tight_rings, _without_store_role, _with_one_staging_tile,
                   _with_one_group, _with_fewer_slots, _without_copies):
        while (other := change(found)) is not None:
            found = other
    if see is None:
        return found
    new, plan = _written(found.fn, found.written, found.notes, see)
    return replace(found, new=allocate(new), plan=plan)


def _with_operands_each_time(c: Candidate) -> Candidate | None:
    """Operands that a loop does not change are written in every iteration, where keeping them costs too much memory."""
    kept = any(isinstance(line, Record) and line.kind == "operand_kept" for line in c.plan.report)
    return c.but(keep_operands=False) if kept and (not c.fits or c.depth == 1) else None


def _with_tight_rings(c: Candidate) -> Candidate | None:
    """Rings with a slot less, as many iterations ahead as others of so many slots, where programs would have to share a
    multiprocessor with fewer others for it, be it that their threads have all registers."""
    share = c.fn.attrs["num_warps"] * target_of(c.fn).shared_bytes // FULL_WARPS
    prompt = any(r.prompt for r in c.plan.rings) and not c.wishes.tight and not c.plan.specialised
    return c.but(tight=True) if prompt and c.new.attrs["shared_bytes"] > share else None


def _without_store_role(c: Candidate) -> Candidate | None:
    """What a store role stages shares no bytes with rings."""
    return c.but(store_role=False) if c.plan.store_rings and not c.fits else None


def _with_one_staging_tile(c: Candidate) -> Candidate | None:
    """Stores with one staging tile, where that gives short rings a slot."""
    if c.wishes.slots is not None or c.wishes.staging == 1 or not c.plan.specialised or \
            not 1 < c.depth < min(ENOUGH_SLOTS, c.lean_depth) or "store_stages" in c.fn.attrs:
        return None
    lean = c.but(staging=1)
    return lean if lean.depth > c.depth else None


def _with_fewer_slots(c: Candidate) -> Candidate | None:
    """Rings less deep than asked for: depths are often chosen for other chips and other ways to use shared memory."""
    given = [r for r in c.plan.rings if r.slots > 1 and not r.open]
    if c.fits or not given or c.wishes.most == 1:
        return None
    slots = Allocator(c.new).fewer(_each(given), max(r.slots for r in given)) + all(r.tight for r in given)
    notes = [note for note in c.notes if note.kind != "fewer_slots"]
    return replace(c, notes=notes).but(Record(
        "fewer_slots", f"num_stages={slots}: more do not fit {target_of(c.fn).name}", slots=slots), most=slots)


def _with_one_group(c: Candidate) -> Candidate | None:
    if c.plan.groups == 1 or c.wishes.groups is not None or c.fits:
        return None
    return c.but(Record("no_ping_pong", "no ping-pong: there is no shared memory for two to store their "
                        "tiles"), groups=1)


def _without_copies(c: Candidate) -> Candidate | None:
    """Loads through pointers that are copies (`passes/copies.py` marks them) stay ordinary ones."""
    shallow = c.wishes.most == 1
    if c.fits or not any((r.open or shallow) and "copy" in op.attrs for r in c.plan.rings for op in r.loads):
        return None
    fn, notes = copy_function(c.fn), list(c.notes)
    for op in [op for r in make_plan(fn, c.written, []).rings if r.open or shallow for op in r.loads
               if "copy" in op.attrs]:
        del op.attrs["copy"]
        notes.append(Record(
            "not_pipelined", f"load {op.result.name or 'of a tile'} at {place(op)}: not pipelined, there is no shared "
            "memory for two slots", place(op)))
    fn.attrs["report"] = notes
    return fitted(fn)


def _candidate(fn: Function, wishes: Wishes, notes: list[Record]) -> Candidate:
    """Planned, written, and with its shared memory laid out: rings as deep as asked for or, where that is open, as
    fit."""
    written = replace(wishes, slots=wishes.slots or 2)
    new, plan = _written(fn, written, notes)
    allocator, lean = Allocator(new), MOST_SLOTS

    def give(rings: list[Ring], count: int, **wish: int) -> None:
        """Give rings so many slots, as `wish` says: where they are written, or by writing all again."""
        nonlocal written, new, plan, allocator
        written = replace(written, **wish)  # type: ignore[arg-type]
        if can_bind(plan, rings, count):
            bind(new, plan, rings, count)
            allocator.bound(_each(rings), count)
        else:
            new, plan = _written(fn, written, notes)
            allocator = Allocator(new)

    deep = [r for r in plan.rings if r.open and (r.slots > 1 or r.tight)]
    if wishes.slots is None and deep:
        tight = all(r.tight for r in deep)
        most = MOST_SLOTS if plan.specialised else INLINE_SLOTS - tight
        slots = allocator.slots(_each(deep), most) + tight
        if plan.specialised and slots < ENOUGH_SLOTS and not plan.store_rings:
            lean = allocator.slots(_each(deep), most, lean=True)
        if slots != 2:
            give(deep, slots, slots=slots)
    side = [r for r in plan.rings if r.side and r.slots > 1]
    if side and allocator.best().total > allocator.limit:      # what feeds products comes first
        less = max(2, allocator.deepest(WAIT, _each(side), max(r.slots for r in side) - 1))
        give(side, less, side=less + all(r.tight for r in side))
    return Candidate(fn, wishes, notes, allocate(new, allocator), plan, written, lean)


def _each(rings: Iterable[Ring]) -> dict[str, int]:
    """Names of rings, and how many of each there are: one for each group that fills its own."""
    return {r.name: r.groups for r in rings}


def _written(fn: Function, wishes: Wishes, notes: list[Record], see: See | None = None) -> tuple[Function, Plan]:
    """Planned and written by the passes, one after another; `see` is shown what each of them made."""
    fn = copy_function(fn)
    plan = make_plan(fn, wishes, list(notes))
    fn.attrs["report"] = plan.report
    for name, step in {"planned": lambda f: write_plan(f, plan), **PASSES}.items():
        fn = step(fn)
        if see is not None:
            fn = see(name, fn)
            fn.attrs["report"] = plan.report
    return fn, plan
