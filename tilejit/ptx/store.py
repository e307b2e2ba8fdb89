"""TMA stores: registers -> a staging slot in shared memory -> the tensor, a piece of the tile at a time."""
from __future__ import annotations

from tilejit.ir import Op, Value
from tilejit.ir.types import Buffer, Desc, DType, Tile
from tilejit.layout.clusters import in_tile, strip
from tilejit.layout.linear import LinearLayout
from tilejit.layout.shared import slot_offset
from tilejit.layout.staging import accumulated, by_pieces, piece_layout, turned
from tilejit.ptx import runs
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.kernel import tensor_map
from tilejit.ptx.pack import store_shared, words
from tilejit.ptx.smem import accesses, slot_address
from tilejit.ptx.tma import block_dim, box_of, coordinates, in_blocks, own_parts, pieces, wait_phase


@emits("tma_store")
def _tma_store(e: Emitter, op: Op) -> None:
    """Piece by piece."""
    p = e.p
    desc, value, ring, *offsets = op.operands
    tile, buffer, size, axis, stripes = value.type, ring.type, *(op.attrs[n] for n in ("size", "axis", "stripes"))
    assert isinstance(tile, Tile) and tile.layout is not None and isinstance(buffer, Buffer)
    piece = runs.parts(e, value)
    slots, shape = buffer.slots // stripes, list(tile.shape)
    base, where, meet = slot_address(e, ring, "0"), [e.scalar(o) for o in offsets], e.sync
    leader = p.new("pred", "setp.eq.u32", e.role.tid, 0)
    for d, parts, which in own_parts(e, op):
        at = block_dim(desc, buffer, d)
        where[at] = p.new("b32", "mad.lo.s32", which, strip(shape[d], parts), where[at])
        shape[d] //= parts
    if stripes > 1:
        meet, leader = e.warpgroup_sync, warpgroup_leader(e)
        base = p.new("b32", "mad.lo.u32", e.warpgroup(), slots * buffer.slot_stride, base)
        _to_stripe(e, op, desc, buffer, where, e.warpgroup())
    bases: dict[int, str] = {}
    held = by_pieces(tile.layout, size, axis)
    count = shape[axis] // size
    for i in range(count):
        start, mine = held[i]
        regs = piece(mine)
        if i or "now" not in op.attrs:
            # The store before ended in the first slot if its pieces are one more than whole rounds.
            pending = 0 if i == 0 and count % slots else slots - 1
            p("cp.async.bulk.wait_group.read", pending, pred=leader)
            meet()
        shift = i % slots * buffer.slot_stride
        _stage(e, tile, regs, buffer, base, shift, bases)
        p("fence.proxy.async.shared::cta")
        meet()
        _copy(e, op, desc, buffer, base, where, start, leader, shift)
        p("cp.async.bulk.commit_group", pred=leader)
    if "now" in op.attrs:
        p("cp.async.bulk.wait_group.read", 0, pred=leader)
        meet()
    e.run.clear()


@emits("stage")
def _stage_pieces(e: Emitter, op: Op) -> None:
    p = e.p
    ring, value, full, empty, stream, parity = op.operands
    tile, buffer, stripes = value.type, ring.type, op.attrs["stripes"]
    assert isinstance(tile, Tile) and tile.layout is not None and isinstance(buffer, Buffer)
    piece, slots = runs.parts(e, value), buffer.slots // stripes
    base, first = slot_address(e, ring, "0"), e.smem
    if stripes > 1:
        base = p.new("b32", "mad.lo.u32", e.scalar(stream), slots * buffer.slot_stride, base)
    if full.barrier.slots > slots:
        first = p.new("b32", "mad.lo.u32", e.scalar(stream), 8 * slots, e.smem)
    held = by_pieces(tile.layout, op.attrs["size"], op.attrs["axis"])
    even = e.scalar(parity)
    odd = p.new("b32", "xor.b32", even, 1) if len(held) > slots else even
    leader = p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", e.role.tid, 31), 0)
    bases: dict[int, str] = {}
    for i, (_, registers) in enumerate(held):
        regs, barrier = piece(registers), 8 * (i % slots)
        wait_phase(e, f"[{first}+{empty.op.attrs['offset'] + barrier}]", (even, odd)[i // slots % 2])  # type: ignore
        _stage(e, tile, regs, buffer, base, i % slots * buffer.slot_stride, bases)
        p("fence.proxy.async.shared::cta")
        p("bar.warp.sync", -1)
        p("mbarrier.arrive.shared::cta.b64", "_", f"[{first}+{full.op.attrs['offset'] + barrier}]",  # type: ignore
          pred=leader)
    e.run.clear()


@emits("tma_put")
def _tma_put(e: Emitter, op: Op) -> None:
    desc, ring, slot, *offsets = op.operands
    buffer = ring.type
    assert isinstance(buffer, Buffer) and isinstance(desc.type, Desc)
    where, start = [e.scalar(o) for o in offsets], op.attrs["piece"] * op.attrs["size"]
    for dim, parts, which in own_parts(e, op):
        d = block_dim(desc, buffer, dim)
        whole = desc.type.block_shape[d]
        where[d] = e.p.new("b32", "mad.lo.s32", which, strip(whole, parts), where[d])
        start = in_tile(start, whole, parts) if dim == op.attrs["axis"] else start
    if op.attrs["stripes"] > 1:
        _to_stripe(e, op, desc, buffer, where, e.role.group)
    _copy(e, op, desc, buffer, slot_address(e, ring, e.scalar(slot)), where, start)
    e.p("cp.async.bulk.commit_group")


def _to_stripe(e: Emitter, op: Op, desc: Value, buffer: Buffer, where: list[str], group: str) -> None:
    dim = 1 - op.attrs["axis"]
    step, at = buffer.shape[dim], block_dim(desc, buffer, dim)
    for d, parts, _ in op.attrs.get("slice", ()):
        step = in_tile(step, step * op.attrs["stripes"] * parts, parts) if d == dim else step
    where[at] = e.p.new("b32", "mad.lo.s32", group, step, where[at])


def _copy(e: Emitter, op: Op, desc: Value, buffer: Buffer, at: str, where: list[str], start: int,
          pred: str | None = None, shift: int = 0) -> None:
    copy, kind = "cp.async.bulk.tensor", ""
    if "kind" in op.attrs:
        copy, kind = "cp.reduce.async.bulk.tensor", f".{op.attrs['kind']}"
    tmap = tensor_map(e, op)
    blocks, d = in_blocks(buffer, desc), block_dim(desc, buffer, op.attrs["axis"])
    for box, offset in pieces(blocks, blocks.shape, box_of(e, op, desc, buffer)):
        coords = coordinates(e, where, (*box[:d], box[d] + start, *box[d + 1:]))
        e.p(f"{copy}.{len(coords)}d.global.shared::cta{kind}.bulk_group",
            f"[{tmap}, {{{', '.join(reversed(coords))}}}]", f"[{at}+{shift + offset}]", pred=pred)


@emits("bulk_wait")
def _bulk_wait(e: Emitter, op: Op) -> None:
    e.p(f"cp.async.bulk.wait_group{'.read' if op.attrs.get('read') else ''}", 0)


def warpgroup_leader(e: Emitter) -> str:
    return e.p.new("pred", "setp.eq.u32", e.p.new("b32", "and.b32", e.role.tid, 127), 0)


def _stage(e: Emitter, tile: Tile, regs: list[str], buffer: Buffer, base: str, shift: int,
           bases: dict[int, str]) -> None:
    """By stmatrix where it fits; `bases`: addresses that slots share."""
    layout = tile.layout
    assert layout is not None
    local, owner = piece_layout(layout, buffer.shape), e.owner(layout)
    if stmatrix_fits(local, buffer):
        _stmatrix(e, local, buffer, regs, base, shift, bases, owner)
        return
    assert isinstance(tile.elem, DType)
    for a in accesses(e, local, buffer, base, shift=shift, bases=bases):
        store_shared(e, tile.elem, [regs[i] for i in a.registers], a.address, owner)


def stmatrix_fits(layout: LinearLayout, buffer: Buffer) -> bool:
    """16-bit tiles in the wgmma accumulator's pattern or its transpose (PTX ISA, stmatrix .m8n8.x4)."""
    return (buffer.elem.bytes == 2 and buffer.swizzle > 0 and buffer.order == (1, 0) and layout.rank == 2
            and (accumulated(layout) or turned(layout)))


def _stmatrix(e: Emitter, layout: LinearLayout, buffer: Buffer, regs: list[str], base: str, shift: int,
              bases: dict[int, str], owner: str | None) -> None:
    """Lane L supplies row L%8 of matrix L/8; whole warps store or do not."""
    p, rows, across = e.p, layout.bases_of("warp"), turned(layout)
    key = (layout, buffer, "stmatrix")
    if key not in e.role.known.addresses:
        lane_row = [(1, 0), (2, 0), (4, 0), *([(0, 8), (8, 0)] if across else [(8, 0), (0, 8)])]
        e.role.known.addresses[key] = e.hoist(lambda: e.bit_sum(
            [(e.role.lane, [slot_offset(buffer, b) for b in lane_row]),
             (e.role.warp, [slot_offset(buffer, b) for b in rows])]))
    thread = e.role.known.addresses[key]
    for first in range(0, len(regs), 8):
        const = slot_offset(buffer, layout.apply(register=first))
        mixed = const & 0x70  # the chunk bits are xored with the row, the rest is plain
        if mixed not in bases:
            bases[mixed] = p.new("b32", "add.u32", base, p.new("b32", "xor.b32", thread, mixed) if mixed else thread)
        quad = words(e, buffer.elem, regs[first:first + 8])
        p(f"stmatrix.sync.aligned.m8n8.x4{'.trans' if across else ''}.shared.b16",
          f"[{bases[mixed]}+{shift + (const ^ mixed)}]", f"{{{', '.join(quad)}}}", pred=owner)


@emits("store_wait")
def _store_wait(e: Emitter, op: Op) -> None:
    if op.attrs.get("read"):
        stored = warpgroup_leader(e) if e.role.warps > 4 else e.p.new("pred", "setp.eq.u32", e.role.tid, 0)
        e.p("cp.async.bulk.wait_group.read", 0, pred=stored)
        return
    if e.role.warps <= 4:
        e.p("cp.async.bulk.wait_group", 0, pred=e.p.new("pred", "setp.eq.u32", e.role.tid, 0))
        return
    e.p("cp.async.bulk.wait_group", 0, pred=warpgroup_leader(e))
    e.sync()
