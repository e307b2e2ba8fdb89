"""Masks of 64-bit indices are compared in 32 bits: the range of the tile with one number."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, beside, const_of, listed
from tilejit.ir.bounds import bounds
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import Tile, int32, int64, shape_of
from tilejit.passes.rules import defined_by
from tilejit.records import dataclass

#: Tiles of numbers less than this far from zero are compared in 32 bits, with differences of two of them.
_FAR = 1 << 29
#: Comparisons of a thread that pay for the difference.
_FEW = 8
_WHOLE = (-(1 << 63), (1 << 63) - 1)
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class _Sum:
    """The terms of an index."""

    scalars: tuple[Value | int, ...]
    tile: Value | None = None
    renamed: tuple[Op, ...] = ()


def narrow_masks(fn: Function) -> Function:
    changed = [_narrow(op) for op in listed(fn.body) if op.name == "cmp" and op.attrs["pred"] in _SWAPPED]
    if any(changed):
        drop_dead(fn)
    return fn


def _sum(v: Value) -> _Sum | None:
    if (number := const_of(v)) is not None:
        return _Sum((int(number),))
    if op := defined_by(v, "splat"):
        return _Sum((op.operands[0],))
    if op := defined_by(v, "cast"):
        source = op.operands[0]
        return _Sum((), source) if isinstance(source.type, Tile) and source.type.elem == int32 else None
    if op := defined_by(v, "expand_dims", "broadcast"):
        inner = _sum(op.operands[0])
        return inner and _Sum(inner.scalars, inner.tile, (*inner.renamed, op))
    if op := defined_by(v, "add"):
        one, two = map(_sum, op.operands)
        if one and two and not (one.tile and two.tile):
            with_tile = one if one.tile else two
            return _Sum(one.scalars + two.scalars, with_tile.tile, with_tile.renamed)
    return None


def _narrow(op: Op) -> bool:
    t = op.operands[0].type
    if not isinstance(t, Tile) or t.elem != int64 or _registers(op.result) // op.attrs.get("runs", 1) < _FEW:
        return False
    one, two = map(_sum, op.operands)
    if one is None or two is None:
        return False
    pred = op.attrs["pred"]
    if one.tile is None or two.tile is not None and _registers(one.tile) < _registers(two.tile):
        one, two, pred = two, one, _SWAPPED[pred]
    if one.tile is None or not _may_narrow(one, two):
        return False
    b = beside(op)
    difference = _total(two.scalars, b) if two.scalars else b.const(0, int64)
    if one.scalars:
        difference = b("sub", difference, _total(one.scalars, b))
    least, greatest = bounds(one.tile)
    if two.tile is None:
        if pred in ("le", "gt"):  # x <= d is x < d + 1
            difference, pred = b("add", difference, b.const(1, int64)), {"le": "lt", "gt": "ge"}[pred]
        greatest += 1
    else:
        low, high = bounds(two.tile)
        least, greatest = least - high - 1, greatest - low + 1
    difference = b("minimum", b("maximum", difference, b.const(least, int64)), b.const(greatest, int64))
    limit = b("cast", difference, dtype=int32)
    if two.tile is None:
        small = Tile(t.shape, int32).with_layout(t.layout)
        side = b.op("splat", limit, shape=t.shape, result_types=[small]).result
    else:
        by = b.op("splat", limit, shape=shape_of(two.tile.type), result_types=[two.tile.type]).result
        side = _renamed(b("add", two.tile, by), two.renamed, b)
    op.operands[:], op.attrs["pred"] = [_renamed(one.tile, one.renamed, b), side], pred
    return True


def _may_narrow(one: _Sum, two: _Sum) -> bool:
    ranges = [bounds(x.tile) if x.tile else (0, 0) for x in (one, two)]
    return all(-_FAR < least and greatest < _FAR and _fits(x, least, greatest)
               for x, (least, greatest) in zip((one, two), ranges)) and _fits(
        _Sum((*two.scalars, *one.scalars)), -(1 << 31), 1 << 31)


def _registers(v: Value) -> int:
    assert isinstance(v.type, Tile) and v.type.layout is not None
    return v.type.layout.num_registers


def _renamed(tile: Value, renamed: tuple[Op, ...], b: Builder) -> Value:
    for rename in renamed:
        was, layout = rename.result.tile, rename.result.layout
        made = b.op(rename.name, tile, result_types=[Tile(was.shape, int32).with_layout(layout)], **rename.attrs)
        tile = made.result
    return tile


def _fits(x: _Sum, least: int, greatest: int) -> bool:
    """Whether numbers, plus what is between these bounds, wrap in no order of addition; either sign of the numbers."""
    for s in x.scalars:
        lo, hi = (s, s) if isinstance(s, int) else bounds(s)
        least, greatest = least - max(abs(lo), abs(hi)), greatest + max(abs(lo), abs(hi))
    return _WHOLE[0] <= least and greatest <= _WHOLE[1]


def _total(scalars: tuple[Value | int, ...], b: Builder) -> Value:
    values = [b.const(s, int64) if isinstance(s, int) else s for s in scalars]
    total = values[0]
    for v in values[1:]:
        total = b("add", total, v)
    return total
