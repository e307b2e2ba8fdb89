"""Scans: along the axis's bits, low to high, in registers and by shuffles; across warps by totals, through scratch."""
from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tilejit.ir import Op
from tilejit.ir.scratch import axis_places, element_bytes, scanned_alone
from tilejit.ir.types import DType, Scalar, Tile, elem_of
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.convert import choose, shuffle
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.reduce import combine, separate, symmetric
from tilejit.records import dataclass

#: Registers of what is before an element, and the predicate of threads that have any; all if there is none.
_Before = tuple[list[str], str]
#: What leaves every element as it is (a zero, too, with its sign).
_NEUTRAL: dict[str, Callable[[DType], str]] = {
    "add": lambda t: {16: "0x8000", 32: "0f80000000", 64: "0d8000000000000000"}[t.bits] if t.is_float else "0",
    "xor": lambda t: "0", "or": lambda t: "0"}


@dataclass(frozen=True)
class _Bits:
    register: int = 0
    lane: int = 0
    warp: int = 0

    @staticmethod
    def of(places: list[tuple[str, int]], value: int = -1) -> _Bits:
        return _Bits(*(sum(1 << bit for k, (n, bit) in enumerate(places) if n == name and value >> k & 1)
                       for name in ("register", "lane", "warp")))


@emits("scan")
def _scan(e: Emitter, op: Op) -> None:
    layout, axis = separate(op).canonical(), op.attrs["axis"]
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    # A register that repeats another of the thread is left out and repeated in the end.
    home = [t.layout.coords("register").tolist().index(list(layout.apply(register=r)))
            for r in range(layout.num_registers)]
    columns = [[e.get(v)[r] for v in op.operands] for r in home]
    where = axis_places(layout, axis)
    alone = scanned_alone(layout, axis)
    own = next((i for i, (name, _) in enumerate(where) if name != "register"), 0)
    lanes = [bit for _, bit in where[own:alone]]
    by_thread = lanes != [] and own > 0 and [*where[own:alone]] == [("lane", lanes[0] + i) for i in range(len(lanes))]
    for k in range(own if by_thread else alone):
        columns = _scan_step(e, op, where[:k + 1], columns)
    inner = _Bits.of(where[:alone])
    ids = [r for r in range(len(columns)) if not r & inner.register]  # registers of different columns and chunks
    totals = [columns[r if op.attrs["reverse"] else r | inner.register] for r in ids]
    before: list[_Before] = [([], "")] * len(ids)
    if by_thread:
        for k in range(own, alone):
            totals = _scan_step(e, op, where[own:k + 1], totals)
        before = _of_lanes_before(e, op, inner.lane, totals)
    if alone < len(where):
        chunks = _by_totals(e, op, layout, where[:alone], where[alone:], dict(zip(ids, totals)))
        before = [_both_before(e, op, chunks[r], b) for r, b in zip(ids, before)]
    columns = _behind(e, op, {r: b for r, b in zip(ids, before) if b[0]}, inner.register, columns)
    index = {layout.apply(register=r): r for r in range(layout.num_registers)}
    order = [index[t.layout.apply(register=r)] for r in range(t.layout.num_registers)]
    for i, res in enumerate(op.results):
        e.set(res, [columns[r][i] for r in order])


def _scan_step(e: Emitter, op: Op, where: list[tuple[str, int]], columns: list[list[str]]) -> list[list[str]]:
    """Each element with the bit set takes the one with it clear and lower bits set (Sklansky, 1960)."""
    p, reverse = e.p, op.attrs["reverse"]
    (place, bit), below = where[-1], _Bits.of(where[:-1])
    own, source = _Bits.of(where[-1:]), below if not reverse else _Bits.of(where[-1:])
    taking = [r for r in range(len(columns)) if place != "register" or bool(r >> bit & 1) != reverse]
    elems = [elem_of(v.type) for v in op.operands]
    sources = {r: r & ~(below.register | own.register) | source.register for r in taking}
    running = {s: columns[s] for s in sources.values()}
    if below.lane | own.lane:
        lane = _put(e, e.role.lane, below.lane | own.lane, source.lane)
        running = {s: [shuffle(e, t, r, lane) for t, r in zip(elems, regs)] for s, regs in running.items()}
    folded = _folds(e, op, [(running[sources[r]], columns[r]) for r in taking])
    if place == "lane":
        mine = p.new("b32", "and.b32", e.role.lane, 1 << bit)
        takes = p.new("pred", f"setp.{'eq' if reverse else 'ne'}.u32", mine, 0)
        folded = [_either(e, elems, takes, f, columns[r]) for r, f in zip(taking, folded)]
    out = list(columns)
    for r, f in zip(taking, folded):
        out[r] = f
    return out


def _of_lanes_before(e: Emitter, op: Op, lanes: int, totals: list[list[str]]) -> list[_Before]:
    """What neighbours along the axis have come to, and which lanes have one."""
    p, elems, reverse = e.p, [elem_of(v.type) for v in op.operands], op.attrs["reverse"]
    step = lanes & -lanes
    lane = p.new("b32", "add.s32", e.role.lane, step if reverse else -step)
    has = p.new("pred", "setp.ne.u32", p.new("b32", "and.b32", e.role.lane, lanes), lanes if reverse else 0)
    return [([shuffle(e, t, r, lane) for t, r in zip(elems, regs)], has) for regs in totals]


def _both_before(e: Emitter, op: Op, far: _Before, near: _Before) -> _Before:
    elems = [elem_of(v.type) for v in op.operands]
    if not (far[0] and near[0]):
        return near if near[0] else far
    (folded,) = _folds(e, op, [(far[0], near[0])])
    found = _either(e, elems, near[1], folded, far[0])
    return (_either(e, elems, far[1], found, near[0]), e.p.new("pred", "or.pred", far[1], near[1])) if far[1] else \
        (found, "")


def _behind(e: Emitter, op: Op, before: dict[int, _Before], own: int, columns: list[list[str]]) -> list[list[str]]:
    elems = [elem_of(v.type) for v in op.operands]
    fold = op.regions[0]
    nothing = [_NEUTRAL[x.name] for x in fold.ops if x.name in _NEUTRAL] if symmetric(fold) else []
    out = list(columns)
    for first, (regs, has) in before.items():
        at = [r for r in range(len(columns)) if r & ~own == first]
        plain = [t for t in elems if isinstance(t, DType) and t.family != "bool"]
        if has and len(nothing) == len(plain) == len(elems):
            regs = [choose(e, reg_class(t), has, r, of(t)) for t, r, of in zip(plain, regs, nothing)]
            has = ""
        folded = _folds(e, op, [(regs, columns[r]) for r in at])
        for r, f in zip(at, folded):
            out[r] = _either(e, elems, has, f, columns[r]) if has else f
    return out


def _by_totals(e: Emitter, op: Op, layout: LinearLayout, low: list[tuple[str, int]], high: list[tuple[str, int]],
               totals: dict[int, list[str]]) -> dict[int, _Before]:
    """Whoever has a chunk's last element writes it to scratch; all fold those of their columns."""
    reverse, elems = op.attrs["reverse"], [elem_of(v.type) for v in op.operands]
    inner, outer = _Bits.of(low), _Bits.of(high)
    ids = sorted({r & ~outer.register for r in totals})  # registers of different columns
    rows = sorted({r & outer.register for r in totals})  # those of different chunks
    lane = _put(e, e.role.lane, inner.lane, 0 if reverse else inner.lane)
    last = e.p.new("pred", "setp.eq.u32", lane, e.role.lane) if inner.lane else None
    shape = len(rows), len(ids), layout.in_size("warp")
    e.sync()
    _write_totals(e, op, _addresses(e, op, (e.role.lane, e.role.warp), shape),
                  [totals[row | i] for row in rows for i in ids], last)
    e.sync()
    order = [_Bits.of(high, c) for c in range(1 << len(high))]
    order = order[::-1] if reverse else order
    # Threads are told apart by where their chunk is among those that a register may be of.
    apart = list(dict.fromkeys((c.lane, c.warp) for c in order))
    here = {c: _both(e, [(e.role.lane, outer.lane, c[0]), (e.role.warp, outer.warp, c[1])]) for c in apart}
    addresses = {c: _addresses(e, op, (_put(e, lane, outer.lane, c[0]), _put(e, e.role.warp, outer.warp, c[1])), shape)
                 for c in apart}
    running: list[list[str]] = []
    before: dict[int, list[list[str]]] = {}  # of a row: what is before it, by column
    for c, after in zip(order, order[1:]):
        total = _read_totals(e, op, addresses[c.lane, c.warp], len(ids), rows.index(c.register))
        running = _folds(e, op, [*zip(running, total)]) if running else total
        known = before.get(after.register)
        before[after.register] = running if known is None else [
            _either(e, elems, here[after.lane, after.warp], new, old) for new, old in zip(running, known)]
    first = order[0]
    other = e.p.new("pred", "not.pred", here[first.lane, first.warp])
    return {r: (before[r & outer.register][ids.index(r & ~outer.register)],
                other if r & outer.register == first.register else "") if r & outer.register in before else ([], "")
            for r in totals}


def _folds(e: Emitter, op: Op, pairs: list[tuple[list[str], list[str]]]) -> list[list[str]]:
    n = len(op.operands)
    return e.p.repeat(lambda *regs: combine(e, op, list(regs[:n]), list(regs[n:])), [(*a, *b) for a, b in pairs])


def _either(e: Emitter, elems: list[Scalar], pred: str, yes: list[str], no: list[str]) -> list[str]:
    return [choose(e, reg_class(t), pred, y, n) for t, y, n in zip(elems, yes, no)]


def _put(e: Emitter, reg: str, mask: int, value: int) -> str:
    reg = e.p.new("b32", "and.b32", reg, ~mask) if mask else reg
    return e.p.new("b32", "or.b32", reg, value) if value else reg


def _both(e: Emitter, tests: list[tuple[str, int, int]]) -> str:
    p = e.p
    equal = [p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", reg, mask), value)
             for reg, mask, value in tests if mask]
    return equal[0] if len(equal) == 1 else p.new("pred", "and.pred", *equal)


def _addresses(e: Emitter, op: Op, place: tuple[str, str], shape: tuple[int, int, int]) -> list[tuple[str, int, int]]:
    """A lane's totals: a register, an offset, how many neighbours are a vector, 32 apart."""
    (lane, warp), (rows, count, warps) = place, shape
    out, offset = [], op.attrs["scratch"]
    for v in op.operands:
        size = element_bytes(v.tile)
        vec = gcd(16 // size, count)
        at = e.p.new("b32", "mad.lo.u32", warp, 32 * rows * count // vec, lane)
        out.append((e.p.new("b32", "mad.lo.u32", at, vec * size, e.private), offset, vec))
        offset += -(-rows * count * 32 * warps * size // 16) * 16
    return out


def _write_totals(e: Emitter, op: Op, addresses: list[tuple[str, int, int]], totals: list[list[str]],
                  pred: str | None) -> None:
    for i, (v, (at, offset, vec)) in enumerate(zip(op.operands, addresses)):
        for k in range(0, len(totals), vec):
            place = f"[{at}+{offset + 32 * k * element_bytes(v.tile)}]"
            store_shared(e, v.tile.elem, [x[i] for x in totals[k:k + vec]], place, pred)


def _read_totals(e: Emitter, op: Op, addresses: list[tuple[str, int, int]], count: int, row: int) -> list[list[str]]:
    found: list[list[str]] = []
    for v, (at, offset, vec) in zip(op.operands, addresses):
        found.append([])
        for k in range(row * count, (row + 1) * count, vec):
            regs = [r for _ in range(vec) for r in e.fresh(v.tile.elem)]
            load_shared(e, v.tile.elem, regs, f"[{at}+{offset + 32 * k * element_bytes(v.tile)}]")
            found[-1] += regs
    return [list(x) for x in zip(*found)]
