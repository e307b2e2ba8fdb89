"""Assumptions: signs that nothing proves and that wide accesses hang on are checked by the program itself."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, edge_of, listed, reached, walk
from tilejit.ir.types import Ptr, Tile
from tilejit.passes.axis import AxisInfo, analyse, fact_of


def check_signs(fn: Function) -> Function:
    divisions = [op for op in listed(fn.body) if op.name in ("idiv", "irem") and isinstance(op.result.type, Tile)]
    if not divisions or fn.attrs.get("check_signs") is False:
        return fn
    facts, addresses = analyse(fn), _addresses(fn)
    for op in divisions:
        known = [facts[v] for v in op.operands]
        if known[0].nonnegative or op.result not in addresses or not _gains(op, known):
            continue
        roots = _roots(op.operands[0], facts)
        if not roots:
            continue
        for root in roots:
            check(fn, root, op)
            fn.say("checked_sign", f"{op.name} {op.result.name or 'of a tile'} at {op.place}: wide accesses ask that "
                   f"{root.name or 'a number'} is not negative: each program checks it and stops if it is "
                   "(check_signs=False: exact, an element at a time)", op.place)
        facts = analyse(fn)
    return fn


def _gains(op: Op, known: list[AxisInfo]) -> bool:
    now, then = fact_of(op, known), fact_of(op, [known[0]._replace(nonnegative=True), *known[1:]])
    return (then.contiguity, then.constancy) != (now.contiguity, now.constancy)


def _addresses(fn: Function) -> set[Value]:
    return {*reached([v for op in listed(fn.body) for v in op.operands if isinstance(v.type, Tile)
                      and isinstance(v.type.elem, Ptr) or op.name in ("load", "store")], unloaded)}


def unloaded(v: Value) -> list[Value]:
    """What a value is computed from, through loops and branches; nothing for what is loaded."""
    edge = edge_of(v)
    return [*(edge[1].sources if edge is not None else ()),
            *(v.op.operands if isinstance(v.op, Op) and v.op.name != "load" else ())]


def _roots(v: Value, facts: dict[Value, AxisInfo]) -> list[Value]:
    if facts[v].nonnegative:
        return []
    if not isinstance(v.type, Tile):
        return [v] if _meant(v, facts) else []
    if not isinstance(v.op, Op) or "keeps_sign" not in v.op.define.traits:
        return []
    operands = v.op.operands[1:] if v.op.name == "select" else v.op.operands
    found = []
    for x in operands:
        if not facts[x].nonnegative:
            below = _roots(x, facts)
            if not below:
                return []
            found += [r for r in below if r not in found]
    return found


def _meant(v: Value, facts: dict[Value, AxisInfo]) -> bool:
    """Whether only a divisor's sign is in doubt."""
    if facts[v].nonnegative:
        return True
    if not isinstance(v.op, Op) or "keeps_sign" not in v.op.define.traits or v.op.name == "select":
        return False
    return all(_meant(x, facts) for x in (v.op.operands[:1] if v.op.name in ("idiv", "irem") else v.op.operands))


def may_check(fn: Function, v: Value, facts: dict[Value, AxisInfo]) -> bool:
    return fn.attrs.get("check_signs") is not False and not isinstance(v.type, Tile) and _meant(v, facts)


def check(fn: Function, root: Value, op: Op) -> Value:
    block = root.op if isinstance(root.op, Block) else root.op.parent if root.op is not None else None
    assert block is not None
    at = block.ops.index(root.op) + 1 if isinstance(root.op, Op) else 0
    b = Builder(block, at, root.op.loc if isinstance(root.op, Op) else op.loc)
    new = b("checked", root, nonnegative=True)
    new.name = root.name
    for user in walk(fn.body):
        if user is not new.op:
            user.operands = [new if x is root else x for x in user.operands]
    return new
