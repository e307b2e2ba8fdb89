"""Emitter of `xor_shuffle`: registers change names, lanes by butterfly shuffles, warps through shared scratch."""
from __future__ import annotations

from tilejit.errors import ClusterError
from tilejit.ir import Op
from tilejit.ir.scratch import crossed, element_bytes
from tilejit.ir.types import Tile
from tilejit.ptx.convert import shuffle
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.reduce import separate


@emits("xor_shuffle")
def _xor_shuffle(e: Emitter, op: Op) -> None:
    separate(op)
    t = op.operands[0].type
    assert isinstance(t, Tile)
    bits = crossed(t, op.attrs["axis"], op.attrs["mask"])
    if bits["warp"] >> e.role.warp_bits:
        raise ClusterError("xor_shuffle: elements of another CTA of the cluster; use num_ctas=1", op.loc)
    regs = e.get(op.operands[0])
    regs = [regs[r ^ bits["register"]] for r in range(len(regs))]
    if bits["warp"]:
        regs = _from_warp(e, op, t, regs, bits["lane"], bits["warp"])
    elif bits["lane"]:
        done = {r: shuffle(e, t.elem, r, bits["lane"], "bfly") for r in dict.fromkeys(regs)}
        regs = [done[r] for r in regs]
    e.set(op.result, regs)


def _from_warp(e: Emitter, op: Op, t: Tile, regs: list[str], lane_bits: int, warp_bits: int) -> list[str]:
    """The registers of the lane and warp whose numbers differ in these bits."""
    p, size, start = e.p, element_bytes(t), op.attrs["scratch"]
    lane = p.new("b32", "xor.b32", e.role.lane, lane_bits) if lane_bits else e.role.lane
    warp = p.new("b32", "xor.b32", e.role.warp, warp_bits)
    here, there = (p.new("b32", "mad.lo.u32", p.new("b32", "mad.lo.u32", w, 32 * len(regs), at), size, e.private)
                   for w, at in ((e.role.warp, e.role.lane), (warp, lane)))
    e.sync()
    for k, r in enumerate(regs):
        store_shared(e, t.elem, [r], f"[{here}+{start + 32 * k * size}]")
    e.sync()
    out = e.fresh(op.result.type)
    for k, r in enumerate(out):
        load_shared(e, t.elem, [r], f"[{there}+{start + 32 * k * size}]")
    return out
