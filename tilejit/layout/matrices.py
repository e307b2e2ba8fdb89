"""How a tile in shared memory splits into the 8x8 matrices of `ldmatrix` (PTX ISA, ldmatrix)."""
from __future__ import annotations

from functools import lru_cache

from tilejit.layout.convert import AddressBits, address_bits, bank_conflicts
from tilejit.layout.linear import LinearLayout
from tilejit.records import dataclass

_ROW_BYTES = 16


@dataclass(frozen=True)
class Matrices:
    """A split: offsets in elements, combined by xor."""

    trans: bool
    rows: tuple[int, int, int]
    registers: tuple[int, ...]
    packed: int

    @property
    def count(self) -> int:
        return 1 << len(self.registers)


@lru_cache(maxsize=1024)
def split(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> Matrices | None:
    """How ldmatrix reads `memory` (one input, `offset`) into `regs`; None if it cannot."""
    if elem_bytes not in (1, 2, 4):
        return None
    bits = address_bits(regs, memory)
    packed = (4 // elem_bytes).bit_length() - 1
    if len(bits.register) < packed:
        return None
    chosen = tuple(range(packed, min(packed + 2, len(bits.register))))
    if _fits(bits.register[:packed] + bits.lane[:2], bits.register[packed:] + bits.lane[2:], bits, elem_bytes):
        return Matrices(False, bits.lane[2:5], chosen, packed)  # type: ignore[arg-type]
    if elem_bytes == 2 and _fits(bits.lane[2:], bits.register + bits.lane[:2], bits, elem_bytes):
        return Matrices(True, (bits.register[0], *bits.lane[:2]), chosen, packed)  # type: ignore[arg-type]
    return None


def _fits(inside: tuple[int, ...], rest: tuple[int, ...], bits: AddressBits, elem_bytes: int) -> bool:
    return (all(x == 1 << i for i, x in enumerate(inside))
            and all(x * elem_bytes % _ROW_BYTES == 0 for x in rest + bits.warp))


def matrix_cycles(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> int | None:
    found = split(regs, memory, elem_bytes)
    if found is None:
        return None
    offsets = (*found.rows, 0, 0)  # the conflicts within one matrix; four of them in 32 lanes
    each = bank_conflicts(offsets, elem_bytes, _ROW_BYTES // elem_bytes) // 4
    return each * (regs.num_registers >> found.packed)
