"""What nothing needs: finds the ops, carried values and results that no effect asks for, and removes them."""
from __future__ import annotations

from tilejit.ir.core import Block, Function, Op, Value, controls, edge_of, keep_edges, listed


def _is_root(op: Op) -> bool:
    """True for ops that must stay whoever uses them."""
    if op.define.pure or "optional" in op.define.traits:
        return False
    if op.define.effects == {"read"}:
        return bool(op.attrs.get("volatile"))
    return True


def _mark(fn: Function) -> tuple[set[Op], set[tuple[Op, int]]]:
    """The ops that effects need, and the (op, index of an edge) pairs among their carried values and results."""
    kept = {op for op in listed(fn.body) if _is_root(op)}
    slots: set[tuple[Op, int]] = set()
    work, values = [*kept], list[Value]()
    while work or values:
        if values:
            v = values.pop()
            maker = v.op.parent if isinstance(v.op, Block) else v.op
            if maker is None:                    # a parameter of the function
                continue
            if maker.define.carries:
                found = edge_of(v)
                if found is not None and (maker, found[1].index) not in slots:
                    slots.add((maker, found[1].index))
                    values += found[1].sources
            if maker not in kept:
                kept.add(maker)
                work.append(maker)
            continue
        op = work.pop()
        owner = op.parent.parent if op.parent is not None else None
        if owner is not None and owner not in kept:
            kept.add(owner)
            work.append(owner)
        if op.define.carries:
            values += controls(op)
        else:
            values += op.operands
            for r in op.regions:
                if r.ops and "terminator" in r.terminator.define.traits:
                    values += r.terminator.operands
    return kept, slots


def drop_dead(fn: Function) -> bool:
    """Remove ops, carried values and results that no effect needs, in place; whether there were any."""
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
    """Remove the edges of a structured op that are not needed."""
    kept = [i for i in range(len(op.results)) if (op, i) in slots]
    if len(kept) == len(op.results):
        return False
    keep_edges(op, kept)
    return True
