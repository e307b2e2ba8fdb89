"""Reading distributed tiles from shared memory: by ldmatrix where the layouts allow it, else by vector loads."""
from __future__ import annotations

from tilejit.ir.types import Buffer, DType, Tile
from tilejit.layout.matrices import Matrices, split
from tilejit.layout.named import shared
from tilejit.ptx.emit import Emitter
from tilejit.ptx.pack import load_shared, unpack
from tilejit.ptx.smem import accesses, slot_offset


def load_tile(e: Emitter, t: Tile, buffer: Buffer, base: str) -> list[str]:
    """The registers of a tile that lies in a slot at shared address `base`. The whole warp must come here together."""
    regs = e.fresh(t)
    assert t.layout is not None
    elem = buffer.elem
    found = None
    if isinstance(t.elem, DType) and t.elem.bits > 1:
        found = split(t.layout, shared(buffer.shape, elem.bytes, buffer.swizzle, buffer.order), elem.bytes)
    if found is None:
        for a in accesses(e, t.layout, buffer, base):
            load_shared(e, t.elem, [regs[i] for i in a.registers], a.address)
    else:
        assert isinstance(t.elem, DType)
        _load_matrices(e, t, buffer, base, found, regs)
    return regs


def _load_matrices(e: Emitter, t: Tile, buffer: Buffer, base: str, m: Matrices, regs: list[str]) -> None:
    """One ldmatrix per `m.count` 32-bit registers."""
    p, layout = e.p, t.layout
    assert layout is not None and isinstance(t.elem, DType)
    size = buffer.elem.bytes
    offsets = [slot_offset(buffer, b) for b in layout.bases_of("register")]
    lanes = [x * size for x in m.rows] + [offsets[i] for i in m.registers]
    warps = [slot_offset(buffer, b) for b in layout.bases_of("warp")]
    key = (layout, buffer, "matrices")
    if key not in e.role.addresses:
        e.role.addresses[key] = e.hoist(lambda: e.bit_sum([(e.role.lane, lanes), (e.role.warp, warps)]))
    thread, thread_bits = e.role.addresses[key], 0
    for o in lanes + warps:
        thread_bits |= o
    pack, steps = 1 << m.packed, 1 << m.packed + len(m.registers)
    kind = f"ldmatrix.sync.aligned.m8n8.x{m.count}{'.trans' if m.trans else ''}.shared.b16"
    bases: dict[int, str] = {}
    for first in range(0, len(regs), steps):
        const = 0
        for i, o in enumerate(offsets):
            if first >> i & 1:
                const ^= o
        mixed = const & thread_bits
        if mixed not in bases:
            part = p.new("b32", "xor.b32", thread, mixed) if mixed else thread
            bases[mixed] = p.new("b32", "add.u32", base, part)
        found = p.regs("b32", m.count)
        p(kind, "{" + ", ".join(found) + "}", f"[{bases[mixed]}+{const ^ mixed}]")
        for j, word in enumerate(found):
            held = regs[first + j * pack:first + (j + 1) * pack]
            if pack == 1:
                p("mov.b32", held[0], word)
                continue
            unpack(e, t.elem, [word], held)
            e.packed[tuple(held)] = word
