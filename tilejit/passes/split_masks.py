"""Loops are split where masks hide nothing: the iterations in which every element is seen go without them."""
from __future__ import annotations

from collections.abc import Iterator

from tilejit.ir.core import (
    Builder,
    Function,
    Op,
    Value,
    beside,
    clone_op,
    const_of,
    listed,
    made_in,
    replace,
    total_warps,
)
from tilejit.ir.types import DType, Tile, Type, elem_of, int64, shape_of
from tilejit.passes.affine import Forms, Poly, build, number
from tilejit.passes.simplify import simplify
from tilejit.records import dataclass

#: Elements of a thread that a select must have to be worth a loop of its own.
ELEMENTS = 16
#: Iterations without masks that a loop between two masked ones has, if that is known (sliding windows: fewer are faster
#: masked, measured on an H100).
FEW = 12

_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass
class Limit:
    """Of the iterations in which masks hide nothing: "first" or "last" is `at / size`, rounded to their inside;
    "always": there are some only if `at` is at least 0.
    """

    side: str
    at: Poly
    size: int = 1


def split_masks(fn: Function) -> Function:
    changed = False
    loops = [op for op in listed(fn.body) if op.name == "for"]
    for loop in reversed(loops):  # inner ones first
        asked = loop.attrs.pop("split_masks", None)
        if asked if asked is not None else fn.attrs.get("split_masks", True):
            changed |= _Masks(fn, loop, bool(asked)).split()
    return simplify(fn) if changed else fn


class _Masks:
    def __init__(self, fn: Function, loop: Op, asked: bool):
        self.fn, self.loop, self.asked = fn, loop, asked
        self.body, self.index = loop.regions[0], loop.regions[0].args[0]
        self.forms = Forms()
        self.found: dict[tuple[Op, bool], list[Limit] | None] = {}

    def split(self) -> bool:
        step = const_of(self.loop.operands[2])
        if not isinstance(step, int) or step < 1 or not self.asked and self._short(step):
            return False
        limits: list[Limit] = []
        for v, want in self._wanted():
            where = [self._clear(*leaf) for leaf in _leaves(v, want) or ()]
            if None not in where:
                limits += [x for found in where for x in found or () if x not in limits]
        lo, hi = (self.forms.scalar(v) for v in self.loop.operands[:2])
        room = [_room(x, lo, hi) for x in limits]
        none = any(most is not None and most < 0 for _, most in room)
        if none or all(x.side == "always" for x in limits) or _few(limits, step):
            return False
        known = {op: want for op in listed(self.body) if op.name == "cmp" for want in (True, False)
                 if (found := self._clear(op, want)) is not None and all(x in limits for x in found)}
        self._write([x for x, (least, _) in zip(limits, room) if least is None or least < 0], known, step)
        return True

    def _short(self, step: int) -> bool:
        lo, hi = self.loop.operands[:2]
        return any((most := (self.forms.scalar(end) - self.forms.scalar(lo)).constant) is not None and most < FEW * step
                   for end in _least_of(hi))

    def _wanted(self) -> Iterator[tuple[Value, bool]]:
        dots = any([op.name == "dot" for op in self.body.ops])
        threads = 32 * total_warps(self.fn)
        for op in listed(self.body) if dots or self.asked else ():
            t = op.results[0].type if op.results else None
            if op.name == "select" and isinstance(t, Tile):
                if self.asked or dots and len(t.shape) > 1 and t.numel >= ELEMENTS * threads:
                    yield op.operands[0], not _constant(op.operands[1]) or _constant(op.operands[2])
            elif self.asked and op.define.layout == "access":
                for v in op.operands[1:]:
                    if isinstance(v.type, Tile) and _is_mask(v):
                        yield v, True

    def _clear(self, op: Op, want: bool) -> list[Limit] | None:
        if (op, want) not in self.found:
            self.found[op, want] = self._range(op, want)
        return self.found[op, want]

    def _range(self, op: Op, want: bool) -> list[Limit] | None:
        pred = op.attrs["pred"] if want else _NEGATED.get(op.attrs["pred"])
        if pred not in _NEGATED:
            return None
        e = elem_of(op.operands[0].type)
        a, b = (self.forms.tile(v) for v in op.operands)
        if a is None or b is None or not isinstance(e, DType) or not e.is_signed or e.bits < 32:
            return None
        room = a.plus(b, -1) if pred in ("gt", "ge") else b.plus(a, -1)
        if room is None or room.wraps:
            return None
        least = room.start - number(int(pred in ("lt", "gt")))
        for step, n in zip(room.steps, shape_of(op.result.type)):
            size = step.constant
            if size is None:
                return None
            least = least + number(min(0, size * (n - 1)))
        by = least.get((self.index,), 0)  # least = by * index + rest >= 0
        rest = least - Poly({(self.index,): by} if by else {})
        if any(a is self.index or made_in(a, self.body) for a in rest.atoms):
            return None
        if not by:
            return [Limit("always", rest)]
        return [Limit("last", rest, -by) if by < 0 else Limit("first", rest * number(-1), by)]

    # -- writing --
    def _write(self, limits: list[Limit], known: dict[Op, bool], step: int) -> None:
        loop = self.loop
        b = beside(loop)
        lo, hi, by = loop.operands[:3]
        t = self._wide(limits)
        low, high = _as(lo, t, b), _as(hi, t, b)
        parts: list[tuple[Value, Value, bool]] = []
        start = lo

        def until(end: Value, is_clear: bool, first: Value) -> Value:
            end = b("maximum", b("minimum", end, high), _as(first, t, b))
            end = _as(end, lo.type, b)
            parts.append((first, end, is_clear))
            over = b("add", b("sub", end, first), b.const(step - 1, lo.type))
            return b("add", first, b("sub", over, b("irem", over, b.const(step, lo.type))))

        firsts = [self._ceil(x, t, b) for x in limits if x.side == "first"]
        lasts = [self._floor(x.at, x.size, t, b) for x in limits if x.side == "last"]
        always = [build(b, x.at, t) for x in limits if x.side == "always"]
        if firsts:
            start = until(_all("maximum", firsts, b), False, start)
        last = b("add", _all("minimum", lasts, b), b.const(1, t)) if lasts else high
        if always:
            some = b("cmp", _all("minimum", always, b), b.const(0, t), pred="ge")
            last = b("select", some, last, low)
        if lasts or always:
            start = until(last, True, start)
        parts.append((start, hi, not (lasts or always)))
        carried = loop.operands[3:]
        for first, end, is_clear in parts:
            new = b.insert(clone_op(loop, {}))
            new.operands = [first, end, by, *carried]
            if is_clear:
                twins = zip(listed(self.body), listed(new.regions[0]))
                self._without(new, {twin: known[op] for op, twin in twins if op in known})
            carried = new.results
        loop.block.ops.remove(loop)
        replace(self.fn.body, dict(zip(loop.results, carried)))
        self._say(parts, known)

    @staticmethod
    def _without(loop: Op, known: dict[Op, bool]) -> None:
        made = {}
        for op, value in known.items():
            made[op.result] = beside(op).const(value, op.result.type)
        replace(loop.regions[0], made)

    def _say(self, parts: list[tuple[Value, Value, bool]], known: dict[Op, bool]) -> None:
        where = self.loop.place
        lines = ", ".join(dict.fromkeys(op.loc.short() for op in known if op.loc))
        which = {1: "all", 2: "the first" if parts[0][2] else "the last", 3: "the middle"}[len(parts)]
        self.fn.say("split_masks", f"loop at {where}: {which} iterations, in which masks ({lines}) hide nothing, go "
                    "without them", where, parts=len(parts))

    def _wide(self, limits: list[Limit]) -> DType:
        t = self.loop.operands[0].type
        assert isinstance(t, DType)
        atoms = [elem_of(a.type) for x in limits for a in x.at.atoms]
        return int64 if any(isinstance(e, DType) and e.bits > t.bits for e in atoms) or not t.is_signed else t

    @staticmethod
    def _floor(p: Poly, size: int, t: DType, b: Builder) -> Value:
        v = build(b, p, t)
        if size == 1:
            return v
        by = b.const(size, t)
        quotient = b("idiv", v, by)  # towards zero
        over = b("cmp", b("mul", quotient, by), v, pred="gt")
        return b("select", over, b("sub", quotient, b.const(1, t)), quotient)

    @classmethod
    def _ceil(cls, x: Limit, t: DType, b: Builder) -> Value:
        return build(b, x.at, t) if x.size == 1 else b("neg", cls._floor(x.at * number(-1), x.size, t, b))


def _as(v: Value, t: Type, b: Builder) -> Value:
    return v if v.type == t else b("cast", v, dtype=t)


def _all(name: str, values: list[Value], b: Builder) -> Value:
    found = values[0]
    for v in values[1:]:
        found = b(name, found, v)
    return found


def _room(x: Limit, lo: Poly, hi: Poly) -> tuple[int | None, int | None]:
    """By how much the loop's iterations with the least and the most room are within a limit; None where that is not
    known.
    """
    first, last = lo * number(x.size), (hi - number(1)) * number(x.size)
    if x.side == "always":
        return x.at.constant, x.at.constant
    if x.side == "first":
        return (first - x.at).constant, (last - x.at).constant
    return (x.at - last).constant, (x.at - first).constant


def _least_of(v: Value) -> list[Value]:
    if isinstance(v.op, Op) and v.op.name == "minimum":
        return [x for operand in v.op.operands for x in _least_of(operand)]
    if isinstance(v.op, Op) and v.op.name in ("cast", "hint"):
        return [v, *_least_of(v.op.operands[0])]
    return [v]


def _few(limits: list[Limit], step: int) -> bool:
    return any(x.size == y.size == 1 and (between := (y.at - x.at).constant) is not None and between < FEW * step
               for x in limits if x.side == "first" for y in limits if y.side == "last")


def _leaves(v: Value, want: bool) -> list[tuple[Op, bool]] | None:
    """The comparisons, and what each must be, for a mask to be as wanted; None where other things decide."""
    op = v.op
    if not isinstance(op, Op):
        return None
    if op.name == "const":
        return [] if bool(op.attrs["value"]) is want else None
    if op.name == "cmp":
        return [(op, want)]
    if op.name == "not":
        return _leaves(op.operands[0], not want)
    if op.name == "xor" and const_of(op.operands[1]) is True:
        return _leaves(op.operands[0], not want)
    if op.name == ("and" if want else "or"):
        both = [_leaves(x, want) for x in op.operands]
        return None if None in both else [*both[0], *both[1]]  # type: ignore[misc]
    if op.define.traits & {"shape", "identity"} and len(op.operands) == 1:
        return _leaves(op.operands[0], want)
    return None


def _is_mask(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, DType) and e.family == "bool"


def _constant(v: Value) -> bool:
    if isinstance(v.op, Op) and "shape" in v.op.define.traits and len(v.op.operands) == 1:
        return _constant(v.op.operands[0])
    return const_of(v) is not None
