"""Affine forms: integers as sums of products of scalars, tiles and pointers of them with one range a dimension."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilejit.ir.core import Block, Builder, Op, Value, edge_of, made_in
from tilejit.ir.types import DType, Tile, Type, elem_of, int32, shape_of
from tilejit.passes.rules import const_of
from tilejit.records import dataclass, field

#: A product of atoms, each as often as it occurs, in a fixed order; () is the number one.
Monomial = tuple[Value, ...]


class Poly(dict[Monomial, int]):
    def __add__(self, other: Poly) -> Poly:
        out = Poly(self)
        for m, c in other.items():
            total = out.get(m, 0) + c
            if total:
                out[m] = total
            else:
                out.pop(m, None)
        return out

    def __sub__(self, other: Poly) -> Poly:
        return self + other * number(-1)

    def __mul__(self, other: Poly) -> Poly:
        out = Poly()
        for (m, c), (n, d) in product(self.items(), other.items()):
            out = out + Poly({tuple(sorted((*m, *n), key=id)): c * d})
        return out

    @property
    def constant(self) -> int | None:
        return 0 if not self else self.get((), None) if len(self) == 1 else None

    @property
    def atoms(self) -> set[Value]:
        return {a for m in self for a in m}


def number(n: int) -> Poly:
    return Poly({(): n}) if n else Poly()


@dataclass(frozen=True)
class Wrap:
    """An index that is taken modulo `size`, or replaced by another one from there on: below `size`, as far as it is not
    negative, it is the index.
    """

    start: Poly
    size: Poly


@dataclass
class Affine:
    """A tile of integers: `start` plus `steps[d]` times the index along each d."""

    start: Poly
    steps: list[Poly]
    wraps: dict[int, Wrap] = field(default_factory=dict)

    @property
    def scalar(self) -> bool:
        return not any(self.steps)

    def plus(self, other: Affine, sign: int = 1) -> Affine | None:
        if self.wraps.keys() & other.wraps.keys():
            return None
        by = number(sign)
        return Affine(self.start + other.start * by, [a + b * by for a, b in zip(self.steps, other.steps)],
                      {**self.wraps, **other.wraps})

    def times(self, by: Poly) -> Affine:
        return Affine(self.start * by, [s * by for s in self.steps], dict(self.wraps))


@dataclass
class Address:
    """An argument of the kernel plus offsets in elements."""

    base: Value
    offset: Affine


@dataclass(frozen=True)
class _Carried:
    """What a counted loop carries: at first, as it is handed on; how far the counter has come, and by which steps."""

    init: Value
    end: Value
    counted: Poly
    by: int

    def moved(self, step: Poly, v: Value) -> Poly | None:
        if not _stays(step, v) or any(c % self.by for c in step.values()):
            return None
        return Poly({m: c // self.by for m, c in step.items()}) * self.counted


class Forms:
    def __init__(self) -> None:
        self._scalars: dict[Value, Poly] = {}
        self._tiles: dict[Value, Affine | None] = {}
        self._addresses: dict[Value, Address | None] = {}

    # -- scalars --
    def scalar(self, v: Value) -> Poly:
        if v not in self._scalars:
            self._scalars[v] = Poly({(v,): 1})  # an atom, also for who comes back to it through a loop
            self._scalars[v] = self._scalar(v)
        return self._scalars[v]

    def _scalar(self, v: Value) -> Poly:
        op = v.op
        if not isinstance(op, Op):
            return self._carried(v)
        if op.name == "const":
            return number(int(op.attrs["value"]))
        if op.name in ("add", "sub", "mul"):
            a, b = (self.scalar(x) for x in op.operands)
            return a + b if op.name == "add" else a - b if op.name == "sub" else a * b
        if op.name == "shl" and isinstance(by := const_of(op.operands[1]), int) and 0 <= by < 31:
            return self.scalar(op.operands[0]) * number(1 << by)
        if op.name == "cast" and _widens(op) or op.name == "hint":
            return self.scalar(op.operands[0])
        return Poly({(v,): 1})

    def _carried(self, v: Value) -> Poly:
        found = self._steps_of(v)
        if found is not None:
            step = self.scalar(found.end) - Poly({(v,): 1})
            moved = None if v in step.atoms else found.moved(step, v)
            if moved is not None:
                return self.scalar(found.init) + moved
        return Poly({(v,): 1})

    def _steps_of(self, v: Value) -> _Carried | None:
        found = edge_of(v)
        if found is None or found[0].name != "for" or found[1].init is None or v is found[1].result:
            return None
        loop, edge = found
        by = const_of(loop.operands[2])
        if not isinstance(by, int) or by < 1:
            return None
        counted = self.scalar(loop.regions[0].args[0]) - self.scalar(loop.operands[0])
        return _Carried(edge.init, edge.ends[0], counted, by)  # type: ignore[arg-type]

    # -- tiles of integers --
    def tile(self, v: Value) -> Affine | None:
        e = elem_of(v.type) if isinstance(v.type, (Tile, DType)) else None
        if not isinstance(e, DType) or not e.is_int():
            return None
        if not isinstance(v.type, Tile):
            return Affine(self.scalar(v), [])
        if v not in self._tiles:
            self._tiles[v] = None
            self._tiles[v] = self._tile(v)
        return self._tiles[v]

    def _tile(self, v: Value) -> Affine | None:
        op, rank = v.op, len(shape_of(v.type))
        if not isinstance(op, Op):
            return None
        if op.name == "const":
            return Affine(number(int(op.attrs["value"])), [Poly()] * rank)
        if op.name == "arange":
            return Affine(number(op.attrs["start"]), [number(1)])
        if op.name == "splat":
            return Affine(self.scalar(op.operands[0]), [Poly()] * rank)
        known = [self.tile(x) for x in op.operands]
        if op.name == "select":
            return self._clamped(op)
        if any(k is None for k in known):
            return None
        x = known[0]
        assert x is not None
        if "identity" in op.define.traits or op.name == "broadcast" or op.name == "cast" and _widens(op):
            return x
        if op.name in ("expand_dims", "trans"):
            return _moved(op, x)
        y = known[-1]
        assert y is not None
        if op.name == "mul":
            return x.times(y.start) if y.scalar else y.times(x.start) if x.scalar else None
        if op.name == "irem":
            return _wrapped(x, y)
        return x.plus(y, 1 if op.name == "add" else -1) if op.name in ("add", "sub") else None

    def _clamped(self, op: Op) -> Affine | None:
        cond, x, _ = op.operands
        if isinstance(cond.op, Op) and cond.op.name == "cmp" and cond.op.attrs["pred"] == "lt" \
                and cond.op.operands[0] is x:
            a, n = self.tile(x), self.tile(cond.op.operands[1])
            return None if a is None or n is None else _wrapped(a, n)
        return None

    # -- pointers --
    def address(self, v: Value) -> Address | None:
        if v not in self._addresses:
            self._addresses[v] = None
            self._addresses[v] = self._address(v)
        return self._addresses[v]

    def _address(self, v: Value) -> Address | None:
        op, rank = v.op, len(shape_of(v.type))
        if isinstance(op, Block):
            if op.parent is None:
                return Address(v, Affine(Poly(), []))
            found = self._steps_of(v)
            by = None if found is None else self._step(found, v)
            at = None if found is None or by is None else self.address(found.init)
            if at is None or by is None:
                return None
            moved = at.offset.plus(Affine(by, [Poly()] * rank))
            return None if moved is None else Address(at.base, moved)
        if not isinstance(op, Op) or "same_memory" not in op.define.traits and op.name != "trans":
            return None
        at = self.address(op.operands[0])
        if at is None:
            return None
        if op.name == "ptr_add":
            offset = self.tile(op.operands[1])
            total = None if offset is None else at.offset.plus(offset)
        elif op.name == "splat":
            total = Affine(at.offset.start, [Poly()] * rank)
        else:
            total = _moved(op, at.offset) if op.name in ("expand_dims", "trans") else at.offset
        return None if total is None else Address(at.base, total)

    def _step(self, found: _Carried, v: Value) -> Poly | None:
        total, end = Poly(), found.end
        while end is not v:
            if not isinstance(end.op, Op) or end.op.name not in ("ptr_add", "hint"):
                return None
            if end.op.name == "ptr_add":
                by = self.tile(end.op.operands[1])
                if by is None or not by.scalar or by.wraps:
                    return None
                total = total + by.start
            end = end.op.operands[0]
        return found.moved(total, v)

    # -- masks --
    def bounds(self, v: Value) -> list[Bound] | None:
        """The bounds that a mask consists of; None if it is more than that."""
        op = v.op
        if not isinstance(op, Op):
            return None
        if op.name == "const":
            return [] if op.attrs["value"] else None
        if op.name == "and":
            both = [self.bounds(x) for x in op.operands]
            return None if both[0] is None or both[1] is None else both[0] + both[1]
        if op.define.traits & {"identity", "spreads"} or op.name == "trans":
            inner = self.bounds(op.operands[0])
            return None if inner is None else [Bound(_dim(op, b.dim), b.below, b.size) for b in inner]
        if op.name != "cmp" or op.attrs["pred"] not in ("lt", "le", "gt", "ge"):
            return None
        a, b = (self.tile(x) for x in op.operands)
        if a is None or b is None:
            return None
        low, high = (a, b) if op.attrs["pred"] in ("lt", "le") else (b, a)
        return _bound(low, high, op.attrs["pred"] in ("le", "ge"))


@dataclass(frozen=True)
class Bound:
    """Along a dimension, indices are below `size` (`below`), or at least `size`."""

    dim: int
    below: bool
    size: Poly


def _bound(low: Affine, high: Affine, equal: bool) -> list[Bound] | None:
    wraps = [(d, w) for d, w in low.wraps.items()]
    if wraps:  # an index modulo n is below n
        return [] if len(wraps) == 1 and not low.start - wraps[0][1].start and high.scalar \
            and not high.start - wraps[0][1].size else None
    between = high.plus(low, -1)
    if between is None or between.wraps:
        return None
    moving = [d for d, s in enumerate(between.steps) if s]
    room = between.start + number(int(equal))  # 0 < room + steps * index
    if len(moving) != 1:
        return None
    step = between.steps[moving[0]].constant
    if step == -1:
        return [Bound(moving[0], True, room)]
    return [Bound(moving[0], False, number(1) - room)] if step == 1 else None


def _wrapped(x: Affine, y: Affine) -> Affine | None:
    moving = [d for d, s in enumerate(x.steps) if s]
    if len(moving) != 1 or x.steps[moving[0]].constant != 1 or x.wraps or not y.scalar or y.wraps:
        return None
    return Affine(x.start, x.steps, {moving[0]: Wrap(x.start, y.start)})


def _dim(op: Op, d: int) -> int:
    if op.name == "expand_dims":
        return d + (d >= op.attrs["axis"])
    return list(op.attrs["order"]).index(d) if op.name == "trans" else d


def _moved(op: Op, x: Affine) -> Affine:
    rank = len(shape_of(op.result.type))
    steps = [Poly() for _ in range(rank)]
    for d, s in enumerate(x.steps):
        steps[_dim(op, d)] = s
    return Affine(x.start, steps, {_dim(op, d): w for d, w in x.wraps.items()})


def _widens(op: Op) -> bool:
    src, dst = elem_of(op.operands[0].type), op.attrs["dtype"]
    return bool(isinstance(src, DType) and src.is_int() and src.bits > 1 and dst.is_int() and dst.bits >= src.bits
                and (dst.family == src.family or dst.bits > src.bits and src.family == "uint"))


def _stays(p: Poly, v: Value) -> bool:
    body = v.op
    return not any(made_in(a, body) for a in p.atoms)  # type: ignore[arg-type]


def build(b: Builder, p: Poly, t: Type = int32) -> Value:
    def atom(v: Value) -> Value:
        return v if v.type == t else b("cast", v, dtype=t)

    def terms() -> Iterator[tuple[int, Value]]:
        for m, c in p.items():
            total = None
            for v in m:
                total = atom(v) if total is None else b("mul", total, atom(v))
            size = b.const(abs(c), t)
            yield c, size if total is None else total if abs(c) == 1 else b("mul", total, size)

    out: Value | None = None
    for c, v in sorted(terms(), key=lambda term: term[0] < 0):
        if out is None:
            out = v if c > 0 else b("sub", b.const(0, t), v)
        else:
            out = b("add" if c > 0 else "sub", out, v)
    return b.const(0, t) if out is None else out
