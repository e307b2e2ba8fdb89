"""Emitter of products by mma.sync: operands and accumulators in registers, in the layouts of `layout/mma.py`."""
from __future__ import annotations

from tilejit.ir import Block, Op, Value
from tilejit.ir.types import DType, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import words
from tilejit.ptx.wgmma import NAMES


@emits("dot")
def _dot(e: Emitter, op: Op) -> None:
    """One mma.sync per (k step, 16 rows, 8 columns). Products of one k step go to different accumulators, so they
    need not wait for each other. K shorter than a step is filled up with zeros."""
    p = e.p
    va, vb, acc = op.operands
    ta, tb, tc = (_tile(v) for v in op.operands)
    pack = 4 // ta.elem.bytes                                     # type: ignore[union-attr]
    a, b = (_Words(e, v, pack, along) for v, along in ((va, 1), (vb, 0)))
    assert tc.layout is not None and isinstance(tc.elem, DType)
    out = "s32" if tc.elem.is_int else "f32"
    step = 8 * pack
    names = [NAMES[t.elem.name] for t in (ta, tb)]                # type: ignore[union-attr]
    kind = f"mma.sync.aligned.m16n8k{step}.row.col.{out}.{names[0]}.{names[1]}.{out}"
    if names[0] in ("e4m3", "e5m2"):
        e.version = max(e.version, (8, 4))                        # fp8 products (PTX ISA, mma, notes)
    source = e.get(acc)
    regs = source if _dies(e, acc, op) else e.fresh(tc)
    now = source
    for k in range(0, ta.shape[1], step):
        for first in range(0, len(regs), 4):
            m, n = tc.layout.apply(register=first)
            left = [a.at((m + 8 * (j % 2), k + 4 * pack * (j // 2))) for j in range(4)]
            right = [b.at((k + 4 * pack * j, n)) for j in range(2)]
            p(kind, *(_list(x) for x in (regs[first:first + 4], left, right, now[first:first + 4])))
        now = regs
    e.set(op.result, regs)


class _Words:
    """An operand as 32-bit registers, found by the coordinates of their first element in lane 0 of warp 0."""

    def __init__(self, e: Emitter, v: Value, pack: int, along: int):
        self.e, self.zero, t = e, "", _tile(v)
        regs = e.get(v)
        packed = words(e, t.elem, regs) if pack > 1 else [e.p.new("b32", "mov.b32", r) for r in regs]
        assert t.layout is not None
        layout: LinearLayout = t.layout
        self.k, self.along = t.shape[along], along
        self.place = {layout.apply(register=i * pack): w for i, w in enumerate(packed)}

    def at(self, where: tuple[int, int]) -> str:
        """The register of the elements from `where` on along K; zero beyond its end."""
        if where[self.along] < self.k:
            return self.place[where]
        self.zero = self.zero or self.e.p.new("b32", "mov.b32", 0)
        return self.zero


def _dies(e: Emitter, acc: Value, op: Op) -> bool:
    """Whether the accumulator's registers are its own, and nobody reads them after this product."""
    if len(e.uses.get(acc, ())) != 1:
        return False
    if isinstance(acc.op, Block):
        return acc.op is op.parent and acc.op.parent is not None and acc.op.parent.name == "for"
    return isinstance(acc.op, Op) and acc.op.name == "dot" and acc.op.parent is op.parent


def _list(regs: list[str]) -> str:
    return "{" + ", ".join(regs) + "}"


def _tile(v: Value) -> Tile:
    assert isinstance(v.type, Tile)
    return v.type
