"""`gather` and `histogram`, through shared scratch."""
from __future__ import annotations

from tilejit.errors import ClusterError
from tilejit.ir import Op
from tilejit.ir.types import Buffer, DType, Ptr, Tile, elem_of, int64, uint8
from tilejit.layout.shared import slot_offset, span_elements
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.smem import accesses


def _one_cta(e: Emitter, op: Op) -> None:
    if e.fn.attrs.get("num_ctas", 1) > 1:
        raise ClusterError(f"{op.name}: elements of all CTAs of a cluster; use num_ctas=1", op.loc)


@emits("gather")
def _gather(e: Emitter, op: Op) -> None:
    _one_cta(e, op)
    p, axis = e.p, op.attrs["axis"]
    index, src = (v.type for v in op.operands)
    assert isinstance(index, Tile) and isinstance(src, Tile) and index.layout is not None and src.layout is not None
    assert isinstance(index.elem, DType)
    elem = int64 if isinstance(src.elem, Ptr) else uint8 if src.elem.bits == 1 else src.elem
    assert isinstance(elem, DType)
    base = p.new("b32", "add.u32", e.private, op.attrs["scratch"])
    buffer = Buffer(src.shape, elem, 1, 0, tuple(reversed(range(len(src.shape)))))
    regs = e.get(op.operands[1])
    e.sync()
    for a in accesses(e, src.layout, buffer, base):
        store_shared(e, src.elem, [regs[i] for i in a.registers], a.address, e.owner(src.layout))
    e.sync()
    rank = len(src.shape)

    def offset(coords: tuple[int, ...]) -> int:
        return slot_offset(buffer, (*coords[:axis], 0, *coords[axis + 1:]))

    def along(n: int) -> int:
        return slot_offset(buffer, tuple(n if d == axis else 0 for d in range(rank)))

    span = span_elements(buffer) if axis == rank - 1 else src.shape[axis]  # of which elements follow one another

    thread = e.bit_sum([(getattr(e.role, n), [offset(b) for b in index.layout.bases_of(n)]) for n in ("lane", "warp")])
    out = e.fresh(op.result.type)
    for to, at, coords in zip(out, e.get(op.operands[0]), index.layout.registers()):
        if index.elem.bits == 64:
            at = p.new("b32", "cvt.u32.u64", at)
        elif index.elem.bits < 32:
            at = p.new("b32", "cvt.u32.u16", at)
        at = p.new("b32", "and.b32", at, src.shape[axis] - 1)
        place = base
        if span < src.shape[axis]:
            place = p.new("b32", "mad.lo.u32", p.new("b32", "shr.u32", at, span.bit_length() - 1), along(span), base)
            at = p.new("b32", "and.b32", at, span - 1)
        if span > 1:
            place = p.new("b32", "mad.lo.u32", at, along(1), place)
        const = offset(coords)
        rest = p.new("b32", "xor.b32", thread, const) if const else thread
        load_shared(e, src.elem, [to], f"[{p.new('b32', 'add.u32', place, rest)}]")
    e.set(op.result, out)


@emits("histogram")
def _histogram(e: Emitter, op: Op) -> None:
    _one_cta(e, op)
    p, bins, t, result = e.p, op.attrs["bins"], op.operands[0].type, op.result.type
    assert isinstance(t, Tile) and t.layout is not None and isinstance(result, Tile) and result.layout is not None
    elem = elem_of(t)
    assert isinstance(elem, DType)
    base = p.new("b32", "add.u32", e.private, op.attrs["scratch"])
    mine = p.new("b32", "mad.lo.u32", e.role.tid, 4, base)
    threads = 32 * e.role.warps
    e.sync()
    for start in range(0, bins, threads):
        inside = p.new("pred", "setp.lt.u32", e.role.tid, bins - start) if bins - start < threads else None
        p("st.shared.b32", f"[{mine}+{4 * start}]", 0, pred=inside)
    e.sync()
    owner = e.owner(t.layout)
    masks = e.get(op.operands[1]) if len(op.operands) > 1 else None
    seen: set[tuple[int, ...]] = set()
    for i, (reg, at) in enumerate(zip(e.get(op.operands[0]), t.layout.registers())):
        if at in seen:
            continue
        seen.add(at)
        if elem.bits < 32:
            reg = p.new("b32", f"cvt.{'s' if elem.is_signed else 'u'}32.{'s' if elem.is_signed else 'u'}16", reg)
        counted = p.new("pred", "setp.lt.u32", reg, bins)  # a negative number is a large one
        for other in (owner, masks[i] if masks else None):
            counted = p.new("pred", "and.pred", counted, other) if other else counted
        p("red.shared.add.u32", f"[{p.new('b32', 'mad.lo.u32', reg, 4, base)}]", 1, pred=counted)
    e.sync()
    out = e.fresh(result)
    buffer = Buffer(result.shape, elem_of(result), 1, 0, (0,))  # type: ignore[arg-type]
    for a in accesses(e, result.layout, buffer, base):
        load_shared(e, elem_of(result), [out[i] for i in a.registers], a.address)
    e.set(op.result, out)
