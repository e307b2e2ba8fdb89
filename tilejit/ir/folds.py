"""Reductions made one: the regions of several side by side."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir.core import Block, Builder, Op, Value, clone_op


def joined(folds: Sequence[Op], values: Sequence[Value], b: Builder) -> Op:
    olds = [r for op in folds for r in op.results]
    elems = [a.type for op in folds for a in op.regions[0].args[:len(op.results)]]
    region = Block(elems * 2, [r.name for r in olds * 2])
    inner, ends, at = Builder(region, loc=folds[0].loc), [], 0
    for op in folds:
        n = len(op.results)
        env = dict(zip(op.regions[0].args, (*region.args[at:at + n], *region.args[len(olds) + at:][:n])))
        for x in op.regions[0].ops[:-1]:
            inner.insert(clone_op(x, env))
        ends += [env[v] for v in op.regions[0].terminator.operands]
        at += n
    inner.op("yield", *ends)
    whole = b.insert(Op("reduce", list(values), folds[0].attrs, [region], [r.type for r in olds], folds[0].loc))
    for old, new in zip(olds, whole.results):
        new.name = old.name
    return whole
