"""Mbarriers, tickets, TMA loads, local loads and stores."""
from __future__ import annotations

from itertools import product
from math import prod

from tilejit.errors import ClusterError
from tilejit.ir import Op, Value
from tilejit.ir.scratch import element_bytes
from tilejit.ir.types import Buffer, Tile
from tilejit.layout.clusters import in_tile, own_strips, strip
from tilejit.layout.shared import boxed, slot_offset, slot_rows, span_elements
from tilejit.ptx.arith import literal
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.kernel import tensor_map
from tilejit.ptx.ldmatrix import load_tile, store_tile
from tilejit.ptx.memory import both
from tilejit.ptx.pack import load_shared, load_shifted, store_shared
from tilejit.ptx.smem import accesses, slot_address
from tilejit.ptx.wgmma import describe_early
from tilejit.ptx.widen import in_pairs


def tma_box(buffer: Buffer) -> tuple[int, ...]:
    """The box of a TMA instruction: one span wide, as many rows as follow one another."""
    fastest, *others = buffer.order
    box = {fastest: span_elements(buffer)}
    whole = True
    for d in others:
        box[d] = boxed(buffer.shape[d]) if whole else 1
        whole = whole and box[d] == buffer.shape[d]
    return tuple(box[d] for d in range(len(buffer.shape)))


def in_blocks(buffer: Buffer, desc: Value) -> Buffer:
    """The same bytes with the dimensions of the descriptor's block, of which the tile may have merged the first."""
    rank = len(desc.desc.block_shape)
    if rank == len(buffer.shape):
        return buffer
    ahead, (first, *merged, _) = desc.desc.ahead_of(len(buffer.shape)), desc.desc.block_shape
    # Of merged dimensions CTAs divide the first.
    shape = (first * buffer.shape[0] // prod((first, *merged)), *merged, buffer.shape[-1]) if ahead is None \
        else (*(1,) * ahead, *buffer.shape)
    return Buffer(shape, buffer.elem, buffer.slots, buffer.swizzle, tuple(reversed(range(rank))))


def slowest(buffer: Buffer) -> int:
    return next((d for d in reversed(buffer.order) if buffer.shape[d] > 1), buffer.order[-1])


def block_dim(desc: Value, buffer: Buffer, dim: int) -> int:
    if dim == 0 and desc.desc.ahead_of(len(buffer.shape)) is None:
        return 0
    return dim + len(desc.desc.block_shape) - len(buffer.shape)


def copied(op: Op, desc: Value, buffer: Buffer) -> tuple[Buffer, int]:
    """What a CTA copies of every so many elements of the slowest dimension: of each strip, if it has strips."""
    blocks = in_blocks(buffer, desc)
    shape, d = list(blocks.shape), slowest(blocks)
    unit = shape[d]
    if "multicast" in op.attrs:
        for dim, count, _ in op.attrs.get("slice", ()):
            unit = strip(unit * count, count) if block_dim(desc, buffer, dim) == d else unit
        shape[d] = unit // op.attrs["multicast"][0]
    return Buffer(tuple(shape), blocks.elem, blocks.slots, blocks.swizzle, blocks.order), unit


def box_of(e: Emitter, op: Op, desc: Value, buffer: Buffer) -> tuple[int, ...]:
    box = list(tma_box(copied(op, desc, buffer)[0]))
    for dim, count, _ in op.attrs.get("slice", ()) if op.name == "tma_load" else ():
        d = block_dim(desc, buffer, dim)
        box[d] = min(box[d], strip(in_blocks(buffer, desc).shape[d] * count, count))
    return tuple(box)


def own_parts(e: Emitter, op: Op) -> list[tuple[int, int, str]]:
    """(dimension, parts, which of them is this CTA's) of what a CTA has a part of."""
    return [(d, n, _which(e, n, bit)) for d, n, bit in op.attrs.get("slice", ())]


def _which(e: Emitter, count: int, bit: int) -> str:
    ctas = e.fn.attrs["num_ctas"]
    return e.rank if count == ctas else e.p.new("b32", "bfe.u32", e.rank, bit, count.bit_length() - 1)


def pieces(buffer: Buffer, shape: tuple[int, ...], box: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """The TMA instructions that fill a slot: (box's coordinates, byte offset)."""
    steps = [range(0, s, b) for s, b in zip(shape, box)]
    return [(c, slot_offset(buffer, c)) for c in product(*steps)]


def barrier_address(e: Emitter, barrier: Value, slot: Value) -> str:
    offset = barrier.maker.attrs["offset"]
    if barrier.barrier.slots == 1:
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
    barrier, slot, parity = op.operands[:3]
    wait_phase(e, barrier_address(e, barrier, slot), e.scalar(parity), _pred(e, op, 3))


@emits("mbar_test")
def _mbar_test(e: Emitter, op: Op) -> None:
    barrier, slot, parity = op.operands
    address = barrier_address(e, barrier, slot)
    ready = e.p.new("pred", "mbarrier.test_wait.parity.shared::cta.b64", address, e.scalar(parity))
    e.set(op.result, e.p.new("pred", "not.pred", ready))


def wait_phase(e: Emitter, address: str, parity: str, pred: str | None = None) -> None:
    p = e.p
    again, done = p.label("wait"), p.label("ready")
    if pred:
        p("bra", done, pred=f"!{pred}")
    p.place(again)
    ready = p.reg("pred")
    p(f"mbarrier.{'try' if e.target.hopper else 'test'}_wait.parity.shared::cta.b64", ready, address, parity)
    p("bra", done, pred=ready)
    p("bra", again)
    p.place(done)


@emits("mbar_landed")
def _mbar_landed(e: Emitter, op: Op) -> None:
    barrier, slot, parity = op.operands
    here, now, before = e.scalar(slot), e.p.new("b32", "xor.b32", e.scalar(parity), 1), e.scalar(parity)
    for s in range(barrier.barrier.slots):
        filled = e.p.new("pred", "setp.gt.u32", here, s)
        wait_phase(e, f"[{e.smem}+{barrier.maker.attrs['offset'] + 8 * s}]",
                   e.p.new("b32", "selp.b32", now, before, filled))


@emits("mbar_arrive")
def _mbar_arrive(e: Emitter, op: Op) -> None:
    p = e.p
    if op.attrs["per"] == "thread":
        p("mbarrier.arrive.shared::cta.b64", "_", barrier_address(e, *op.operands[:2]), pred=_pred(e, op, 2))
        return
    unit = {"warp": 31, "warpgroup": 127}[op.attrs["per"]]
    rest = p.new("b32", "and.b32", e.role.tid, unit)
    one = p.new("pred", "setp.eq.u32", rest, 0)
    pred = _pred(e, op, 2)
    if op.attrs["per"] == "warp":
        p("bar.warp.sync", -1)  # the other lanes' reads come before lane 0 tells
        pred = _have_read(e, pred)
    if pred:
        one = p.new("pred", "and.pred", one, pred)
    if op.attrs["ctas"] > 1:
        _arrive_everywhere(e, op, rest, pred)
        return
    p("mbarrier.arrive.shared::cta.b64", "_", barrier_address(e, *op.operands[:2]), pred=one)


def _have_read(e: Emitter, pred: str | None) -> str | None:
    """`pred`, known once what was loaded from slots is in registers: docs/modules.md says why."""
    p, reads = e.p, e.role.reads
    e.role.reads = []
    if not reads:
        return pred
    bits = [p.new("b32", "mov.b32", r) if kind == "f32" else p.new("b32", "cvt.u32.u16", r) if kind == "b16" else
            p.new("b32", "cvt.u32.u64", p.new("b64", "mov.b64", r)) if kind in ("b64", "f64") else r
            for kind, r in reads]
    some = bits[0]
    for r in bits[1:]:
        some = p.new("b32", "or.b32", some, r)
    zero = p.new("b32", "shr.u32", p.new("b32", "mov.u32", "%lanemask_lt"), e.role.lane)  # ptxas does not know it
    read = p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", some, zero), 0)
    return p.new("pred", "and.pred", read, pred) if pred else read


def _arrive_everywhere(e: Emitter, op: Op, thread: str, pred: str | None) -> None:
    """Thread i arrives in CTA i; .cluster would be a full memory barrier."""
    p = e.p
    some = p.new("pred", "setp.lt.u32", thread, op.attrs["ctas"])
    if pred:
        some = p.new("pred", "and.pred", some, pred)
    barrier, slot = op.operands[:2]
    here = p.new("b32", "mad.lo.u32", e.scalar(slot), 8, e.smem)
    there = p.reg("b32")
    p("mapa.shared::cluster.u32", there, here, thread, pred=some)
    p("mbarrier.arrive.shared::cluster.b64", "_", f"[{there}+{barrier.maker.attrs['offset']}]", pred=some)


@emits("mbar_expect")
def _mbar_expect(e: Emitter, op: Op) -> None:
    size: object = op.attrs["bytes"]
    if len(op.operands) > 2:
        size = e.p.new("b32", "add.u32", e.scalar(op.operands[2]), op.attrs["bytes"])
    e.p("mbarrier.arrive.expect_tx.shared::cta.b64", "_", barrier_address(e, *op.operands[:2]), size)


@emits("tma_load")
def _tma_load(e: Emitter, op: Op) -> None:
    p = e.p
    ring, slot, barrier, _, *offsets = op.operands
    buffer = ring.buffer
    base = slot_address(e, ring, e.scalar(slot))
    where = barrier_address(e, barrier, slot)
    tmap = tensor_map(e, op)
    blocks, starts = in_blocks(buffer, op.operands[3]), [e.scalar(o) for o in offsets]
    (part, unit), d = copied(op, op.operands[3], buffer), slowest(blocks)
    many, mask, box = "", list[str](), box_of(e, op, op.operands[3], buffer)
    shares = [(*at[:d], at[d] + first, *at[d + 1:]) for first in range(0, blocks.shape[d], unit)
              for at, _ in pieces(part, part.shape, box)]
    places = [(at, slot_offset(blocks, at)) for at in shares]
    for dim, count, which in own_parts(e, op):
        cut = block_dim(op.operands[3], buffer, dim)
        size = blocks.shape[cut] * count
        starts[cut] = p.new("b32", "mad.lo.s32", which, strip(size, count), starts[cut])
        places = [((*at[:cut], in_tile(at[cut], size, count), *at[cut + 1:]), offset) for at, offset in places]
    if "multicast" in op.attrs:
        (count, bit), ctas = op.attrs["multicast"], e.fn.attrs["num_ctas"]
        which, all_of = _which(e, count, bit), sum(1 << (i << bit) for i in range(count))
        starts[d] = p.new("b32", "mad.lo.s32", which, part.shape[d], starts[d])
        # The bytes of the shares before: a share may begin inside a swizzle pattern, which goes by addresses.
        before = slot_rows(part) * span_elements(blocks) * blocks.elem.bytes
        base = p.new("b32", "mad.lo.u32", which, before, base)
        many = ".multicast::cluster"
        if count == ctas:
            mask = [p.new("b16", "mov.u16", all_of)]
        else:
            first = p.new("b32", "and.b32", e.rank, ctas - 1 - (count - 1 << bit))
            mask = [p.new("b16", "cvt.u16.u32", p.new("b32", "shl.b32", all_of, first))]
    hint, policy = cache_hint(e, op)
    many, mask = many + hint, [*mask, *policy]
    for at, offset in places:
        coords = coordinates(e, starts, at)
        p(f"cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global.mbarrier::complete_tx::bytes{many}",
          f"[{base}+{offset}]", f"[{tmap}, {{{', '.join(reversed(coords))}}}]", where, *mask)


def cache_hint(e: Emitter, op: Op) -> tuple[str, list[str]]:
    if "evict" not in op.attrs:
        return "", []
    policy = f"createpolicy.fractional.L2::{op.attrs['evict']}.b64"
    return ".L2::cache_hint", [e.hoist(lambda: e.p.new("b64", policy, "0f3F800000"))]


def coordinates(e: Emitter, offsets: list[str], at: tuple[int, ...]) -> list[str]:
    return [_plus(e, o, c) for o, c in zip(offsets, at)]


def _plus(e: Emitter, reg: str, const: int) -> str:
    return e.p.new("b32", "add.s32", reg, const) if const else reg


@emits("view")
def _view(e: Emitter, op: Op) -> None:
    ring, slot = op.operands
    e.views[op.result] = slot_address(e, ring, e.scalar(slot))
    describe_early(e, op.result)


@emits("view_trans")
def _view_trans(e: Emitter, op: Op) -> None:
    e.views[op.result] = e.views[op.operands[0]]


@emits("strip")
def _strip(e: Emitter, op: Op) -> None:
    view, i = op.operands
    part = op.result.buffer
    room, shift = part.slot_bytes, e.shifts.get(view)
    if shift is not None:
        e.shifts[op.result] = shift
        room += 16 if "ctas" in op.attrs else 0
    first = e.views[view]
    if "below" in op.attrs:
        before = e.p.new("b32", "and.b32", e.shifts.pop(op.result), op.attrs["below"] - 1)
        first = e.p.new("b32", "sub.u32", first, before)
    e.views[op.result] = e.p.new("b32", "mad.lo.u32", e.scalar(i), room, first)


@emits("row_shift")
def _row_shift(e: Emitter, op: Op) -> None:
    view, p = op.operands[0], e.p
    before = p.new("b32", "and.b32", e.shifts[view], op.attrs["unit"] - 1)
    e.set(op.result, [p.new("b32", "shr.u32", before, view.buffer.elem.bytes.bit_length() - 1)])


@emits("row_view")
def _row_view(e: Emitter, op: Op) -> None:
    view, base = op.operands
    e.shifts[op.result] = e.p.new("b32", "and.b32", e.p.new("b32", "cvt.u32.u64", e.scalar(base)), 15)
    e.views[op.result] = e.p.new("b32", "add.u32", e.views[view], e.shifts[op.result])


def _apart(view: Value) -> bool:
    return isinstance(view.op, Op) and view.op.attrs.get("below", 16) < 16


@emits("local_load")
def _local_load(e: Emitter, op: Op) -> None:
    view, tile, whole = op.operands[0], op.result.tile, op.result.layout
    buffer = view.buffer
    ctas = tile.numel // prod(buffer.shape)
    layout = own_strips(whole, ctas) if ctas > 1 and e.rank else whole
    shift, size = e.shifts.get(view), buffer.elem.bytes
    if shift is None and len(op.operands) == 1 and layout is whole and not _apart(view):
        regs = load_tile(e, tile, buffer, e.views[view], op.attrs.get("at"), in_pairs(e, op.result))
        e.set(op.result, regs)
        if "at" not in op.attrs:  # a piece of an operand goes to its product before the arrival
            _note_reads(e, tile, regs)
        return
    if shift is not None and ctas > 1 and view.maker.name != "strip":
        raise ClusterError("an unaligned row of a cluster is read in strips only", op.loc)
    regs, base, most = e.fresh(tile), e.views[view], 16
    if shift is not None and layout.contiguous_registers(0) * size < 16:
        most = size  # as elements
    elif shift is not None:
        base = e.p.new("b32", "sub.u32", base, shift)
    fill = literal(op.attrs.get("fill", 0), tile.elem)
    for a in accesses(e, layout, buffer, base, most=most):
        taken, pred = [regs[i] for i in a.registers], None
        at = [whole.apply(register=i)[0] for i in a.registers]
        if len(op.operands) > 1:
            here = e.p.new("b32", "or.b32", e.thread_coord(whole, 0), at[0])
            pred = e.p.new("pred", "setp.lt.s32", here, e.scalar(op.operands[1]))
            for r in taken:
                e.p(f"mov.{reg_class(tile.elem)}", r, fill)
        if shift is None or most < 16:
            load_shared(e, tile.elem, taken, a.address, pred)
            continue
        load_shifted(e, tile.elem, taken, a.address, shift, pred)
        for i, r in enumerate(taken if pred else ()):  # the row ends anywhere
            inside = e.p.new("pred", "setp.lt.s32", e.p.new("b32", "add.s32", here, i), e.scalar(op.operands[1]))
            e.p(f"mov.{reg_class(tile.elem)}", r, fill, pred=f"!{inside}")
    e.set(op.result, regs)
    _note_reads(e, tile, regs)


def _note_reads(e: Emitter, tile: Tile, regs: list[str]) -> None:
    """One register of every access."""
    assert tile.layout is not None
    d = len(tile.shape) - 1
    many = max(1, min(tile.layout.contiguous_registers(d), 16 // element_bytes(tile)))
    e.role.reads += [(reg_class(tile.elem), r) for r in regs[::many]]


@emits("local_store")
def _local_store(e: Emitter, op: Op) -> None:
    view, value = op.operands[:2]
    elem, layout = value.tile.elem, value.layout
    regs, owner = e.get(value), e.owner(layout)
    if view not in e.shifts and len(op.operands) == 2 and not _apart(view):
        return store_tile(e, value.tile, regs, view.buffer, e.views[view], owner)
    most = elem.bytes if view in e.shifts else 16  # of a row that begins anywhere, as elements
    for a in accesses(e, layout, view.buffer, e.views[view], most=most):
        pred = owner
        if len(op.operands) > 2:
            at = e.p.new("b32", "or.b32", e.thread_coord(layout, 0), layout.apply(register=a.registers[0])[0])
            pred = both(e, owner, e.p.new("pred", "setp.lt.s32", at, e.scalar(op.operands[2])))
        store_shared(e, elem, [regs[i] for i in a.registers], a.address, pred)


@emits("fence_async")
def _fence_async(e: Emitter, op: Op) -> None:
    e.p(f"fence.proxy.async.{op.attrs.get('space', 'shared::cta')}")
