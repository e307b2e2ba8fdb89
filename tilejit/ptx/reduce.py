"""Reductions: registers fold pairwise, lanes by shuffles, warps through scratch; all hold the result."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from tilejit.errors import CompilationError
from tilejit.ir import Block, Op
from tilejit.ir.scratch import copies_beside, element_bytes, warp_bits
from tilejit.ir.types import elem_of, fp32
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.convert import choose, shuffle
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.extreme import extreme, firsts
from tilejit.ptx.pack import load_shared, store_shared

#: Multiply-adds of a sum of products side by side, so that none waits for the one ahead.
CHAINS = 4


def combine(e: Emitter, op: Op, left: list[str], right: list[str]) -> list[str]:
    region = op.regions[0]
    for arg, reg in zip(region.args, left + right):
        e.set(arg, reg)
    e.block(region)
    return [e.scalar(v) for v in region.terminator.operands]


def combined(e: Emitter, op: Op, pairs: Iterable[tuple[list[str], list[str]]]) -> list[list[str]]:
    def one(*regs: str) -> list[str]:
        return combine(e, op, list(regs[:len(regs) // 2]), list(regs[len(regs) // 2:]))

    return e.p.repeat(one, [(*left, *right) for left, right in pairs])


def symmetric(region: Block) -> bool:
    """Whether swapping the region's sides plainly changes no bit: sums, minima, ..."""
    args, ops = region.args, region.ops[:-1]
    n = len(args) // 2
    return len(ops) == n and all(
        (op.name in ("minimum", "maximum") or "commutative" in op.define.traits)
        and set(op.operands) == {args[i], args[n + i]} and region.terminator.operands[i] is op.result
        for i, op in enumerate(ops))


def separate(op: Op) -> LinearLayout:
    """The operands' layout; an error if bits of the axis are mixed with others or held twice."""
    axis, t, layout = op.attrs["axis"], op.operands[0].tile, op.operands[0].layout
    moving = [b for _, row in layout.canonical().bases for b in row if b[axis]]
    bits = sorted(b[axis] for b in moving)
    if bits != [1 << i for i in range((t.shape[axis] - 1).bit_length())] \
            or any(x for b in moving for d, x in enumerate(b) if d != axis):
        raise CompilationError(f"{op.name}: dimension {axis} is not one bit at a time in {layout}", op.loc)
    return layout


@emits("reduce")
def _reduce(e: Emitter, op: Op) -> None:
    axis = op.attrs["axis"]
    layout = separate(op)
    result = layout.reduce(axis)
    lanes = [i for i, b in enumerate(layout.bases_of("lane")) if b[axis]]
    if name := extreme(op):
        alone = all(b[axis] or not any(b) for b in layout.bases_of("lane"))
        columns = firsts(e, op, name, _columns(e, op, axis), lanes, alone)
    else:
        columns = _in_thread(e, op, axis)
        for i in lanes:
            columns = _across_lanes(e, op, columns, i)
    first = op.operands[0].tile
    bits = warp_bits(first, axis, op.attrs.get("ctas", 1))
    if bits:
        columns = _across_warps(e, op, columns, bits, name)
    # Registers of the result in order: the fold above kept them by result coordinate.
    assert len(columns) == result.num_registers
    for i, res in enumerate(op.results):
        e.set(res, [c[i] for c in columns])


def _columns(e: Emitter, op: Op, axis: int) -> list[list[tuple[int, list[str]]]]:
    """What a thread has to fold for each register of the result, and in which registers."""
    layout = op.operands[0].layout
    result = layout.reduce(axis)
    groups: dict[tuple[int, ...], list[tuple[int, list[str]]]] = {}
    lists = [e.get(v) for v in op.operands]
    seen: set[tuple[int, ...]] = set()
    for r, at in enumerate(layout.registers()):
        if at in seen:
            continue  # a copy of an element that is already in the fold
        seen.add(at)
        groups.setdefault((*at[:axis], *at[axis + 1:]), []).append((r, [regs[r] for regs in lists]))
    return [groups[at] for at in result.registers()]


def _in_thread(e: Emitter, op: Op, axis: int) -> list[list[str]]:
    out = [[regs for _, regs in items] for items in _columns(e, op, axis)]
    if (sums := _sums(e, op)) is not None:
        out = [sums(items) for items in out]
    while any(len(items) > 1 for items in out):
        folded = iter(combined(e, op, [ab for items in out for ab in zip(items[::2], items[1::2])]))
        out = [[*(next(folded) for _ in items[1::2]), *(items[-1:] if len(items) % 2 else [])] for items in out]
    return [items[0] for items in out]


def _sums(e: Emitter, op: Op) -> Callable[[list[list[str]]], list[list[str]]] | None:
    """Sums of products are CHAINS of multiply-adds; None for others."""
    products = {}
    for i, v in enumerate(op.operands):
        by = v.op
        if isinstance(by, Op) and by.name == "mul" and all(x in e.values for x in by.operands):
            products[i] = {z: (x, y) for x, y, z in zip(*map(e.get, by.operands), e.get(v))}
    if not products or any(elem_of(v.type) != fp32 for v in op.operands) or not symmetric(op.regions[0]) or \
            any(x.name != "add" for x in op.regions[0].ops[:-1]) or not e.fn.attrs.get("enable_fp_fusion", True):
        return None

    def summed(items: list[list[str]]) -> list[list[str]]:
        sums = items[:CHAINS]
        for j, item in enumerate(items[CHAINS:]):
            to = sums[j % CHAINS]
            sums[j % CHAINS] = [e.p.new("f32", "fma.rn.f32", *products[i][z], acc) if i in products else
                                e.p.new("f32", "add.rn.f32", acc, z) for i, (z, acc) in enumerate(zip(item, to))]
        return sums

    return summed


def _across_lanes(e: Emitter, op: Op, columns: list[list[str]], bit: int) -> list[list[str]]:
    p, elems = e.p, [elem_of(v.type) for v in op.operands]
    upper = None
    if not symmetric(op.regions[0]):
        # Both lanes must fold the same two sides in the same order, or copies of a result could differ.
        upper = p.new("pred", "setp.ne.u32", p.new("b32", "and.b32", e.role.lane, 1 << bit), 0)
    folded = []
    for mine in columns:
        other = [shuffle(e, t, r, 1 << bit, "bfly") for t, r in zip(elems, mine)]
        if upper:
            left = [choose(e, reg_class(t), upper, o, m) for t, o, m in zip(elems, other, mine)]
            right = [choose(e, reg_class(t), upper, m, o) for t, o, m in zip(elems, other, mine)]
            folded.append(combine(e, op, left, right))
        else:
            folded.append(combine(e, op, mine, other))
    return folded


def _across_warps(e: Emitter, op: Op, columns: list[list[str]], bits: list[int], name: str) -> list[list[str]]:
    """One of the copies writes. Of 32 warps' each lane reads one: 16 bytes for all would take four cycles."""
    p = e.p
    t, layout = op.operands[0].tile, op.operands[0].layout
    warps, count, low = layout.in_size("warp"), len(columns), copies_beside(t, op.attrs["axis"])
    lanes, lane, writes = 32 >> low, e.role.lane, None
    if low:
        lane = p.new("b32", "shr.u32", e.role.lane, low)
        writes = p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", e.role.lane, (1 << low) - 1), 0)
    e.sync()
    offset = op.attrs["scratch"]
    starts = []
    for i, v in enumerate(op.operands):
        size = element_bytes(v.tile)
        starts.append((offset, size))
        row = p.new("b32", "mad.lo.u32", e.role.warp, lanes * count, lane)
        base = p.new("b32", "mad.lo.u32", row, size, e.private)
        for c, regs in enumerate(columns):
            store_shared(e, v.tile.elem, [regs[i]], f"[{base}+{offset + lanes * c * size}]", writes)
        offset += -(-count * lanes * warps * size // 16) * 16
    e.sync()
    keep = ~sum(1 << b for b in bits) & (warps - 1)
    home = p.new("b32", "and.b32", e.role.warp, keep)
    out: list[list[str]] = []
    rows = []
    if lanes * count == 1 and bits == [0, 1, 2, 3, 4][:len(bits) if name else 5]:
        mine = p.new("b32", "and.b32", e.role.lane, (1 << len(bits)) - 1)
        out = [_read(e, op, p.new("b32", "or.b32", home, mine), starts, 0)]
        if name:
            return firsts(e, op, name, [[(0, out[0])]], bits, True)
        for bit in bits:
            out = _across_lanes(e, op, out, bit)
        return out
    for choice in range(1 << len(bits)):
        other = sum(1 << b for j, b in enumerate(bits) if choice >> j & 1)
        warp = p.new("b32", "or.b32", home, other) if other else home
        rows.append(p.new("b32", "mad.lo.u32", warp, lanes * count, lane))
    for c in range(count):
        parts = [_read(e, op, row, starts, lanes * c) for row in rows]
        while len(parts) > 1:
            parts = combined(e, op, zip(parts[::2], parts[1::2]))
        out.append(parts[0])
    return out


def _read(e: Emitter, op: Op, row: str, starts: list[tuple[int, int]], at: int) -> list[str]:
    part = []
    for v, (start, size) in zip(op.operands, starts):
        base = e.p.new("b32", "mad.lo.u32", row, size, e.private)
        reg = e.fresh(elem_of(v.type))
        load_shared(e, elem_of(v.type), reg, f"[{base}+{start + at * size}]")
        part += reg
    return part
