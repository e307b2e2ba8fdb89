"""Emitter of products by mma.sync: operands in registers, in the layouts of `layout/mma.py`, or in slots of rings."""
from __future__ import annotations

from tilejit.ir import Block, Op, Value
from tilejit.ir.types import Buffer, DType, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.layout.mma import mma_operand
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.ldmatrix import MatrixReader, load_tile
from tilejit.ptx.pack import words
from tilejit.ptx.wgmma import NAMES


@emits("dot", "dot_mma")
def _dot(e: Emitter, op: Op) -> None:
    """One mma.sync per (k step, 16 rows, 8 columns). Products of one k step go to different accumulators, so they
    need not wait for each other. K shorter than a step is filled up with zeros."""
    p = e.p
    va, vb, acc = op.operands
    tc = acc.type
    assert isinstance(tc, Tile)
    assert tc.layout is not None and isinstance(tc.elem, DType)
    elems = [v.type.elem for v in (va, vb)]                       # type: ignore[union-attr]
    pack = 4 // elems[0].bytes                                    # type: ignore[union-attr]
    depth = op.attrs.get("depth", va.type.shape[1])               # type: ignore[union-attr]
    a, b = (_Words(e, v, tc.layout, i) for i, v in enumerate((va, vb)))
    out = "s32" if tc.elem.is_int else "f32"
    step = 8 * pack
    names = [NAMES[t.name] for t in elems]                        # type: ignore[union-attr]
    kind = f"mma.sync.aligned.m16n8k{step}.row.col.{out}.{names[0]}.{names[1]}.{out}"
    if names[0] in ("e4m3", "e5m2"):
        e.version = max(e.version, (8, 4))                        # fp8 products (PTX ISA, mma, notes)
    source = e.get(acc)
    regs = source if _dies(e, acc, op) else e.fresh(tc)
    now = source
    for k in range(0, depth, step):
        for first in range(0, len(regs), 4):
            m, n = tc.layout.apply(register=first)
            left = [a.at((m + 8 * (j % 2), k + 4 * pack * (j // 2))) for j in range(4)]
            right = [b.at((k + 4 * pack * j, n)) for j in range(2)]
            p(kind, *(_list(x) for x in (regs[first:first + 4], left, right, now[first:first + 4])))
        now = regs
    e.set(op.result, regs)


class _Words:
    """An operand as 32-bit registers, found by the coordinates of their first element in lane 0 of warp 0.

    Those of a slot are read when they are first asked for, so that few are alive at a time."""

    def __init__(self, e: Emitter, v: Value, accumulator: LinearLayout, index: int):
        t = v.type
        assert isinstance(t, (Tile, Buffer))
        self.e, self.zero, self.along, self.k = e, "", 1 - index, t.shape[1 - index]
        self.layout = mma_operand(accumulator, index, self.k, t.elem.bits // 8)
        self.pack = 32 // t.elem.bits
        self.place: dict[tuple[int, ...], str] = {}
        self.slot: MatrixReader | None = None
        if isinstance(t, Buffer):
            tile = Tile(t.shape, t.elem, self.layout)
            self.slot = MatrixReader.of(e, tile, t, e.views[v])
            regs = [] if self.slot else load_tile(e, tile, t, e.views[v])
        else:
            regs = e.get(v)
        self._hold(0, words(e, t.elem, regs) if self.pack > 1 else [e.p.new("b32", "mov.b32", r) for r in regs])

    def _hold(self, first: int, found: list[str]) -> None:
        for i, word in enumerate(found):
            self.place[self.layout.apply(register=first + i * self.pack)] = word

    def at(self, where: tuple[int, int]) -> str:
        """The register of the elements from `where` on along K; zero beyond its end."""
        if where[self.along] >= self.k:
            self.zero = self.zero or self.e.p.new("b32", "mov.b32", 0)
            return self.zero
        if where not in self.place:
            assert self.slot is not None
            first = self.layout.place_of(where, ("register",))["register"] // self.slot.step * self.slot.step
            self._hold(first, self.slot.read(first))
        return self.place[where]


def _dies(e: Emitter, acc: Value, op: Op) -> bool:
    """Whether the accumulator's registers are its own, and nobody reads them after this product."""
    if len(e.uses.get(acc, ())) != 1:
        return False
    if isinstance(acc.op, Block):
        return acc.op is op.parent and acc.op.parent is not None and acc.op.parent.name == "for"
    return isinstance(acc.op, Op) and acc.op.name in ("dot", "dot_mma") and acc.op.parent is op.parent


def _list(regs: list[str]) -> str:
    return "{" + ", ".join(regs) + "}"
