"""Loads through pointers that become asynchronous copies: which of the marked ones can be issued ahead of time.

`passes/copies.py` marks what the instruction can do. Here the loop is asked: a load of iteration i + n is issued in
iteration i, so its address, its mask and what the loop carries for them must be computable that early, and nothing in
the loop may write what it reads.
"""
from __future__ import annotations

from tilejit.ir import Function, Op, Value, enclosing, walk
from tilejit.schedule.plan import address_slice, argument_of


def settle(fn: Function, notes: list[str]) -> None:
    """Take the mark off the loads that cannot be issued ahead, and say why in `notes`."""
    for op in walk(fn.body):
        if "copy" in op.attrs:
            problem = ahead_problem(fn, op)
            if problem:
                unmark(op, problem, notes)


def unmark(op: Op, problem: str, notes: list[str]) -> None:
    """Make a marked load an ordinary one again."""
    del op.attrs["copy"]
    notes.append(f"load {op.result.name or 'of a tile'} at {op.loc.short() if op.loc else '?'}: not pipelined, {problem}")


def marked(fn: Function) -> list[Op]:
    """The loads that are asynchronous copies."""
    return [op for op in walk(fn.body) if "copy" in op.attrs]


def ahead_problem(fn: Function, load: Op) -> str:
    """Why a load cannot be issued in an earlier iteration; empty if it can."""
    loop = next(x for x in enclosing(load) if x.name in ("for", "while"))
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
    source = argument_of(load.operands[0])
    for op in walk(body):
        if op.define.effects & {"sync", "shared_write"} or op.attrs.get("sem") not in (None, "relaxed"):
            return f"{op.name}{_line(op)} orders it after other threads' work"
        if "write" in op.define.effects and _may_alias(source, op):
            return f"{op.name}{_line(op)} may write what it reads"
    return ""


def _may_alias(source: Value | None, write: Op) -> bool:
    """Different arguments are different memory; what an address is computed from must be known to tell."""
    other = argument_of(write.operands[0]) if write.operands else None
    return source is None or other is None or source is other


def _line(op: Op) -> str:
    return f" ({op.loc.short()})" if op.loc else ""
