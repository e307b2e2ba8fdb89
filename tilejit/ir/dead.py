"""What nothing needs: finds the ops, carried values and results that no effect asks for, and removes them."""
from __future__ import annotations

from collections.abc import Iterator

from tilejit.ir.core import Block, Function, Op, Value, walk


def _is_root(op: Op) -> bool:
    """True for ops that must stay whoever uses them."""
    if op.define.pure or op.name in ("yield", "condition", "for", "if", "reduce", "scan"):
        return False
    if op.define.effects == {"read"}:
        return bool(op.attrs.get("volatile"))
    return True


def _slots(op: Op, i: int) -> Iterator[Value]:
    """The values that become slot i of a structured op: carried in, yielded, handed to the results."""
    if op.name == "for":
        yield op.operands[3 + i]
        yield op.regions[0].terminator.operands[i]
    elif op.name == "while":
        yield op.operands[i]
        yield op.regions[0].terminator.operands[1 + i]
        yield op.regions[1].terminator.operands[i]
    elif op.name == "if":
        for region in op.regions:
            if region.terminator.name == "yield":
                yield region.terminator.operands[i]


def _mark(fn: Function) -> tuple[set[Op], set[tuple[Op, int]]]:
    """The ops that effects need, and the (structured op, slot) pairs among their carried values and results."""
    kept: set[Op] = set()
    slots: set[tuple[Op, int]] = set()
    work: list[Op] = [op for op in walk(fn.body) if _is_root(op)]

    def need(v: Value) -> None:
        if isinstance(v.op, Op):
            work.append(v.op)
            if v.op.name in ("for", "while", "if"):
                need_slot(v.op, v.index)
        elif v.op is not None and v.op.parent is not None:
            owner = v.op.parent
            work.append(owner)
            index = v.index - (owner.name == "for")
            if owner.name in ("for", "while") and index >= 0:
                need_slot(owner, index)

    def need_slot(op: Op, i: int) -> None:
        if (op, i) not in slots:
            slots.add((op, i))
            pending.extend(_slots(op, i))

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
        if op.name == "for":
            pending.extend(op.operands[:3])
        elif op.name == "while":
            pending.append(op.regions[0].terminator.operands[0])
        else:
            pending.extend(op.operands)
            if op.name != "if":
                for region in op.regions:
                    if region.ops and "terminator" in region.terminator.define.traits:
                        pending.extend(region.terminator.operands)
    return kept, slots


def drop_dead(fn: Function) -> bool:
    """Remove ops, carried values and results that no effect needs, in place; whether there were any."""
    kept, slots = _mark(fn)
    changed = False

    def sweep(block: Block) -> None:
        nonlocal changed
        stay = [op for op in block.ops if op in kept or op.name in ("yield", "condition")]
        changed |= len(stay) != len(block.ops)
        block.ops = stay
        for op in stay:
            changed |= _narrow(op, slots)
            for region in op.regions:
                sweep(region)

    sweep(fn.body)
    return changed


def _narrow(op: Op, slots: set[tuple[Op, int]]) -> bool:
    """Remove the slots of a structured op that are not needed."""
    if op.name not in ("for", "while", "if"):
        return False
    keep = [i for i in range(len(op.results)) if (op, i) in slots]
    if len(keep) == len(op.results):
        return False

    def cut(values: list[Value], first: int = 0) -> list[Value]:
        return values[:first] + [values[first + i] for i in keep]

    for region in op.regions:
        end = region.terminator
        if end.name != "return":
            end.operands = cut(end.operands, 1 if end.name == "condition" else 0)
        if op.name != "if":
            region.args = cut(region.args, 1 if op.name == "for" else 0)
            for i, a in enumerate(region.args):
                a.index = i
    if op.name != "if":
        op.operands = cut(op.operands, 3 if op.name == "for" else 0)
    op.results = cut(op.results)
    for i, r in enumerate(op.results):
        r.index = i
    return True
