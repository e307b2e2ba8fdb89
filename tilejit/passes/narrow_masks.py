"""Masks of 64-bit indices are compared in 32 bits: the range of the tile with one number.

    %s = splat %start : int64[64]                        %r = arange {start=0, end=64} : int32[64]
    %r = arange {start=0, end=64} : int32[64]            %d = sub %n, %start : int64
    %o = add %s, (cast %r) : int64[64]           ->      %d32 = cast (%d, between 0 and 64) : int32
    %m = cmp %o, (splat %n) {pred="lt"}                  %m = cmp %r, (splat %d32) {pred="lt"}

An element costs one comparison then, and the range stays in registers of 32 bits through the loop. Sums that may wrap
are left as they are.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilejit.ir import Builder, Function, Op, Value, const_of, walk
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import Tile, int32, int64
from tilejit.passes.rules import bounds, defined_by

_WHOLE = (-(1 << 63), (1 << 63) - 1)
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class _Sum:
    """What an index is the sum of: 64-bit numbers, and at most one tile of 32-bit ones; the renamings of its elements
    (outermost last)."""

    scalars: tuple[Value | int, ...]
    tile: Value | None = None
    renamed: tuple[Op, ...] = ()


def narrow_masks(fn: Function) -> Function:
    """Compare in 32 bits where that says the same, in place; returns the function."""
    changed = [_narrow(op) for op in [*walk(fn.body)] if op.name == "cmp" and op.attrs["pred"] in _SWAPPED]
    if any(changed):
        drop_dead(fn)
    return fn


def _sum(v: Value) -> _Sum | None:
    """An index as a sum; None if it is another thing."""
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
    """Rewrite one comparison, if it is of a sum with a tile and of numbers."""
    t = op.operands[0].type
    if not isinstance(t, Tile) or t.elem != int64 or t.layout is None:
        return False
    one, two = map(_sum, op.operands)
    if one is None or two is None or (one.tile is None) == (two.tile is None):
        return False
    pred = op.attrs["pred"]
    if one.tile is None:
        one, two, pred = two, one, _SWAPPED[pred]
    assert one.tile is not None and op.parent is not None
    least, greatest = bounds(one.tile)
    if greatest - least > 1 << 30 or not _fits(one, least, greatest) or not _fits(two, 0, 0) or not _fits(
            _Sum((*two.scalars, *one.scalars)), -(1 << 31), 1 << 31):
        return False
    b = Builder(op.parent, op.parent.ops.index(op), op.loc)
    difference = _total(two.scalars, b)
    if one.scalars:
        difference = b("sub", difference, _total(one.scalars, b))
    if pred in ("le", "gt"):                     # x <= d is x < d + 1
        difference, pred = b("add", difference, b.const(1, int64)), {"le": "lt", "gt": "ge"}[pred]
    difference = b("maximum", difference, b.const(least, int64))
    difference = b("minimum", difference, b.const(greatest + 1, int64))
    small = Tile(t.shape, int32).with_layout(t.layout)
    tile = one.tile
    for rename in one.renamed:
        was = rename.result.type
        assert isinstance(was, Tile) and was.layout is not None
        made = b.op(rename.name, tile, result_types=[Tile(was.shape, int32).with_layout(was.layout)], **rename.attrs)
        tile = made.result
    limit = b.op("splat", b("cast", difference, dtype=int32), shape=t.shape, result_types=[small]).result
    op.operands[:], op.attrs["pred"] = [tile, limit], pred
    return True


def _fits(x: _Sum, least: int, greatest: int) -> bool:
    """Whether numbers, plus what is between these bounds, wrap in no order of addition; either sign of the numbers."""
    for s in x.scalars:
        lo, hi = (s, s) if isinstance(s, int) else bounds(s)
        least, greatest = least - max(abs(lo), abs(hi)), greatest + max(abs(lo), abs(hi))
    return _WHOLE[0] <= least and greatest <= _WHOLE[1]


def _total(scalars: tuple[Value | int, ...], b: Builder) -> Value:
    """The sum of numbers."""
    values = [b.const(s, int64) if isinstance(s, int) else s for s in scalars]
    total = values[0]
    for v in values[1:]:
        total = b("add", total, v)
    return total
