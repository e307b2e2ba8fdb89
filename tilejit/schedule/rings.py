"""Rings of loads: which loads share slots, barriers and tickets, and how deep they are."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilejit.ir import Function, Op, enclosing, inside, listed, loop_around
from tilejit.ir.ahead import Ahead, address_slice
from tilejit.ir.types import Tile
from tilejit.records import dataclass
from tilejit.schedule.loads import Uses, kind_of, readers

#: Copies by cp.async that a thread issues for one ticket of several loads, at most: it holds all of their addresses.
COPIES_AT_ONCE = 16


@dataclass(eq=False)
class Ring:
    """Loads with one producer point (block), the same consumers and the same depth, while that is decided; the words
    are those of `decide.py`."""

    loads: list[Op]
    slots: int
    loop: Op | None  # the innermost loop around the loads
    dots: set[Op]  # products that read the slots
    views: bool  # nothing else does
    open: bool
    local: bool  # the threads that read the slots fill them too, where there are roles
    name: str = ""
    channel: str = ""  # the ring that has the slots, barriers and tickets: itself, or one before
    ahead: int = 0
    prompt: bool = False  # a slot is filled again in the trip that reads it
    tight: bool = False

    @property
    def kind(self) -> str:
        return kind_of(self.loads[0])

    @property
    def text(self) -> tuple[str, ...]:
        """The rings of its loads that the text names (`ring=`)."""
        return tuple(op.attrs["ring"] for op in self.loads if "ring" in op.attrs)

    @property
    def by_warps(self) -> bool:
        """Whether mma.sync reads the slots: every warp for itself."""
        return any("unit" in dot.attrs for dot in self.dots)

    @property
    def by_group(self) -> bool:
        """Whether only wgmma reads its slots: a thread of each warpgroup gives them back, else a lane of each warp."""
        return self.views and not self.by_warps

    @property
    def side(self) -> bool:
        """Whether its tiles are read into registers beside those that products read: fewer slots will do."""
        return self.kind != "tensor" and not self.views


def find_rings(fn: Function, ops: Sequence[Op], table: Uses) -> list[Ring]:
    loads = [op for op in ops if kind_of(op) and "again" not in op.attrs]
    most, given, rings, homes = fn.attrs.get("most"), fn.attrs.get("num_stages"), [], _homes(loads)
    again = {op.attrs["ring"] for op in ops if "again" in op.attrs}
    for op in loads:
        dots, views = readers(op.result, table)
        loop = homes.get(op.attrs.get("ring"), loop_around(op))
        depth = loop.attrs.get("num_stages") or given or fn.attrs.get("slots", 2) if loop is not None else 1
        depth = min(depth, most or depth)
        if fn.attrs.get("once") and views and op.attrs.get("ring") not in again:
            depth = 1
        if op.name == "load":
            depth = max(depth, 2)  # with one slot it is an ordinary load, and not marked
        unsaid = loop is not None and not loop.attrs.get("num_stages") and not given
        rings.append(Ring([op], depth, loop, set(dots), views, unsaid, local=kind_of(op) == "async"))
        if rings[-1].side:
            rings[-1].slots = min(depth, fn.attrs.get("side") or depth)
    rings = _merged(rings, _share)
    named: dict[str, int] = {}
    for ring in rings:
        for i, op in enumerate(ring.loads):  # without a name: that of their transposes, or a number
            users = [u.result.name for u, _ in table.get(op.result, ()) if u.name == "trans"]
            op.result.name = op.result.name or "".join(users[:1]) or f"load{i}"
        ring.name = "_".join(op.result.name for op in ring.loads)
        named[ring.name] = named.get(ring.name, 0) + 1
        if named[ring.name] > 1:  # reports must tell the mbarriers of two loops apart
            ring.name += f".{named[ring.name]}"
    return rings


def _homes(loads: list[Op]) -> dict[str | None, Op]:
    """The innermost loop that each ring named in the text is for: a rotated loop has loads before and behind."""
    found: dict[str | None, Op] = {}
    for op in loads:
        loop, name = loop_around(op), op.attrs.get("ring")
        if name and loop is not None and (name not in found or found[name] in enclosing(loop)):
            found[name] = loop
    return found


def _merged(rings: list[Ring], alike: Callable[[Ring, Ring], bool]) -> list[Ring]:
    """The same rings, those that are alike made one: one ticket, one wait and one release for all of their loads."""
    made: list[Ring] = []
    for ring in rings:
        for other in [r for r in made if alike(r, ring)]:
            ring.loads = sorted([*other.loads, *ring.loads], key=ring.loads[0].block.ops.index)
            ring.name = f"{other.name}_{ring.name}"
            ring.dots |= other.dots
            made.remove(other)
        made.append(ring)
    return made


def _share(one: Ring, two: Ring) -> bool:
    """Whether two rings in a block feed the same products, or in a loop share one, with all loads before the first."""
    block = one.loads[0].block
    if not (one.views and two.views and two.loads[0].parent is block and one.slots == two.slots and
            one.kind == two.kind and one.by_warps == two.by_warps):
        return False
    if one.dots == two.dots:
        return True
    tops = [x for dot in one.dots | two.dots if (x := inside(block, dot))]
    last = max(block.ops.index(x) for x in (*one.loads, *two.loads))
    return one.loop is not None and not one.text + two.text and not one.dots.isdisjoint(two.dots) and \
        last < min(map(block.ops.index, tops))


def fill_ahead(fn: Function, ops: Sequence[Op], rings: list[Ring], in_pieces: set[Op]) -> list[Ring]:
    """Have those who read a ring fill it ahead where no other role does; those that are filled alike are one."""
    for ring in rings:
        if (ring.local or "producers" not in fn.attrs) and ring.loop is not None and ring.slots > 1:
            problem = _ahead_problem(ring.loop, ring.loads)
            if problem:
                ring.slots = 1
                fn.say("not_pipelined", f"ring {ring.name}: not pipelined, {problem}", ring.name)
                continue
            # All that read it are done with it where they stand: loads into registers and mma.sync, not wgmma.
            ring.prompt = not ring.text and in_pieces.isdisjoint(ring.loads) and all(
                "unit" in dot.attrs for dot in ring.dots)
            ring.tight = ring.prompt and fn.attrs.get("tight", False)
            ring.slots -= ring.tight
            ring.ahead = ring.slots - (not ring.prompt)
    order = {op: i for i, op in enumerate(ops)}
    return sorted(_merged(rings, _alike_ahead), key=lambda ring: order[ring.loads[0]])


def _ahead_problem(loop: Op, loads: list[Op]) -> str:
    """Why loads of a loop cannot be issued ahead in the inline form; empty if they can."""
    if loop.name != "for":
        return "the loop is a while"
    if any(op.parent is not loop.regions[0] for op in loads):
        return "the load is under a condition"
    if any(op.attrs.get("copies") for op in listed(loop.regions[0])):
        return "the loop stores what it loads"
    found = address_slice(loop, [v for op in loads for v in op.operands])
    return "" if isinstance(found, Ahead) else "the address cannot be computed ahead of time"


def _alike_ahead(one: Ring, two: Ring) -> bool:
    """Whether those who compute fill two rings ahead by the same copies: not too many, by cp.async."""
    def shape(ring: Ring) -> tuple:
        return (ring.ahead, ring.prompt, ring.loop, ring.kind, ring.slots, ring.views, ring.by_warps, ring.open)

    if not one.ahead or shape(one) != shape(two) or any(
            r.text or "unaligned" in load.attrs for r in (one, two) for load in r.loads):
        return False
    return one.kind != "async" or _copies(one) + _copies(two) <= COPIES_AT_ONCE


def _copies(ring: Ring) -> int:
    """Copies by cp.async of a thread for a ticket, each to an address of its own."""
    found = [(load.operands[0].type, load.attrs.get("vec", 1)) for load in ring.loads]
    return sum(t.layout.num_registers // vec for t, vec in found if isinstance(t, Tile) and t.layout is not None)


def rings_of(fn: Function) -> dict[str, dict[str, Any]]:
    """What the text says of each ring: its first load's attributes, `slots` of each group, if it is read `again`."""
    ops = [op for op in listed(fn.body) if "channel" in op.attrs and kind_of(op)]
    again = {op.attrs["channel"] for op in ops if "again" in op.attrs}
    found: dict[str, dict[str, Any]] = {}
    for op in ops:
        name, role = op.attrs["channel"], op.attrs.get("role", "")
        if op.attrs["index"] == 0 and "again" not in op.attrs and name not in found:
            groups = 1 if role else fn.attrs.get("groups", 1)
            found[name] = {"open": False, "side": False, "tight": False, "prompt": False, **op.attrs, "role": role,
                           "kind": kind_of(op), "groups": groups, "slots": op.attrs["buffer"].slots // groups,
                           "again": name in again}
    return found
