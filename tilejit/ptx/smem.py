"""How the threads of a distributed tile reach its elements in shared memory."""
from __future__ import annotations

from tilejit.ir import Value
from tilejit.ir.types import Buffer
from tilejit.layout.linear import LinearLayout
from tilejit.layout.shared import slot_offset
from tilejit.ptx.emit import Emitter
from tilejit.records import dataclass


@dataclass(frozen=True)
class Access:
    """Which registers, at which address text."""

    registers: tuple[int, ...]
    address: str


def accesses(e: Emitter, layout: LinearLayout, buffer: Buffer, base: str, registers: list[int] | None = None,
             most: int = 16, shift: int = 0, bases: dict[int, str] | None = None,
             at: tuple[int, ...] | None = None) -> list[Access]:
    """How a tile moves to or from a slot, as wide as possible (docs/modules.md)."""
    size = buffer.elem.bytes
    lanes = [slot_offset(buffer, b) for b in layout.bases_of("lane")]
    warps = [slot_offset(buffer, b) for b in layout.bases_of("warp")]
    regs = [slot_offset(buffer, b) for b in layout.bases_of("register")]
    thread_bits = 0
    for o in lanes + warps:
        thread_bits |= o
    vec = 1
    for offset in regs:
        if offset != vec * size or vec * size * 2 > most or offset & thread_bits:
            break
        vec *= 2
    key = (layout, buffer)
    if key not in e.role.known.addresses:
        e.role.known.addresses[key] = e.hoist(
            lambda: e.bit_sum([(e.role.lane, lanes), (e.role.warp, warps)]))
    thread = e.role.known.addresses[key]
    bases = {} if bases is None else bases
    out = []
    start = slot_offset(buffer, at) if at else 0
    wanted = range(layout.num_registers) if registers is None else registers
    for r in wanted:
        if r % vec:
            continue
        const = start
        for i, o in enumerate(regs):
            if r >> i & 1:
                const ^= o
        mixed = const & thread_bits
        if mixed not in bases:
            part = e.p.new("b32", "xor.b32", thread, mixed) if mixed else thread
            bases[mixed] = e.p.new("b32", "add.u32", base, part)
        out.append(Access(tuple(range(r, r + vec)), f"[{bases[mixed]}+{shift + (const ^ mixed)}]"))
    return out


def slot_address(e: Emitter, ring: Value, slot: str) -> str:
    buffer, made = ring.buffer, ring.maker.attrs
    start = e.p.new("b32", "add.u32", e.private if made.get("private") else e.smem, made["offset"])
    if buffer.slots == 1 or slot == "0":
        return start
    return e.p.new("b32", "mad.lo.u32", slot, buffer.slot_stride, start)
