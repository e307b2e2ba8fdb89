"""Loops with `loop_unroll_factor` do so many iterations in each trip; a loop behind them does those that are left."""
from __future__ import annotations

from tilejit.ir.core import Builder, Function, Op, Value, beside, clone_op, const_of, listed, replace
from tilejit.passes.simplify import simplify


def unroll(fn: Function) -> Function:
    asked = [op for op in listed(fn.body) if op.name == "for" and "unroll" in op.attrs]
    done = [_unrolled(fn, loop, loop.attrs.pop("unroll")) for loop in reversed(asked)]  # inner ones first
    return simplify(fn) if any(done) else fn


def _unrolled(fn: Function, loop: Op, factor: int) -> bool:
    lo, hi, by = loop.operands[:3]
    step = const_of(by)
    if not isinstance(step, int) or not step:
        fn.say("not_unrolled", f"loop at {loop.place}: not unrolled, its step is no constant", loop.place)
        return False
    if factor < 2:
        return False
    b, size = beside(loop), abs(step)
    far = b("sub", b("maximum", hi, lo), lo) if step > 0 else b("sub", lo, b("minimum", hi, lo))
    far = b("add", far, b.const(size - 1, lo.type))
    whole = b("sub", far, b("irem", far, b.const(size * factor, lo.type)))
    middle = b("add" if step > 0 else "sub", lo, whole)
    wide = b.const(step * factor, lo.type)
    first = b.insert(clone_op(loop, {}))
    first.operands = [lo, middle, wide, *loop.operands[3:]]
    _repeat(first, loop, step, factor)
    rest = b.insert(clone_op(loop, {}))
    rest.operands = [middle, hi, by, *first.results]
    loop.block.ops.remove(loop)
    replace(fn.body, dict(zip(loop.results, rest.results)))
    fn.say("unrolled", f"loop at {loop.place}: unrolled, {factor} iterations a trip", loop.place, factor=factor)
    return True


def _repeat(new: Op, loop: Op, step: int, factor: int) -> None:
    body, index = new.regions[0], new.regions[0].args[0]
    end = body.ops.pop()
    b, carried = Builder(body, loc=loop.loc), list(end.operands)
    for i in range(1, factor):
        names: dict[Value, Value] = {loop.regions[0].args[0]: b("add", index, b.const(step * i, index.type)),
                                     **dict(zip(loop.regions[0].args[1:], carried))}
        for op in loop.regions[0].ops[:-1]:
            b.insert(clone_op(op, names))
        carried = [names.get(v, v) for v in loop.regions[0].ops[-1].operands]
    end.operands = carried
    b.insert(end)
