"""Loads ahead of time: what a loop's later iterations need early, and why a load cannot be issued early."""
from __future__ import annotations

from collections.abc import Iterable

from tilejit.ir.core import Edge, Op, Value, edge_of, loop_around, walk
from tilejit.records import dataclass


@dataclass(frozen=True)
class Ahead:
    """How to compute operands of loads for another iteration: what the loop carries for them, the ops that make them,
    and the ops that carry those values on.
    """

    carried: tuple[Edge, ...]
    ops: list[Op]
    steps: list[Op]


def address_slice(loop: Op, values: Iterable[Value]) -> Ahead | Op:
    """What of a loop's body must run ahead for some of its values, or the op that prevents it."""
    body = loop.regions[0]
    wanted: set[Op] = set()
    carried: dict[int, Edge] = {}
    work = [(v, wanted) for v in values]
    steps: set[Op] = set()
    while work:
        v, into = work.pop()
        edge = edge_of(v)
        if edge is not None and v.op is body and edge[1].index not in carried:
            carried[edge[1].index] = edge[1]
            work += [(end, steps) for end in edge[1].ends]
        if not isinstance(v.op, Op) or v.op in into:
            continue
        at = v.op
        while at.parent is not body and at.parent is not None and at.parent.parent is not None:
            at = at.parent.parent
        if at.parent is not body:
            continue
        if not at.define.pure or at.regions:
            return at
        into.add(at)
        work.extend((x, into) for x in at.operands)
    return Ahead(tuple(carried[i] for i in sorted(carried)), [op for op in body.ops if op in wanted],
                 [op for op in body.ops if op in steps])


def ahead_problem(load: Op) -> str:
    loop = loop_around(load)
    assert loop is not None
    if loop.name != "for":
        return "the loop is a while"
    body = loop.regions[0]
    if load.parent is not body:
        return "it is under a condition"
    found = address_slice(loop, load.operands)
    if isinstance(found, Op):
        if found.define.effects == {"read"}:
            return f"its address is loaded in the same iteration ({found.name}{_line(found)})"
        return f"its address needs {found.name}{_line(found)}, which cannot run ahead"
    return order_problem(load, loop)


def order_problem(load: Op, loop: Op) -> str:
    """What in a loop a load cannot pass; empty if nothing."""
    source = argument_of(load.operands[0])
    for op in walk(loop.regions[0]):
        if op.define.effects & {"sync"} or "sem" in op.attrs and op.attrs["sem"] != "relaxed":
            return f"{op.name}{_line(op)} orders it after other threads' work"
        if "write" in op.define.effects and may_alias(source, op):
            return f"{op.name}{_line(op)} may write what it reads"
    return ""


def is_volatile(op: Op) -> bool:
    """Whether a load must stay where it stands (PTX ISA: .cv fetches again)."""
    return bool(op.attrs.get("volatile")) or (op.attrs.get("cache") or "").lstrip(".") == "cv"


def may_alias(source: Value | None, write: Op) -> bool:
    other = argument_of(write.operands[0]) if write.operands else None
    return source is None or other is None or source is other


def _line(op: Op) -> str:
    return f" ({op.loc.short()})" if op.loc else ""


def argument_of(v: Value) -> Value | None:
    seen: set[Value] = set()
    while v not in seen:
        seen.add(v)
        if isinstance(v.op, Op):
            if "same_memory" not in v.op.define.traits:
                return None
            v = v.op.operands[0]
        elif (found := edge_of(v)) is not None and found[0].name == "for":
            init, (end,) = found[1].init, found[1].ends
            if _moved(end) is not v or init is None:
                return None
            v = init
        else:
            return v if v.op is not None and v.op.parent is None else None
    return None


def _moved(v: Value) -> Value:
    while isinstance(v.op, Op) and "same_memory" in v.op.define.traits:
        v = v.op.operands[0]
    return v
