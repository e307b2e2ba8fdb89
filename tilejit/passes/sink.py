"""Values that only what follows a loop or a product needs are computed behind it, not kept in registers through it."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilejit.ir import Block, Function, Op, Value, clone_op, listed, reached, read, uses, whole
from tilejit.ir.dead import drop_dead
from tilejit.ir.registers import root, size
from tilejit.ir.types import Tile, elem_of


def sink(fn: Function) -> Function:
    if _block(fn.body):
        drop_dead(fn)
    blocks = dict.fromkeys(op.parent for op in listed(fn.body) if op.name == "dot")
    table = uses(fn.body) if blocks else {}
    for block in blocks:
        assert block is not None
        _masks(block, table)
    return fn


def _masks(block: Block, table: Mapping[Value, Sequence[tuple[Op, int]]]) -> None:
    for op in reversed([*block.ops]):
        if not op.define.pure or op.regions or len(op.results) != 1 or not isinstance(op.result.type, Tile) or \
                elem_of(op.result.type).bits != 1:
            continue
        users = [user for user, _ in table.get(op.result, ())]
        ops, at = block.ops, block.ops.index(op)
        if not users or any(user.parent is not block for user in users):
            continue
        first = min(map(ops.index, users))
        needs = {r for v in op.operands for r in root(v)}
        layout = op.result.type.layout
        if any(x.name == "dot" for x in ops[at:first]) and layout and sum(map(size, needs)) < layout.num_registers:
            ops.insert(first - 1, ops.pop(at))




def _block(block: Block) -> bool:
    changed = False
    for op in [*block.ops]:
        for region in op.regions:
            changed |= _block(region)
        if "loop" in op.define.traits:
            changed |= _behind(block, op)
    return changed


def _behind(block: Block, loop: Op) -> bool:
    at = block.ops.index(loop)
    before, behind = set(block.ops[:at]), block.ops[at + 1:]
    used = {op: read(op) for op in behind}
    wanted = dict.fromkeys(v for found in used.values() for v in found if v.op in before)
    inside = set(read(loop))

    def able(v: Value) -> bool:
        op = v.op
        return isinstance(op, Op) and op in before and "cheap" in op.define.traits and v not in inside

    kept = inside | {v for v in wanted if not able(v)}  # in registers through the loop anyway
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
    return {x for x in reached([v], lambda x: x.maker.operands if able(x) else ()) if not able(x)}
