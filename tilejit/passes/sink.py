"""Values that only what follows a loop needs are computed behind it, not kept in registers through it.

    %at = add %row, %cols                             for ... {..}
    for ... {..}                            ->        %at = add %row, %cols
    store %at, %sum                                   store %at, %sum

Ranges, splats and arithmetic on them (ops that are `cheap`) are copied to the first op behind the loop that needs them,
if what the copies need takes fewer registers than they do; what nothing before the loop needs either is gone there.
"""
from __future__ import annotations

from collections.abc import Callable

from tilejit.ir import Block, Function, Op, Value, clone_op, reached, read, whole
from tilejit.ir.dead import drop_dead
from tilejit.ir.registers import size


def sink(fn: Function) -> Function:
    """Compute cheap values behind the loops that they are not used in, in place; returns the function."""
    if _block(fn.body):
        drop_dead(fn)
    return fn


def _block(block: Block) -> bool:
    changed = False
    for op in [*block.ops]:
        for region in op.regions:
            changed |= _block(region)
        if "loop" in op.define.traits:
            changed |= _behind(block, op)
    return changed


def _behind(block: Block, loop: Op) -> bool:
    """Recompute behind one loop."""
    at = block.ops.index(loop)
    before, behind = set(block.ops[:at]), block.ops[at + 1:]
    used = {op: read(op) for op in behind}
    wanted = dict.fromkeys(v for found in used.values() for v in found if v.op in before)
    inside = set(read(loop))

    def able(v: Value) -> bool:
        op = v.op
        return isinstance(op, Op) and op in before and "cheap" in op.define.traits and v not in inside

    kept = inside | {v for v in wanted if not able(v)}           # in registers through the loop anyway
    sunk = {v for v in wanted if able(v) and sum(map(size, _leaves(v, able) - kept)) < size(v)}
    if not sunk:
        return False
    made: dict[Value, Value] = {}
    out: list[Op] = []

    def copy(v: Value) -> None:
        if v in made or not able(v):
            return
        for x in v.maker.operands:
            copy(x)
        new = clone_op(v.maker, made)
        new.parent = block
        out.append(new)

    for op in behind:
        for v in used[op]:
            if v in sunk:
                copy(v)
        for x in whole(op):
            x.operands = [made.get(v, v) if v in sunk else v for v in x.operands]
        out.append(op)
    block.ops[at + 1:] = out
    return True


def _leaves(v: Value, able: Callable[[Value], bool]) -> set[Value]:
    """What a value is computed from by cheap ops before the loop."""
    return {x for x in reached([v], lambda x: x.maker.operands if able(x) else ()) if not able(x)}
