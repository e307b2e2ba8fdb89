"""`xor_shuffle` and `sort_runs`: registers change names, lanes change places by butterfly shuffles, warps through
scratch.
"""
from __future__ import annotations

from tilejit.errors import ClusterError
from tilejit.ir import Op
from tilejit.ir.ops.shape import exchanges
from tilejit.ir.scratch import crossed, element_bytes, swapped
from tilejit.ir.types import Tile
from tilejit.ptx.arith import comparison, suffix
from tilejit.ptx.convert import choose, shuffle
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.reduce import separate


@emits("xor_shuffle")
def _xor_shuffle(e: Emitter, op: Op) -> None:
    separate(op)
    e.set(op.result, _partners(e, op, e.get(op.operands[0]), crossed(_tile(op), op.attrs["axis"], op.attrs["mask"])))


@emits("sort_runs")
def _sort_runs(e: Emitter, op: Op) -> None:
    separate(op)
    regs, t = e.get(op.operands[0]), _tile(op)
    if _whole(t) and op.operands[0] in e.negations:  # as for minima of two (runtime/miscompiles.py)
        regs = [e.p.new("b32", "prmt.b32", r, 0, "0x3210") for r in regs]
    for mask, greater in exchanges(op):
        regs = _exchanged(e, op, regs, mask, greater)
    e.set(op.result, regs)


def _exchanged(e: Emitter, op: Op, regs: list[str], mask: int, greater: int) -> list[str]:
    """One step (see `exchanges`): the lesser of a pair in one place, the greater in the other."""
    p, t, axis = e.p, _tile(op), op.attrs["axis"]
    bits, odd = crossed(t, axis, mask), crossed(t, axis, greater)
    last = [bool(op.attrs["falling"]) ^ bool((r & odd["register"]).bit_count() & 1) for r in range(len(regs))]
    threads = odd["lane"].bit_count() + odd["warp"].bit_count()
    side = ""
    if threads:
        assert t.layout is not None
        here = p.new("b32", "and.b32", e.thread_coord(t.layout, axis), greater)
        if threads > 1:
            here = p.new("b32", "and.b32", p.new("b32", "popc.b32", here), 1)
        side = p.new("pred", "setp.ne.u32", here, 0)
    out = [""] * len(regs)
    if bits["lane"] or bits["warp"]:
        pairs = [*zip(regs, _partners(e, op, regs, bits))]
        for which in (False, True):
            places = [r for r, at_last in enumerate(last) if at_last == which]
            made = p.repeat(lambda a, b, w=which: _kept(e, t, a, b, w, side), [pairs[r] for r in places])
            for r, register in zip(places, made):
                out[r] = register
        return out
    ways = [(r ^ bits["register"], r) if last[r] else (r, r ^ bits["register"])
            for r in range(len(regs)) if r < r ^ bits["register"]]
    for (low, high), made in zip(ways, p.repeat(lambda a, b: _ordered(e, t, a, b, side),
                                                [(regs[low], regs[high]) for low, high in ways])):
        out[low], out[high] = made
    return out


def _ordered(e: Emitter, t: Tile, a: str, b: str, side: str) -> list[str]:
    if _whole(t) and not side:
        return [e.p.new("b32", f"{name}.{suffix(t.elem)}", a, b) for name in ("min", "max")]
    cls, change = reg_class(t.elem), _changes(e, t, a, b, side)
    return [choose(e, cls, change, b, a), choose(e, cls, change, a, b)]


def _kept(e: Emitter, t: Tile, mine: str, other: str, greater: bool, side: str) -> str:
    if _whole(t) and not side:
        return e.p.new("b32", f"{'max' if greater else 'min'}.{suffix(t.elem)}", mine, other)
    if side:
        change = _changes(e, t, mine, other, f"!{side}" if greater else side)
    else:
        change = comparison(e, t.elem, "lt" if greater else "gt")(mine, other)
    return choose(e, reg_class(t.elem), change, other, mine)


def _changes(e: Emitter, t: Tile, a: str, b: str, side: str) -> str:
    if not side:
        return comparison(e, t.elem, "gt")(a, b)
    if not t.elem.is_float:  # type: ignore[union-attr]
        return comparison(e, t.elem, "gt.xor")(a, b, side)
    not_side = side[1:] if side[0] == "!" else f"!{side}"
    return e.p.new("pred", "or.pred", comparison(e, t.elem, "gt.and")(a, b, not_side),
                   comparison(e, t.elem, "lt.and")(a, b, side))


def _whole(t: Tile) -> bool:
    return t.elem.bits == 32 and not t.elem.is_float  # type: ignore[union-attr]


def _tile(op: Op) -> Tile:
    t = op.operands[0].tile
    return t


def _partners(e: Emitter, op: Op, regs: list[str], bits: dict[str, int]) -> list[str]:
    if bits["warp"] >> e.role.warp_bits:
        raise ClusterError(f"{op.name}: elements of another CTA of the cluster; use num_ctas=1", op.loc)
    t = _tile(op)
    regs = [regs[r ^ bits["register"]] for r in range(len(regs))]
    if bits["warp"]:
        return _from_warp(e, op, t, regs, bits["lane"], bits["warp"])
    if bits["lane"]:
        done = {r: shuffle(e, t.elem, r, bits["lane"], "bfly") for r in dict.fromkeys(regs)}
        regs = [done[r] for r in regs]
    return regs


def _from_warp(e: Emitter, op: Op, t: Tile, regs: list[str], lane_bits: int, warp_bits: int) -> list[str]:
    p, size, start, most = e.p, element_bytes(t), op.attrs["scratch"], swapped(t)
    lane = p.new("b32", "xor.b32", e.role.lane, lane_bits) if lane_bits else e.role.lane
    warp = p.new("b32", "xor.b32", e.role.warp, warp_bits)
    here, there = (p.new("b32", "mad.lo.u32", p.new("b32", "mad.lo.u32", w, 32 * most, at), size, e.private)
                   for w, at in ((e.role.warp, e.role.lane), (warp, lane)))
    out = e.fresh(op.result.type)
    for first in range(0, len(regs), most):
        e.sync()
        for k, r in enumerate(regs[first:first + most]):
            store_shared(e, t.elem, [r], f"[{here}+{start + 32 * k * size}]")
        e.sync()
        for k, r in enumerate(out[first:first + most]):
            load_shared(e, t.elem, [r], f"[{there}+{start + 32 * k * size}]")
    return out
