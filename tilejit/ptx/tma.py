"""Emitters of the shared-memory side: mbarriers, tickets, TMA loads and stores, local loads and stores."""
from __future__ import annotations

from itertools import product

from tilejit.ir import Op, Value
from tilejit.ir.types import Barrier, Buffer, Desc, DType, Tile
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.kernel import tensor_map
from tilejit.ptx.pack import load_shared, store_shared, words
from tilejit.ptx.smem import accesses, slot_address, slot_offset, span_elements

#: TMA boxes have at most this many elements along a dimension (driver API, cuTensorMapEncodeTiled).
MAX_BOX = 256


def tma_box(buffer: Buffer) -> tuple[int, ...]:
    """The box of one TMA instruction for a slot: one swizzle span wide, at most 256 per dimension."""
    box = [min(s, MAX_BOX) for s in buffer.shape]
    box[buffer.order[0]] = min(box[buffer.order[0]], span_elements(buffer))
    return tuple(box)


def in_blocks(buffer: Buffer, desc: Value) -> Buffer:
    """The same bytes with the dimensions of the descriptor's block, of which the tile may have merged the first."""
    assert isinstance(desc.type, Desc)
    rank = len(desc.type.block_shape)
    if rank == len(buffer.shape):
        return buffer
    shape = (*desc.type.block_shape[:-1], buffer.shape[-1])
    return Buffer(shape, buffer.elem, buffer.slots, buffer.swizzle, tuple(reversed(range(rank))))


def pieces(buffer: Buffer) -> list[tuple[tuple[int, ...], int]]:
    """The TMA instructions that fill a slot: (coordinates of the box in the tile, byte offset)."""
    box = tma_box(buffer)
    steps = [range(0, s, b) for s, b in zip(buffer.shape, box)]
    return [(c, slot_offset(buffer, c)) for c in product(*steps)]


def barrier_address(e: Emitter, barrier: Value, slot: Value) -> str:
    """Address text of barrier[slot]."""
    assert isinstance(barrier.op, Op) and isinstance(barrier.type, Barrier)
    offset = barrier.op.attrs["offset"]
    if barrier.type.slots == 1:
        return f"[{e.smem}+{offset}]"
    return f"[{e.p.new('b32', 'mad.lo.u32', e.scalar(slot), 8, e.smem)}+{offset}]"


def _pred(e: Emitter, op: Op, index: int) -> str | None:
    return e.scalar(op.operands[index]) if len(op.operands) > index else None


@emits("ticket_next")
def _ticket_next(e: Emitter, op: Op) -> None:
    p, (slot, parity), slots = e.p, op.operands, op.attrs["slots"]
    if slots == 1:
        e.set(op.results[0], e.scalar(slot))
        e.set(op.results[1], p.new("b32", "xor.b32", e.scalar(parity), 1))
        return
    bumped = p.new("b32", "add.u32", e.scalar(slot), 1)
    wrap = p.new("pred", "setp.eq.u32", bumped, slots)
    e.set(op.results[0], p.new("b32", "selp.b32", 0, bumped, wrap))
    bit = p.new("b32", "selp.b32", 1, 0, wrap)
    e.set(op.results[1], p.new("b32", "xor.b32", e.scalar(parity), bit))


@emits("ticket_skip")
def _ticket_skip(e: Emitter, op: Op) -> None:
    p, (slot, parity, count), slots = e.p, op.operands, op.attrs["slots"]
    total = p.new("b32", "add.u32", e.scalar(slot), e.scalar(count))
    rounds = p.new("b32", "div.u32", total, slots)
    used = p.new("b32", "mul.lo.u32", rounds, slots)
    e.set(op.results[0], p.new("b32", "sub.u32", total, used))
    bit = p.new("b32", "and.b32", rounds, 1)
    e.set(op.results[1], p.new("b32", "xor.b32", e.scalar(parity), bit))


@emits("mbar_wait")
def _mbar_wait(e: Emitter, op: Op) -> None:
    """Spin on try_wait (each try suspends the thread for a hardware-defined time)."""
    p = e.p
    barrier, slot, parity = op.operands[:3]
    address = barrier_address(e, barrier, slot)
    again, done = p.label("wait"), p.label("ready")
    pred = _pred(e, op, 3)
    if pred:
        p("bra", done, pred=f"!{pred}")
    p.place(again)
    ready = p.reg("pred")
    p("mbarrier.try_wait.parity.shared::cta.b64", ready, address, e.scalar(parity))
    p("bra", done, pred=ready)
    p("bra", again)
    p.place(done)


@emits("mbar_arrive")
def _mbar_arrive(e: Emitter, op: Op) -> None:
    """`per` says who arrives: one lane of every warp, or one thread of every warpgroup."""
    p = e.p
    unit = {"warp": 31, "warpgroup": 127}[op.attrs["per"]]
    rest = p.new("b32", "and.b32", e.role.tid, unit)
    one = p.new("pred", "setp.eq.u32", rest, 0)
    pred = _pred(e, op, 2)
    if pred:
        one = p.new("pred", "and.pred", one, pred)
    if op.attrs["per"] == "warp":
        p("bar.warp.sync", -1)       # the other lanes' reads come before lane 0 tells
    p("mbarrier.arrive.shared::cta.b64", "_", barrier_address(e, *op.operands[:2]), pred=one)


@emits("mbar_expect")
def _mbar_expect(e: Emitter, op: Op) -> None:
    e.p("mbarrier.arrive.expect_tx.shared::cta.b64", "_", barrier_address(e, *op.operands[:2]),
        op.attrs["bytes"])


@emits("tma_load")
def _tma_load(e: Emitter, op: Op) -> None:
    """One instruction per box of the slot; all complete on the same mbarrier."""
    p = e.p
    ring, slot, barrier, _, *offsets = op.operands
    buffer = ring.type
    assert isinstance(buffer, Buffer) and isinstance(ring.op, Op)
    base = slot_address(e, ring, e.scalar(slot))
    where = barrier_address(e, barrier, slot)
    tmap = tensor_map(e, op)
    for at, offset in pieces(in_blocks(buffer, op.operands[3])):
        coords = _coordinates(e, offsets, at)
        p(f"cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global.mbarrier::complete_tx::bytes",
          f"[{base}+{offset}]", f"[{tmap}, {{{', '.join(reversed(coords))}}}]", where)


def _coordinates(e: Emitter, offsets: list[Value], at: tuple[int, ...]) -> list[str]:
    """Registers of offsets + at."""
    return [_plus(e, e.scalar(o), c) for o, c in zip(offsets, at)]


def _plus(e: Emitter, reg: str, const: int) -> str:
    return e.p.new("b32", "add.s32", reg, const) if const else reg


@emits("view")
def _view(e: Emitter, op: Op) -> None:
    ring, slot = op.operands
    e.views[op.result] = slot_address(e, ring, e.scalar(slot))


@emits("view_trans")
def _view_trans(e: Emitter, op: Op) -> None:
    e.views[op.result] = e.views[op.operands[0]]


@emits("local_load")
def _local_load(e: Emitter, op: Op) -> None:
    view, tile = op.operands[0], op.result.type
    assert isinstance(tile, Tile) and tile.layout is not None and isinstance(view.type, Buffer)
    regs = e.fresh(tile)
    for a in accesses(e, tile.layout, view.type, e.views[view]):
        load_shared(e, tile.elem, [regs[i] for i in a.registers], a.address)
    e.set(op.result, regs)


@emits("local_store")
def _local_store(e: Emitter, op: Op) -> None:
    view, value = op.operands
    tile = value.type
    assert isinstance(tile, Tile) and tile.layout is not None and isinstance(view.type, Buffer)
    regs, owner = e.get(value), e.owner(tile.layout)
    for a in accesses(e, tile.layout, view.type, e.views[view]):
        store_shared(e, tile.elem, [regs[i] for i in a.registers], a.address, owner)


@emits("fence_async")
def _fence_async(e: Emitter, op: Op) -> None:
    e.p(f"fence.proxy.async.{op.attrs.get('space', 'shared::cta')}")


@emits("tma_store")
def _tma_store(e: Emitter, op: Op) -> None:
    """Piece by piece: wait until the slot's last store was read, stage, fence, meet, one thread stores."""
    p = e.p
    _, value, ring, *offsets = op.operands
    tile, buffer = value.type, ring.type
    assert isinstance(tile, Tile) and tile.layout is not None
    assert isinstance(buffer, Buffer) and isinstance(ring.op, Op)
    tmap, regs = tensor_map(e, op), e.get(value)
    columns = op.attrs["columns"]
    copy, kind = "cp.async.bulk.tensor", ""
    if "kind" in op.attrs:
        copy, kind = "cp.reduce.async.bulk.tensor", f".{op.attrs['kind']}"
    leader = p.new("pred", "setp.eq.u32", e.role.tid, 0)
    base = slot_address(e, ring, "0")
    for i in range(tile.shape[-1] // columns):
        slot = i % buffer.slots
        p("cp.async.bulk.wait_group.read", buffer.slots - 1, pred=leader)
        e.sync()
        at = p.new("b32", "add.u32", base, slot * buffer.slot_stride)
        _stage(e, tile, regs, buffer, at, i, columns)
        p("fence.proxy.async.shared::cta")
        e.sync()
        for box, offset in pieces(in_blocks(buffer, op.operands[0])):
            coords = _coordinates(e, offsets, (*box[:-1], box[-1] + i * columns))
            p(f"{copy}.{len(coords)}d.global.shared::cta{kind}.bulk_group",
              f"[{tmap}, {{{', '.join(reversed(coords))}}}]", f"[{at}+{offset}]", pred=leader)
        p("cp.async.bulk.commit_group", pred=leader)


def _stage(e: Emitter, tile: Tile, regs: list[str], buffer: Buffer, at: str, piece: int,
           columns: int) -> None:
    """Write the registers of one column piece into its staging slot, by stmatrix where it fits."""
    layout = tile.layout
    assert layout is not None
    last = len(tile.shape) - 1
    local = piece_layout(layout, columns)
    mine = [r for r in range(layout.num_registers)
            if layout.apply(register=r)[last] // columns == piece]
    if stmatrix_fits(local, buffer):
        _stmatrix(e, local, buffer, [regs[r] for r in mine], at)
        return
    assert isinstance(tile.elem, DType)
    owner = e.owner(layout)
    for a in accesses(e, local, buffer, at):
        store_shared(e, tile.elem, [regs[mine[i]] for i in a.registers], a.address, owner)


def piece_layout(layout, columns: int):
    """The layout of one piece of `columns` columns: the register bits that select the piece removed."""
    from tilejit.layout.linear import LinearLayout

    bases = {name: layout.bases_of(name) for name in ("register", "lane", "warp")}
    bases["register"] = tuple(b for b in bases["register"] if b[-1] < columns)
    return LinearLayout.from_bases(bases, (*layout.shape[:-1], columns))


def splits_by_registers(layout, columns: int) -> bool:
    """True if only register bits choose between pieces of `columns` columns."""
    return all(b[-1] < columns for name in ("lane", "warp") for b in layout.bases_of(name)) and \
        all(b[-1] < columns or not any(b[:-1]) for b in layout.bases_of("register"))


def stmatrix_fits(layout, buffer: Buffer) -> bool:
    """True for 16-bit tiles in the wgmma accumulator's pattern (PTX ISA, stmatrix .m8n8.x4)."""
    return (buffer.elem.bytes == 2 and buffer.swizzle == 128 and buffer.order == (1, 0)
            and len(layout.shape) == 2
            and tuple(layout.bases_of("register")[:3]) == ((0, 1), (8, 0), (0, 8))
            and tuple(layout.bases_of("lane")) == ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
            and all(b[1] == 0 for b in layout.bases_of("warp")))


def _stmatrix(e: Emitter, layout, buffer: Buffer, regs: list[str], at: str) -> None:
    """Eight registers (a 16x16 block) per stmatrix.x4; lane L supplies row L%8 of matrix L/8."""
    p, rows = e.p, layout.bases_of("warp")
    key = (layout, buffer, "stmatrix")
    if key not in e.role.addresses:
        lane_row = [(1, 0), (2, 0), (4, 0), (8, 0), (0, 8)]
        e.role.addresses[key] = e.hoist(lambda: e.bit_sum(
            [(e.role.lane, [slot_offset(buffer, b) for b in lane_row]),
             (e.role.warp, [slot_offset(buffer, b) for b in rows])]))
    thread = e.role.addresses[key]
    for first in range(0, len(regs), 8):
        const = slot_offset(buffer, layout.apply(register=first))
        mixed = const & 0x70          # the chunk bits are xored with the row, the rest is plain
        part = p.new("b32", "xor.b32", thread, mixed) if mixed else thread
        address = p.new("b32", "add.u32", at, part)
        quad = words(e, buffer.elem, regs[first:first + 8])
        p("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16", f"[{address}+{const ^ mixed}]",
          f"{{{', '.join(quad)}}}")


@emits("store_wait")
def _store_wait(e: Emitter, op: Op) -> None:
    """The CTA's shared memory must outlive the stores that read it."""
    leader = e.p.new("pred", "setp.eq.u32", e.role.tid, 0)
    e.p("cp.async.bulk.wait_group", 0, pred=leader)

