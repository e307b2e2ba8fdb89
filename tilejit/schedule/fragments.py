"""Operands of mma.sync that lie in shared memory, of which products read a fragment at a time."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, blocks, inside, listed
from tilejit.ir.registers import peak, size
from tilejit.ir.scratch import of_convert
from tilejit.ir.types import DType, Ptr, Tile, elem_of
from tilejit.schedule.context import Context
from tilejit.schedule.loads import Uses, in_place
from tilejit.schedule.operands import written
from tilejit.schedule.registers import MOST, room


def fragment_reads(fn: Function, table: Uses) -> list[Op]:
    """Conversions whose results products read from shared memory: the largest, where registers do not suffice."""
    ops, found = listed(fn.body), set[Op]()
    able = sorted((op for op in ops if op.name == "convert" and _able(op, table)), key=lambda op: -size(op.result))
    if not able:
        return []
    # Tiles that are read from the slots of rings take no registers, and pointers few: bases and offsets.
    free = {v for op in ops for v in op.results
            if isinstance(v.type, Tile) and (isinstance(v.type.elem, Ptr) or in_place(v, table))}
    for block in blocks(fn.body):
        for op in (op for op in able if any(user.parent is block for user, _ in _products(op.result, table))):
            if peak(block, free) <= room(MOST, "loop"):
                break
            same = [x for x in able if x.operands == op.operands and x.parent is op.parent]  # one buffer for all
            found.update(same)
            free.update(x.result for x in same)
    return [op for op in ops if op in found]


def write_at_once(op: Op, table: Uses) -> None:
    """Move the conversion of an operand, and what makes it narrower, to where nothing else needs what it is made of."""
    block, moved, v = op.block, [op], op.operands[0]
    while (maker := _narrows(v, block, table)) is not None:
        moved.insert(0, maker)
        v = maker.operands[0]
    behind = [inside(block, user) for user, _ in table[v] if user is not moved[0]]
    if isinstance(v.op, Op) and v.op.define.pure:
        behind.append(v.op)
    if v.home is block and behind and None not in behind:
        at = max(block.ops.index(x) for x in behind if x is not None) + 1
        if at <= block.ops.index(moved[0]):
            block.ops[at:] = moved + [x for x in block.ops[at:] if x not in moved]


def _narrows(v: Value, block: Block, table: Uses) -> Op | None:
    """What makes a tile of another one that takes no fewer registers, for a single op."""
    op = v.op
    if not isinstance(op, Op) or op.parent is not block or "elementwise" not in op.define.traits or len(table[v]) > 1 \
            or len(op.operands) > 1 or size(op.operands[0]) < size(v):
        return None
    return op


def _able(op: Op, table: Uses) -> bool:
    """Whether it goes through shared memory, to mma.sync alone: along one dimension, but of 16 bits (ldmatrix
    transposes)."""
    t, found = op.result.type, _products(op.result, table)
    return isinstance(t, Tile) and isinstance(t.elem, DType) and t.elem.bits in (8, 16, 32) and len(t.shape) == 2 \
        and bool(found) and of_convert(op) > 0 and not in_place(op.result, table) \
        and (len({k for _, k in found}) == 1 or t.elem.bits == 16)


def _products(v: Value, table: Uses) -> list[tuple[Op, int]]:
    """The products by mma.sync that alone read a tile or its transpose, and its dimension that is K."""
    found: list[tuple[Op, int]] = []
    for user, i in table.get(v, ()):
        if user.name == "dot" and "unit" in user.attrs and i < 2:
            found.append((user, 1 - i))
        elif user.name == "trans" and (turned := _products(user.result, table)):
            found += [(dot, 1 - k) for dot, k in turned]
        else:
            return []
    return found


def write_fragments(op: Op, b: Builder, c: Context) -> None:
    """Write an operand to a buffer of its own for its products; a transpose is another view of it."""
    source = op.operands[0]
    if op.name == "trans":
        c.fragments[op.result] = b("view_trans", c.fragments[source], order=(1, 0))
        return
    k = min(k for _, k in _products(op.result, c.uses))
    key = source, b.block, k if elem_of(source.type).bits != 16 else -1
    if key not in c.staged:
        name = source.name or "operand"
        view = c.staged[key] = written(c.now(source), 1 - k, name, b, c, fence=False)
        c.fn.say("operand_kept", f"{name} at {op.place} stays in shared memory, {view.buffer.slot_bytes} bytes: "
                 "mma.sync reads fragments of it", name)
    c.fragments[op.result] = c.staged[key]
