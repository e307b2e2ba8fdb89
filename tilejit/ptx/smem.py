"""Addresses in shared-memory tiles: where an element lies, and how a distributed tile reaches it.

A slot is stored as TMA lands it: the fastest dimension is cut into spans of `swizzle` bytes (without a swizzle: of a
box's 256 elements at most), each span with all rows is one sub-tile ([rows][span]), sub-tiles follow one another, and
inside a sub-tile the 16-byte chunk index is xored with row bits (address bits 4..6 ^= 7..9 for 128 B, 4..5 ^= 7..8 for
64 B, 4 ^= 7 for 32 B: PTX ISA, 'Swizzling Modes'). The map from the bits of a layout's coordinates to address bits is
linear over xor, so an address is (thread part) ^ (register constant).
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilejit.ir import Op, Value
from tilejit.ir.types import Buffer, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter

#: TMA boxes have at most this many elements along a dimension (driver API, cuTensorMapEncodeTiled)
MAX_BOX = 256
#: swizzle bytes -> number of address bits that are xored (bits 4.. with bits 7..).
_XOR_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def boxed(size: int) -> int:
    """The most elements of a dimension that a box takes at once and that divide it."""
    return size if size <= MAX_BOX else gcd(size, MAX_BOX)


def span_elements(buffer: Buffer) -> int:
    """Elements of the fastest dimension in one sub-tile."""
    extent = buffer.shape[buffer.order[0]]
    return min(extent, buffer.swizzle // buffer.elem.bytes) if buffer.swizzle else boxed(extent)


def slot_rows(buffer: Buffer) -> int:
    """Rows of a sub-tile: the product of all dimensions but the fastest."""
    n = 1
    for d in buffer.order[1:]:
        n *= buffer.shape[d]
    return n


def slot_offset(buffer: Buffer, coords: tuple[int, ...]) -> int:
    """Byte offset of an element inside its slot."""
    span = span_elements(buffer)
    x, row, scale = coords[buffer.order[0]], 0, 1
    for d in buffer.order[1:]:
        row += coords[d] * scale
        scale *= buffer.shape[d]
    flat = ((x // span) * slot_rows(buffer) + row) * span + x % span
    offset = flat * buffer.elem.bytes
    mask = (1 << _XOR_BITS[buffer.swizzle]) - 1
    return offset ^ (((offset >> 7) & mask) << 4)


@dataclass(frozen=True)
class Access:
    """One shared-memory access of a thread: which registers, at which address text."""

    registers: tuple[int, ...]
    address: str


def accesses(e: Emitter, layout: LinearLayout, buffer: Buffer, base: str, registers: list[int] | None = None,
             most: int = 16, shift: int = 0, bases: dict[int, str] | None = None,
             at: tuple[int, ...] | None = None) -> list[Access]:
    """The accesses that move a tile of this layout to or from a slot at base + shift, as wide as possible.

    `registers` limits them to some register indices (all of them by default); whole vectors only. `most` limits the
    bytes of one access. `bases`: addresses that earlier calls with this layout, buffer and base left, and a place for
    new ones. `at`: where in the slot the tile starts, in multiples of its sizes."""
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
    if key not in e.role.addresses:
        e.role.addresses[key] = e.hoist(
            lambda: e.bit_sum([(e.role.lane, lanes), (e.role.warp, warps)]))
    thread = e.role.addresses[key]
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
    """Register: the shared address of one slot of an allocated ring."""
    buffer = ring.type
    assert isinstance(ring.op, Op) and isinstance(buffer, Buffer)
    base = e.private if ring.op.attrs.get("private") else e.smem
    start = e.p.new("b32", "add.u32", base, ring.op.attrs["offset"])
    if buffer.slots == 1 or slot == "0":
        return start
    return e.p.new("b32", "mad.lo.u32", slot, buffer.slot_stride, start)


def swizzle_for(inner_bytes: int) -> int:
    """The widest swizzle span that a row of `inner_bytes` fills: 128, 64, 32 or none."""
    return next((s for s in (128, 64, 32) if inner_bytes % s == 0), 0)


def tile_buffer(tile: Tile, slots: int, order: tuple[int, ...]) -> Buffer:
    """A ring for tiles of this type, with the widest swizzle its fastest dimension allows.

    Tiles of fewer than eight rows are not swizzled: the pattern repeats every eight rows, so their
    sub-tiles would start inside it."""
    from tilejit.ir.types import DType

    assert isinstance(tile.elem, DType)
    inner = tile.shape[order[0]]
    swizzle = swizzle_for(inner * tile.elem.bytes) if tile.numel // inner >= 8 else 0
    return Buffer(tile.shape, tile.elem, slots, swizzle, order)
