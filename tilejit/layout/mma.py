"""The layouts of mma.sync: accumulators of m16n8 fragments over warps, and the operands that go with them."""
from __future__ import annotations

from tilejit.layout.linear import Basis, LinearLayout
from tilejit.layout.named import QUADS


def warp_grid(m: int, n: int, num_warps: int, rows_only: bool = False) -> tuple[int, int]:
    """How many warps split the rows, and the columns, of an m x n accumulator."""
    found = []
    down = 1
    while down <= max(1, min(num_warps, m // 16)):
        across = max(1, min(num_warps // down, n // 8))
        found.append((down, across))
        down *= 2
    if rows_only:
        return found[-1]
    return min(found, key=lambda g: (-g[0] * g[1], m // g[0] + n // g[1], -g[0]))


def mma_accumulator(shape: tuple[int, ...], num_warps: int, rows_only: bool = False) -> LinearLayout:
    """The fp32/s32/fp64 accumulator [.., M, N]; warps without a part hold copies."""
    *batch, m, n = shape
    assert len(batch) < 2, shape
    count = batch[0] if batch else 1
    apart = min(count, num_warps)
    down, across = warp_grid(m, n, num_warps // apart, rows_only)
    rows, columns = m // down, n // across
    registers = [*_steps(1, 1, min(2, n)), *_steps(0, 8, min(16, rows)), *_steps(1, 8, columns), *_steps(0, 16, rows)]
    lanes = [(x % m, y % n) for x, y in QUADS]
    warps = [*_steps(0, rows, m), *_steps(1, columns, n)]
    idle = [(0, 0)] * ((num_warps // (apart * down * across)).bit_length() - 1)

    def ahead(bases: list[tuple[int, int]]) -> list[Basis]:
        return [(*(0 for _ in batch), *b) for b in bases]

    each = count // apart
    return LinearLayout.from_bases(
        {"register": [*ahead(registers), *((1 << i, 0, 0) for i in range(each.bit_length() - 1))],
         "lane": ahead(lanes),
         "warp": [*ahead(warps), *((each << i, 0, 0) for i in range(apart.bit_length() - 1)), *ahead(idle)]}, shape)


def mma_operand(accumulator: LinearLayout, index: int, k: int, elem_bytes: int) -> LinearLayout:
    """An operand of the product with this accumulator (docs/modules.md)."""
    pack = max(1, 4 // elem_bytes)
    outer = 8 if index else 16  # rows or columns of a fragment
    rank = accumulator.rank
    keep = rank - 1 if index else rank - 2  # the dimension that the operand shares with the accumulator
    along = rank - 2 if index else rank - 1
    size = accumulator.shape[keep]

    def at(basis: Basis) -> Basis:
        return tuple(0 if d == along else x for d, x in enumerate(basis))

    def steps(dim: int, first: int, end: int) -> list[Basis]:
        return [tuple(s[0] if d == dim else 0 for d in range(rank)) for s in _steps(0, first, end)]

    registers = steps(along, 1, pack)
    if index == 0:
        registers += [b for b in accumulator.bases_of("register") if b == steps(keep, 8, 16)[0]]
    more = steps(along, 4 * pack, k)
    kept = [b for b in accumulator.bases_of("register") if b[keep] >= outer]
    first = index  # B: two neighbours in N make four matrices of one k step
    registers += [*more[:1], *kept[:first], *more[1:], *kept[first:]]
    registers += [b for b in accumulator.bases_of("register") if any(b[:-2])]
    lanes = [*steps(along, pack, 4 * pack), *(tuple(x % size for x in b) for b in steps(keep, 1, 8))]
    warps = [at(b) for b in accumulator.bases_of("warp")]
    shape = tuple(k if d == along else s for d, s in enumerate(accumulator.shape))
    return LinearLayout.from_bases({"register": registers, "lane": lanes, "warp": warps}, shape)


def _unit(dim: int, value: int) -> tuple[int, int]:
    return (value, 0) if dim == 0 else (0, value)


def _steps(dim: int, first: int, end: int) -> list[tuple[int, int]]:
    out = []
    while first < end:
        out.append(_unit(dim, first))
        first *= 2
    return out
