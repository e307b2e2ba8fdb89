"""Products by multiply-adds: operands in scratch, accumulators in registers (`layout/fma.py`)."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.scratch import fma_buffers
from tilejit.ir.types import Buffer, DType, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.layout.shared import slot_offset
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load_shared, store_shared
from tilejit.ptx.smem import accesses

#: Multiply-adds of a thread that are written out one after another; more are a loop.
MOST_UNROLLED = 1024


@emits("dot_fma")
def _dot_fma(e: Emitter, op: Op) -> None:
    p, t = e.p, op.result.type
    assert isinstance(t, Tile) and t.layout is not None and isinstance(t.elem, DType)
    base = p.new("b32", "add.u32", e.private, op.attrs["scratch"])
    bases = [base]
    e.sync()
    for v, buffer in zip(op.operands, fma_buffers(op)):
        tile, layout = v.tile, v.layout
        regs = e.get(v)
        for a in accesses(e, layout, buffer, bases[-1]):
            store_shared(e, tile.elem, [regs[i] for i in a.registers], a.address, e.owner(layout))
        bases.append(p.new("b32", "add.u32", bases[-1], -(-buffer.slot_bytes // 16) * 16))
    e.sync()
    sides = [_Side(e, t.layout, buffer, at, i) for i, (buffer, at) in enumerate(zip(fma_buffers(op), bases))]
    cls = reg_class(t.elem)
    acc = e.fresh(t)
    for d, s in zip(acc, e.get(op.operands[2])):
        p(f"mov.{cls}", d, s)
    depth = op.operands[0].tile.shape[-1]
    step = depth
    while step > 1 and step * len(acc) > MOST_UNROLLED:
        step //= 2
    left, loop = "", p.label("fma")
    if step < depth:
        left = p.new("b32", "mov.b32", depth // step)
        p.place(loop)
    for k in range(step):
        x, y = (side.read(e, k) for side in sides)
        for d, (*ahead, m, n) in zip(acc, t.layout.registers()):
            p(f"fma.rn.{cls}", d, x[tuple((*ahead, m))], y[tuple((*ahead, n))], d)
    if left:
        for side in sides:
            side.advance(e, step)
        p("sub.u32", left, left, 1)
        p("bra", loop, pred=p.new("pred", "setp.ne.u32", left, 0))
    e.set(op.result, acc)


class _Side:
    def __init__(self, e: Emitter, layout: LinearLayout, buffer: Buffer, base: str, index: int):
        keep = layout.rank - 1 if index else layout.rank - 2
        size = buffer.elem.bytes

        def place(at: tuple[int, ...], k: int = 0) -> int:
            return slot_offset(buffer, (*at[:-2], *((k, at[-1]) if index else (at[-2], k))))

        self.elem, self.pitch = buffer.elem, place((0,) * layout.rank, 1)
        thread = e.bit_sum([(e.role.lane, [place(b) for b in layout.bases_of("lane")]),
                            (e.role.warp, [place(b) for b in layout.bases_of("warp")])])
        self.address = e.p.new("b32", "add.u32", base, thread)
        #: where each element of k = 0 that the thread needs lies, in bytes from its address
        self.offsets = {(*at[:-2], at[keep]): place(at) for at in layout.registers()}
        self.vector = 1
        for b in (b for b in layout.bases_of("register") if b[keep]):
            if b[keep] != self.vector or self.vector * size >= 16:
                break
            self.vector *= 2

    def read(self, e: Emitter, k: int) -> dict[tuple[int, ...], str]:
        found: dict[tuple[int, ...], str] = {}
        for at, offset in self.offsets.items():
            if at in found:
                continue
            regs = e.p.regs(reg_class(self.elem), self.vector)
            load_shared(e, self.elem, regs, f"[{self.address}+{offset + k * self.pitch}]")
            found.update(((*at[:-1], at[-1] + i), r) for i, r in enumerate(regs))
        return found

    def advance(self, e: Emitter, steps: int) -> None:
        e.p("add.u32", self.address, self.address, steps * self.pitch)
