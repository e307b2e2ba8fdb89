"""Emitters of asynchronous copies without a tensor map: cp.async by every thread, 1-D bulk copies by one."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.types import Buffer, Tile
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.smem import accesses, slot_address
from tilejit.ptx.tma import barrier_address


@emits("async_copy")
def _async_copy(e: Emitter, op: Op) -> None:
    """A masked-off access reads nothing and writes zeros. Of threads that hold the same elements one copies.

    16-byte copies pass by the L1 cache (.cg), unless the load asks for it; narrower ones cannot."""
    ring, slot, pointer = op.operands[:3]
    buffer, tile = ring.type, pointer.type
    assert isinstance(buffer, Buffer) and isinstance(tile, Tile) and tile.layout is not None
    pointers = e.get(pointer)
    masks = e.get(op.operands[3]) if len(op.operands) > 3 else None
    owner, layout, size = e.owner(tile.layout), tile.layout, op.attrs["vec"] * buffer.elem.bytes
    same = sum(1 << i for i, basis in enumerate(layout.bases_of("register")) if not any(basis))
    registers = [r for r in range(layout.num_registers) if not r & same]
    base = slot_address(e, ring, e.scalar(slot))
    cache = "cg" if size == 16 and (op.attrs.get("cache") or "").lstrip(".") != "ca" else "ca"
    for a in accesses(e, layout, buffer, base, registers, size):
        first = a.registers[0]
        taken = [] if masks is None else [e.p.new("b32", "selp.b32", size, 0, masks[first])]
        assert len(a.registers) == op.attrs["vec"], "an access runs along the slot's fastest dimension"
        e.p(f"cp.async.{cache}.shared.global", a.address, f"[{pointers[first]}]", size, *taken, pred=owner)


@emits("async_arrive")
def _async_arrive(e: Emitter, op: Op) -> None:
    e.p("cp.async.mbarrier.arrive.noinc.shared.b64", barrier_address(e, *op.operands))


@emits("async_wait")
def _async_wait(e: Emitter, op: Op) -> None:
    e.p("cp.async.wait_all")


@emits("cluster_share")
def _cluster_share(e: Emitter, op: Op) -> None:
    p, strip, ctas = e.p, op.attrs["strip"], op.attrs["ctas"]
    limit = e.scalar(op.operands[0])
    rounds = p.new("b32", "shr.u32", limit, (strip * ctas).bit_length() - 1)
    rest = p.new("b32", "and.b32", limit, strip * ctas - 1)
    rest = p.new("b32", "sub.s32", rest, p.new("b32", "mul.lo.u32", e.rank, strip))
    rest = p.new("b32", "min.s32", p.new("b32", "max.s32", rest, 0), strip)
    e.set(op.result, [p.new("b32", "mad.lo.u32", rounds, strip, rest)])


def _strip_copies(e: Emitter, op: Op) -> None:
    """Strip i of the CTA lies i rounds of all CTAs' strips behind its first one."""
    p, (ring, slot, barrier, base, size) = e.p, op.operands
    assert isinstance(ring.type, Buffer)
    elem, ctas = ring.type.elem.bytes, op.attrs["ctas"]
    strip = op.attrs["strip"] * elem
    first = p.new("b64", "mad.wide.u32", e.rank, strip, e.scalar(base))
    there, where = slot_address(e, ring, e.scalar(slot)), barrier_address(e, barrier, slot)
    for i in range(ring.type.slot_bytes // strip):
        left = p.new("b32", "sub.s32", e.scalar(size), i * strip)
        some = p.new("pred", "setp.gt.s32", left, 0)
        p("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", f"[{there}+{i * strip}]",
          f"[{first}+{i * strip * ctas}]", p.new("b32", "min.s32", left, strip), where, pred=some)


@emits("row_copy")
def _row_copy(e: Emitter, op: Op) -> None:
    """One bulk copy of the row (PTX ISA, cp.async.bulk), or one of each of the CTA's strips."""
    ring, slot, barrier, base, size = op.operands
    if "strip" in op.attrs:
        _strip_copies(e, op)
        return
    some = None
    if not (isinstance(size.op, Op) and size.op.name == "const"):
        some = e.p.new("pred", "setp.ne.s32", e.scalar(size), 0)
    e.p("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
        f"[{slot_address(e, ring, e.scalar(slot))}]", f"[{e.scalar(base)}]", e.scalar(size),
        barrier_address(e, barrier, slot), pred=some)
