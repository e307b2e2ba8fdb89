"""Accesses of the same memory by different warps, or by TMA, happen in the order of the program."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilejit.ir import Block, Function, Op, Value, beside, edge_of, enclosing, inside, listed, reached
from tilejit.ir.ahead import argument_of
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.types import Tile
from tilejit.records import dataclass


@dataclass(frozen=True)
class _Rule:
    is_access: Callable[[Op], bool]
    conflicts: Callable[[list[Op], Op], bool]
    meets: Callable[[Op], bool]
    attrs: dict[str, Any]


def order_accesses(fn: Function) -> Function:
    if fn.attrs.get("num_ctas", 1) > 1:
        return fn
    ops = listed(fn.body)
    writes = [op for op in ops if "write" in op.define.effects]
    if fn.attrs["num_warps"] > 1 and [op for op in writes if op.define.layout == "access"]:
        _order(fn.body, [], _WARPS)
    if writes and [op for op in ops if "tma" in op.define.traits]:
        _order(fn.body, [], _COPIES)
        if [op for op in listed(fn.body) if "copies" in op.attrs]:
            fn.attrs["inline"] = "what it stores is loaded again, by TMA or behind it"
    return fn


def _order(block: Block, pending: list[Op], rule: _Rule) -> list[Op]:
    """Order the accesses of a block after `pending` ones; returns those that nobody has met behind."""
    for op in list(block.ops):
        if rule.is_access(op):
            if rule.conflicts(pending, op):
                beside(op).op("debug_barrier", **rule.attrs)
                pending = []
            pending = [*pending, op]
        if rule.meets(op):
            pending = [op] if rule.is_access(op) else []
        elif op.regions and "carries" in op.define.traits:
            if "loop" in op.define.traits and any(_reached(region, pending, rule) for region in op.regions):
                beside(op).op("debug_barrier", **rule.attrs)
                pending = []
            for _ in range(2 if "loop" in op.define.traits else 1):  # what one iteration leaves, the next one finds
                left = [_order(region, pending, rule) for region in op.regions]
                pending = list(dict.fromkeys([*pending, *(x for ends in left for x in ends)]))
    return pending


def _reached(block: Block, pending: list[Op], rule: _Rule) -> bool:
    """Whether an access in a block conflicts with one of `pending` before all threads have met."""
    for op in block.ops:
        if rule.is_access(op) and rule.conflicts(pending, op):
            return True
        if rule.meets(op):
            return False
        if "carries" in op.define.traits and any(_reached(region, pending, rule) for region in op.regions):
            return True
    return False


# -- by different warps --
def _meets(op: Op) -> bool:
    return op.name == "debug_barrier" or not op.regions and bool(scratch_bytes(op))


def _is_access(op: Op) -> bool:
    return op.define.layout == "access" and bool(op.define.effects & {"read", "write"}) and "copy" not in op.attrs


def _conflicts(pending: list[Op], after: Op) -> bool:
    """Whether an access writes what one before it may access by another warp, or the other way round."""
    if "write" not in after.define.effects:
        pending = [x for x in pending if "write" in x.define.effects]
    return any(_conflict(x, after) for x in pending)


def _conflict(before: Op, after: Op) -> bool:
    writes = ["write" in op.define.effects for op in (before, after)]
    if "atomic" in before.define.traits & after.define.traits:
        return False
    memory = [argument_of(op.operands[0]) for op in (before, after)]
    if None not in memory and memory[0] is not memory[1]:
        return False
    one, two = (op.operands[0].type for op in (before, after))
    if not isinstance(one, Tile) or not isinstance(two, Tile):
        return not all(writes) or isinstance(one, Tile) or isinstance(two, Tile)
    assert one.layout is not None
    return one.layout != two.layout or not all(writes) and bool(one.layout.zero_bits("warp"))


# -- through descriptors --
def _is_copy(op: Op) -> bool:
    return "tma" in op.define.traits


def _is_global(op: Op) -> bool:
    return _is_copy(op) or _is_access(op)


def _lands(op: Op) -> bool:
    """Whether stores of descriptors have landed behind an op, and threads' are seen by the next ones."""
    return op.name == "debug_barrier" and bool(op.attrs.get("copies")) or (
        "atomic" in op.define.traits and (op.attrs.get("sem") or "acq_rel") != "relaxed")


def _overtakes(pending: list[Op], load: Op) -> bool:
    """Whether a load may go ahead of a store of the same memory, one of both being a descriptor's."""
    if "read" not in load.define.effects:
        return False
    stores = [x for x in pending if "write" in x.define.effects and (_is_copy(x) or _is_copy(load))
              and not all("read" in op.define.effects and "write" in op.define.effects for op in (x, load))]
    mine = _bases(load) if stores else set()
    return any(not _bases(x).isdisjoint(mine) and not _moves_on(x, load) for x in stores)


def _bases(op: Op) -> set[Value]:
    found: set[Value] = set()

    def sources(v: Value) -> Sequence[Value]:
        edge = edge_of(v)
        if edge is not None:
            return edge[1].sources
        if isinstance(v.op, Op) and "same_memory" in v.op.define.traits:
            return v.op.operands[:1]
        found.add(v)
        return ()

    reached(op.operands[:1], sources)
    return found


def _moves_on(store: Op, load: Op) -> bool:
    """Whether a load ahead of a store in a loop is at its offsets, which depend on the loop."""
    loop = next((x for x in enclosing(load) if "loop" in x.define.traits and x in enclosing(store)), None)
    if loop is None or not _is_copy(store) or not _is_copy(load):
        return False
    block = next(r for r in loop.regions if inside(r, load) is not None)
    first, then = inside(block, load), inside(block, store)
    if then is None or first is None or block.ops.index(first) >= block.ops.index(then):
        return False
    offsets = load.operands[1:]
    return offsets == store.operands[2:] and any(_depends(v, loop) for v in offsets)


def _depends(v: Value, loop: Op) -> bool:
    def sources(v: Value) -> list[Value]:
        edge = edge_of(v)
        return list(edge[1].sources) if edge is not None and edge[0].name == "if" else [
            *(v.op.operands if isinstance(v.op, Op) else ())]

    return any(x.op in loop.regions for x in reached([v], sources))


_WARPS = _Rule(_is_access, _conflicts, _meets, {})
_COPIES = _Rule(_is_global, _overtakes, _lands, {"copies": True})
