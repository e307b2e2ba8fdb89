"""Descriptors that a loop carries: made where their parts change, not where they are used."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tilejit.ir.core import Block, Builder, Op, Value, edge_of, edges, enclosing, made_in

Parts = tuple[Value, ...]


class Carried(NamedTuple):
    loop: Op
    first: Parts
    given: Parts


def carried(made: Op) -> Carried | None:
    parts = tuple(made.operands)
    for loop in enclosing(made):
        if loop.name != "for":
            continue
        by_end = {e.ends[0]: e for e in reversed(edges(loop))}
        if any(v not in by_end and _inside(v, loop) for v in parts):
            continue
        first, given = [], []
        for v in parts:
            e = by_end.get(v) if _inside(v, loop) else None
            first.append(v if e is None or e.init is None else e.init)
            given.append(v if e is None else e.args[0])
        found = Carried(loop, tuple(first), tuple(given))
        if found.given != parts and _kept(parts, found):
            return found
    return None


def _inside(v: Value, loop: Op) -> bool:
    return any(made_in(v, region) for region in loop.regions)


def _kept(parts: Parts, by: Carried) -> bool:
    branch = _branch(parts, by)
    return parts == by.given or branch is not None and any(_kept(_way(parts, branch, i), by) for i in (0, 1))


def _branch(parts: Parts, by: Carried) -> Op | None:
    owners = [v.op for v in parts if _inside(v, by.loop) and isinstance(v.op, Op)]
    for owner in owners:
        if owner.name == "if" and all(len(e.ends) == 2 for e in edges(owner)) and all(
                other is owner or _before(other, owner) for other in owners):
            return owner
    return None


def _before(op: Op, other: Op) -> bool:
    at: Op | None = other
    while at is not None and at.parent is not op.parent:
        at = at.parent.parent if at.parent is not None else None
    return at is not None and op.parent is not None and op.parent.ops.index(op) < op.parent.ops.index(at)


def _way(parts: Parts, branch: Op, which: int) -> Parts:
    found = []
    for v in parts:
        edge = edge_of(v)
        found.append(edge[1].ends[which] if edge is not None and edge[0] is branch else v)
    return tuple(found)


def carry(made: Op, by: Carried, write: Callable[[Builder, Parts], Value]) -> Value:
    """Let the loop carry the descriptor, written by `write`; returns what replaces `made`."""
    body = by.loop.regions[0]
    before = Builder(by.loop.block, by.loop.block.ops.index(by.loop), made.loc)
    by.loop.operands.append(write(before, by.first))
    t = made.result.type
    given = body.add_arg(t)
    by.loop.add_results([t])

    def of(parts: Parts, block: Block, at: int) -> Value:
        branch = _branch(parts, by)
        if parts == by.given:
            return given
        if branch is None or not _kept(parts, by):
            return write(Builder(block, at, made.loc), parts)
        ends = [of(_way(parts, branch, i), region, len(region.ops) - 1) for i, region in enumerate(branch.regions)]
        for region, value in zip(branch.regions, ends):
            region.terminator.operands.append(value)
        return branch.add_results([t])[0]

    found = of(tuple(made.operands), made.block, made.block.ops.index(made))
    body.terminator.operands.append(found)
    return found
