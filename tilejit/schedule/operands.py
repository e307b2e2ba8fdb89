"""Operands of products on their way from registers through shared memory.

    for ... {                          %v = view %buffer, 0
      %p = dot %a, ..                  role_sync
    }                           ->     local_store %v, %a
                                       fence_async
                                       role_sync
                                       for ... {
                                         %p = dot_async %v, ..

One that a loop does not change is written once, before the loop: through the loop it takes no registers then, but
shared memory. Other products of the same operand, in that block and in loops there, find it.
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Op, Value, enclosing
from tilejit.ir.report import Record
from tilejit.ir.types import Buffer, DType, Tile, int32
from tilejit.schedule.context import Context
from tilejit.schedule.loads import place


def written(value: Value, index: int, name: str, b: Builder, c: Context, fence: bool = True) -> Value:
    """Write a first or second operand (`index`) to a buffer of its own; the view that products read."""
    t = value.type
    assert isinstance(t, Tile) and isinstance(t.elem, DType) and t.layout is not None
    along_k = (1, 0) if index == 0 else (0, 1)
    bases = t.layout.bases_of("register")
    order = ((1, 0) if bases and bases[0] == (0, 1) else (0, 1)) if t.elem.bits == 16 else along_k
    view = b("view", c.alloc(name, Buffer.of(t, 1, order), private=True), b.const(0, int32))
    b.op("role_sync")            # the product before may still read the buffer elsewhere
    b.op("local_store", view, value)
    if fence:
        b.op("fence_async")
    b.op("role_sync")
    return view


def operand(dot: Op, index: int, value: Value, b: Builder, c: Context) -> Value:
    """The view of an operand of wgmma; where it may be kept, it is written before the loops that do not change it."""
    block = _before_loops(value, b.block) if c.fn.attrs.get("keep_operands", True) else b.block
    where, view = c.staged.get((value, index), (None, None))
    if view is None or where is not block:
        name = f"{dot.result.name or 'dot'}_{'ab'[index]}"
        view = written(value, index, name, Builder(block, loc=b.loc) if block is not b.block else b, c)
        c.staged[value, index] = block, view
        size = view.type.slot_bytes                                                    # type: ignore[union-attr]
        c.say(Record("operand", f"dot operand {'ab'[index]} at {place(dot)} goes through registers into {size} bytes",
                     place(dot), operand=index, bytes=size))
        if block is not b.block:
            c.say(Record("operand_kept", f"{name} at {place(dot)} is written once, before the loop", name))
    assert isinstance(view.op, Op)
    c.through.setdefault(dot, []).append(view.op.operands[0])
    return view


def _before_loops(v: Value, block: Block) -> Block:
    """The outermost block that only loops which do not change a value lie between."""
    owner = v.op.parent if isinstance(v.op, Block) else v.op
    changing = [owner, *enclosing(owner)] if owner is not None else []
    while (loop := block.parent) is not None and "loop" in loop.define.traits and loop not in changing:
        assert loop.parent is not None
        block = loop.parent
    return block
