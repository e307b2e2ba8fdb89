"""How layouts follow from one another through ops."""
from __future__ import annotations

from tilejit.ir import Op, Value, edge_at, edges
from tilejit.ir.scratch import axis_places, scanned_alone
from tilejit.ir.types import Tile
from tilejit.layout.convert import cost, plan
from tilejit.layout.linear import LinearLayout
from tilejit.layout.mma import mma_operand
from tilejit.layout.named import blocked
from tilejit.passes.layouts_products import in_other_order

#: Instructions for a chunk's total of a scan: a read, a fold and a choice.
_TOTAL = 3


def layout_of(v: Value) -> LinearLayout | None:
    return v.type.layout if isinstance(v.type, Tile) else None


def backward(op: Op, layout: LinearLayout) -> LinearLayout | None:
    rule = op.define.backward
    return rule(op, layout) if rule is not None else None


def forward(op: Op, layout: LinearLayout) -> LinearLayout | None:
    rule = op.define.forward
    return rule(op, layout) if rule is not None else None


# -- control flow --
def same_layout(op: Op) -> list[list[Value]]:
    """Groups of values that share a layout: what a loop carries, both halves of a split."""
    if op.name == "split":
        return [list(op.results)]
    return [[*e.args, e.result] for e in edges(op) if e.args]


def handed_over(op: Op, v: Value) -> list[Value]:
    return [x for e in edges(op) if v in e.values for x in e.values if x is not v]


# -- what an op needs --
def wanted(op: Op) -> dict[int, LinearLayout]:
    targets: dict[int, LinearLayout | None] = {}
    kind = op.define.layout
    if kind == "same":
        targets = dict.fromkeys(range(len(op.operands)), layout_of(op.results[0]))
    elif kind == "flow" and op.define.variadic:
        into = (edge_at(op, i) for i in range(op.define.fixed, len(op.operands)))
        targets = {op.define.fixed + e.index: layout_of(e.result) for _, e in filter(None, into)}
    elif kind == "product":
        result = layout_of(op.result)
        targets = {2: result}
        if "unit" in op.attrs and result is not None:
            targets |= {i: operand_layout(op, i, result) for i in (0, 1)}
        else:
            targets[0] = in_other_order(op)
    elif op.name == "block_store":
        t = op.operands[1].tile
        assert t.layout is not None
        if t.elem.bits < 32:  # wider ones fill sectors of 32 bytes from an accumulator's layout, too
            targets = {1: blocked(t.shape, t.layout.in_size("warp"), 128 // t.elem.bits)}
    elif op.name == "scan":
        targets = dict.fromkeys(range(len(op.operands)), natural(op))
    elif kind in ("access", "follows"):
        targets = dict.fromkeys(range(1, len(op.operands)), layout_of(op.operands[0]))
    elif kind == "maps":
        result = layout_of(op.results[0])
        if result is not None:
            targets = dict.fromkeys(range(len(op.operands)), backward(op, result))
    return {i: layout for i, layout in targets.items()
            if layout is not None and isinstance(op.operands[i].type, Tile)}


def operand_layout(dot: Op, index: int, accumulator: LinearLayout) -> LinearLayout:
    t = dot.operands[index].tile
    return mma_operand(accumulator, index, t.shape[-2 if index else -1], t.elem.bits // 8)


def natural(op: Op) -> LinearLayout | None:
    source = layout_of(op.operands[0]) if op.operands else None
    if op.define.layout in ("access", "picks") or source is None:
        return source
    if op.name == "scan":
        return by_threads(op, source)
    return forward(op, source) if op.define.layout == "follows" else None


def by_threads(op: Op, layout: LinearLayout) -> LinearLayout:
    """Threads fold all chunks' totals where registers have what is beyond other warps' elements."""
    axis, t = op.attrs["axis"], op.operands[0].tile
    places = axis_places(layout, axis)
    alone = scanned_alone(layout, axis)
    if all(name == "warp" for name, _ in places[alone:]) or len(places) != sum(
            b[axis] > 0 for _, row in layout.bases for b in row) or any(
            x and b[axis] for _, row in layout.bases for b in row for d, x in enumerate(b) if d != axis):
        return layout
    found = iter(range(len(places)))
    other = LinearLayout.from_bases({n: [tuple(x and 1 << next(found) for x in b) if b[axis] else b for b in row]
                                     for n, row in layout.bases}, layout.shape)
    size = max(1, t.elem.bits // 8)
    moved = len(op.operands) * (cost(plan(layout, other, size)) + cost(plan(other, layout, size)))
    totals = layout.num_registers >> sum(name == "register" for name, _ in places[:alone])
    each = totals << sum(name == "warp" for name, _ in places[alone:])
    return other if _TOTAL * each > moved else layout
