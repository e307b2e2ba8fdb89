"""Operands of products on their way from registers through shared memory."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Op, Value, enclosing
from tilejit.ir.types import Buffer, DType, Pending, Tile, int32
from tilejit.schedule.buffers import alloc
from tilejit.schedule.context import Context


def buffer_of(t: Tile, index: int, slots: int = 1) -> Buffer:
    """Where a first or second operand (`index`) lies on its way from registers."""
    assert isinstance(t.elem, DType) and t.layout is not None
    along_k = (1, 0) if index == 0 else (0, 1)
    bases = t.layout.bases_of("register")
    order = ((1, 0) if bases and bases[0] == (0, 1) else (0, 1)) if t.elem.bits == 16 else along_k
    return Buffer.of(t, slots, order)


def written(value: Value, index: int, name: str, b: Builder, c: Context, fence: bool = True) -> Value:
    """Write a first or second operand (`index`) to a buffer of its own; the view that products read."""
    view = b("view", alloc(c.top, name, buffer_of(value.tile, index), private=True), b.const(0, int32))
    _meet(b.block, fence)
    b.op("local_store", view, value)
    if fence:
        b.op("fence_async")
    b.op("role_sync")
    return view


def _meet(block: Block, fence: bool) -> None:
    """The product before may still read the buffer elsewhere."""
    ops = block.ops
    at = next((i for i in range(len(ops), 0, -1) if ops[i - 1].regions or not ops[i - 1].define.pure), 0)
    last = ops[at - 1].name if at else ""
    if last == "role_sync":
        del ops[at - 2 if fence and ops[at - 2].name == "fence_async" else at - 1:at]
        return
    in_flight = any(isinstance(v.type, Pending) for v in block.args) or any(op.name == "dot_async" for op in ops)
    Builder(block, at if last == "load" and not in_flight else len(ops), ops[-1].loc).op("role_sync")


def operand(dot: Op, index: int, value: Value, b: Builder, c: Context) -> Value:
    """The view of an operand of wgmma; where it may be kept, it is written before the loops that do not change it."""
    block, changing = b.block, [value.owner, *enclosing(value.owner)] if value.owner is not None else []
    while c.fn.attrs.get("keep_operands", True) and (loop := block.parent) is not None and \
            "loop" in loop.define.traits and loop not in changing:
        block = loop.block
    key = value, block, "ab"[index]
    if key not in c.staged:
        name = f"{dot.result.name or 'dot'}_{'ab'[index]}"
        c.staged[key] = written(value, index, name, Builder(block, loc=b.loc) if block is not b.block else b, c)
        size = c.staged[key].buffer.slot_bytes
        c.fn.say("operand", f"dot operand {'ab'[index]} at {dot.place} goes through registers into {size} bytes",
                 dot.place, operand=index, bytes=size)
        if block is not b.block:
            c.fn.say("operand_kept", f"{name} at {dot.place} is written once, before the loop", name)
    c.through.setdefault(dot, []).append(c.staged[key].maker.operands[0])
    return c.staged[key]
