"""Algebraic identities, one function an op: each returns the value that equals the op's result, or None."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tilejit.ir.bounds import bounds, nonnegative
from tilejit.ir.core import Op, Value, const_of
from tilejit.ir.types import DType, Tile, elem_of, int1, int32, shape_of, uint32


class Emits(Protocol):
    ctas: int

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value: ...

    def constant(self, value: Any, like: Value) -> Value: ...


Rule = Callable[[Emits, Op], "Value | None"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        for n in names:
            assert n not in RULES, f"two rules for {n}"
            RULES[n] = fn
        return fn
    return register


def same_type(a: Value, b: Value) -> bool:
    return a.type == b.type


def defined_by(v: Value, *names: str) -> Op | None:
    return v.op if isinstance(v.op, Op) and v.op.name in names else None


def _int(op: Op) -> DType | None:
    e = elem_of(op.operands[0].type)
    return e if isinstance(e, DType) and e.is_int() else None


def _ones(e: DType) -> Any:
    return True if e == int1 else -1 if e.is_signed else 2 ** e.bits - 1


def _sides(op: Op) -> tuple[Value, Value, Any, Any]:
    a, b = op.operands
    return a, b, const_of(a), const_of(b)


@rule("add")
def _add(r: Emits, op: Op) -> Value | None:
    a, b, ca, cb = _sides(op)
    if _int(op) is None or elem_of(a.type) == int1:
        return None
    if cb == 0:
        return a
    if ca == 0:
        return b
    if ca is not None:
        a, b, cb = b, a, ca
    inner = defined_by(a, "add")
    if cb is not None and inner is not None and const_of(inner.operands[1]) is not None:
        return r.emit("add", inner.operands[0], r.emit("add", inner.operands[1], b))
    return r.emit("add", a, b) if ca is not None else None


@rule("sub")
def _sub(r: Emits, op: Op) -> Value | None:
    a, b, _, cb = _sides(op)
    if cb == 0 and not (isinstance(cb, float) and str(cb)[0] == "-") and elem_of(a.type) != int1:
        return a
    if _int(op) is None:
        return None
    inner = defined_by(a, "add", "sub")
    if inner is not None and inner.name == "sub" and inner.operands[0] is b:  # (b - x) - b
        return r.emit("sub", r.constant(0, op.result), inner.operands[1])
    if inner is not None and inner.name == "add" and cb is not None and const_of(inner.operands[1]) is not None:
        return r.emit("add", inner.operands[0], r.emit("sub", inner.operands[1], b))
    whole = defined_by(b, "mul")
    parts = defined_by(whole.operands[0], "idiv") if whole is not None else None
    if whole is not None and parts is not None and parts.operands == [a, whole.operands[1]]:  # a - a // x * x
        return r.emit("irem", *parts.operands)
    return r.constant(0, op.result) if a is b else None


@rule("mul")
def _mul(r: Emits, op: Op) -> Value | None:
    a, b, ca, cb = _sides(op)
    if cb == 1:
        return a
    if ca == 1:
        return b
    if _int(op) and (ca == 0 or cb == 0):
        return r.constant(0, op.result)
    inner = defined_by(a, "mul") if _int(op) and isinstance(cb, int) else None
    if inner is not None and isinstance(const_of(inner.operands[1]), int):  # (x * c) * d
        return r.emit("mul", inner.operands[0], r.emit("mul", inner.operands[1], b))
    return None


@rule("div")
def _div(r: Emits, op: Op) -> Value | None:
    return op.operands[0] if const_of(op.operands[1]) == 1 else None


def _power_of_two(op: Op) -> int | None:
    """log2 of a constant divisor, when the quotient is a plain shift of the dividend."""
    c = const_of(op.operands[1])
    if isinstance(c, int) and c > 1 and c & (c - 1) == 0 and nonnegative(op.operands[0]):
        return c.bit_length() - 1
    return None


def _in_32_bits(r: Emits, op: Op) -> Value | None:
    """A 64-bit division of numbers that fit 32 bits, as does the quotient."""
    e, narrow = _int(op), None
    if e is None or e.bits < 64 or isinstance(op.result.type, Tile):
        return None
    (a, b), (c, d) = bounds(op.operands[0]), bounds(op.operands[1])
    for t in (int32, uint32):
        lo, hi = (-(1 << 31), (1 << 31) - 1) if t.is_signed else (0, (1 << 32) - 1)
        if lo <= min(a, c) and max(b, d) <= hi and not (a == lo < 0 and c <= -1 <= d) and (t.is_signed or c > 0):
            narrow = narrow or t
    if narrow is None:
        return None
    sides = [r.emit("cast", v, dtype=narrow) for v in op.operands]
    return r.emit("cast", r.emit(op.name, *sides), dtype=e)


def _zeros(v: Value) -> int:
    op = v.op
    if not isinstance(op, Op):
        return 0
    if op.name == "const":
        n = int(op.attrs["value"])
        return (n & -n).bit_length() - 1 if n else 63
    if op.name == "mul":
        return sum(map(_zeros, op.operands))
    if op.name == "add":
        return min(map(_zeros, op.operands))
    if op.name in ("cast", "splat") and _int_type(op.operands[0]):
        return _zeros(op.operands[0])
    return 0


def _low(v: Value) -> tuple[Value, Value, int] | None:
    """A value as a sum of one number in all elements, whose low bits are zeros, and what only has such bits."""
    add = defined_by(v, "add")
    for x, y in (add.operands, add.operands[::-1]) if add is not None else ():
        found = limits(y) if defined_by(x, "splat") else None
        if found is not None and 0 <= found[0] and found[1].bit_length() <= _zeros(x):
            return x, y, found[1].bit_length()
    return None


def _blocks(op: Op) -> tuple[Value, Value] | None:
    found, c = _low(op.operands[0]), const_of(op.operands[1])
    if found is None or not isinstance(c, int) or c <= 0 or _zeros(op.operands[1]) < found[2]:
        return None
    return found[:2] if nonnegative(found[0]) else None


@rule("idiv")
def _idiv(r: Emits, op: Op) -> Value | None:
    a, b = op.operands
    if const_of(b) == 1:
        return a
    k = _power_of_two(op)
    if k is not None:
        return r.emit("shr", a, r.constant(k, b))
    found = _blocks(op)
    return _in_32_bits(r, op) if found is None else r.emit("idiv", found[0], b)


@rule("irem")
def _irem(r: Emits, op: Op) -> Value | None:
    a, b = op.operands
    if const_of(b) == 1:
        return r.constant(0, op.result)
    k = _power_of_two(op)
    if k is not None:
        return r.emit("and", a, r.constant(2 ** k - 1, b))
    found = _blocks(op)
    return _in_32_bits(r, op) if found is None else r.emit("add", r.emit("irem", found[0], b), found[1])


@rule("and")
def _and(r: Emits, op: Op) -> Value | None:
    a, b, ca, cb = _sides(op)
    e = _int(op)
    if e is None:
        return None
    if a is b or cb == _ones(e):
        return a
    if ca == _ones(e):
        return b
    if ca is not None and ca == 0 or cb is not None and cb == 0:
        return r.constant(False if e == int1 else 0, op.result)
    found = _low(a) if isinstance(cb, int) and e != int1 else None
    if found is not None and ~cb & (1 << found[2]) - 1 == 0:  # the mask leaves the low bits as they are
        return r.emit("add", r.emit("and", found[0], b), found[1])
    return None


@rule("or")
def _or(r: Emits, op: Op) -> Value | None:
    a, b, ca, cb = _sides(op)
    e = _int(op)
    if e is None:
        return None
    if a is b or cb == 0:
        return a
    if ca == 0:
        return b
    if ca == _ones(e) or cb == _ones(e):
        return r.constant(_ones(e), op.result)
    return None


@rule("xor")
def _xor(r: Emits, op: Op) -> Value | None:
    a, b, ca, cb = _sides(op)
    if cb == 0:
        return a
    if ca == 0:
        return b
    return _partner(r, a, b) or _partner(r, b, a)


def _partner(r: Emits, x: Value, v: Value) -> Value | None:
    """x ^ v, where v is the xor of x's pairs along a dimension of two: the other one of each pair."""
    wide = defined_by(v, "broadcast")
    kept = wide and defined_by(wide.operands[0], "reshape", "expand_dims")
    fold = kept and defined_by(kept.operands[0], "reduce")
    if not wide or not fold or fold.operands != [x] or r.ctas > 1:
        return None
    axis, shape, args, ops = fold.attrs["axis"], shape_of(x.type), fold.regions[0].args, fold.regions[0].ops
    if shape[axis] != 2 or shape_of(wide.operands[0].type) != (*shape[:axis], 1, *shape[axis + 1:]):
        return None
    if ops[0].name != "xor" or {*ops[0].operands} != {*args} or ops[1].operands != ops[0].results:
        return None
    return r.emit("xor_shuffle", x, axis=axis, mask=1)


@rule("shl", "shr")
def _shift(r: Emits, op: Op) -> Value | None:
    by = const_of(op.operands[1])
    if by == 0:
        return op.operands[0]
    found = _low(op.operands[0]) if op.name == "shr" and isinstance(by, int) else None
    return r.emit("shr", found[0], op.operands[1]) if found is not None and found[2] <= by else None


@rule("minimum", "maximum")
def _extremum(r: Emits, op: Op) -> Value | None:
    return op.operands[0] if op.operands[0] is op.operands[1] else None


@rule("neg", "not")
def _twice(r: Emits, op: Op) -> Value | None:
    inner = defined_by(op.operands[0], op.name)
    return inner.operands[0] if inner is not None else None


@rule("select")
def _select(r: Emits, op: Op) -> Value | None:
    c, a, b = op.operands
    if a is b:
        return a
    k = const_of(c)
    return None if k is None else a if k else b


def limits(v: Value) -> tuple[int, int] | None:
    """The least and the greatest element of a range or a constant, perhaps under other coordinates or widened."""
    op = v.op
    if not isinstance(op, Op):
        return None
    if op.name == "arange":
        return op.attrs["start"], op.attrs["end"] - 1
    if op.name == "const" and _int_type(v):
        return int(op.attrs["value"]), int(op.attrs["value"])
    if op.define.traits & {"shape", "identity"} and len(op.operands) == 1:
        return limits(op.operands[0])
    if op.name == "cast" and _int_type(v) and _int_type(op.operands[0]):
        found, t = limits(op.operands[0]), elem_of(v.type)
        assert isinstance(t, DType)
        least = -1 << t.bits - 1 if t.is_signed else 0
        return found if found is not None and least <= found[0] and found[1] < 1 << t.bits - 1 else None
    return None


def _int_type(v: Value) -> bool:
    t = elem_of(v.type)
    return isinstance(t, DType) and t.family in ("int", "uint") and t.bits >= 32


@rule("cmp")
def _cmp(r: Emits, op: Op) -> Value | None:
    pred = op.attrs["pred"]
    if op.operands[0] is op.operands[1] and _int(op):
        return r.constant(pred in ("eq", "le", "ge"), op.result)
    for x, v in (op.operands, op.operands[::-1]) if pred in ("ne", "eq") and _int(op) else ():
        inner = defined_by(x, "cast")
        least, most = bounds(v) if inner is not None and elem_of(inner.operands[0].type) == int1 else (-1, 2)
        if inner is not None and 0 <= least and most <= 1:
            return r.emit("xor", inner.operands[0], r.emit("cmp", v, r.constant(0, v), pred=pred))
    a, b = map(limits, op.operands)
    if not isinstance(op.result.type, Tile) and _int(op):
        a, b = map(bounds, op.operands)
    if a is None or b is None:
        return None
    always = {"lt": (a[1] < b[0], a[0] >= b[1]), "le": (a[1] <= b[0], a[0] > b[1]), "gt": (a[0] > b[1], a[1] <= b[0]),
              "ge": (a[0] >= b[1], a[1] < b[0]), "ne": (a[1] < b[0] or a[0] > b[1], False),
              "eq": (False, a[1] < b[0] or a[0] > b[1])}[pred]
    return r.constant(always[0], op.result) if any(always) else None


@rule("cast", "bitcast")
def _cast(r: Emits, op: Op) -> Value | None:
    x, inner = op.operands[0], None
    if elem_of(x.type) == op.attrs["dtype"]:
        return x
    if op.name == "bitcast":
        swap = defined_by(x, "xor_shuffle")
        inner = defined_by(swap.operands[0] if swap else x, "bitcast")
    if inner is None or elem_of(inner.operands[0].type) != op.attrs["dtype"]:
        return None
    return r.emit("xor_shuffle", inner.operands[0], **swap.attrs) if swap else inner.operands[0]


@rule("ptr_add")
def _ptr_add(r: Emits, op: Op) -> Value | None:
    p, offset = op.operands
    if const_of(offset) == 0:
        return p
    narrow = _widened(offset)  # addresses take offsets of 32 bits as they are
    return None if narrow is None else r.emit("ptr_add", p, narrow)


def _widened(v: Value) -> Value | None:
    op = defined_by(v, "cast")
    if op is None or not (_int_type(v) and _int_type(op.operands[0])):
        return None
    new, old = elem_of(v.type), elem_of(op.operands[0].type)
    assert isinstance(new, DType) and isinstance(old, DType)
    return op.operands[0] if (new.bits, old.bits) == (64, 32) else None


@rule("broadcast", "reshape", "expand_dims")
def _reshaped(r: Emits, op: Op) -> Value | None:
    x = op.operands[0]
    if shape_of(x.type) == shape_of(op.result.type):
        return x
    inner = defined_by(x, "splat")
    if inner is not None:
        return r.emit("splat", inner.operands[0], shape=shape_of(op.result.type))
    inner = defined_by(x, op.name)
    if inner is not None and op.name in ("broadcast", "reshape"):
        return r.emit(op.name, inner.operands[0], shape=shape_of(op.result.type))
    return None


@rule("trans")
def _trans(r: Emits, op: Op) -> Value | None:
    x, order = op.operands[0], tuple(op.attrs["order"])
    if order == tuple(range(len(order))):
        return x
    inner = defined_by(x, "trans")
    if inner is not None:
        return r.emit("trans", inner.operands[0], order=tuple(inner.attrs["order"][i] for i in order))
    return None


@rule("convert")
def _convert(r: Emits, op: Op) -> Value | None:
    return op.operands[0]
