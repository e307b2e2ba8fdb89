"""Layouts of tiles over the CTAs of a cluster: the last warp bits are the CTA's index."""
from __future__ import annotations

from functools import lru_cache

from tilejit.layout.linear import Basis, LinearLayout

#: Dimensions, how many CTAs divide each, and from which bit on a CTA's index says what it has.
Cuts = tuple[tuple[int, int, int], ...]


def cta_bases(layout: LinearLayout, ctas: int) -> tuple[Basis, ...]:
    bits = ctas.bit_length() - 1
    return layout.bases_of("warp")[-bits:] if bits else ()


def within(layout: LinearLayout, ctas: int) -> LinearLayout:
    bits = ctas.bit_length() - 1
    return LinearLayout(tuple((n, row[:len(row) - bits] if n == "warp" else row) for n, row in layout.bases),
                        layout.shape)


def copies(rank: int, ctas: int) -> tuple[Basis, ...]:
    return ((0,) * rank,) * (ctas.bit_length() - 1)


def strip(size: int, ctas: int) -> int:
    """Elements side by side that a CTA holds along a divided dimension."""
    return (size & -size) // ctas


def in_tile(at: int, size: int, ctas: int) -> int:
    side = strip(size, ctas)
    return at // side * side * ctas + at % side


def own(at: int, size: int, ctas: int) -> int:
    """The inverse of `in_tile`."""
    side = strip(size, ctas)
    return at // (side * ctas) * side + at % side


def alone(layout: LinearLayout, cuts: Cuts, ctas: int) -> LinearLayout:
    counts = counts_of(layout.rank, cuts)
    rows = {n: tuple(tuple(map(own, b, layout.shape, counts)) for b in row) for n, row in within(layout, ctas).bases}
    return LinearLayout.from_bases(rows, tuple(n // c for n, c in zip(layout.shape, counts)))


def parts_of(shape: tuple[int, ...], dim: int, ctas: int) -> tuple[Basis, ...]:
    bits = range(ctas.bit_length() - 1)
    return tuple(tuple((strip(n, ctas) << i) * (d == dim) for d, n in enumerate(shape)) for i in bits)


def strips_of(size: int, strip: int, ctas: int) -> tuple[Basis, ...]:
    assert size % (strip * ctas) == 0
    return tuple((strip << i,) for i in range(ctas.bit_length() - 1))


def strip_size(layout: LinearLayout, ctas: int) -> int | None:
    """Elements of the strips of a row that the CTAs take in turn (half of it, or each one's part: see `parts_of`); None
    if they divide it otherwise or not.
    """
    bases = cta_bases(layout, ctas)
    size = bases[0][0] if bases and layout.rank == 1 else 0
    return size if size and bases == strips_of(layout.shape[0], size, ctas) else None


@lru_cache(maxsize=1024)
def own_strips(layout: LinearLayout, ctas: int) -> LinearLayout:
    size = strip_size(layout, ctas)
    assert size is not None
    rows = {n: tuple((x % size + x // (size * ctas) * size,) for (x,) in row)
            for n, row in within(layout, ctas).bases}
    return LinearLayout.from_bases(rows, (layout.shape[0] // ctas,))


def beside(layout: LinearLayout, dim: int, ctas: int) -> LinearLayout:
    """A layout of one CTA's warps as that of a tile of which every CTA holds as much along a dimension."""
    shape = tuple(n * ctas if d == dim else n for d, n in enumerate(layout.shape))
    if strip(shape[dim], ctas) < 16:
        raise ValueError(f"{shape[dim]} columns do not divide over {ctas} CTAs in strips of at least 16")
    rows = [(n, tuple(tuple(in_tile(x, shape[d], ctas) if d == dim else x for d, x in enumerate(b)) for b in row))
            for n, row in layout.bases]
    parts = parts_of(shape, dim, ctas)
    return LinearLayout.from_bases({n: row + parts if n == "warp" else row for n, row in rows}, shape)


def in_each(layout: LinearLayout, ctas: int) -> LinearLayout:
    zeros = copies(layout.rank, ctas)
    return LinearLayout(tuple((n, row + zeros if n == "warp" else row) for n, row in layout.bases), layout.shape)


def cuts_of(split: str, ctas: int) -> Cuts:
    both = (0, ctas // 2, 0), (1, 2, ctas.bit_length() - 2)
    return {"M": ((0, ctas, 0),), "N": ((1, ctas, 0),)}.get(split, both)


def counts_of(rank: int, cuts: Cuts) -> list[int]:
    """Parts of each dimension."""
    return [next((n for at, n, _ in cuts if at == d), 1) for d in range(rank)]


def divided(layout: LinearLayout, ctas: int) -> Cuts:
    """Empty if they divide it otherwise or not."""
    both = cuts_of("MN", ctas)
    found: list[Cuts] = [((d, ctas, 0),) for d in range(layout.rank)]
    found += [both, tuple((1 - d, n, bit) for d, n, bit in both)] * (layout.rank == 2)
    return next((cuts for cuts in found if all(layout.shape[d] >= n for d, n, _ in cuts) and cta_bases(layout, ctas) ==
                 sum((parts_of(layout.shape, d, n) for d, n, _ in cuts), ())), ())


def rows_from_each(layout: LinearLayout, ctas: int) -> LinearLayout:
    """What becomes of a tile that every CTA holds whole when CTA i keeps the i-th part of its rows."""
    rows = layout.shape[0] // ctas
    cta = parts_of(layout.shape, 0, ctas)
    local = within(layout, ctas)
    registers = [b for b in local.bases_of("register") if b not in cta]
    warps = [b for b in local.bases_of("warp") if b not in cta]
    freed = len(local.bases_of("warp")) - len(warps)
    if rows < 1 or freed + local.in_bits("register") - len(registers) != len(cta):
        raise ValueError(f"{layout.shape[0]} rows do not divide over {ctas} CTAs without moving between lanes")
    for _ in range(freed):
        warps.append(registers.pop() if len(registers) > 2 else (0,) * layout.rank)
    return LinearLayout.from_bases({"register": registers, "lane": local.bases_of("lane"), "warp": (*warps, *cta)},
                                   layout.shape)
