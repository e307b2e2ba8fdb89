"""Products by mma.sync: operands in registers, in the layouts of `layout/mma.py`, or in slots of rings."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tilejit.ir import Block, Op, Value
from tilejit.ir.types import Buffer, DType, Tile, fp16
from tilejit.layout.linear import LinearLayout
from tilejit.layout.mma import mma_operand
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.ldmatrix import MatrixReader, load_tile
from tilejit.ptx.pack import unpack, words
from tilejit.ptx.wgmma import NAMES


@emits("dot", "dot_mma")
def _dot(e: Emitter, op: Op) -> None:
    """Products of one k step go to different accumulators: none waits for another. Short K is filled with zeros."""
    va, vb, acc = op.operands
    tc = acc.tile
    assert tc.layout is not None and isinstance(tc.elem, DType)
    elems = [v.type.elem for v in (va, vb)]  # type: ignore[union-attr]
    pack = max(1, 4 // elems[0].bytes)
    start = op.attrs.get("begin", 0)
    end = start + op.attrs.get("depth", va.type.shape[-1] - start)  # type: ignore[union-attr]
    a, b = (_Words(e, v, tc.layout, i) for i, v in enumerate((va, vb)))
    step = 8 * pack
    if elems[0].name in ("fp8e4nv", "fp8e5"):  # type: ignore[union-attr]
        e.version = max(e.version, (8, 4))  # fp8 products (PTX ISA, mma, notes)
    multiply = _f64_of_eight_rows if elems[0].bits == 64 and not e.target.hopper else _instruction(tc.elem, elems, step)
    source = e.get(acc)
    regs = source if _dies(e, acc, op) else e.fresh(tc)
    now = source
    fragments = _fragments(tc.layout)
    if tc.elem.bits == 16:
        multiply = _Halves(multiply)
    for k in range(start, end, step):
        for (*ahead, m, n), held in fragments:
            left = [a.at((*ahead, m + 8 * (j % 2), k + 4 * pack * (j // 2))) for j in range(4)]
            right = [b.at((*ahead, k + 4 * pack * j, n)) for j in range(2)]
            first = {i: j for j, i in reversed(list(enumerate(held)))}
            d = [regs[i] if first[i] == j else e.p.reg(reg_class(tc.elem)) for j, i in enumerate(held)]
            multiply(e, d, left, right, [now[i] for i in held])
        now = regs
    e.set(op.result, regs)


def _instruction(out: DType, elems: list, step: int) -> Callable[..., None]:
    acc = "s32" if out.is_int() else f"f{out.bits}"
    names = [NAMES[t.name] for t in elems]
    clamps = ".satfinite" if out.is_int() else ""
    kind = f"mma.sync.aligned.m16n8k{step}.row.col{clamps}.{acc}.{names[0]}.{names[1]}.{acc}"

    def emit(e: Emitter, d: list[str], a: list[str], b: list[str], c: list[str]) -> None:
        e.p(kind, *map(_list, (d, a, b, c)))
    return emit


def _f64_of_eight_rows(e: Emitter, d: list[str], a: list[str], b: list[str], c: list[str]) -> None:
    for i in range(2):
        now = c[2 * i:2 * i + 2]
        for k in range(2):
            e.p("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
                *map(_list, (d[2 * i:2 * i + 2], [a[i + 2 * k]], [b[k]], now)))
            now = d[2 * i:2 * i + 2]


class _Halves:
    """fp16 sums, two to a register, packed between steps of K."""

    def __init__(self, multiply: Callable[..., None]):
        self.multiply = multiply
        self.held: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, e: Emitter, d: list[str], a: list[str], b: list[str], c: list[str]) -> None:
        found = e.p.regs("b32", 2)
        self.multiply(e, found, a, b, self.held.get(tuple(c)) or words(e, fp16, c))
        unpack(e, fp16, found, d)
        self.held[tuple(d)] = found


@lru_cache(maxsize=64)
def _fragments(layout: LinearLayout) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Some registers several times where the tile is smaller."""
    place = {at: i for i, at in enumerate(layout.registers())}
    m, n = layout.shape[-2:]
    starts = dict.fromkeys((*at[:-2], at[-2] // 16 * 16, at[-1] // 8 * 8) for at in place)

    def register(at: tuple[int, ...], j: int) -> int:
        where = (*at[:-2], (at[-2] + 8 * (j // 2)) % m, (at[-1] + j % 2) % n)
        return place[where]

    return tuple((at, tuple(register(at, j) for j in range(4))) for at in starts)


class _Words:
    """An operand as registers of 32 bits (64 for fp64), by the coordinates of their first element in lane 0 of warp
    0."""

    def __init__(self, e: Emitter, v: Value, accumulator: LinearLayout, index: int):
        t = v.type
        assert isinstance(t, (Tile, Buffer))
        self.e, self.zero, self.elem, rank = e, "", t.elem, len(t.shape)
        self.along, self.keep = (rank - 2, rank - 1) if index else (rank - 1, rank - 2)
        self.k, self.size = t.shape[self.along], t.shape[self.keep]
        self.layout = mma_operand(accumulator, index, self.k, t.elem.bits // 8)
        self.pack = max(1, 32 // t.elem.bits)
        self.place: dict[tuple[int, ...], str] = {}
        self.slot: MatrixReader | None = None
        if isinstance(t, Buffer):
            tile = Tile(t.shape, t.elem, self.layout)
            self.slot = MatrixReader.of(e, tile, t, e.views[v])
            regs = [] if self.slot else load_tile(e, tile, t, e.views[v])
        else:
            regs = e.get(v)
        self._hold(0, words(e, t.elem, regs) if self.pack > 1 else regs if t.elem.bits == 64
                   else [e.p.new("b32", "mov.b32", r) for r in regs])

    def _hold(self, first: int, found: list[str]) -> None:
        for i, word in enumerate(found):
            self.place[self.layout.apply(register=first + i * self.pack)] = word

    def at(self, where: tuple[int, ...]) -> str:
        """The register of the elements from `where` on along K; zero beyond its end, and a copy beyond the others."""
        if where[self.along] >= self.k:
            cls = reg_class(self.elem) if self.elem.bits == 64 else "b32"
            self.zero = self.zero or self.e.p.new(cls, f"mov.{cls}", "0d0000000000000000" if cls == "f64" else 0)
            return self.zero
        where = tuple(x % self.size if d == self.keep else x for d, x in enumerate(where))
        if where not in self.place:
            assert self.slot is not None
            first = self.layout.place_of(where, ("register",))["register"] // self.slot.step * self.slot.step
            self._hold(first, self.slot.read(first))
        return self.place[where]


def _dies(e: Emitter, acc: Value, op: Op) -> bool:
    if len(e.uses.get(acc, ())) != 1:
        return False
    if isinstance(acc.op, Block):
        return acc.op is op.parent and acc.op.parent is not None and acc.op.parent.name == "for"
    return isinstance(acc.op, Op) and acc.op.name in ("dot", "dot_mma") and acc.op.parent is op.parent


def _list(regs: list[str]) -> str:
    return "{" + ", ".join(regs) + "}"
