"""Makes loads, products and stores asynchronous, each next to its wait: still sequential, and still right.

    %a = desc_load %x, %i, %k                       fill %a_ring {ring="a"} { %a = desc_load ..; yield %a }
    %s = dot %a, %b, %acc                           %v = await %a_ring {ring="a"}
                                           ->       %p = dot_async %v, %w, (pend %acc)
    desc_store %y, %s, %i, %j                       %s = dot_wait %p
                                                    tma_store %y, %s, %y_stage, %i, %j

A load becomes a `fill` of its ring's next slot and an `await` right behind; loads of one ring together, where the last
of them stands. `prefetch` and `split` move fills ahead, within a role or into one of their own, and `sink_waits` moves
waits for products behind. Products whose accumulators are only passed on (`plan.chains`) stay in flight round their
loop: a `dot_fence` in the loop, the wait behind it.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.ir import Block, Builder, Function, Op, Value, edges, inside, listed, replace, uses
from tilejit.ir.types import Buffer, Pending, Tile
from tilejit.layout.clusters import strip_size
from tilejit.layout.named import default_blocked
from tilejit.schedule.cluster_barrier import write_atomic, write_barrier
from tilejit.schedule.context import Context
from tilejit.schedule.exchange import write_exchange, write_reduce
from tilejit.schedule.fragments import write_fragments
from tilejit.schedule.plan import Plan, Ring, StoreRing, check_descriptor, in_place, kind_of, reads_slot, shared_operand
from tilejit.schedule.products import write_dot, write_reuse
from tilejit.schedule.stores import describe, is_store, staging_of

#: What writes an op in its asynchronous form, by its name; it is left out otherwise.
_WRITERS: dict[str, Callable[[Op, Builder, Context], None]] = {
    "dot": write_dot, "promote_reuse": write_reuse, "cluster_sum": write_exchange, "reduce": write_reduce,
    "debug_barrier": write_barrier}


def asyncify(fn: Function, plan: Plan) -> Function:
    """Write what the plan says, in place; returns the function. The plan's ops are those of the function."""
    stores = [op for op in listed(fn.body) if "tma" in op.define.traits and "write" in op.define.effects]
    c = Context(fn, plan, uses(fn.body), Builder(fn.body, 0, fn.loc), bool(stores))
    for ring in plan.rings:
        _allocate(ring, c)
    for store_ring in plan.store_rings:
        _allocate_stores(store_ring, c)
    if plan.drain:
        groups, streams = plan.groups, plan.store_rings[0].streams
        c.barriers("stores.asked", groups, fn.attrs["num_warps"])
        c.barriers("stores.drained", groups, streams // groups)
    if plan.ping_pong:
        plan.ping_pong.attrs["dealt"] = plan.groups
    _block(fn.body, c)
    if stores:
        Builder(fn.body, len(fn.body.ops) - 1, fn.body.terminator.loc).op("store_wait")
    replace(fn.body, c.renamed)
    for fill in c.fills:
        if fill.attrs.get("ahead"):
            _await_late(fill)
    for fill in c.fills:                     # what it yields is what it loads, not what was read from the slot
        *loads, end = fill.regions[0].ops
        end.operands = [load.result for load in loads]
    return fn


def _allocate(ring: Ring, c: Context) -> None:
    """The barriers of a ring and a buffer for each of its loads; those of the ring in whose slots it goes on."""
    if ring.before is not None:
        c.buffers.update(zip(ring.loads, (c.buffers[load] for load in ring.before.loads)))
        return
    warps = c.fn.attrs["num_warps"]
    arrivals = warps // 4 if ring.release == "warpgroup" else warps
    slots = ring.slots * ring.groups
    c.barriers(f"{ring.name}.full", slots, 32 * warps if ring.kind == "async" else 1)
    c.barriers(f"{ring.name}.empty", slots, arrivals * ring.peers)
    for load in ring.loads:
        if ring.kind == "tensor":
            check_descriptor(load)
        c.buffers[load] = c.alloc(load.result.name, ring.buffer(load))


def _allocate_stores(ring: StoreRing, c: Context) -> None:
    """The barriers and the staging (private to ping-pong groups) of a ring that a store role empties."""
    staging = ring.staging
    count = staging.slots * ring.streams
    c.barriers(f"{ring.name}.full", count, c.fn.attrs["num_warps"] // staging.stripes)
    c.barriers(f"{ring.name}.empty", count, 1)
    c.staging[staging.buffer, staging.stripes] = c.alloc(ring.name, staging.buffer, private=True)
    c.plan.report += [describe(op, s) for op, s in ring.stores.items()]


def _block(block: Block, c: Context) -> None:
    """Write the ops of a block and of the regions in it."""
    flying = {op: found for op in block.ops if (found := _in_flight(op, c))}
    ops, block.ops = block.ops, []
    b = Builder(block)
    for op in ops:
        b.loc = op.loc
        if kind_of(op):
            (_name_again if "again" in op.attrs else _load)(op, b, c)
        elif op in c.piecewise or _is_read_from_slot(op, c):
            continue                          # made where it is needed
        elif op in c.plan.fragments:
            write_fragments(op, b, c)
        elif op.name in _WRITERS:
            _WRITERS[op.name](op, b, c)
        elif "atomic" in op.define.traits:
            write_atomic(op, b, c)
        elif is_store(op):
            _store(op, b, c)
        elif op in c.plan.chains:
            _chain(op, b, c)
        elif op in flying:
            _carry(op, flying[op], b, c)
        else:
            for region in op.regions if op.define.carries else ():
                _block(region, c)
            b.insert(op)


def _is_read_from_slot(op: Op, c: Context) -> bool:
    """Whether an op changes a tile that is read from its slot: in the layout that is asked for, or by products."""
    if op.name not in ("trans", "convert"):
        return False
    t = op.result.type
    return op.result in c.renamed or isinstance(t, Tile) and t.layout is None or \
        shared_operand(op.result) is not None and in_place(op.result, c.uses)


# -- loads ------------------------------------------------------------------------------------------------------------
def _load(op: Op, b: Builder, c: Context) -> None:
    """Fill and await a ring's next slot where the last of its loads stands; the first of them if it is filled in trips
    before, and each is read where it stands itself."""
    ring = c.plan.ring_of(op)
    assert ring is not None
    if op is ring.loads[0 if ring.ahead else -1]:
        _fill(ring, b, c)
    for load in [op] if ring.ahead else ring.loads if op is ring.loads[-1] else []:
        if not ring.views and load not in c.piecewise:
            _to_registers(load, _results(load, c), b, c)


def _fill(ring: Ring, b: Builder, c: Context) -> None:
    """Fill and await the next slot of a ring."""
    buffers = [c.buffers[load] for load in ring.loads]
    fence = ring.kind == "async" and any(_is_multiplied(load, c) for load in ring.loads)
    region = Block()
    copies = Builder(region)
    for load in ring.loads:
        load.attrs.update(_share(ring, load))
        copies.insert(load)
    copies.op("yield", *(load.result for load in ring.loads))
    how: dict[str, Any] = {"ahead": ring.ahead} if ring.ahead else {}
    if ring.prompt:
        how["prompt"] = True
    if c.plan.specialised and not ring.local:
        how["role"] = "producer"
    c.fills.append(b.op("fill", *buffers, regions=[region], ring=ring.channel.name, **how))
    found = b.op("await", *buffers, ring=ring.channel.name).results
    for load, view in zip(ring.loads, found):
        c.views[load] = b("row_view", view, load.operands[0]) if load.attrs.get("unaligned") else view
    if fence:
        b.op("fence_async")          # the copies wrote as threads do, wgmma reads as the async proxy


def _await_late(fill: Op) -> None:
    """Move the await behind a fill, with the names of its slots, to their first reader: what stands between runs while
    the copies arrive. Not past products by wgmma: a wait among them makes the assembler wait for each."""
    block = fill.parent
    assert block is not None
    at = block.ops.index(fill) + 1
    end = at + 1 + (block.ops[at + 1].name == "fence_async")
    moved, table = block.ops[at:end], uses(block)
    for op in moved:                                                    # it grows
        moved += [user for v in op.results if isinstance(v.type, Buffer) for user, _ in table.get(v, ())
                  if user.name == "view_trans" and user.parent is block and user not in moved]
    readers = [x for op in moved for v in op.results for user, _ in table.get(v, ())
               if user not in moved and (x := inside(block, user))]
    first = min((block.ops.index(op) for op in readers), default=end)
    between = [op for op in block.ops[at:first] if op not in moved]
    if not any(op.name == "dot_async" for op in between):
        block.ops[at:first] = between + moved


def _name_again(op: Op, b: Builder, c: Context) -> None:
    """The slot of the ring's last load, or the last but one, under another name."""
    ring = c.plan.ring_of(op)
    assert ring is not None
    load = next(x for x in ring.loads if x.attrs["ring"] == op.attrs["ring"])
    c.views[op] = b.op("await", c.buffers[load], ring=ring.channel.name, again=op.attrs["again"]).result


def _share(ring: Ring, load: Op) -> dict[str, Any]:
    """What a CTA of a cluster copies of a load: its slice, or its strips of a row; all of it for all of them."""
    if load not in ring.slices:
        return {"multicast": ring.ctas} if ring.ctas > 1 and ring.kind == "tensor" else {}
    if ring.kind != "row":
        return {"slice": ring.slices[load]}
    t = load.result.type
    assert isinstance(t, Tile) and t.layout is not None
    size = strip_size(t.layout, ring.ctas)
    assert size is not None
    return {"strip": size, "ctas": ring.ctas}


def _is_multiplied(load: Op, c: Context) -> bool:
    """Whether a wgmma reads the load's slot."""
    readers = list(c.uses.get(load.result, ()))
    while readers:
        op, index = readers.pop()
        if op.name == "dot" and index < 2 and "unit" not in op.attrs and reads_slot(op, index) is load:
            return True
        if op.name == "trans":
            readers += c.uses.get(op.result, ())
    return False


def _results(load: Op, c: Context) -> list[Value]:
    """The tiles that a load is read into registers as: conversions of it next to it are reads of their own."""
    users = [u for u, i in c.uses.get(load.result, ())
             if not (u.name == "dot" and i < 2 and reads_slot(u, i))
             and not (u.name in ("trans", "convert") and in_place(u.result, c.uses))]
    return list(dict.fromkeys(u.result if u.name == "convert" and u.parent is load.parent else load.result
                              for u in users))


def _to_registers(load: Op, results: list[Value], b: Builder, c: Context) -> None:
    """Read a slot in the layouts that are asked for."""
    limit = load.operands[1:] if load.name == "row_load" else []
    for result in results:
        t = result.type
        assert isinstance(t, Tile)
        if t.layout is None:
            t = t.with_layout(default_blocked(t.shape, c.fn.attrs["num_warps"]))
        fill = {"fill": load.attrs["fill"]} if limit and "fill" in load.attrs else {}
        value = b("local_load", c.views[load], *limit, type=t, **fill)
        value.name = load.result.name
        c.renamed[result] = value


# -- stores -----------------------------------------------------------------------------------------------------------
def _store(op: Op, b: Builder, c: Context) -> None:
    """A TMA store through its staging: with `store_stages=1` it is waited for at once; the store role's say so."""
    ring = c.plan.store_ring_of(op) if c.plan.store_rings else None
    t = c.now(op.operands[1]).type
    assert isinstance(t, Tile)
    s = ring.stores[op] if ring else staging_of(op, t, c.fn, c.plan.staging)
    # Stores of equal pieces share their staging: each waits for its slots, and starts at the first one.
    key = s.buffer, s.stripes
    if key not in c.staging:
        c.staging[key] = c.alloc(f"{op.operands[0].name or 'store'}_stage", s.buffer, private=True)
    desc, value, *offsets = op.operands
    store = b.op("tma_store", desc, c.now(value), c.staging[key], *offsets, **s.attrs, **op.attrs)
    if ring:
        store.attrs["role"] = "store"
        return
    c.say(describe(op, s))
    if c.fn.attrs.get("store_stages") == 1:
        store.attrs["now"] = True


# -- products that stay in flight -------------------------------------------------------------------------------------
def _chain(loop: Op, b: Builder, c: Context) -> None:
    """A loop round which accumulators are pending; they are waited for behind it."""
    old, body = c.replaced(loop), loop.regions[0]
    chain = list(c.plan.chains[loop].values())
    for index in sorted(chain):
        at = loop.define.fixed + index
        start = b("pend", loop.operands[at])
        start.name = loop.operands[at].name
        loop.operands[at] = start
        t = body.args[1 + index].type
        assert isinstance(t, Tile)
        body.args[1 + index].type = loop.results[index].type = Pending(t)
    _block(body, c)
    b.insert(loop)
    c.renamed.update(zip(old, loop.results))
    sums = b.op("dot_wait", *(loop.results[index] for index in chain)).results
    for index, tile in zip(chain, sums):
        tile.name = old[index].name
        c.renamed[old[index]] = tile


def _in_flight(loop: Op, c: Context) -> list[int]:
    """Which of the values that a rotated loop carries are products, which nothing else uses: they stay in flight."""
    found: list[int] = []
    for e in edges(loop) if loop.attrs.get("pairs") else ():
        uses = [(loop, loop.define.fixed + e.index), (loop.regions[0].terminator, e.index)]
        if all(isinstance(v.op, Op) and v.op.name == "dot" and "unit" not in v.op.attrs and c.uses[v] == [use]
               for v, use in zip(e.sources, uses)):
            found.append(e.index)
            c.flying.update({v.op: None for v in e.sources[:1] if isinstance(v.op, Op)})
    return found


def _carry(loop: Op, carried: list[int], b: Builder, c: Context) -> None:
    """A loop that carries products in flight, which are waited for where they are used: in the next trip, behind the
    loop, or in the branches there."""
    old, body = c.replaced(loop), loop.regions[0]
    c.renamed.update(zip(old, loop.results))
    for index in carried:
        arg, end = body.args[1 + index], body.terminator.operands[index].op
        assert isinstance(arg.type, Tile) and isinstance(end, Op)
        start = loop.operands[loop.define.fixed + index].op
        assert isinstance(start, Op)
        loop.operands[loop.define.fixed + index] = c.issued[start]
        body.args[1 + index] = Value(Pending(arg.type), body, 1 + index, arg.name)
        loop.results[index].type = Pending(arg.type)
        c.flying[end] = body.args[1 + index]
        if arg in c.uses:
            c.renamed[arg] = _wait_in(body, body.args[1 + index], loop)
    _block(body, c)
    b.insert(loop)
    for index in carried:
        places = {_branch(use, loop) for use, _ in c.uses.get(old[index], ())}
        for block in [p for p in places if p is not None]:
            replace(block, {old[index]: _wait_in(block, loop.results[index], loop)})
        if None in places:
            c.renamed[old[index]] = b("dot_wait", loop.results[index])


def _branch(use: Op, loop: Op) -> Block | None:
    """The region of an op next to a loop that a use is in; None if it is next to the loop itself."""
    block = use.parent
    if block is loop.parent:
        return None
    while block is not None and block.parent is not None and block.parent.parent is not loop.parent:
        block = block.parent.parent
    return block


def _wait_in(block: Block, product: Value, loop: Op) -> Value:
    """A wait for a product at a block's beginning; it sinks to where the sums are needed."""
    (tile,) = Builder(block, 0, loop.loc).op("dot_wait", product).results
    tile.name = product.name
    return tile
