"""`convert` ops: `insert` puts them, `improve` moves them."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Builder, Function, Op, Value, beside, erase, listed, replace, uses
from tilejit.ir.report import Record
from tilejit.ir.types import Tile
from tilejit.layout.convert import Registers, Shuffles, Swaps, plan
from tilejit.layout.linear import LinearLayout
from tilejit.passes.copies import pipelined_loops, refused, wants_copies
from tilejit.passes.layouts_rules import backward, natural, wanted


def insert(fn: Function) -> None:
    made = [(op, layout) for op in listed(fn.body) if (layout := natural(op)) is not None
            and any(isinstance(r.type, Tile) and r.type.layout != layout for r in op.results)]
    table = uses(fn.body) if made else {}
    for op, layout in made:
        for r in op.results:
            if isinstance(r.type, Tile) and r.type.layout != layout:
                new = beside(op, behind=True).op("convert", r, result_types=[r.type]).result
                r.type, new.name = r.type.with_layout(layout), r.name
                for user, index in table.get(r, ()):
                    user.operands[index] = new
    for op in listed(fn.body):
        for index, layout in wanted(op).items():
            v = op.operands[index]
            if v.tile.layout not in (None, layout):
                op.operands[index] = _converted(op, v, layout)


def _converted(op: Op, v: Value, layout: LinearLayout) -> Value:
    before, at = op, op
    while at.parent is not v.home and at.parent is not None and at.parent.parent is not None:
        at = at.parent.parent
        if "loop" in at.define.traits:
            before = at
    b = Builder(before.block, before.block.ops.index(before), op.loc)
    new = b.op("convert", v, result_types=[v.tile.with_layout(layout)]).result
    new.name = v.name
    return new


def improve(fn: Function) -> None:
    changed = True
    while changed:
        changed = False
        found = [op for op in listed(fn.body) if op.name == "convert"]
        table = uses(fn.body) if found else {}
        for op in found:
            if _dropped(fn, op, table) or _before(fn, op, table) or _after(fn, op, table):
                changed = True
                break


def _dropped(fn: Function, op: Op, table: dict) -> bool:
    """A conversion of a conversion is one; an identity or unused one is none."""
    source = op.operands[0]
    if op.result not in table:
        erase({op}, fn.body)
        return True
    if source.type == op.result.type:
        replace(fn.body, {op.result: source})
        erase({op}, fn.body)
        return True
    if isinstance(source.op, Op) and source.op.name == "convert":
        op.operands[0] = source.op.operands[0]
        return True
    return False


def _before(fn: Function, op: Op, table: dict) -> bool:
    """convert(f(x)) -> f(convert(x)), where that is less work."""
    source, layout = op.operands[0], op.result.tile.layout
    maker = source.op
    assert layout is not None
    if not isinstance(maker, Op) or len(table[source]) != 1 or len(maker.results) != 1 or maker.regions \
            or not maker.define.pure:
        return False
    kind = maker.define.layout
    needs = layout if kind == "same" else backward(maker, layout) if kind == "maps" else None
    tiles = [v for v in maker.operands if isinstance(v.type, Tile)]
    if needs is None and tiles:
        return False
    if any(v.tile.layout is None for v in tiles) or _repeats(op) and kind == "same":
        return False
    moved = {v for v in tiles if v.tile.layout != needs}
    renames = kind == "maps" and all(map(_is_loaded, moved))
    if sum(_bytes(v) for v in moved) >= _bytes(source) and not renames:
        return False
    for i, v in enumerate(maker.operands):
        if v in moved:
            assert needs is not None
            maker.operands[i] = _converted(maker, v, needs)
    source.type = op.result.type
    replace(fn.body, {op.result: source})
    erase({op}, fn.body)
    return True


def _is_loaded(v: Value) -> bool:
    """A load through shared memory would have one more read beside a conversion."""
    while isinstance(v.op, Op) and v.op.name == "convert":
        v = v.op.operands[0]
    return isinstance(v.op, Op) and v.op.define.effects == {"read"}


def _is_copied(fn: Function, v: Value) -> bool:
    """Whether a value is read from shared memory, where copies put it: in any layout at the same price."""
    op = v.op
    return isinstance(op, Op) and (op.name == "row_load" or op.name == "load" and not refused(op)
                                   and wants_copies(fn, op, pipelined_loops(fn)))


def _after(fn: Function, op: Op, table: dict) -> bool:
    """f(convert(x)) -> convert(f(x)) where f, the only user, makes narrower elements of it alone, or fewer threads then
    compute f of an element.
    """
    users = table[op.result]
    user = users[0][0]
    if len(users) != 1 or len(user.results) != 1 or user.regions or user.parent is not op.parent \
            or not user.define.pure or "elementwise" not in user.define.traits \
            or sum(isinstance(v.type, Tile) for v in user.operands) != 1 \
            or _bytes(user.result) >= _bytes(op.result) and not _repeats(op) or _is_copied(fn, op.operands[0]):
        return False
    want = user.result.tile
    user.operands[users[0][1]] = op.operands[0]
    user.result.type = want.with_layout(op.operands[0].tile.layout)
    b = Builder(user.block, user.block.ops.index(user) + 1, op.loc)
    new = b.op("convert", user.result, result_types=[want])
    new.result.name = user.result.name
    for other, index in table.get(user.result, ()):
        other.operands[index] = new.result
    erase({op}, fn.body)
    return True


def _repeats(op: Op) -> bool:
    before, after = (v.tile.layout for v in (op.operands[0], op.result))
    assert before is not None and after is not None
    return after.num_registers > before.num_registers


def _bytes(v: Value) -> int:
    t = v.tile
    return t.numel * max(1, t.elem.bits // 8)


def describe(fn: Function) -> list[Record]:
    lines = []
    table = uses(fn.body)
    for op in listed(fn.body):
        if op.name != "convert":
            continue
        src, dst = op.operands[0].tile, op.result.tile
        assert src.layout is not None and dst.layout is not None
        try:
            found = plan(src.layout, dst.layout, max(1, dst.elem.bits // 8))
        except ValueError as e:
            raise CompilationError(f"a tile {dst} cannot change its layout: {e}", op.loc) from None
        if isinstance(found, Registers):
            continue
        how = "by shuffles" if isinstance(found, (Shuffles, Swaps)) else f"{found.bytes} bytes through shared memory"
        users = ", ".join(dict.fromkeys(u.name for u, _ in table.get(op.result, ())))
        where = op.place
        lines.append(Record("convert", f"convert at {where}: {dst} for {users}, {how}", where))
    return lines
