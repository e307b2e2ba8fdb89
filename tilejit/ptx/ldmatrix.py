"""Distributed tiles to and from shared memory: by ldmatrix and stmatrix where the layouts allow it, else by vectors."""
from __future__ import annotations

from tilejit.ir.types import Buffer, DType, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.layout.matrices import Matrices, split
from tilejit.layout.named import shared
from tilejit.layout.shared import slot_offset
from tilejit.ptx.emit import Emitter
from tilejit.ptx.pack import load_shared, store_shared, unpack, words
from tilejit.ptx.smem import accesses


def load_tile(e: Emitter, t: Tile, buffer: Buffer, base: str, at: tuple[int, ...] | None = None,
              pairs: bool = False) -> list[str]:
    """The registers of a tile in a slot at shared address `base`, from `at` on, in multiples of its sizes (`pairs`: see
    `pack.unpack`)."""
    regs = e.fresh(t)
    assert t.layout is not None
    reader = None if pairs else MatrixReader.of(e, t, buffer, base, at)
    if reader is None:
        for a in accesses(e, t.layout, buffer, base, at=at):
            load_shared(e, t.elem, [regs[i] for i in a.registers], a.address, pairs=pairs)
        return regs
    assert isinstance(t.elem, DType)
    pack = 32 // t.elem.bits
    for first in range(0, len(regs), reader.step):
        for j, word in enumerate(reader.read(first)):
            held = regs[first + j * pack:first + (j + 1) * pack]
            if pack == 1:
                e.p("mov.b32", held[0], word)
                continue
            unpack(e, t.elem, [word], held)
            e.packed[tuple(held)] = word
    return regs


def store_tile(e: Emitter, t: Tile, regs: list[str], buffer: Buffer, base: str, owner: str | None) -> None:
    """Write a tile to a slot at shared address `base`; `owner`: the threads that do, of those that hold the same
    elements."""
    assert t.layout is not None
    found = _split(t, buffer) if e.target.hopper else None
    if found is None or t.layout.zero_bits("lane") or t.layout.zero_bits("register"):
        for a in accesses(e, t.layout, buffer, base):
            store_shared(e, t.elem, [regs[i] for i in a.registers], a.address, owner)
        return
    rows = _Rows(e, t, buffer, base, found, None)
    for first in range(0, len(regs), rows.step):
        held = regs[first:first + rows.step]
        quad = words(e, t.elem, held) if t.elem.bits < 32 else [e.p.new("b32", "mov.b32", r) for r in held]
        e.p(f"stmatrix{rows.kind}", rows.address(first), "{" + ", ".join(quad) + "}", pred=owner)


def _split(t: Tile, buffer: Buffer) -> Matrices | None:
    assert t.layout is not None
    if not isinstance(t.elem, DType) or t.elem.bits == 1 or t.layout.odd_dims:
        return None
    within = LinearLayout(t.layout.bases, buffer.shape)
    size = buffer.elem.bytes
    return split(within, shared(buffer.shape, size, buffer.swizzle, buffer.order), size)


class _Rows:
    def __init__(self, e: Emitter, t: Tile, buffer: Buffer, base: str, m: Matrices, at: tuple[int, ...] | None):
        assert t.layout is not None
        self.e, self.base, self.count = e, base, m.count
        self.step = m.count << m.packed  # registers of the tile that one instruction moves
        size, self.start = buffer.elem.bytes, slot_offset(buffer, at) if at else 0
        self.offsets = [slot_offset(buffer, b) for b in t.layout.bases_of("register")]
        lanes = [x * size for x in m.rows] + [self.offsets[i] for i in m.registers]
        warps = [slot_offset(buffer, b) for b in t.layout.bases_of("warp")]
        key = (t.layout, buffer, "matrices")
        if key not in e.role.known.addresses:
            e.role.known.addresses[key] = e.hoist(lambda: e.bit_sum([(e.role.lane, lanes), (e.role.warp, warps)]))
        self.thread, self.thread_bits = e.role.known.addresses[key], 0
        for o in lanes + warps:
            self.thread_bits |= o
        self.kind = f".sync.aligned.m8n8.x{m.count}{'.trans' if m.trans else ''}.shared.b16"
        self.bases: dict[int, str] = {}

    def address(self, first: int) -> str:
        p, const = self.e.p, self.start
        for i, o in enumerate(self.offsets):
            if first >> i & 1:
                const ^= o
        mixed = const & self.thread_bits
        if mixed not in self.bases:
            part = p.new("b32", "xor.b32", self.thread, mixed) if mixed else self.thread
            self.bases[mixed] = p.new("b32", "add.u32", self.base, part)
        return f"[{self.bases[mixed]}+{const ^ mixed}]"


class MatrixReader(_Rows):
    """Reads a tile from a slot by ldmatrix, a few registers at a time."""

    @staticmethod
    def of(e: Emitter, t: Tile, buffer: Buffer, base: str, at: tuple[int, ...] | None = None) -> MatrixReader | None:
        found = _split(t, buffer)
        return None if found is None else MatrixReader(e, t, buffer, base, found, at)

    def read(self, first: int) -> list[str]:
        address = self.address(first)
        found = self.e.p.regs("b32", self.count)
        self.e.p(f"ldmatrix{self.kind}", "{" + ", ".join(found) + "}", address)
        return found
