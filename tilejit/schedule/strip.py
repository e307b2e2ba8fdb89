"""One strip of a row: what is computed from it, written where it is needed."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tilejit.ir import Builder, Op, Value, of_size
from tilejit.ir.types import Tile, Type, elem_of, int32, uint32
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked
from tilejit.records import dataclass, field
from tilejit.schedule.row_end import RowEnd


@dataclass(eq=False)
class Row:
    """A row that lies in shared memory, `count` strips of `size` elements."""

    shape: tuple[int, ...]
    layout: LinearLayout
    count: int
    ctas: int
    now: dict[Value, Value] = field(default_factory=dict)
    each: int = 0
    before: Value | None = None
    same: dict[Value, Value] = field(default_factory=dict)
    b: Builder = field(init=False)

    @property
    def size(self) -> int:
        return self.shape[0] // self.count

    @cached_property
    def part(self) -> LinearLayout | None:
        if self.each:
            return blocked((self.size,), 1 << self.layout.in_bits("warp"), self.each)
        try:
            return self.layout.part(0, self.size)
        except ValueError:
            return None

    def wide(self, v: Value) -> bool:
        """Whether a value is a tile like the row, element for element."""
        return type(v.type) is Tile and v.type.shape == self.shape and v.type.layout == self.layout


class Strip:
    """Strip `index` of a row's values."""

    def __init__(self, row: Row, index: Value, b: Builder, end: RowEnd | None = None, ahead: int = 0,
                 starts: dict[Value, Value] | None = None, first: RowEnd | None = None):
        self.row, self.index, self.b, self.end, self.ahead, self.first = row, index, b, end, ahead, first
        self.starts = {} if starts is None else starts
        at = b("mul", index, b.const(row.size, int32))
        self.at = at if row.before is None else b("sub", at, row.before)
        self.made: dict[Value, Value] = {}

    def needed(self, op: Op) -> list[Value]:
        return op.operands if self.end is None else self.end.needed(op)

    def of(self, v: Value) -> Value:
        if not self.row.wide(v):
            return self.row.now.get(v, v)
        if v not in self.made:
            op = v.maker
            if self.end is not None and op.name == "select" and self.end.holds(op.operands[0]):
                return self.of(op.operands[1])
            known, b = (self.row.same, self.row.b) if op.name in ("const", "splat") else (self.made, self.b)
            if v not in known:
                self.b, b = b, self.b
                known[v] = self._write(op, Tile((self.row.size,), v.tile.elem, self.row.part))
                known[v].name, self.b = v.name, b
            self.made[v] = known[v]
        return self.made[v]

    def _write(self, op: Op, t: Tile) -> Value:
        attrs = of_size(op, t)
        if self.row.each:  # neither accesses nor masks of several: they begin elsewhere
            attrs = {k: 1 if k == "vec" else x for k, x in attrs.items() if k != "runs"}
        if op.name == "arange":
            index = self._range(op, t)
            return self._new(op, [index, self._new(op, [self.at], {"shape": t.shape}, t, "splat")], {}, t, "add")
        if self.first is not None and self.first.ends_at(op.result) is self.first.bound:
            index = self.of(op.operands[op.attrs["pred"] == "gt"])  # those before the row are great numbers
            many = Tile(t.shape, uint32, t.layout)
            end = self.b("cast", self.first.clamped(0, self.row.shape[0], self.b), dtype=uint32)
            ends = self._new(op, [end], {"shape": t.shape}, many, "splat")
            return self._new(op, [self._new(op, [index], {"dtype": uint32}, many, "cast"), ends], {"pred": "lt"}, t)
        if op.name == "local_load":
            view = self.view(op.operands[0])
            limit = self.needed(op)[1:]
            attrs = {k: x for k, x in attrs.items() if limit or k != "fill"}
            return self._new(op, [view, *(self.b("sub", x, self.at) for x in limit)], attrs, t)
        if found := from_start(op.result):
            base, counted = found  # the offset of the strip goes into the number
            if self.ahead:  # that of the iteration's first strip, and a constant
                start = self.b("ptr_add", self.starts[base], self.b.const(self.ahead * self.row.size, int32))
            else:
                start = self.starts[base] = self.b("ptr_add", self.row.now.get(base, base), self.at)
            index = self._range(counted, Tile(t.shape, int32, self.row.part))
            return self._new(op, [self._new(op, [start], {"shape": t.shape}, t, "splat"), index], attrs, t)
        return self._new(op, [self.of(x) for x in self.needed(op)], attrs, t)

    def view(self, row: Value) -> Value:
        how = {"ctas": self.row.ctas} if self.row.ctas > 1 else {}
        if self.row.before is not None:
            how["below"] = self.row.before.maker.attrs["unit"]
        return self.b("strip", row, self.index, size=self.row.size, **how)

    def _range(self, op: Op, t: Tile) -> Value:
        return self._new(op, [], {**op.attrs, "end": op.attrs["start"] + self.row.size}, t)

    def _new(self, op: Op, operands: list[Value], attrs: dict, t: Type, name: str = "") -> Value:
        return self.b.insert(Op(name or op.name, operands, attrs, None, [t], op.loc)).result

    def folded(self, op: Op, left: Sequence[Value], right: Sequence[Value], fuses: bool) -> list[Value]:
        """A reduction's region on two strips, element by element; products are rounded with sums if it `fuses`."""
        region = op.regions[0]
        env = dict(zip(region.args, [*left, *right]))
        for x in region.ops[:-1]:
            types = [Tile((self.row.size,), r.type, self.row.part) for r in x.results]  # type: ignore[arg-type]
            attrs = {**x.attrs, "type": types[0]} if x.name == "const" else dict(x.attrs)
            name, operands = x.name, [env[v] for v in x.operands]
            product = operands[-1].op
            if fuses and name == "add" and operands[-1] in right and isinstance(product, Op) and \
                    product.name == "mul" and elem_of(operands[-1].type).is_float:  # type: ignore[union-attr]
                name, operands = "fma", [*product.operands, operands[0]]
            new = Op(name, operands, attrs, None, list(types), x.loc)
            self.b.insert(new)
            env.update(zip(x.results, new.results))
        return [env[v] for v in region.terminator.operands]


def from_start(v: Value) -> tuple[Value, Op] | None:
    """The number and the range of an address that counts up from a number."""
    op = v.op
    if not isinstance(op, Op) or op.name != "ptr_add":
        return None
    base, index = (x.op for x in op.operands)
    if isinstance(base, Op) and base.name == "splat" and isinstance(index, Op) and index.name == "arange" and \
            elem_of(op.operands[1].type) == int32:
        return base.operands[0], index
    return None
