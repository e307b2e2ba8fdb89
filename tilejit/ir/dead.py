"""Finds and removes ops, carried values and results that no effect needs."""
from __future__ import annotations

from typing import Any

from tilejit.ir.core import Block, Function, Op, controls, edge_of, keep_edges, listed


def _is_root(op: Op) -> bool:
    if op.define.pure or "optional" in op.define.traits:
        return False
    if op.define.effects == {"read"}:
        return bool(op.attrs.get("volatile"))
    return True


def _mark(fn: Function) -> tuple[set[Op], set[tuple[Op, int]]]:
    work = [op for op in listed(fn.body) if not op.define.pure and _is_root(op)]
    kept, slots = set(work), set[tuple[Op, int]]()
    for op in work:  # grows meanwhile, and so does what an op needs
        makers: list[Any] = [op.parent.parent] if op.parent is not None else []
        values = controls(op) if op.define.carries else [*op.operands]
        for r in op.regions if not op.define.carries else ():
            if r.ops and "terminator" in r.terminator.define.traits:
                values += r.terminator.operands
        for v in values:
            maker: Any = v.op.parent if type(v.op) is Block else v.op
            makers += [maker]
            if maker is not None and maker.define.carries:
                found = edge_of(v)
                if found is not None and (maker, found[1].index) not in slots:
                    slots.add((maker, found[1].index))
                    values += found[1].sources
        for maker in makers:
            if maker is not None and maker not in kept:  # None: a parameter of the function
                kept.add(maker)
                work += [maker]
    return kept, slots


def drop_dead(fn: Function) -> bool:
    kept, slots = _mark(fn)
    changed = False

    def sweep(block: Block) -> None:
        nonlocal changed
        stay = [op for op in block.ops if op in kept or "terminator" in op.define.traits]
        changed |= len(stay) != len(block.ops)
        block.ops = stay
        for op in stay:
            if op.define.carries:
                changed |= _narrow(op, slots)
            for region in op.regions:
                sweep(region)

    sweep(fn.body)
    return changed


def _narrow(op: Op, slots: set[tuple[Op, int]]) -> bool:
    kept = [i for i in range(len(op.results)) if (op, i) in slots]
    if len(kept) == len(op.results):
        return False
    keep_edges(op, kept)
    return True
