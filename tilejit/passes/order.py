"""Accesses of the same memory by different warps happen in the order of the program.

A load finds what the program stored before, of two stores the later one stays, also from one iteration of a loop to the
next. Where one warp accesses what another one did, all threads meet in between; where a loop accesses what was accessed
before it, before the loop, once. Triton promises this nowhere, but its kernels count on it. Different arguments are
different memory.

    for i:                                   for i:
      %x = load %rows                          debug_barrier
      store %tile, %y            ->            %x = load %rows
                                               debug_barrier
                                               store %tile, %y
"""
from __future__ import annotations

from tilejit.ir import Block, Function, Op, beside
from tilejit.ir.ahead import argument_of
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.types import Tile


def order_accesses(fn: Function) -> Function:
    if fn.attrs["num_warps"] > 1 and fn.attrs.get("num_ctas", 1) == 1:
        _order(fn.body, [])
    return fn


def _order(block: Block, pending: list[Op]) -> list[Op]:
    for op in list(block.ops):
        if _is_access(op):
            if _conflicts(pending, op):
                beside(op).op("debug_barrier")
                pending = []
            pending = [*pending, op]
        if op.name == "debug_barrier" or not op.regions and scratch_bytes(op):
            pending = [op] if _is_access(op) else []
        elif op.regions and "carries" in op.define.traits:
            if "loop" in op.define.traits and any(_reached(region, pending) for region in op.regions):
                beside(op).op("debug_barrier")
                pending = []
            for _ in range(2 if "loop" in op.define.traits else 1):     # what one iteration leaves, the next one finds
                left = [_order(region, pending) for region in op.regions]
                pending = list(dict.fromkeys([*pending, *(x for ends in left for x in ends)]))
    return pending


def _reached(block: Block, pending: list[Op]) -> bool:
    for op in block.ops:
        if _is_access(op) and _conflicts(pending, op):
            return True
        if op.name == "debug_barrier" or not op.regions and scratch_bytes(op):
            return False
        if "carries" in op.define.traits and any(_reached(region, pending) for region in op.regions):
            return True
    return False


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
