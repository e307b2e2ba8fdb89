"""What lies behind the end of a row that a mask ends (`i < n`): the strips there need not be worked on."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from tilejit.ir import Block, Builder, Op, Value, const_of
from tilejit.ir.types import DType, elem_of, int1, int32


class RowEnd:
    """Where the row ends that ops work on."""

    def __init__(self, ops: Iterable[Op], wide: Callable[[Value], bool]):
        self.wide = wide
        ends = [v for op in ops for x in op.operands for v in [self.ends_at(x)] if v is not None]
        self.bound = ends[0] if ends and all(v is ends[0] for v in ends) else None

    def ends_at(self, mask: Value) -> Value | None:
        """The n of a mask `i < n`, i the elements' index in the row."""
        op = mask.op
        if not isinstance(op, Op) or op.name != "cmp" or not self.wide(mask):
            return None
        index, bound = (x.op for x in (op.operands if op.attrs["pred"] == "lt" else reversed(op.operands)))
        known = (op.attrs["pred"] in ("lt", "gt") and isinstance(index, Op) and index.name == "arange"
                 and index.attrs["start"] == 0 and isinstance(bound, Op) and bound.name == "splat")
        return bound.operands[0] if known else None  # type: ignore[union-attr]

    def stops(self, mask: Value, one: Callable[[Iterable[bool]], bool] = any) -> bool:
        """Whether a mask is false behind the end: `one` of what an `and` is made of is enough for that."""
        op = mask.op
        return isinstance(op, Op) and (self.ends_at(mask) is self.bound or op.name == "and"
                                       and one(self.stops(x, one) for x in op.operands))

    def holds(self, mask: Value) -> bool:
        """Whether a mask is true before the end."""
        return elem_of(mask.type) == int1 and self.stops(mask, all)

    def within(self, limit: Value) -> bool:
        """Whether the limit of a copy is at most the bound, or nothing."""
        op = limit.op
        while isinstance(op, Op) and limit is not self.bound and op.name in ("minimum", "maximum", "cast"):
            consts = [n for n in map(const_of, op.operands) if n is not None]
            if op.name != "cast" and (len(consts) != 1 or op.name == "maximum" and consts[0] != 0):
                return False
            limit = next(x for x in op.operands if const_of(x) is None)
            op = limit.op
        return limit is self.bound

    def needed(self, op: Op) -> list[Value]:
        """An op's operands before the end: without a mask that only the end decides."""
        if op.name in ("load", "store") and self.holds(op.operands[-1 if op.name == "store" else 1]):
            return op.operands[:2 if op.name == "store" else 1]
        return op.operands[:1] if op.name == "local_load" and self.within(op.operands[-1]) else op.operands

    def beyond(self, v: Value, b: Builder, now: dict[Value, Value], made: dict[Value, Value | None]) -> Value | None:
        """What every element of a value is behind the end, None if they differ. now: of values that are no tiles."""
        if not self.wide(v):
            return now.get(v, v)
        if v not in made:
            made[v] = self._beyond(v.maker, b, now, made)
        return made[v]

    def _beyond(self, op: Op, b: Builder, now: dict[Value, Value], made: dict[Value, Value | None]) -> Value | None:
        t = elem_of(op.result.type)
        if op.name == "local_load":
            return b.const(op.attrs.get("fill", 0), t) if self.within(op.operands[-1]) else None
        if op.name == "const":
            return b.const(op.attrs["value"], t)
        if self.stops(op.result):
            return b.const(False, t)
        if op.name == "load" and (len(op.operands) < 2 or not self.stops(op.operands[1])):
            return None
        if op.name == "load" or op.name == "select" and self.stops(op.operands[0]):
            return self.beyond(op.operands[2], b, now, made) if len(op.operands) > 2 else b.const(0, t)
        values = [self.beyond(x, b, now, made) for x in op.operands]
        if op.name == "splat":
            return values[0]
        if "elementwise" not in op.define.traits or "packs" in op.define.traits or not values or None in values:
            return None
        return b(op.name, *values, **{k: x for k, x in op.attrs.items() if k != "runs"})  # type: ignore[arg-type]

    def may_be_left_out(self, sinks: Iterable[Op]) -> bool:
        """Whether a pass whose sinks (reductions, stores) these are may leave out what lies behind the end."""
        return self.bound is not None and all(
            len(op.operands) > 2 and self.stops(op.operands[2]) if op.name == "store" else
            times(op) != "" and self.beyond(op.operands[0], Builder(Block()), {}, {}) is not None for op in sinks)

    def clamped(self, least: int, most: int, b: Builder) -> Value:
        """The bound, but at least one number and at most the other."""
        assert self.bound is not None
        t = self.bound.type
        end = b("minimum", b("maximum", self.bound, b.const(least, t)), b.const(most, t))
        return end if t == int32 else b("cast", end, dtype=int32)


def times(op: Op) -> str:
    """How a number that many elements have is folded in: `many` times (a wide sum), `once`, or not (empty)."""
    region = op.regions[0]
    if len(op.operands) != 1 or len(region.ops) != 2 or set(region.ops[0].operands) != set(region.args):
        return ""
    fold, t = region.ops[0], elem_of(op.operands[0].type)
    if "idempotent" in fold.define.traits:
        return "once"
    return "many" if fold.name == "add" and isinstance(t, DType) and t.bits >= 32 else ""
