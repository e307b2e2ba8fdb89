"""Makes loads and products asynchronous, each next to its wait: still sequential, and still right."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Block, Builder, Function, Op, inside, listed, loop_around, needed, replace, uses
from tilejit.ir.target import target_of
from tilejit.ir.types import Buffer, Desc, Tile
from tilejit.layout.named import default_blocked
from tilejit.schedule.buffers import alloc, barriers
from tilejit.schedule.context import Context
from tilejit.schedule.flying import hold, stays_in_flight, wait_behind
from tilejit.schedule.fragments import write_fragments
from tilejit.schedule.handed import find_handed, take_turns, write_made
from tilejit.schedule.loads import in_place, kind_of, reads_slot
from tilejit.schedule.pieces import find_pieces
from tilejit.schedule.products import chain_of, is_added_to, write_dot, write_reuse

#: Attributes of a load that only say how it is filled.
OF_LOADS = ("channel", "index", "buffer", "arrivals", "role", "ahead", "prompt", "tight", "open", "side")


def asyncify(fn: Function) -> Function:
    c = Context(fn, uses(fn.body), Builder(fn.body, 0, fn.loc))
    for op in listed(fn.body):
        if op.name == "dot":
            if "unit" not in op.attrs:
                c.multiplied.update(reads_slot(op, i) for i in (0, 1))
            if op.attrs.pop("pieces", 0) and (pieces := find_pieces(op, c.uses)) is not None:
                c.pieces[op] = pieces
                c.piecewise.update(pieces.ops)
            if is_added_to(op, c.uses):
                c.added_to.add(op)
        elif op.name == "for" and op.attrs.pop("in_flight", False):
            c.chains[op] = chain_of(op)
        elif "index" in op.attrs and "again" not in op.attrs:
            _find_ticket(op, c)
    handed = find_handed([op for op in listed(fn.body) if op.attrs.pop("handed", False)], c.uses)
    c.handed = {dot: x for x in handed for dot in x.readers}
    for load, loads in c.tickets.items():
        if load is loads[0]:
            _allocate(loads, c)
    _block(fn.body, c)
    replace(fn.body, c.renamed)
    for x in handed:
        take_turns(x, c)
    for fill in c.fills:
        if fill.attrs.get("ahead"):
            _await_late(fill)
    _start_together(fn, [fill for fill in c.fills if fill.parent is fn.body])
    for fill in c.fills:  # what it yields is what it loads, not what was read from the slot
        *loads, end = fill.regions[0].ops
        end.operands = [load.result for load in loads]
        for load in loads:
            load.attrs = {key: value for key, value in load.attrs.items() if key not in OF_LOADS}
    return fn


def _find_ticket(load: Op, c: Context) -> None:
    """The loads of a ring that follow one another in a block, by their indices, are one ticket's."""
    ring, loop = load.attrs["channel"], loop_around(load)
    c.tickets[load] = [] if not load.attrs["index"] else next(
        loads for loads in reversed(c.tickets.values())
        if loads[0].attrs["channel"] == ring and loads[0].parent is load.parent)
    c.tickets[load].append(load)
    if loop is not None and loop.attrs.get("pairs"):
        c.peeked.add(ring)


def _allocate(loads: list[Op], c: Context) -> None:
    how = loads[0].attrs
    ring, slots, arrivals = how["channel"], how["buffer"].slots, how["arrivals"]
    if (ring, 0) in c.buffers:
        return
    barriers(c.top, f"{ring}.full", slots, 32 * c.fn.attrs["num_warps"] if kind_of(loads[0]) == "async" else 1)
    if arrivals:
        barriers(c.top, f"{ring}.empty", slots, arrivals)
    for i, load in enumerate(loads):
        t = load.operands[0].type
        if isinstance(t, Desc) and t.block_shape[-1] * load.result.dtype.bytes < 16:
            raise CompilationError(f"the last block dimension must be at least 16 bytes, found {t.block_shape[-1]} x "
                                   f"{t.elem}", load.loc)
        c.buffers[ring, i] = alloc(c.top, load.result.name, load.attrs["buffer"])


def _block(block: Block, c: Context) -> None:
    flying = {op: found for op in block.ops if (found := stays_in_flight(op, c))}
    ops, block.ops = block.ops, []
    b = Builder(block)
    for op in ops:
        b.loc = op.loc
        if kind_of(op):
            _load(op, b, c)
        elif op in c.piecewise or _is_read_from_slot(op, c):
            continue  # made where it is needed
        elif op.attrs.get("fragments") or op.name == "trans" and op.operands[0] in c.fragments:
            write_fragments(op, b, c)
        elif op.name == "dot":
            write_dot(op, b, c)
        elif op.name == "promote_reuse":
            write_reuse(op, b, c)
        elif op in flying:
            old = hold(op, flying[op], b, c)
            _block(op.regions[0], c)
            b.insert(op)
            wait_behind(op, flying[op], old, b, c)
        else:
            for region in op.regions if op.define.carries else ():
                _block(region, c)
            b.insert(op)
        for x in set(c.handed.values()):
            if op.results and op.results[0] in x.makers:
                write_made(c.now(op.result), x, b, c)


def _is_read_from_slot(op: Op, c: Context) -> bool:
    """Whether an op changes a tile that is read from its slot: in the layout that is asked for, or by products."""
    if op.name not in ("trans", "convert"):
        return False
    t = op.result.type
    return op.result in c.renamed or isinstance(t, Tile) and t.layout is None or in_place(op.result, c.uses)


def _load(op: Op, b: Builder, c: Context) -> None:
    """Fill and await where the last of a ring's loads stands; the first, if it is filled in trips before."""
    if "again" in op.attrs:  # the slot of the ring's last load, or the last but one
        buffer = c.buffers[op.attrs["channel"], op.attrs["index"]]
        c.views[op] = b.op("await", buffer, ring=op.attrs["channel"], again=op.attrs["again"]).result
        return
    loads = c.tickets[op]
    ahead = "ahead" in loads[0].attrs
    if op is loads[0 if ahead else -1]:
        _fill(loads, b, c)
    for load in [op] if ahead else loads if op is loads[-1] else []:
        if load not in c.piecewise and not in_place(load.result, c.uses):
            _to_registers(load, b, c)


def _fill(loads: list[Op], b: Builder, c: Context) -> None:
    ring = loads[0].attrs["channel"]
    buffers = [c.buffers[ring, i] for i in range(len(loads))]
    region = Block()
    copies = Builder(region)
    for load in loads:
        copies.insert(load)
    copies.op("yield", *(load.result for load in loads))
    how = {key: loads[0].attrs[key] for key in ("ahead", "prompt", "role") if key in loads[0].attrs}
    c.fills.append(b.op("fill", *buffers, regions=[region], ring=ring, **how))
    found = b.op("await", *buffers, ring=ring).results
    for load, view in zip(loads, found):
        c.views[load] = b("row_view", view, load.operands[0]) if load.attrs.get("unaligned") else view
    if kind_of(loads[0]) == "async" and not c.multiplied.isdisjoint(loads):
        b.op("fence_async")  # the copies wrote as threads do, wgmma reads as the async proxy


def _start_together(fn: Function, fills: list[Op]) -> None:
    """Copies that no loop repeats start behind the first of them, as far as that can be, and a quarter of memory
    goes."""
    ops = fn.body.ops
    rings = [op.attrs["ring"] for op in listed(fn.body) if op.name == "fill"]
    fills = [op for op in fills if rings.count(op.attrs["ring"]) == 1 and not {"ahead", "role"} & op.attrs.keys()]
    room = target_of(fn).shared_bytes // 4 - sum(map(_bytes, fills[:1]))
    for before, fill in zip(fills, fills[1:]):
        at, end = ops.index(before) + 1, ops.index(fill)
        room -= _bytes(fill)
        between = ops[at:end]
        first = needed([fill], set(between)) - {fill}
        ordered = any(op.define.carries or op.name != "await" and op.define.effects - {"read", "shared_read"}
                      for op in between)
        if room < 0 or ordered or not all(op.define.pure and not op.regions for op in first):
            return
        ops[at:end + 1] = [op for op in between if op in first] + [fill] + [op for op in between if op not in first]


def _bytes(fill: Op) -> int:
    return sum(v.buffer.slots * v.buffer.slot_stride for v in fill.operands)


def _await_late(fill: Op) -> None:
    """Move the await behind a fill to its slots' first reader: what stands between runs while the copies arrive."""
    block = fill.block
    at = block.ops.index(fill) + 1
    end = at + 1 + (block.ops[at + 1].name == "fence_async")
    moved, table = block.ops[at:end], uses(block)
    for op in moved:  # it grows
        moved += [user for v in op.results if isinstance(v.type, Buffer) for user, _ in table.get(v, ())
                  if user.name == "view_trans" and user.parent is block and user not in moved]
    using = [x for op in moved for v in op.results for user, _ in table.get(v, ())
               if user not in moved and (x := inside(block, user))]
    first = min((block.ops.index(op) for op in using), default=end)
    between = [op for op in block.ops[at:first] if op not in moved]
    if not any(op.name == "dot_async" for op in between):
        block.ops[at:first] = between + moved


def _to_registers(load: Op, b: Builder, c: Context) -> None:
    """Read a slot in the layouts that are asked for: conversions next to the load are reads of their own."""
    limit = load.operands[1:] if load.name == "row_load" else []
    users = [u for u, i in c.uses.get(load.result, ())
             if not (u.name == "dot" and i < 2 and reads_slot(u, i))
             and not (u.name in ("trans", "convert") and in_place(u.result, c.uses))]
    for result in dict.fromkeys(u.result if u.name == "convert" and u.parent is b.block else load.result
                                for u in users):
        t = result.tile
        if t.layout is None:
            t = t.with_layout(default_blocked(t.shape, c.fn.attrs["num_warps"]))
        fill = {"fill": load.attrs["fill"]} if limit and "fill" in load.attrs else {}
        c.renamed[result] = b("local_load", c.views[load], *limit, type=t, **fill)
        c.renamed[result].name = load.result.name
