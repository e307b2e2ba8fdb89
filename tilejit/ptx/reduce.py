"""Emitter of reductions: in a thread, across lanes by shuffles, across warps through shared scratch."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.types import Tile, elem_of
from tilejit.ptx.convert import shuffle
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.scratch import element_bytes, warp_bits


def combine(e: Emitter, op: Op, left: list[str], right: list[str]) -> list[str]:
    """The region of a reduce applied to one element of each input."""
    region = op.regions[0]
    for arg, reg in zip(region.args, left + right):
        e.set(arg, reg)
    e.block(region)
    return [e.scalar(v) for v in region.terminator.operands]


@emits("reduce")
def _reduce(e: Emitter, op: Op) -> None:
    axis = op.attrs["axis"]
    first = op.operands[0].type
    assert isinstance(first, Tile) and first.layout is not None
    layout = first.layout
    result = layout.reduce(axis)
    columns = _in_thread(e, op, axis)
    for i, basis in enumerate(layout.bases_of("lane")):
        if basis[axis]:
            columns = [combine(e, op, c, [shuffle(e, elem_of(v.type), r, 1 << i, "bfly")
                                          for v, r in zip(op.operands, c)]) for c in columns]
    bits = warp_bits(first, axis)
    if bits:
        columns = _across_warps(e, op, columns, bits)
    # Registers of the result in order: the fold above kept them by result coordinate.
    assert len(columns) == result.num_registers
    for i, res in enumerate(op.results):
        e.set(res, [c[i] for c in columns])


def _in_thread(e: Emitter, op: Op, axis: int) -> list[list[str]]:
    """Fold the registers that differ along the axis only, pairwise; in the order of the result layout."""
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    result = t.layout.reduce(axis)
    groups: dict[tuple[int, ...], list[list[str]]] = {}
    lists = [e.get(v) for v in op.operands]
    seen: set[tuple[int, ...]] = set()
    for r in range(t.layout.num_registers):
        at = t.layout.apply(register=r)
        if at in seen:
            continue                 # a copy of an element that is already in the fold
        seen.add(at)
        groups.setdefault((*at[:axis], *at[axis + 1:]), []).append([regs[r] for regs in lists])
    out = []
    for r in range(result.num_registers):
        items = groups[result.apply(register=r)]
        while len(items) > 1:
            folded = [combine(e, op, a, b) for a, b in zip(items[::2], items[1::2])]
            items = folded + (items[-1:] if len(items) % 2 else [])
        out.append(items[0])
    return out


def _across_warps(e: Emitter, op: Op, columns: list[list[str]], bits: list[int]) -> list[list[str]]:
    """Every warp writes its partial results and reads those of the warps it combines with."""
    p = e.p
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    warps, count = t.layout.in_size("warp"), len(columns)
    e.sync()
    offset = op.attrs["scratch"]
    starts = []
    for i, v in enumerate(op.operands):
        assert isinstance(v.type, Tile)
        size = element_bytes(v.type)
        starts.append((offset, size))
        row = p.new("b32", "mad.lo.u32", e.role.warp, 32 * count, e.role.lane)
        base = p.new("b32", "mad.lo.u32", row, size, e.smem)
        for c, regs in enumerate(columns):
            store_shared(e, v.type.elem, [regs[i]], f"[{base}+{offset + 32 * c * size}]")
        offset += -(-count * 32 * warps * size // 16) * 16
    e.sync()
    keep = ~sum(1 << b for b in bits) & (warps - 1)
    home = p.new("b32", "and.b32", e.role.warp, keep)
    out: list[list[str]] = []
    rows = []
    for choice in range(1 << len(bits)):
        other = sum(1 << b for j, b in enumerate(bits) if choice >> j & 1)
        warp = p.new("b32", "or.b32", home, other) if other else home
        rows.append(p.new("b32", "mad.lo.u32", warp, 32 * count, e.role.lane))
    for c in range(count):
        parts: list[list[str]] = []
        for row in rows:
            part = []
            for v, (start, size) in zip(op.operands, starts):
                base = p.new("b32", "mad.lo.u32", row, size, e.smem)
                reg = e.fresh(elem_of(v.type))
                load_shared(e, elem_of(v.type), reg, f"[{base}+{start + 32 * c * size}]")
                part += reg
            parts.append(part)
        while len(parts) > 1:
            parts = [combine(e, op, a, b) for a, b in zip(parts[::2], parts[1::2])]
        out.append(parts[0])
    return out

