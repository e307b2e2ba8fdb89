"""Contraction: a product that only a sum needs is rounded with it, once."""
from __future__ import annotations

from tilejit.ir.core import Builder, Function, Op, Value, beside, const_of, erase, listed, replace, uses
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import DType, elem_of


def contract(fn: Function) -> Function:
    if not fn.attrs.get("enable_fp_fusion", True):
        return fn
    table = uses(fn.body)
    mapping: dict[Value, Value] = {}
    gone: set[Op] = set()
    for op in listed(fn.body):
        if op.name not in ("add", "sub"):
            continue
        t = elem_of(op.result.type)
        at = next((i for i, v in enumerate(op.operands) if _only_here(v, op, table)), None)
        if at is None or not isinstance(t, DType) or not t.is_float:
            continue
        product, other = op.operands[at].maker, op.operands[1 - at]
        b = beside(op)
        x, y = product.operands
        if op.name == "sub" and at == 0:
            other = _negated(other, b)
        elif op.name == "sub":
            x, y = (x, _negated(y, b)) if _is_spread(y) else (_negated(x, b), y)
        new = b("fma", x, y, other)
        new.name = op.result.name
        mapping[op.result] = new
        gone.update((op, product))
        for v in (x, y, other):  # what is an operand of a fma is no product to contract any more
            table.setdefault(v, []).append((new.op, 0))  # type: ignore[arg-type]
    erase(gone, fn.body)
    replace(fn.body, mapping)
    if mapping:
        drop_dead(fn)
    return fn


def _only_here(v: Value, op: Op, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    return isinstance(v.op, Op) and v.op.name == "mul" and v.op.parent is op.parent and len(table[v]) == 1


def _is_spread(v: Value) -> bool:
    return isinstance(v.op, Op) and "spreads" in v.op.define.traits


def _negated(v: Value, b: Builder) -> Value:
    if _is_spread(v):
        return b(v.maker.name, _negated(v.maker.operands[0], b), **v.maker.attrs)
    if const_of(v) is not None:
        return b("const", value=-const_of(v), type=v.type)
    return b("neg", v)
