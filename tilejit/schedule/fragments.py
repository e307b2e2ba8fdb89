"""Operands of mma.sync that lie in shared memory, of which products read a fragment at a time.

    role_sync                                             %v = view %buffer, 0
    %a.1 = convert %a {scratch=..}                        role_sync
    ...                                                   local_store %v, %a
    %s = dot_mma %a.1, ..                          ->     role_sync
                                                          ...
                                                          %s = dot_mma %v, ..

An operand whose layout changes goes through shared memory anyway, and need not be in registers at all. In registers it
costs less: one that a loop does not change is read once, and no other buffer is alive. So it stays there if there is
room for it.
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, listed
from tilejit.ir.registers import peak
from tilejit.ir.registers import size as registers_of
from tilejit.ir.report import Record
from tilejit.ir.scratch import of_convert
from tilejit.ir.types import DType, Ptr, Tile
from tilejit.schedule.context import Context
from tilejit.schedule.loads import Uses, in_place, place
from tilejit.schedule.operands import written
from tilejit.schedule.registers import MOST, room


def fragment_reads(fn: Function, table: Uses) -> set[Op]:
    """The conversions whose results products read from shared memory, fragment by fragment: the largest ones where a
    block's tiles take more registers than there are."""
    able = sorted((op for op in listed(fn.body) if op.name == "convert" and _able(op, table)),
                  key=lambda op: -registers_of(op.result))
    found: set[Op] = set()
    free = _without_registers(fn, table) if able else set()
    for block in _blocks(fn) if able else ():
        for op in (op for op in able if any(user.parent is block for user, _ in table[op.result])):
            if peak(block, free) <= room(MOST, "loop"):
                break
            found.add(op)
            free.add(op.result)
    return found


def _blocks(fn: Function) -> list[Block]:
    """The function's body and those of loops and branches in it."""
    return [fn.body, *(region for op in listed(fn.body) if op.define.carries for region in op.regions)]


def _able(op: Op, table: Uses) -> bool:
    """Whether an operand goes through shared memory to products by mma.sync alone, which can read it there."""
    t = op.result.type
    return isinstance(t, Tile) and isinstance(t.elem, DType) and t.elem.bits in (8, 16, 32) and len(t.shape) == 2 \
        and bool(table.get(op.result)) and of_convert(op) > 0 and not in_place(op.result, table) \
        and all(user.name == "dot" and "unit" in user.attrs and i < 2 for user, i in table[op.result]) \
        and len({i for _, i in table[op.result]}) == 1


def _without_registers(fn: Function, table: Uses) -> set[Value]:
    """Tiles that products read from the slots of rings, and pointers, which are few bases and many offsets."""
    return {v for op in listed(fn.body) for v in op.results
            if isinstance(v.type, Tile) and (isinstance(v.type.elem, Ptr) or in_place(v, table))}


def write_fragments(op: Op, b: Builder, c: Context) -> None:
    """Write what a conversion would write to scratch to a buffer of its own, for its products."""
    value, index = op.operands[0], c.uses[op.result][0][1]
    name = value.name or f"operand_{'ab'[index]}"
    view = c.fragments[op.result] = written(c.now(value), index, name, b, c, fence=False)
    size = view.type.slot_bytes                                                         # type: ignore[union-attr]
    c.say(Record("operand_kept", f"{name} at {place(op)} stays in shared memory, {size} bytes: mma.sync reads "
                 "fragments of it", name))
