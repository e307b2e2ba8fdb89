"""Axis facts: what is known of the integers and addresses in a tile, dimension by dimension."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from tilejit.ir.core import Block, Function, Op, Value, const_of, edges, listed
from tilejit.ir.types import Desc, DType, Ptr, Tile, Type, elem_of, int1, shape_of

#: The divisibility of zero: a power of two above any that matters.
ANY = 1 << 32
_FIXPOINT_ROUNDS = 16


class AxisInfo(NamedTuple):
    """One entry per dimension, one for a scalar."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    constant: int | None = None
    nonnegative: bool = False

    @property
    def rank(self) -> int:
        return len(self.contiguity)

    def multiple(self, d: int, run: int, unit: int = 1) -> int:
        """What divides the first value of every aligned run of `run` elements along d."""
        if self.contiguity[d] > run:
            return gcd(self.divisibility[d], run * unit)
        return self.divisibility[d]

    def every(self, unit: int = 1) -> int:
        return max(self.multiple(d, 1, unit) for d in range(self.rank))


def power(n: int) -> int:
    return min(n & -n, ANY) if n else ANY


def vector_width(ptr: AxisInfo, elem_bytes: int, mask: AxisInfo | None = None,
                 dim: int | None = None) -> int:
    """Elements that one aligned access of at most 16 bytes may cover along `dim` (default: the most contiguous one, the
    last of equals).
    """
    if dim is None:
        dim = max(range(ptr.rank), key=lambda d: (ptr.contiguity[d], d))
    run = min(ptr.contiguity[dim], max(1, 16 // elem_bytes))
    while run > 1 and ptr.multiple(dim, run, elem_bytes) % (run * elem_bytes):
        run //= 2
    return run if mask is None else min(run, mask.constancy[dim])


def analyse(fn: Function, loaded: int = 1) -> dict[Value, AxisInfo]:
    """Facts of every value, for integers, pointers and masks; others only have constancy. `loaded` divides all loaded
    scalars.
    """
    facts = Facts(_promises(fn))
    if loaded > 1:
        for op in listed(fn.body):
            if op.name == "load" and not isinstance(op.result.type, Tile):
                _promise(facts.promises, op.result, False, loaded)
    for arg, attrs in zip(fn.body.args, fn.arg_attrs):
        known, info = attrs.get("divisible", 1), _unknown(arg.type)
        facts[arg] = info._replace(divisibility=(power(known),) * _rank(arg.type),
                                   nonnegative=info.nonnegative or attrs.get("nonnegative", False))
    _block(fn.body, facts)
    return facts


class Facts(dict[Value, AxisInfo]):
    def __init__(self, promises: dict[Value, tuple[bool, int]]):
        super().__init__()
        self.promises = promises

    def __setitem__(self, v: Value, info: AxisInfo) -> None:
        if v in self.promises:
            nonnegative, divisible = self.promises[v]
            info = info._replace(nonnegative=info.nonnegative or nonnegative,
                                 divisibility=tuple(max(d, power(divisible)) for d in info.divisibility))
        super().__setitem__(v, info)

    def update(self, pairs: Iterable[tuple[Value, AxisInfo]]) -> None:  # type: ignore[override]
        for v, info in pairs:
            self[v] = info


def _promises(fn: Function) -> dict[Value, tuple[bool, int]]:
    """Of scalars that an `assume` speaks of, in the block that defines them (elsewhere a condition may guard it)."""
    found: dict[Value, tuple[bool, int]] = {}

    def note(block: Block | None, cond: Value) -> None:
        op = cond.op
        if not isinstance(op, Op) or len(op.operands) != 2:
            return
        a, b = op.operands
        if op.name == "and":
            note(block, a)
            note(block, b)
        elif op.name == "cmp":
            pred = op.attrs["pred"]
            if const_of(a) is not None:
                a, b, pred = b, a, {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(pred, pred)
            bound = const_of(b)
            if bound is not None and a.home is block:
                low = pred == "gt" and bound >= -1 or pred in ("ge", "eq") and bound >= 0
                _promise(found, a, low, 1)
                if pred == "eq" and bound == 0 and isinstance(a.op, Op) and a.op.name == "irem":
                    x, by = a.op.operands
                    _promise(found, x, False, abs(const_of(by) or 1))

    for op in listed(fn.body):
        if op.name == "assume":
            note(op.parent, op.operands[0])
    return found


def _promise(found: dict[Value, tuple[bool, int]], v: Value, low: bool, divisible: int) -> None:
    had = found.get(v, (False, 1))
    found[v] = had[0] or low, max(had[1], divisible)


def _rank(t: Type) -> int:
    return len(t.shape) if isinstance(t, Tile) else 1


def _unknown(t: Type) -> AxisInfo:
    e = elem_of(t) if isinstance(t, (Tile, DType, Ptr)) else None
    return _nothing(_rank(t), isinstance(e, DType) and e.family in ("uint", "bool"))


@lru_cache
def _nothing(rank: int, nonnegative: bool) -> AxisInfo:
    ones = (1,) * rank
    return AxisInfo(ones, ones, ones, None, nonnegative)


def _constant(value: int, t: Type) -> AxisInfo:
    rank = _rank(t)
    return AxisInfo((1,) * rank, (power(value),) * rank, shape_of(t) or (1,), value, value >= 0)


def _meet(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    runs = tuple(map(gcd, a.contiguity, b.contiguity))
    return AxisInfo(runs, tuple(gcd(a.multiple(d, r), b.multiple(d, r)) for d, r in enumerate(runs)),
                    tuple(map(gcd, a.constancy, b.constancy)),
                    a.constant if a.constant == b.constant else None, a.nonnegative and b.nonnegative)


def _block(block: Block, facts: dict[Value, AxisInfo]) -> None:
    for op in block.ops:
        _op(op, facts)


def _op(op: Op, facts: dict[Value, AxisInfo]) -> None:
    known = [facts[v] for v in op.operands]
    flow = _FLOW.get(op.name)
    if flow is not None:
        flow(op, known, facts)
        return
    for region in op.regions:
        facts.update((a, _unknown(a.type)) for a in region.args)
        _block(region, facts)
    if op.name in _RULES:
        facts[op.result] = fact_of(op, known)
        return
    for r in op.results:
        facts[r] = _pointwise(op, known, r)


def fact_of(op: Op, known: list[AxisInfo]) -> AxisInfo:
    rule = _RULES.get(op.name)
    return rule(op, *known) if rule is not None else _pointwise(op, known, op.result)


def _pointwise(op: Op, known: list[AxisInfo], r: Value) -> AxisInfo:
    info = _unknown(r.type)
    pointwise = "elementwise" in op.define.traits and op.define.effects <= {"read"}
    if pointwise and known and known[0].rank == info.rank:
        same = tuple(map(gcd, *(k.constancy for k in known)))
        return info._replace(constancy=same) if same != info.constancy else info
    return info


# -- control flow --


def _carry(inits: list[AxisInfo], step: Callable[[list[AxisInfo]], list[AxisInfo]],
           args: list[Value]) -> list[AxisInfo]:
    """The greatest facts that hold on entry and are kept by every iteration."""
    state = inits
    for _ in range(_FIXPOINT_ROUNDS):
        after = [_meet(a, b) for a, b in zip(state, step(state))]
        if after == state:
            return state
        state = after
    state = [_unknown(a.type) for a in args]
    step(state)
    return state


def _for(op: Op, known: list[AxisInfo], facts: dict[Value, AxisInfo]) -> None:
    body = op.regions[0]
    lo, _, by = known[:3]
    iv = _unknown(body.args[0].type)._replace(divisibility=(gcd(lo.divisibility[0], by.divisibility[0]),))
    counts_up = by.nonnegative  # a step of zero is an error of the kernel
    down_to = known[1].nonnegative and by.constant is not None and by.constant < 0
    above_zero = lo.nonnegative and (counts_up or down_to)
    facts[body.args[0]] = iv._replace(nonnegative=iv.nonnegative or above_zero)

    carried = edges(op)

    def step(state: list[AxisInfo]) -> list[AxisInfo]:
        facts.update((e.args[0], info) for e, info in zip(carried, state))
        _block(body, facts)
        return [facts[e.ends[0]] for e in carried]

    state = _carry([facts[e.init] for e in carried if e.init], step, [e.args[0] for e in carried])
    facts.update(zip(op.results, state))


def _while(op: Op, known: list[AxisInfo], facts: dict[Value, AxisInfo]) -> None:
    before, after = op.regions
    carried = edges(op)

    def step(state: list[AxisInfo]) -> list[AxisInfo]:
        facts.update((e.args[0], info) for e, info in zip(carried, state))
        _block(before, facts)
        facts.update((e.args[1], facts[e.ends[0]]) for e in carried)
        _block(after, facts)
        return [facts[e.ends[1]] for e in carried]

    _carry(known, step, before.args)
    facts.update((e.result, facts[e.ends[0]]) for e in carried)


def _if(op: Op, known: list[AxisInfo], facts: dict[Value, AxisInfo]) -> None:
    for region in op.regions:
        _block(region, facts)
    for e in edges(op):
        facts[e.result] = _meet(facts[e.ends[0]], facts[e.ends[-1]])


_FLOW = {"for": _for, "while": _while, "if": _if}

# -- rules by op --

_RULES: dict[str, Callable[..., AxisInfo]] = {}


def _rule(*names: str) -> Callable[[Callable[..., AxisInfo]], Callable[..., AxisInfo]]:
    def register(fn: Callable[..., AxisInfo]) -> Callable[..., AxisInfo]:
        _RULES.update(dict.fromkeys(names, fn))
        return fn
    return register


def _is_int(t: Any) -> bool:
    e = elem_of(t)
    return isinstance(e, DType) and e.is_int()


@_rule("const")
def _const(op: Op) -> AxisInfo:
    t, value = op.result.type, op.attrs["value"]
    if _is_int(t):
        return _constant(int(value), t)
    return _unknown(t)._replace(constancy=shape_of(t) or (1,))


@_rule("arange")
def _arange(op: Op) -> AxisInfo:
    n, start = op.attrs["end"] - op.attrs["start"], op.attrs["start"]
    return AxisInfo((power(n),), (power(start),), (1,), None, start >= 0)


@_rule("program_id", "num_programs")
def _program(op: Op) -> AxisInfo:
    return _unknown(op.result.type)._replace(nonnegative=True)


@_rule("desc_shape")
def _desc_shape(op: Op, desc: AxisInfo) -> AxisInfo:
    t, found = op.operands[0].type, _unknown(op.result.type)._replace(nonnegative=True)
    assert isinstance(t, Desc)
    if t.tma or op.attrs["dim"] < len(t.block_shape) - 1:
        return found
    return found._replace(divisibility=(max(1, desc.divisibility[0] // t.elem.bytes),))


@_rule("desc_base", "desc_stride")
def _desc_address(op: Op, desc: AxisInfo) -> AxisInfo:
    """TMA asks for 16-byte aligned bases and strides; without TMA it is known what divides them."""
    t = op.operands[0].desc
    unit = 16 if t.tma else desc.divisibility[0]
    if op.name == "desc_base":
        return _unknown(op.result.type)._replace(divisibility=(unit,))
    if op.attrs["dim"] == len(t.block_shape) - 1:
        return _constant(1, op.result.type) if t.tma else _unknown(op.result.type)
    return _unknown(op.result.type)._replace(divisibility=(max(1, unit // t.elem.bytes),), nonnegative=t.tma)


@_rule("splat")
def _splat(op: Op, x: AxisInfo) -> AxisInfo:
    shape = shape_of(op.result.type)
    return AxisInfo((1,) * len(shape), (x.divisibility[0],) * len(shape), shape, x.constant, x.nonnegative)


@_rule("broadcast")
def _broadcast(op: Op, x: AxisInfo) -> AxisInfo:
    old, new = shape_of(op.operands[0].type), shape_of(op.result.type)
    grown = [a != b for a, b in zip(old, new)]
    return x._replace(constancy=tuple(n if g else k for g, n, k in zip(grown, new, x.constancy)))


@_rule("expand_dims")
def _expand_dims(op: Op, x: AxisInfo) -> AxisInfo:
    a, unit = op.attrs["axis"], _unit(op.operands[0].type)

    def insert(t: tuple[int, ...], v: int) -> tuple[int, ...]:
        return (*t[:a], v, *t[a:])

    return AxisInfo(insert(x.contiguity, 1), insert(x.divisibility, x.every(unit)), insert(x.constancy, 1),
                    x.constant, x.nonnegative)


@_rule("trans")
def _trans(op: Op, x: AxisInfo) -> AxisInfo:
    def pick(t: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(t[i] for i in op.attrs["order"])

    return AxisInfo(pick(x.contiguity), pick(x.divisibility), pick(x.constancy), x.constant, x.nonnegative)


@_rule("reshape")
def _reshape(op: Op, x: AxisInfo) -> AxisInfo:
    shape, unit = shape_of(op.result.type), _unit(op.operands[0].type)
    if x.constant is not None:
        return _constant(x.constant, op.result.type)
    run, same = gcd(x.contiguity[-1], shape[-1]), gcd(x.constancy[-1], shape[-1])
    rest = len(shape) - 1
    return AxisInfo((1,) * rest + (run,), (x.every(unit),) * rest + (x.multiple(x.rank - 1, run, unit),),
                    (1,) * rest + (same,), None, x.nonnegative)


@_rule("convert")
def _same(op: Op, x: AxisInfo) -> AxisInfo:
    return x


def _unit(t: Type) -> int:
    e = elem_of(t)
    return e.elem.bytes if isinstance(e, Ptr) else 1


def _shared(a: AxisInfo, b: AxisInfo) -> tuple[int, ...]:
    return tuple(map(gcd, a.constancy, b.constancy))


def _sum(op: Op, a: AxisInfo, b: AxisInfo, both: bool, unit: int = 1) -> AxisInfo:
    """a + b (or a - b)."""
    runs, div = [], []
    for d in range(a.rank):
        run = gcd(a.contiguity[d], b.constancy[d])
        if both:
            run = max(run, gcd(a.constancy[d], b.contiguity[d]))
        runs.append(run)
        div.append(min(ANY, gcd(a.multiple(d, run, unit), b.multiple(d, run) * unit)))
    return AxisInfo(tuple(runs), tuple(div), _shared(a, b), None, both and a.nonnegative and b.nonnegative)


@_rule("add")
def _add(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if not _is_int(op.result.type):
        return _pointwise(op, [a, b], op.result)
    if a.constant is not None and b.constant is not None:
        return _constant(a.constant + b.constant, op.result.type)
    return _sum(op, a, b, True)


@_rule("sub")
def _sub(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if not _is_int(op.result.type):
        return _pointwise(op, [a, b], op.result)
    return _sum(op, a, b, False)


@_rule("ptr_add")
def _ptr_add(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    return _sum(op, a, b, True, _unit(op.operands[0].type))


@_rule("mul")
def _mul(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if not _is_int(op.result.type):
        return _pointwise(op, [a, b], op.result)
    if a.constant is not None and b.constant is not None:
        return _constant(a.constant * b.constant, op.result.type)
    if 1 in (a.constant, b.constant):
        return b if a.constant == 1 else a
    div = tuple(min(ANY, a.multiple(d, 1) * b.multiple(d, 1)) for d in range(a.rank))
    square = op.name == "mul" and op.operands[0] is op.operands[1]
    return AxisInfo((1,) * a.rank, div, _shared(a, b), None, square or a.nonnegative and b.nonnegative)


@_rule("shl")
def _shl(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if b.constant is None or not 0 <= b.constant < 32:
        return _pointwise(op, [a, b], op.result)
    return _mul(op, a, _constant(1 << b.constant, op.operands[1].type))


def _whole_runs(a: AxisInfo, b: AxisInfo, d: int) -> int:
    """The longest runs of a counting up that do not cross a multiple of b, while b stands still."""
    return gcd(a.contiguity[d], a.divisibility[d], b.multiple(d, 1), b.constancy[d])


@_rule("idiv", "shr")
def _idiv(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if op.name == "shr":  # floors, so the sign of a does not matter
        if b.constant is None or not 0 <= b.constant < 32:
            return _pointwise(op, [a, b], op.result)
        b = _constant(1 << b.constant, op.operands[1].type)
    elif not a.nonnegative:
        return _pointwise(op, [a, b], op.result)
    same = tuple(max(k, _whole_runs(a, b, d)) for d, k in enumerate(_shared(a, b)))
    div = (1,) * a.rank
    if b.constant:
        exact = b.constant & (b.constant - 1) == 0
        div = tuple(max(1, a.multiple(d, 1) // b.constant) if exact else 1 for d in range(a.rank))
    return AxisInfo((1,) * a.rank, div, same, None, a.nonnegative and b.nonnegative)


@_rule("irem")
def _irem(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    runs = tuple(_whole_runs(a, b, d) if a.nonnegative else 1 for d in range(a.rank))
    div = tuple(gcd(a.multiple(d, r), b.multiple(d, 1)) for d, r in enumerate(runs))
    return AxisInfo(runs, div, _shared(a, b), None, a.nonnegative)


@_rule("and")
def _and(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    e = elem_of(op.result.type)
    if e == int1:
        return _pointwise(op, [a, b], op.result)
    c = b.constant
    if c is not None and c > 0 and c & (c + 1) == 0:  # x & (2**k - 1): a remainder of floors, for any sign
        return _irem(op, a._replace(nonnegative=True), _constant(c + 1, op.operands[1].type))
    div = tuple(max(a.multiple(d, 1), b.multiple(d, 1)) for d in range(a.rank))
    return AxisInfo((1,) * a.rank, div, _shared(a, b), None, a.nonnegative or b.nonnegative)


@_rule("or", "xor")
def _or(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    div = tuple(gcd(a.multiple(d, 1), b.multiple(d, 1)) for d in range(a.rank))
    return AxisInfo((1,) * a.rank, div, _shared(a, b), None, a.nonnegative and b.nonnegative)


@_rule("minimum", "maximum")
def _extremum(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    info = _or(op, a, b)
    if op.name == "maximum":
        return info._replace(nonnegative=a.nonnegative or b.nonnegative)
    return info


@_rule("abs")
def _abs(op: Op, x: AxisInfo) -> AxisInfo:
    if not _is_int(op.result.type):
        return _pointwise(op, [x], op.result)
    return x if x.nonnegative else AxisInfo((1,) * x.rank, tuple(x.multiple(d, 1) for d in range(x.rank)), x.constancy,
                                            None, True)


@_rule("neg")
def _neg(op: Op, x: AxisInfo) -> AxisInfo:
    if not _is_int(op.result.type):
        return _pointwise(op, [x], op.result)
    return AxisInfo((1,) * x.rank, tuple(x.multiple(d, 1) for d in range(x.rank)), x.constancy)


@_rule("checked")
def _checked(op: Op, x: AxisInfo) -> AxisInfo:
    return x._replace(nonnegative=x.nonnegative or bool(op.attrs.get("nonnegative")),
                      divisibility=(max(x.divisibility[0], power(op.attrs.get("divisible", 1))),))


@_rule("cmp")
def _cmp(op: Op, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    same = list(_shared(a, b))
    left, right = (a, b) if op.attrs["pred"] in ("lt", "ge") else (b, a)
    if op.attrs["pred"] not in ("eq", "ne"):
        same = [max(k, _whole_runs(left, right, d)) for d, k in enumerate(same)]
    return AxisInfo((1,) * a.rank, (1,) * a.rank, tuple(same), None, True)


@_rule("select")
def _select(op: Op, c: AxisInfo, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    unit = _unit(op.result.type)
    runs = tuple(gcd(c.constancy[d], a.contiguity[d], b.contiguity[d]) for d in range(a.rank))
    div = tuple(gcd(a.multiple(d, r, unit), b.multiple(d, r, unit)) for d, r in enumerate(runs))
    same = tuple(gcd(c.constancy[d], a.constancy[d], b.constancy[d]) for d in range(a.rank))
    return AxisInfo(runs, div, same, None, a.nonnegative and b.nonnegative)


@_rule("cast", "bitcast")
def _cast(op: Op, x: AxisInfo) -> AxisInfo:
    """Widening an integer keeps all; narrowing keeps the low bits; anything else only constancy."""
    src, dst = elem_of(op.operands[0].type), op.attrs["dtype"]
    plain = _pointwise(op, [x], op.result)
    if isinstance(src, Ptr) and isinstance(dst, Ptr):
        if src.elem.bytes == dst.elem.bytes:
            return x
        return plain._replace(divisibility=tuple(x.multiple(d, 1, src.elem.bytes) for d in range(x.rank)))
    if isinstance(src, Ptr) != isinstance(dst, Ptr) and all(isinstance(t, Ptr) or t.is_int() and t.bits == 64
                                                            for t in (src, dst)):
        return plain._replace(divisibility=tuple(x.multiple(d, 1) for d in range(x.rank)))
    if not (isinstance(src, DType) and isinstance(dst, DType) and src.is_int() and dst.is_int()) or dst == int1:
        return plain
    if dst.bits > src.bits or (dst.bits == src.bits and src.family == dst.family):
        return x
    if dst.bits == src.bits:
        return x._replace(constant=None, nonnegative=dst.family == "uint")
    div = tuple(min(x.multiple(d, 1), 1 << (dst.bits - 1)) for d in range(x.rank))
    return plain._replace(divisibility=div)


@_rule("hint")
def _hint(op: Op, x: AxisInfo) -> AxisInfo:
    def promised(key: str, have: tuple[int, ...]) -> tuple[int, ...]:
        given = op.attrs.get(key)
        if given is None:
            return have
        values = [given] * len(have) if isinstance(given, int) else list(given)
        if len(values) == 1:
            values *= len(have)
        assert len(values) == len(have), f"hint {key}={given} for rank {len(have)}"
        return tuple(max(h, power(v)) for h, v in zip(have, values))

    return x._replace(contiguity=promised("contiguous", x.contiguity),
                      divisibility=promised("divisible", x.divisibility),
                      constancy=promised("constant", x.constancy))
