"""Where an element of a tile lies in its slot of shared memory."""
from __future__ import annotations

from math import gcd
from typing import Protocol


class Element(Protocol):
    """A type of elements of whole bytes."""

    @property
    def bytes(self) -> int: ...


class Slot(Protocol):
    """What places follow from (`ir.types.Buffer`): `order` lists dimensions fastest first, `swizzle` is in bytes."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def elem(self) -> Element: ...
    @property
    def swizzle(self) -> int: ...
    @property
    def order(self) -> tuple[int, ...]: ...


#: TMA boxes have at most this many elements along a dimension (driver API, cuTensorMapEncodeTiled)
MAX_BOX = 256
#: swizzle bytes -> number of address bits that are xored (bits 4.. with bits 7..).
_XOR_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def boxed(size: int) -> int:
    """The most elements of a dimension that a box takes and that divide it."""
    return size if size <= MAX_BOX else gcd(size, MAX_BOX)


def span_elements(buffer: Slot) -> int:
    extent = buffer.shape[buffer.order[0]]
    return min(extent, buffer.swizzle // buffer.elem.bytes) if buffer.swizzle else boxed(extent)


def slot_rows(buffer: Slot) -> int:
    n = 1
    for d in buffer.order[1:]:
        n *= buffer.shape[d]
    return n


def slot_offset(buffer: Slot, coords: tuple[int, ...]) -> int:
    span = span_elements(buffer)
    x, row, scale = coords[buffer.order[0]], 0, 1
    for d in buffer.order[1:]:
        row += coords[d] * scale
        scale *= buffer.shape[d]
    flat = ((x // span) * slot_rows(buffer) + row) * span + x % span
    offset = flat * buffer.elem.bytes
    mask = (1 << _XOR_BITS[buffer.swizzle]) - 1
    return offset ^ (((offset >> 7) & mask) << 4)


def widest_swizzle(shape: tuple[int, ...], elem_bytes: int, fastest: int) -> int:
    """The widest swizzle span that the fastest dimension of a tile fills: 128, 64, 32 bytes or none."""
    rows = 1
    for d, n in enumerate(shape):
        rows *= 1 if d == fastest else n
    return next((s for s in (128, 64, 32) if shape[fastest] * elem_bytes % s == 0), 0) if rows >= 8 else 0
