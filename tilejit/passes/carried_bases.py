"""Pointers that a loop moves all alike: it carries where they begin, in 64 bits, and not each of them."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, edges, listed, replace, uses
from tilejit.ir.core import Edge, Value
from tilejit.ir.types import Ptr, Tile

#: From so many addresses a thread on that are loaded from one by one.
MANY = 8


def carry_bases(fn: Function) -> Function:
    for loop in [op for op in listed(fn.body) if op.name == "for"]:
        table = uses(fn.body)
        for e in edges(loop):
            if not _moves_alike(e, table):
                continue
            assert e.init is not None
            arg, end, body = e.args[0], e.ends[0].maker, loop.regions[0]
            t, (base, apart), by = arg.tile, e.init.maker.operands, end.operands[1]
            b = Builder(body, 0, loop.loc)
            here = b.op("splat", arg, shape=t.shape, result_types=[t])
            each = b.op("ptr_add", here.result, apart, result_types=[t]).result
            at = Builder(body, body.ops.index(end), end.loc)
            step = by.maker.operands[0] if _is(by, "splat") else at.const(by.maker.attrs["value"], by.tile.elem)
            replace(body, {arg: each})
            here.operands[0] = arg
            arg.type = e.result.type = t.elem
            loop.operands[loop.define.fixed + e.index] = base.maker.operands[0]
            body.terminator.operands[e.index] = at.op("ptr_add", arg, step, result_types=[t.elem]).result
    return fn


def _moves_alike(e: Edge, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    t = e.result.type
    if not isinstance(t, Tile) or not isinstance(t.elem, Ptr) or t.layout is None or t.layout.num_registers < MANY \
            or e.result in table or e.init is None or len(table[e.ends[0]]) != 1:
        return False
    start, end, arg = e.init.op, e.ends[0].op, e.args[0]
    return (isinstance(start, Op) and start.name == "ptr_add" and _is(start.operands[0], "splat")
            and isinstance(end, Op) and end.name == "ptr_add" and end.operands[0] is arg and end.parent is arg.op
            and (_is(end.operands[1], "splat") or _is(end.operands[1], "const"))
            and all(op is end or op.name == "load" and op.attrs["vec"] == 1 and "copy" not in op.attrs
                    for op, _ in table[arg]))


def _is(v: Value, name: str) -> bool:
    return isinstance(v.op, Op) and v.op.name == name
