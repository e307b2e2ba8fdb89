"""`map`: a region of scalars, in which threads may part, once for every `pack` registers."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ptx.control import move
from tilejit.ptx.emit import Emitter, emits


@emits("map")
def _map(e: Emitter, op: Op) -> None:
    pack, region = op.attrs["pack"], op.regions[0]
    given = [e.get(v) for v in op.operands]
    count = e.count(op.results[0].type)
    out = [e.fresh(r.type) for r in op.results]
    for start in range(0, count, pack):
        at = [min(i, count - 1) for i in range(start, start + pack)]
        for arg, reg in zip(region.args, [regs[i] for regs in given for i in at]):
            e.set(arg, reg)
        e.block(region)
        made = region.terminator.operands
        for k, regs in enumerate(out):
            for j, i in enumerate(at):
                move(e, made[k * pack + j].type, regs[i], e.scalar(made[k * pack + j]))
    for r, regs in zip(op.results, out):
        e.set(r, regs)
