"""Tickets: puts the protocol of rings in the place of fills and awaits."""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tilejit.ir import Block, Builder, Function, Op, Value, beside, listed
from tilejit.ir.types import int1, int32, shape_of
from tilejit.records import dataclass
from tilejit.schedule.buffers import barriers_of
from tilejit.schedule.loads import groups_of, kind_of, written_by
from tilejit.schedule.thread import Step, thread


@dataclass(frozen=True)
class Channel:
    """A ring as its tickets know it; no `empty` where the warp that fills is the one that reads. `slots`: of each
    group."""

    name: str
    full: Value
    empty: Value | None
    slots: int
    groups: int = 1

    def place(self, slot: Value, b: Builder) -> Value:
        """The slot of a ticket among those of all groups of consumers."""
        if self.groups == 1:
            return slot
        return b("add", slot, b("mul", b("group_index"), b.const(self.slots, int32)))

    def advance(self, ticket: list[Value], b: Builder) -> list[Value]:
        return b.op("ticket_next", *ticket, slots=self.slots, ring=self.name).results


def channels(fn: Function, ops: list[Op]) -> list[Channel]:
    """The rings that fills name, in the order of their barriers; slots are each group's where consumers fill."""
    made, groups = barriers_of(fn), groups_of(fn)
    fills = {op.attrs["ring"]: op for op in ops if op.name == "fill"}
    found = []
    for full in made:
        name = full.removesuffix(".full")
        if name != full and name in fills:
            each = 1 if "role" in fills[name].attrs else groups
            buffer = fills[name].operands[0].buffer
            found.append(Channel(name, made[full], made.get(f"{name}.empty"), buffer.slots // each, each))
    return found


def write_tickets(block: Block, rings: list[Channel], first: tuple[Value, Value], elected: bool = False,
                  skips: Mapping[str, Value] | None = None) -> None:
    """Write the fills and awaits of a role, in place."""
    zero, one = first
    ops: dict[str, list[Op]] = {}
    for op in listed(block):
        if "ring" in op.attrs:
            ops.setdefault(op.attrs["ring"], []).append(op)
    for ring in rings:
        mine = ops.get(ring.name, [])
        awaited = any(op.name == "await" for op in mine)
        if awaited:
            _thread_awaits(block, ring, mine, zero, (skips or {}).get(ring.name))
        fills: dict[Op, Step] = {not elected and _branch(op) or op: partial(_fill, ring=ring, elected=elected)
                                 for op in mine if op.name == "fill"}
        if fills:
            for op in mine if not awaited else ():
                loads = [x for x in op.regions[0].ops if x.name == "desc_load"] if op.name == "fill" else []
                for x in {x for load in loads for x in written_by(load.operands[0])}:
                    fills[x] = partial(_landed, ring=ring)
            # A fresh barrier passes a wait for parity 1: the first round of fills never blocks.
            thread(block, (zero, one), fills, [f"{ring.name}_slot", f"{ring.name}_parity"])


def _thread_awaits(block: Block, ring: Channel, ops: list[Op], zero: Value, skip: Value | None) -> None:
    """Carry a ring's tickets from await to await, what is known of the next slot, and the last one if named again."""
    peeks, again = ([op for op in ops if op.name == "peek"], [op for op in ops if "again" in op.attrs])
    more = [Builder(block, 0, block.ops[0].loc).const(True, int1)] if peeks else []
    more += [zero] if again else []
    awaiting = _Awaiting(ring, len(more) - len(again[:1]), bool(again))
    steps: dict[Op, Step] = {op: awaiting.wait for op in ops if op.name == "await"}
    steps |= dict.fromkeys(peeks, awaiting.peek) | dict.fromkeys(again, awaiting.name_again)
    if skip is not None:
        steps[skip.maker] = awaiting.skip
    names = [f"{ring.name}_{x}" for x in ("slot", "parity", *(["filling"] if peeks else []), "last")]
    thread(block, [zero, zero, *more], steps, names)


def _branch(fill: Op) -> Op | None:
    """The branch around a fill, if it does nothing else."""
    branch = fill.parent.parent if fill.parent else None
    if branch is None or branch.name != "if" or branch.results or len(branch.regions[1].ops) > 1:
        return None
    return branch if all(op is fill or op.define.pure for op in branch.regions[0].ops[:-1]) else None


@dataclass
class _Awaiting:
    """What awaits carry."""

    ring: Channel
    peeks: int
    again: bool
    earlier: Value | None = None  # the slot before the last one, where that was awaited

    def wait(self, op: Op, values: list[Value]) -> list[Value]:
        """Views of a ticket's slot, whose addresses are known before the bytes are there, and the wait for those."""
        b, ring = beside(op), self.ring
        slot, parity, filling = ring.place(values[0], b), values[1], values[2:2 + self.peeks]
        after = [*ring.advance(values[:2], b)]
        _views(op, slot, b)
        assert b.at is not None
        while b.block.ops[b.at].name == "row_view":
            b.at += 1
        b.op("mbar_wait", ring.full, slot, parity, *filling)
        self.earlier = values[-1]
        return [*after, *(b.const(True, int1) for _ in filling), *([slot] if self.again else [])]

    def peek(self, op: Op, values: list[Value]) -> list[Value]:
        """Whether the next slot is still being filled: only then is it waited for."""
        b = beside(op)
        filling = b("mbar_test", self.ring.full, self.ring.place(values[0], b), values[1])
        op.block.ops.remove(op)
        return [*values[:2], filling, *values[3:]]

    def name_again(self, op: Op, values: list[Value]) -> list[Value]:
        slot = self.earlier if op.attrs["again"] else values[-1]
        assert slot is not None
        _views(op, slot, beside(op))
        return values

    def skip(self, op: Op, values: list[Value]) -> list[Value]:
        b = beside(op, behind=True)
        after = b.op("ticket_skip", *values[:2], op.result, slots=self.ring.slots, ring=self.ring.name).results
        return [*after, *(b.const(True, int1) for _ in range(self.peeks)), *values[2 + self.peeks:]]


def _views(op: Op, slot: Value, b: Builder) -> None:
    for buffer, old in zip(op.operands, op.results):
        view = b.op("view", buffer, slot)
        view.results, old.op, old.index = [old], view, 0
    op.block.ops.remove(op)


def _landed(op: Op, ticket: list[Value], ring: Channel) -> list[Value]:
    """Before a descriptor is written that is copied through, what was copied so has landed."""
    b = beside(op)
    b.op("mbar_landed", ring.full, ring.place(ticket[0], b), ticket[1])
    return ticket


def _fill(op: Op, ticket: list[Value], ring: Channel, elected: bool) -> list[Value]:
    """The copies of one ticket, by one thread or all; where `op` is a branch around the fill, only on its condition."""
    b = beside(op)
    if ring.empty is None:
        b.op("role_sync")
    condition = op.operands[0] if op.name == "if" else None
    fill = next(x for x in op.regions[0].ops if x.name == "fill") if condition else op

    def copies(to: Builder) -> tuple[Value, ...]:
        to.loc = fill.loc
        for x in op.regions[0].ops if condition else ():
            if x.define.pure and "terminator" not in x.define.traits:
                to.insert(x)
        _copy(fill, ring, ticket, to)
        return ()

    first = fill.regions[0].ops[0]
    by_all = kind_of(first) == "async" or "unaligned" in first.attrs and "strip" not in first.attrs and not condition
    if condition and by_all:
        b.branch(condition, copies)
    elif condition or not by_all and not elected:
        region = Block()
        copies(Builder(region))
        b.op("elect", *([condition] if condition else []), regions=[region])
    else:
        copies(b)
    after = ring.advance(ticket, b)
    if condition:
        after = [b("select", condition, x, y) for x, y in zip(after, ticket)]
    op.block.ops.remove(op)
    return after


def _copy(fill: Op, ring: Channel, ticket: list[Value], b: Builder) -> None:
    slot = ring.place(ticket[0], b)
    if ring.empty is not None:
        b.op("mbar_wait", ring.empty, slot, ticket[1])
    loads = [op for op in fill.regions[0].ops if "terminator" not in op.define.traits]
    copies = [*zip(fill.operands, loads)]
    kind = kind_of(loads[0])
    if kind == "async":
        for buffer, load in copies:
            b.loc = load.loc
            if load.name == "block_load":
                b.op("block_copy", buffer, slot, *load.operands, block=load.attrs["block"])
            else:
                b.op("async_copy", buffer, slot, *load.operands[:2], **_some(load, "cache", "vec"), **_evict(load))
        b.op("async_arrive", ring.full, slot)
    elif kind == "row":
        _copy_rows(copies, ring, slot, b)
    else:
        b.op("mbar_expect", ring.full, slot, bytes=sum(x.buffer.slot_bytes for x in fill.operands))
        for buffer, load in copies:
            b.loc = load.loc
            b.op("tma_load", buffer, slot, ring.full, *load.operands, **_some(load, "evict", "slice", "multicast"))


def _copy_rows(copies: list[tuple[Value, Op]], ring: Channel, slot: Value, b: Builder) -> None:
    buffer, load = copies[0]
    if "unaligned" in load.attrs:
        elem, limit = buffer.buffer.elem, load.operands[1:]
        length = limit[0] if limit else b.const(shape_of(load.result.type)[0], int32)
        b.op("row_copy", buffer, slot, ring.full, load.operands[0], b("mul", length, b.const(elem.bytes, int32)),
             **_some(load, "strip", "ctas", "fill"), **_evict(load), unaligned=True)
        return
    known, more, sizes = 0, None, []
    for buffer, load in copies:
        type, share = buffer.buffer, _some(load, "strip", "ctas")
        if len(load.operands) == 1:
            known += type.slot_bytes
            sizes.append(b.const(type.slot_bytes, int32))
            continue
        limit_here = load.operands[1]
        limit_here = b("cluster_share", limit_here, **share) if share else limit_here
        sizes.append(b("mul", limit_here, b.const(type.elem.bytes, int32)))
        more = b("add", more, sizes[-1]) if more else sizes[-1]
    b.op("mbar_expect", ring.full, slot, *([more] if more else []), bytes=known)
    for (buffer, load), size in zip(copies, sizes):
        b.loc = load.loc
        b.op("row_copy", buffer, slot, ring.full, load.operands[0], size, **_some(load, "strip", "ctas"),
             **_evict(load))


def _evict(load: Op) -> dict[str, Any]:
    evict = load.attrs.get("evict")
    return {"evict": evict} if evict in ("evict_first", "evict_last") else {}


def _some(op: Op, *names: str) -> dict[str, Any]:
    return {name: op.attrs[name] for name in names if name in op.attrs}
