"""The layouts of mma.sync: accumulators of m16n8 fragments over warps, and the operands that go with them.

Fragments: PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours. A 32-bit register of an operand packs
p = 4 / (bytes of an element) neighbours along K; one k step is 8 p wide for every type.

    C, D   register i of lane l:  row l / 4 + 8 (i / 2)          col 2 (l % 4) + i % 2
    A      register i of lane l:  row l / 4 + 8 (i % 2)          k   p (l % 4) + 4 p (i / 2) + 0 .. p - 1
    B      register i of lane l:  k   p (l % 4) + 4 p i + 0 .. p - 1     col l / 4
"""
from __future__ import annotations

from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import QUADS


def warp_grid(m: int, n: int, num_warps: int, rows_only: bool = False) -> tuple[int, int]:
    """How many warps split the rows, and the columns, of an m x n accumulator.

    As many as have a fragment each; then as square a part for each as there is, since its operands are as long as
    its sides together. `rows_only`: rows first, for results that are the next product's left operand."""
    found = []
    down = 1
    while down <= min(num_warps, m // 16):
        across = min(num_warps // down, n // 8)
        found.append((down, across))
        down *= 2
    if rows_only:
        return found[-1]
    return min(found, key=lambda g: (-g[0] * g[1], m // g[0] + n // g[1], -g[0]))


def mma_accumulator(shape: tuple[int, int], num_warps: int, rows_only: bool = False) -> LinearLayout:
    """The fp32/s32 accumulator of mma.sync over num_warps warps; warps without a part hold copies.

    Every warp has a part of consecutive rows and columns. Registers walk a fragment, then the part's columns, then
    its rows, 16 at a time. Raises ValueError for a tile smaller than a fragment."""
    m, n = shape
    if m < 16 or n < 8:
        raise ValueError(f"an accumulator of {m}x{n} is smaller than the 16x8 of mma.sync")
    down, across = warp_grid(m, n, num_warps, rows_only)
    rows, columns = m // down, n // across
    registers = [(0, 1), (8, 0), *_steps(1, 8, columns), *_steps(0, 16, rows)]
    warps = [*_steps(0, rows, m), *_steps(1, columns, n)]
    warps += [(0, 0)] * ((num_warps // (down * across)).bit_length() - 1)
    return LinearLayout.from_bases({"register": registers, "lane": QUADS, "warp": warps}, shape)


def mma_operand(accumulator: LinearLayout, index: int, k: int, elem_bytes: int) -> LinearLayout:
    """The operand A [M, k] (index 0) or B [k, N] (index 1) of the product whose accumulator has this layout.

    Warps that share rows hold copies of A, those that share columns copies of B. A in 16 bits is the layout of an
    accumulator whose warps split rows only, so such a result feeds the next product without moving."""
    pack = 4 // elem_bytes
    outer = 8 if index else 16                # rows or columns of a fragment
    keep = 1 if index else 0                  # the dimension that the operand shares with the accumulator

    def at(basis: tuple[int, ...]) -> tuple[int, int]:
        return (0, basis[1]) if index else (basis[0], 0)

    along = 1 - keep
    registers = [*_steps(along, 1, pack)]
    if index == 0:
        registers.append((8, 0))
    steps = _steps(along, 4 * pack, k)
    kept = [b for b in accumulator.bases_of("register") if b[keep] >= outer]
    first = index                             # B: two neighbours in N make four matrices of one k step
    registers += [*steps[:1], *kept[:first], *steps[1:], *kept[first:]]  # type: ignore[list-item]
    lanes = [_unit(along, pack), _unit(along, 2 * pack), *(_unit(keep, 1 << i) for i in range(3))]
    warps = [at(b) for b in accumulator.bases_of("warp")]
    shape = (k, accumulator.shape[1]) if index else (accumulator.shape[0], k)
    return LinearLayout.from_bases({"register": registers, "lane": lanes, "warp": warps}, shape)


def _unit(dim: int, value: int) -> tuple[int, int]:
    return (value, 0) if dim == 0 else (0, value)


def _steps(dim: int, first: int, end: int) -> list[tuple[int, int]]:
    """first, 2 first, .. below end, along a dimension."""
    out = []
    while first < end:
        out.append(_unit(dim, first))
        first *= 2
    return out
