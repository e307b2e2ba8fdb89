"""Writes roles, each a slice of the function, and the protocol between them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilejit.errors import CompilationError
from tilejit.ir import Block, Builder, Function, Op, Value, clone_block, edges, erase, keep_edges, listed, whole
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import int32
from tilejit.schedule.buffers import top_of
from tilejit.schedule.cluster_barrier import write_parities
from tilejit.schedule.loads import backward_slice, groups_of, kind_of
from tilejit.schedule.ping_pong import deal_to_groups, deal_to_own
from tilejit.schedule.store_role import write_stores
from tilejit.schedule.tickets import Channel, channels, write_tickets


def split(fn: Function) -> Function:
    warps = fn.attrs["num_warps"]
    ops = listed(fn.body)
    rings = channels(fn, ops)
    fn.attrs.update(uncounted=True, num_threads=32 * warps)
    count = top_of(fn).at
    body, fn.body.ops = fn.body.ops[count:], fn.body.ops[:count]
    top = Builder(fn.body, loc=fn.loc)
    end = body.pop()
    block = Block()
    block.ops = body
    for op in body:
        op.parent = block
    if "producers" in fn.attrs:
        _write_roles(fn, block, ops, rings, top)
    else:
        for op in _consumer(fn, block, rings, top).ops:
            top.insert(op)
    top.insert(end)
    if "write_desc" in {op.name for op in ops}:
        drop_dead(fn)  # each role writes the descriptors that it uses
        Builder(fn.body, 0, fn.loc).op("tensor_maps")
    return fn


def _write_roles(fn: Function, block: Block, ops: list[Op], rings: list[Channel], top: Builder) -> None:
    groups, producers = groups_of(fn), fn.attrs["producers"]
    consumers = fn.attrs["num_warps"] * groups
    launch, producer, consumer = fn.attrs["registers"]
    stores = [op for op in ops if op.attrs.get("role") == "store"]
    streams = groups * stores[0].attrs["stripes"] if stores else 0
    roles = [("consumer", consumers, groups, consumer), ("producer", 1 if streams else producers, 1, producer)]
    regions = [_producer(fn, block, ops, rings)]
    if streams:
        roles.append(("store", streams, streams, producer))
        regions.append(_store_role(fn, block, ops, stores))
    erase({op for op in ops if op.attrs.get("role") == "producer"}, block)
    regions.insert(0, _consumer(fn, block, rings, top, bool(stores)))
    names, counts, each, registers = zip(*roles)
    top.op("roles", regions=regions, names=names, warps=counts, groups=each, registers=registers)
    fn.attrs.update(num_threads=32 * (consumers + producers), launch_registers=launch)
    if not consumer:
        return
    if fn.attrs.get("maxnreg"):
        raise CompilationError(
            f"maxnreg={fn.attrs['maxnreg']} conflicts with the kernel's roles, which share registers out "
            f"({producer} and {consumer} a thread): leave it out, or pass warp_specialize=False", fn.loc)
    fn.say("registers", f"registers: {launch} at launch, {producer} producer, {consumer} consumers", launch=launch,
           producer=producer, consumer=consumer)


def _consumer(fn: Function, block: Block, rings: list[Channel], top: Builder, stores: bool = False) -> Block:
    """All but what other roles do, in place. stores: one of those stores."""
    b = Builder(block, 0, fn.loc)
    first = b.const(0, int32), b.const(1, int32)
    skips = deal_to_groups(fn, block, top, b, first)
    write_tickets(block, rings, first, skips=skips)
    if fn.attrs.get("num_ctas", 1) > 1:
        write_parities(block, first[0])
    if stores:
        block.ops.pop()  # the wait for all stores is the store role's
        write_stores(fn, block, False, b)
    return block


def _producer(fn: Function, source: Block, ops: list[Op], rings: list[Channel]) -> Block:
    """What fills rings: one thread, or all where all copy."""
    fills = [op for op in ops if op.attrs.get("role") == "producer"]
    body = _slice(source, {op: [v for x in op.regions[0].ops[:-1] for v in x.operands] for op in fills})
    for op in listed(body):
        op.attrs.pop("dealt", None)
    by_all = any(kind_of(op.regions[0].ops[0]) == "async" for op in fills)
    block = Block()
    b = Builder(block, loc=fn.loc)
    first = b.const(0, int32), b.const(1, int32)
    write_tickets(body, rings, first, elected=not by_all)
    if by_all:
        for op in body.ops:
            b.insert(op)
        b.op("async_wait")
    else:
        b.op("elect", regions=[body])
    return block


def _store_role(fn: Function, source: Block, ops: list[Op], stores: list[Op]) -> Block:
    drains = [op for op in ops if op.name == "store_wait"][:-1]
    body = _slice(source, {**{op: [op.operands[0], *op.operands[3:]] for op in stores}, **{op: [] for op in drains}})
    deal_to_own(body, groups_of(fn))
    block = Block()
    b = Builder(block, loc=fn.loc)
    write_stores(fn, body, True, Builder(body, 0, fn.loc))
    Builder(body, loc=fn.loc).op("bulk_wait")
    b.op("elect", regions=[body])
    return block


def _slice(source: Block, wanted: Mapping[Op, Sequence[Value]]) -> Block:
    """A copy of a block with some ops, what these operands of theirs need, and the control flow around them."""
    needed = backward_slice(wanted)
    around = {op: any(x in wanted for x in whole(op)[1:]) for op in listed(source) if op.define.carries}

    def keep(op: Op) -> bool:
        owner = op.parent.parent if op.parent else None
        return op in wanted or owner in wanted or "terminator" in op.define.traits or around.get(op, False) or \
            not needed.isdisjoint(op.results)

    copies: dict[Value, Value] = {}
    new = clone_block(source, copies, keep)
    for op in around:
        if op.results and op.results[0] in copies:
            twin = copies[op.results[0]].maker
            keep_edges(twin, [e.index for e in edges(op) if not needed.isdisjoint((*e.args, e.result))])
    return new
