"""What nothing needs: finds the ops, carried values and results that no effect asks for, and removes them."""
from __future__ import annotations

from tilejit.ir.core import Block, Function, Op, Value, controls, edge_of, edges, keep_edges, walk


def _is_root(op: Op) -> bool:
    """True for ops that must stay whoever uses them."""
    if op.define.pure or "optional" in op.define.traits:
        return False
    if op.define.effects == {"read"}:
        return bool(op.attrs.get("volatile"))
    return True


def _mark(fn: Function) -> tuple[set[Op], set[tuple[Op, int]]]:
    """The ops that effects need, and the (op, index of an edge) pairs among their carried values and results."""
    kept: set[Op] = set()
    slots: set[tuple[Op, int]] = set()
    work: list[Op] = [op for op in walk(fn.body) if _is_root(op)]

    def need(v: Value) -> None:
        if isinstance(v.op, Op):
            work.append(v.op)
        elif v.op is not None and v.op.parent is not None:
            work.append(v.op.parent)
        found = edge_of(v)
        if found is not None and (found[0], found[1].index) not in slots:
            slots.add((found[0], found[1].index))
            pending.extend(found[1].sources)

    pending: list[Value] = []
    while work or pending:
        if pending:
            need(pending.pop())
            continue
        op = work.pop()
        if op in kept:
            continue
        kept.add(op)
        if op.parent is not None and op.parent.parent is not None:
            work.append(op.parent.parent)
        if op.define.carries:
            pending.extend(controls(op))
        else:
            ends = [r.terminator for r in op.regions if r.ops and "terminator" in r.terminator.define.traits]
            pending += [v for x in (op, *ends) for v in x.operands]
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
            changed |= _narrow(op, slots)
            for region in op.regions:
                sweep(region)

    sweep(fn.body)
    return changed


def _narrow(op: Op, slots: set[tuple[Op, int]]) -> bool:
    """Remove the edges of a structured op that are not needed."""
    kept = [e.index for e in edges(op) if (op, e.index) in slots]
    if not op.define.carries or len(kept) == len(op.results):
        return False
    keep_edges(op, kept)
    return True
