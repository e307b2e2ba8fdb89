"""Operands of products that a loop does not change go to shared memory once, before the loop.

    for ... {                                         %v = view %buffer, 0
      %v = view %buffer, 0                            role_sync
      role_sync                                       local_store %v, %a
      local_store %v, %a                     ->       fence_async
      fence_async                                     role_sync
      role_sync                                       for ... {
      %p = dot_async %v, ..                             %p = dot_async %v, ..

Through the loop they take no registers then, but shared memory. One of a loop behind, in the same block, that is the
same operand finds it there.
"""
from __future__ import annotations

from tilejit.ir import Block, Function, Op, Value, enclosing, uses
from tilejit.ir.report import Record
from tilejit.schedule.plan import place


def keep_operands(fn: Function, report: list[Record]) -> Function:
    """Move what writes unchanged operands before loops, in place; returns the function. `report` gets a line for each
    buffer."""
    table = uses(fn.body)
    moved: dict[Op, list[Op]] = {}
    _block(fn.body, table, moved)
    kept: dict[tuple[Block | None, Value, object], Value] = {}
    for store, ops in moved.items():
        view = ops[1]
        value, buffer = store.operands[1], view.operands[0]
        key = (view.parent, value, buffer.type)
        if key in kept:
            assert isinstance(buffer.op, Op)                        # nothing else writes it, or reads it
            for op in [*ops, buffer.op]:
                assert op.parent is not None
                op.parent.ops.remove(op)
            for user, i in table[view.result]:
                user.operands[i] = kept[key]
            continue
        kept[key] = view.result
        assert isinstance(buffer.op, Op)
        name = buffer.op.attrs["name"]
        report.append(Record("operand_kept", f"{name} at {place(store)} is written once, before the loop", name))
    return fn


def _block(block: Block, table: dict[Value, list[tuple[Op, int]]], moved: dict[Op, list[Op]]) -> None:
    for op in [*block.ops]:
        for region in op.regions:
            _block(region, table, moved)
            if "loop" in op.define.traits:
                for ops in _sequences(region, table):
                    if not _made_in(ops[3].operands[1], op):
                        _move(ops, op)
                        moved[ops[3]] = ops


def _sequences(region: Block, table: dict[Value, list[tuple[Op, int]]]) -> list[list[Op]]:
    """What writes operands in a block (`products.py`), a constant and a view in front: buffers that nothing else
    writes."""
    found = []
    for i, op in enumerate(region.ops):
        part = region.ops[i - 3:i + 3]
        if op.name != "local_store" or i < 3 or len(part) < 6:
            continue
        index, view, before, _, fence, after = part
        if (index.name, view.name, fence.name) == ("const", "view", "fence_async") \
                and before.name == after.name == "role_sync" and view.operands[1] is index.result \
                and op.operands[0] is view.result and len(table[view.operands[0]]) == 1:
            found.append(part)
    return found


def _made_in(v: Value, loop: Op) -> bool:
    """Whether a value is made in a loop, or handed on by it."""
    owner = v.op.parent if isinstance(v.op, Block) else v.op
    return owner is loop or owner is not None and loop in enclosing(owner)


def _move(ops: list[Op], loop: Op) -> None:
    """Move ops that follow one another before a loop around them."""
    inner, outer = ops[0].parent, loop.parent
    assert inner is not None and outer is not None
    at = outer.ops.index(loop)
    for op in ops:
        inner.ops.remove(op)
        op.parent = outer
    outer.ops[at:at] = ops
