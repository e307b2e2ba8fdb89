"""Emitters of folds: in a thread, across lanes by shuffles, across warps through shared scratch.

A reduction folds registers pairwise, then lanes that differ in one bit, then warps; every thread that took
part holds the result. A scan goes through the bits of the axis, low to high, wherever the layout put them.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilejit.errors import CompilationError
from tilejit.ir import Block, Op
from tilejit.ir.scratch import copies_beside, element_bytes, warp_bits
from tilejit.ir.types import Tile, elem_of
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.convert import choose, shuffle
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load_shared, store_shared


def combine(e: Emitter, op: Op, left: list[str], right: list[str]) -> list[str]:
    """The region of a reduce applied to one element of each input."""
    region = op.regions[0]
    for arg, reg in zip(region.args, left + right):
        e.set(arg, reg)
    e.block(region)
    return [e.scalar(v) for v in region.terminator.operands]


def symmetric(region: Block) -> bool:
    """True if swapping the region's two sides plainly changes no bit of the result: sums, minima, ..."""
    args, ops = region.args, region.ops[:-1]
    n = len(args) // 2
    return len(ops) == n and all(
        (op.name in ("minimum", "maximum") or "commutative" in op.define.traits)
        and set(op.operands) == {args[i], args[n + i]} and region.terminator.operands[i] is op.result
        for i, op in enumerate(ops))


def separate(op: Op) -> LinearLayout:
    """The operands' layout; an error if bits of the axis are mixed with others or held twice.

    Then every basis that moves along the axis moves along nothing else, and each element is folded once."""
    axis, t = op.attrs["axis"], op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    moving = [b for _, row in t.layout.canonical().bases for b in row if b[axis]]
    bits = sorted(b[axis] for b in moving)
    if bits != [1 << i for i in range((t.shape[axis] - 1).bit_length())] \
            or any(x for b in moving for d, x in enumerate(b) if d != axis):
        raise CompilationError(f"{op.name}: dimension {axis} is not one bit at a time in {t.layout}", op.loc)
    return t.layout


@emits("reduce")
def _reduce(e: Emitter, op: Op) -> None:
    axis, p = op.attrs["axis"], e.p
    layout = separate(op)
    result = layout.reduce(axis)
    columns = _in_thread(e, op, axis)
    ordered = not symmetric(op.regions[0])
    for i, basis in enumerate(layout.bases_of("lane")):
        if not basis[axis]:
            continue
        # Both lanes must fold the same two sides in the same order, or copies of a result could differ.
        upper = p.new("pred", "setp.ne.u32", p.new("b32", "and.b32", e.role.lane, 1 << i), 0) if ordered else None
        folded = []
        for mine in columns:
            elems = [elem_of(v.type) for v in op.operands]
            other = [shuffle(e, t, r, 1 << i, "bfly") for t, r in zip(elems, mine)]
            if upper:
                left = [choose(e, reg_class(t), upper, o, m) for t, o, m in zip(elems, other, mine)]
                right = [choose(e, reg_class(t), upper, m, o) for t, o, m in zip(elems, other, mine)]
                folded.append(combine(e, op, left, right))
            else:
                folded.append(combine(e, op, mine, other))
        columns = folded
    first = op.operands[0].type
    assert isinstance(first, Tile)
    bits = warp_bits(first, axis, op.attrs.get("ctas", 1))
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
    for r, at in enumerate(t.layout.registers()):
        if at in seen:
            continue                 # a copy of an element that is already in the fold
        seen.add(at)
        groups.setdefault((*at[:axis], *at[axis + 1:]), []).append([regs[r] for regs in lists])
    inputs, out = len(lists), [groups[at] for at in result.registers()]
    while any(len(items) > 1 for items in out):
        pairs = [tuple(a + b) for items in out for a, b in zip(items[::2], items[1::2])]
        folded = iter(e.p.repeat(lambda *regs: combine(e, op, list(regs[:inputs]), list(regs[inputs:])), pairs))
        out = [[*(next(folded) for _ in items[1::2]), *(items[-1:] if len(items) % 2 else [])] for items in out]
    return [items[0] for items in out]


def _across_warps(e: Emitter, op: Op, columns: list[list[str]], bits: list[int]) -> list[list[str]]:
    """Every warp writes its partial results and reads those of the warps it combines with. Of neighbouring lanes that
    hold copies one writes."""
    p = e.p
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    warps, count, low = t.layout.in_size("warp"), len(columns), copies_beside(t, op.attrs["axis"])
    lanes, lane, writes = 32 >> low, e.role.lane, None
    if low:
        lane = p.new("b32", "shr.u32", e.role.lane, low)
        writes = p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", e.role.lane, (1 << low) - 1), 0)
    e.sync()
    offset = op.attrs["scratch"]
    starts = []
    for i, v in enumerate(op.operands):
        assert isinstance(v.type, Tile)
        size = element_bytes(v.type)
        starts.append((offset, size))
        row = p.new("b32", "mad.lo.u32", e.role.warp, lanes * count, lane)
        base = p.new("b32", "mad.lo.u32", row, size, e.private)
        for c, regs in enumerate(columns):
            store_shared(e, v.type.elem, [regs[i]], f"[{base}+{offset + lanes * c * size}]", writes)
        offset += -(-count * lanes * warps * size // 16) * 16
    e.sync()
    keep = ~sum(1 << b for b in bits) & (warps - 1)
    home = p.new("b32", "and.b32", e.role.warp, keep)
    out: list[list[str]] = []
    rows = []
    for choice in range(1 << len(bits)):
        other = sum(1 << b for j, b in enumerate(bits) if choice >> j & 1)
        warp = p.new("b32", "or.b32", home, other) if other else home
        rows.append(p.new("b32", "mad.lo.u32", warp, lanes * count, lane))
    for c in range(count):
        parts: list[list[str]] = []
        for row in rows:
            part = []
            for v, (start, size) in zip(op.operands, starts):
                base = p.new("b32", "mad.lo.u32", row, size, e.private)
                reg = e.fresh(elem_of(v.type))
                load_shared(e, elem_of(v.type), reg, f"[{base}+{start + lanes * c * size}]")
                part += reg
            parts.append(part)
        while len(parts) > 1:
            parts = [combine(e, op, a, b) for a, b in zip(parts[::2], parts[1::2])]
        out.append(parts[0])
    return out


# -- scan -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Step:
    """Where one step of a scan finds the running value: bits of the place that are set and cleared.

    `place` and `bit` say which bit of the place decides whether an element takes part."""

    place: str
    bit: int
    force: dict[str, tuple[int, int]]          # place -> (bits that the axis owns so far, their new value)

    def source(self, place: str, value: int) -> int:
        """The value of a place (register index, ..) at which the running value lies."""
        mask, new = self.force[place]
        return value & ~mask | new

    def source_reg(self, e: Emitter, place: str, reg: str) -> str:
        """The same for a value known at run time only."""
        mask, new = self.force[place]
        kept = e.p.new("b32", "and.b32", reg, ~mask)
        return e.p.new("b32", "or.b32", kept, new) if new else kept


def _steps(layout: LinearLayout, axis: int, reverse: bool) -> list[_Step]:
    """One step per bit of the axis, low to high (Sklansky, 'Conditional-sum addition logic', 1960).

    In step b every element with bit b set takes the element with bit b clear and all lower bits set, which
    already is the fold of its half; from the end, set and clear change places."""
    where = {b[axis]: (n, i) for n, row in layout.bases for i, b in enumerate(row) if b[axis]}
    steps, owned = [], {n: (0, 0) for n in ("register", "lane", "warp")}
    for k in range(layout.shape[axis].bit_length() - 1):
        place, bit = where[1 << k]
        mask, low = owned[place]
        force = {**owned, place: (mask | 1 << bit, low | (1 << bit if reverse else 0))}
        steps.append(_Step(place, bit, force))
        owned[place] = (mask | 1 << bit, low | (0 if reverse else 1 << bit))
    return steps


@emits("scan")
def _scan(e: Emitter, op: Op) -> None:
    """Registers, lanes or warps step by step, in whatever order the layout gives the bits of the axis to them."""
    layout, reverse = separate(op).canonical(), op.attrs["reverse"]
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    # A register that repeats another of the thread is left out and repeated in the end.
    home = [t.layout.coords("register").tolist().index(list(layout.apply(register=r)))
            for r in range(layout.num_registers)]
    columns = [[e.get(v)[r] for v in op.operands] for r in home]
    for step in _steps(layout, op.attrs["axis"], reverse):
        columns = _scan_step(e, op, layout, step, columns, reverse)
    index = {layout.apply(register=r): r for r in range(layout.num_registers)}
    order = [index[t.layout.apply(register=r)] for r in range(t.layout.num_registers)]
    for i, res in enumerate(op.results):
        e.set(res, [columns[r][i] for r in order])


def _scan_step(e: Emitter, op: Op, layout: LinearLayout, step: _Step, columns: list[list[str]],
               reverse: bool) -> list[list[str]]:
    """One step for all registers of the thread."""
    p = e.p
    taking = [r for r in range(len(columns))
              if step.place != "register" or bool(r >> step.bit & 1) != reverse]
    sources = sorted({step.source("register", r) for r in taking})
    elems = [elem_of(v.type) for v in op.operands]
    if step.force["warp"][0]:
        running = _from_warps(e, op, layout, step, {s: columns[s] for s in sources})
    elif step.force["lane"][0]:
        lane = step.source_reg(e, "lane", e.role.lane)
        running = {s: [shuffle(e, t, r, lane) for t, r in zip(elems, columns[s])] for s in sources}
    else:
        running = {s: columns[s] for s in sources}
    takes = None
    if step.place != "register":
        bit = p.new("b32", "and.b32", e.role.lane if step.place == "lane" else e.role.warp, 1 << step.bit)
        takes = p.new("pred", f"setp.{'eq' if reverse else 'ne'}.u32", bit, 0)
    out = list(columns)
    for r in taking:
        folded = combine(e, op, running[step.source("register", r)], columns[r])
        out[r] = folded if takes is None else [
            choose(e, reg_class(t), takes, f, c) for t, f, c in zip(elems, folded, columns[r])]
    return out


def _from_warps(e: Emitter, op: Op, layout: LinearLayout, step: _Step,
                given: dict[int, list[str]]) -> dict[int, list[str]]:
    """The values of `given` registers, by register, as the lane and warp that the step names hold them."""
    p, count = e.p, len(given)
    lane, warp = step.source_reg(e, "lane", e.role.lane), step.source_reg(e, "warp", e.role.warp)
    here = p.new("b32", "mad.lo.u32", e.role.warp, 32 * count, e.role.lane)
    there = p.new("b32", "mad.lo.u32", warp, 32 * count, lane)
    out: dict[int, list[str]] = {s: [] for s in given}
    places, offset = [], op.attrs["scratch"]
    e.sync()
    for i, v in enumerate(op.operands):
        assert isinstance(v.type, Tile)
        size = element_bytes(v.type)
        base = p.new("b32", "mad.lo.u32", here, size, e.private)
        for k, regs in enumerate(given.values()):
            store_shared(e, v.type.elem, [regs[i]], f"[{base}+{offset + 32 * k * size}]")
        places.append((v.type.elem, size, offset))
        offset += -(-count * 32 * layout.in_size("warp") * size // 16) * 16
    e.sync()
    for elem, size, start in places:
        base = p.new("b32", "mad.lo.u32", there, size, e.private)
        for k, s in enumerate(given):
            reg = e.fresh(elem)
            load_shared(e, elem, reg, f"[{base}+{start + 32 * k * size}]")
            out[s] += reg
    return out
