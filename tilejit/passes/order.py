"""Loads and stores of the same memory by different warps happen in the order of the program.

A store may overtake a load before it, or a load the store before it, where other warps do them: a row is read in one
layout and written in another, or every warp reads what one writes. All threads meet in between then. Triton promises
this nowhere, and its kernels count on it: the layout conversion that they have there meets as well. What is not told
apart by arguments is taken for different memory, stores are not ordered among each other, and neither are iterations of
a loop (`tl.debug_barrier` orders those).

    %x = load %rows                          %x = load %rows
    store %tile, %y            ->            debug_barrier
                                             store %tile, %y
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op
from tilejit.ir.ahead import argument_of
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.types import Tile


def order_accesses(fn: Function) -> Function:
    """Put meetings between conflicting accesses, in place; returns the function. Tiles have layouts already."""
    if fn.attrs["num_warps"] > 1 and fn.attrs.get("num_ctas", 1) == 1:
        _order(fn.body, [])
    return fn


def _order(block: Block, pending: list[Op]) -> list[Op]:
    """Order the accesses of a block after `pending` ones; returns those that nobody has met behind."""
    for op in list(block.ops):
        if op.name == "debug_barrier" or not op.regions and scratch_bytes(op):
            pending = []
        elif op.name in ("load", "store") and "copy" not in op.attrs:
            if any(_conflict(before, op) for before in pending):
                Builder(block, block.ops.index(op), op.loc).op("debug_barrier")
                pending = []
            pending = [*pending, op]
        elif op.regions and "carries" in op.define.traits:
            left = [_order(region, pending) for region in op.regions]
            pending = list(dict.fromkeys([*pending, *(x for ends in left for x in ends)]))
    return pending


def _conflict(before: Op, after: Op) -> bool:
    """Whether one of two accesses writes what the other may read, by another warp."""
    if before.name == after.name:
        return False
    memory = argument_of(before.operands[0])
    if memory is None or memory is not argument_of(after.operands[0]):
        return False
    one, two = (op.operands[0].type for op in (before, after))
    if not isinstance(one, Tile) or not isinstance(two, Tile):
        return True
    assert one.layout is not None
    return one.layout != two.layout or bool(one.layout.zero_bits("warp"))
