"""Reductions that need not one another are one: threads, warps and CTAs meet once for all of them."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, listed, read, replace
from tilejit.ir.folds import joined
from tilejit.ir.types import Tile


def merge_folds(fn: Function) -> Function:
    reduces = [op for op in listed(fn.body) if op.name == "reduce"]
    if len(reduces) < 2 or any("dot" in op.name for op in listed(fn.body)):
        return fn
    for block in {id(op.parent): op.parent for op in reduces}.values():
        assert block is not None
        if block is fn.body and any(op.name == "row_load" for op in block.ops):
            continue
        for first in [op for op in block.ops if op.name == "reduce"]:
            while first.parent is block and first in block.ops and (found := _other(block, first)):
                first = _merge(fn, block, first, *found)
    return fn


def _other(block: Block, first: Op) -> tuple[Op, list[Op]] | None:
    """A later reduction that can be one with `first`, and the ops between that then stand behind both."""
    if not _plain(first):
        return None
    late, moved = set(first.results), []
    for op in block.ops[block.ops.index(first) + 1:]:
        if not late.isdisjoint(read(op)):
            if op.regions or not op.define.pure or "terminator" in op.define.traits or "collective" in op.define.traits:
                return None
            late.update(op.results)
            moved.append(op)
        elif op.name == "reduce" and _plain(op) and _alike(first, op):
            return op, moved
        elif op.regions and op.name != "reduce":
            return None
    return None


def _plain(op: Op) -> bool:
    region, n = op.regions[0], len(op.results)
    return len(region.ops) == n + 1 and all(
        x.name in ("minimum", "maximum") or "commutative" in x.define.traits for x in region.ops[:-1])


def _alike(one: Op, two: Op) -> bool:
    a, b = one.operands[0].type, two.operands[0].type
    assert isinstance(a, Tile) and isinstance(b, Tile)
    return (a.shape, a.layout) == (b.shape, b.layout) and one.attrs == two.attrs


def _merge(fn: Function, block: Block, first: Op, second: Op, moved: list[Op]) -> Op:
    ops, made = block.ops, Block()
    whole = joined([first, second], [*first.operands, *second.operands], Builder(made, loc=second.loc))
    gone = {first, *moved}
    at = ops.index(second)
    before = [op for op in ops[:at] if op not in gone]
    whole.parent = block
    block.ops = [*before, whole, *moved, *ops[at + 1:]]
    replace(fn.body, dict(zip([*first.results, *second.results], whole.results)))
    return whole
