"""How a product is computed whose tiles alone do not fill the chip: tile, programs, and what is divided between them.

Estimates, no measuring. `streamk.py` has the ways."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels.tiles import raggedness
from tilejit.kernels.way import Way, at_once, evenly

#: Tile rows of a group: a wave's operands stay in L2.
GROUP = 8
#: Tiles for results of more than 64 rows.
TILES = (Way(128, 256, 8), Way(128, 128, 8), Way(64, 128, 4), Way(64, 64, 4))
#: Those of even parts of K: what fits the result.
EVEN_TILES = (Way(128, 256, 8), Way(128, 128, 4), Way(256, 256, 8, ctas=2, split="M"),
              Way(256, 128, 8, ctas=2, split="M"), Way(128, 192, 8), Way(128, 160, 8),
              *(Way(128, width, 8, swap=True) for width in (256, 192, 160)), Way(64, 128, 4), Way(64, 64, 4))
#: Those that every program has one of, beside those that are as wide as few rows or columns (`all_at_once`).
_SQUARES = (Way(128, 128, 4), Way(128, 64, 4), Way(64, 128, 4), Way(64, 64, 4))
#: Tiles for at most so many rows: C^T = B^T A^T, so that the rows are the small side of the product.
DECODED = 64
DECODE_TILES = tuple(Way(m, n, 4, swap=True, k_bytes=k_bytes)
                     for n in (16, 32, 64) for m, k_bytes in ((128, 128), (64, 256)))
#: Share of the multiprocessors that are idle from which on a launch does not begin while the one before it ends: its
#: programs would get the multiprocessors that are free first, not those that share memory's bandwidth evenly (measured
#: on an H200: 7% of the bandwidth for 112 programs on 132, at 128 to 132 programs it is the other way round).
IDLE = 0.1
#: Rows up to which clusters may divide K, and an estimate asks how evenly programs share memory, of which the other
#: operand takes most.
FEW = 128
#: Rows or columns up to which tiles may be as wide as all of them, the half or the third (`wide_tiles`).
SHALLOW = 512
#: How much longer memory takes where half as many are idle; and what an operand takes that every program reads again,
#: from L2, of the time of as many bytes from memory.
_UNEVEN, _AGAIN = 1.04, 0.08
#: A run of blocks shorter than this costs more to hand over than to compute.
LEAST_BLOCKS = 4
#: Blocks in shared memory at least, beside what CTAs exchange: with two a cluster took 1.6 times as long as expected.
_LEAST_SLOTS = 4
#: Bytes a cycle that a multiprocessor gets from L2 and from memory, and with half of it by multicast, and its share of
#: what memory gives to all.
_FROM_L2, _FROM_MEMORY, _FROM_PAIR, SHARE = 48, 36, 56, 17
#: Whole tiles, and even parts, of more than `DECODED` rows: what a block takes at least; products of the tensor cores'
#: most; bytes a cycle and multiprocessor from L2 and from memory; bytes a cycle of a CTA whose loads come from its
#: neighbour as well; and the exponent of the sum of all those, as they hide each other in part. How much longer
#: products and L2 take where CTAs share columns and wait for each other. Cycles for a row outside of the matrix, which
#: TMA fills with zeros: where a tile has all of shared memory for its blocks, and where it shares it with another one.
_BLOCK, _SPEED, _L2, _MEMORY, _NEIGHBOUR, HIDING, _WAITING = 200, 0.91, 59, 16.75, 78, 4.3, 1.1
_OUTSIDE, _OUTSIDE_SHARED = 0.9, 3.2
#: Then a result of a tile; a second launch; and a result of each part, stored and summed. (All fitted to 669 launches
#: of 81 shapes on an H200: 5% off on average, and the choice takes 2.5% longer than the best.)
#: And what sums of the transpose's parts take longer, between nothing and four times that at eleven shapes.
_RESULT, SECOND, PARTED, _TURNED = 0.05, 3140, 0.334, 2500
#: How much longer a byte takes whose row begins anywhere, at most (`reads`).
_RAGGED = 0.7


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, elem_bytes: int, multiprocessors: int, split: int | None = None,
           ctas: int | None = None, strips: tuple[int, int] = (16, 16), hopper: bool = True,
           read: tuple[float, float] = (1.0, 1.0)) -> Way:
    """Tile, programs and streamed tiles for an m x n x k product; `split`: programs a tile, `ctas`: CTAs a program,
    instead of a choice. strips: what divides the rows and the columns of wide tiles (32 where they lie side by side in
    memory: TMA reads so many at a time). read: `reads` of the operands. hopper: else without clusters, and
    tiles are as wide as fragments of mma.sync spread over warps."""
    ctas = ctas if hopper or ctas is not None else 1
    ways = (t for t in _ways(m, n, k * elem_bytes, multiprocessors, split, ctas, strips)
            if hopper or t.n & t.n - 1 == 0)
    best = min(ways, key=lambda t: cycles(t, m, n, k * elem_bytes, multiprocessors, read))
    one = best.stream == 0 and best.tiles(m, n) <= best.programs
    return replace(best, single=one and (best.ctas == 1 or best.split == "N"))


def choose_for(shape: tuple[int, int, int], elem_bytes: int, rows_first: tuple[bool, bool], multiprocessors: int,
               split: int | None = None, ctas: int | None = None, read: tuple[float, float] = (1.0, 1.0)) -> Way:
    """`choose` for a [m, k] and b [k, n] of these orders, `shape` m, k, n, on the chip that kernels are made for."""
    m, k, n = shape
    return choose(m, n, k, elem_bytes, multiprocessors, split, ctas, strips(*rows_first), tilejit.chip() == "sm_90a",
                  read)


def reads(a: ArrayInfo, b: ArrayInfo) -> tuple[float, float]:
    """How much longer a byte of each operand takes to come where its lines do not begin with those of L2: rows of a
    block, 128 bytes, then lie in two of those."""
    ra, rb = (1 + _RAGGED * raggedness(max(x.strides) * x.dtype.bytes) for x in (a, b))
    return ra, rb


def undivided(t: Way, m: int, n: int, pitch: int, multiprocessors: int, alone: bool | None = None,
              read: tuple[float, float] = (1.0, 1.0)) -> float:
    """An estimate of what the tiles of an m x n product take that are not divided, in cycles of one multiprocessor.

    alone: whether a tile has all of shared memory for its blocks (None: not if a program takes several in turn)."""
    count = t.tiles(m, n)
    turns = tilejit.cdiv(count, t.programs)
    alone = t.warps > 4 or turns == 1 if alone is None else alone
    block = _block(t, min(count, t.programs), (m * read[0] + n * read[1]) / turns, multiprocessors, read)
    block += _outside(t, m, n) * t.k_bytes / 128 * (_OUTSIDE if alone else _OUTSIDE_SHARED)
    return turns * t.blocks(pitch) * block + t.m * t.n / t.ctas * _RESULT


def _block(t: Way, programs: int, rows: float, multiprocessors: int, read: tuple[float, float]) -> float:
    """Cycles of a block of K where so many programs run, which read so many rows of operands between them."""
    loaded, results = _edges(t, t.m, t.n, read) * t.k_bytes, t.m * t.n / t.ctas
    received = (t.m + t.n / t.ctas) * t.k_bytes if t.beside and t.split == "N" else 0
    waiting = _WAITING if t.beside and t.split == "M" else 1
    return sum(x ** HIDING for x in (
        _BLOCK, waiting * results / 32 / _SPEED * t.k_bytes / 128, received / _NEIGHBOUR,
        waiting * loaded * programs / (_L2 * multiprocessors),
        rows * t.k_bytes / (_MEMORY * multiprocessors))) ** (1 / HIDING)


def _edges(t: Way, high: float, wide: float, read: tuple[float, float]) -> float:
    """So many rows of a tile's first operand and of its second one, as rows that begin with lines."""
    first, second = read[::-1] if t.swap else read
    return high * first + wide * second


def _outside(t: Way, m: int, n: int) -> int:
    """Rows of a last tile that lie outside of the matrix, on the side that has fewer."""
    rows, columns = (n, m) if t.swap else (m, n)
    return -rows % t.m if rows < columns else -columns % t.n


def cycles(t: Way, m: int, n: int, pitch: int, multiprocessors: int,
           read: tuple[float, float] = (1.0, 1.0)) -> float:
    """An estimate of what an m x n product with `pitch` bytes in a row of K takes, in cycles of one multiprocessor
    (constants measured on an H200). read: `reads` of the operands.

    Whole tiles and even parts of more than `DECODED` rows: the blocks that a program takes, as `_block` says; parts are
    stored, and read by a second launch. Others: blocks that are as long as their products or their bytes, at least as
    long as memory takes for all operands (with few rows: for each turn, in which fewer programs may run), plus what
    handing over parts costs: 1.5 cycles an element where they meet in flight; or 16 bytes a cycle between the CTAs of a
    cluster and two round trips; one where CTAs share an operand."""
    if t.stream == 0 and t.k_ctas == 1 and m > DECODED:
        return undivided(t, m, n, pitch, multiprocessors, read=read)
    if t.parts and m > DECODED:
        rows = (m * read[0] + n * read[1]) * t.parts
        block = _block(t, t.programs, rows, multiprocessors, read) + _outside(t, m, n) * _OUTSIDE
        meet = SECOND + PARTED * t.m * t.n * t.programs / multiprocessors + _TURNED * t.swap
        return tilejit.cdiv(t.blocks(pitch), t.parts) * block + meet
    count, steps = t.tiles(m, n), t.blocks(pitch)
    area, edges = t.m * t.n, _edges(t, t.m, t.n, read)
    if t.beside:
        area, edges = area // t.ctas, _edges(t, t.m // t.ctas, t.n, read)
    few, shared = m <= FEW, t.swap and t.beside
    rate, idle = _FROM_MEMORY if few else _FROM_L2, t.programs * t.ctas / multiprocessors < 1 - IDLE / 2
    block = max(area / 32 * t.k_bytes / 128,
                _edges(t, t.m, t.n // t.ctas, read) * t.k_bytes / _FROM_PAIR if shared else edges * t.k_bytes / rate)

    memory = (m * read[0] + n * read[1]) * pitch / (SHARE * multiprocessors)
    wide, narrow = (t.m * read[1], t.n * read[0]) if t.swap else (t.n * read[1], t.m * read[0])
    least = memory * (1 + _AGAIN * narrow / wide * few)

    def turn(programs: int) -> float:
        taken = tilejit.cdiv(steps, t.k_ctas) * block
        weights = (wide + _AGAIN * narrow) * steps * t.k_bytes * programs / (SHARE * multiprocessors)
        return max(taken, weights * _UNEVEN if idle else weights) if few and programs else taken * (programs > 0)

    def turns(tiles: int) -> float:
        return tiles // t.programs * turn(t.programs) + turn(tiles % t.programs)

    if t.k_ctas > 1:
        waves, part = tilejit.cdiv(count, t.programs), t.m * t.n * 4 * (t.ctas - 1) / t.ctas
        # With few rows the loads of the next tile go on meanwhile.
        meet = 2000 + part / 16 + 300 * waves if t.swap else waves * (2000 + part / 16)
        return max(turns(count), least) + meet
    whole = tilejit.cdiv(count - t.stream, t.programs)
    parts = (t.stream > 0) + (t.stream % t.programs != 0 < whole)
    meet = 6000 + 0.2 * area if t.parts else 2000 * shared + parts * ((10000 if t.swap else 3000) + 1.5 * t.m * t.n)
    return max(t.stream / t.programs * steps * block + turns(count - t.stream), least) + meet


def _ways(m: int, n: int, pitch: int, multiprocessors: int, split: int | None, ctas: int | None,
          strips: tuple[int, int]) -> Iterator[Way]:
    """What there is to choose from; of those with equal estimates the first is taken."""
    tiles = TILES
    if m <= DECODED:
        width = next(t.n for t in DECODE_TILES if m <= t.n)
        tiles = tuple(t for t in DECODE_TILES if t.n == width)
    if split is None and ctas is None:
        yield from single_tiles(m, n, multiprocessors)
        if m > DECODED:
            yield from all_at_once(m, n, multiprocessors, strips)
    even_tiles = (*EVEN_TILES, *(t for t in wide_tiles(m, n, strips) if t.ctas == 1))
    for t in even_tiles if m > DECODED and split is None and ctas in (None, 1) else ():
        count = t.tiles(m, n)
        parts = min(at_once(t.ctas, multiprocessors) // count, t.blocks(pitch) // LEAST_BLOCKS)
        if parts > 1 and (ctas is None or t.ctas == ctas):
            yield replace(t, programs=count * parts, stream=count)
    for t in tiles:
        count, even, steps = t.tiles(m, n), evenly if t.swap else min, t.blocks(pitch)
        for c in (2, 4, 8)[:3 * (m <= FEW)] if ctas is None and split is None else (ctas or 1,):
            most, by_k = at_once(c, multiprocessors), replace(t, ctas=c, split="K")
            if c > 1 and (ctas is not None or most and c <= steps and (by_k.depth(2) or 0) >= _LEAST_SLOTS):
                yield replace(by_k, programs=even(count, max(1, most)))
        for s in () if ctas not in (None, 1) else (1, None) if split is None else (split,):
            programs, stream = divide(count, steps, multiprocessors, s)
            yield replace(t, programs=programs if stream else even(count, programs), stream=stream)


def single_tiles(m: int, n: int, multiprocessors: int) -> Iterator[Way]:
    """Tiles of all rows, at most 128, one a program; none where they would be too narrow or too wide.

    As wide as it takes for one a multiprocessor, unless more than 32 rows would lie outside of the matrix (TMA takes
    longer for those). Or, of 33 to 64 rows, swapped, 128 wide, of two CTAs that have half of the rows each and share
    the rest."""
    rows, width = (64 if m <= 64 else 128), tilejit.cdiv(tilejit.cdiv(n, multiprocessors), 16) * 16
    if rows - 32 <= m <= rows and 48 <= width <= 256:
        yield Way(rows, width, rows // 16, programs=tilejit.cdiv(n, width), k_bytes=256 if rows == 64 else 128)
    pairs = tilejit.cdiv(n, 128)
    if 32 < m <= DECODED and pairs <= at_once(2, multiprocessors):
        yield Way(128, DECODED, 4, 2, "N", True, 256, pairs)


def wide_tiles(m: int, n: int, strips: tuple[int, int] = (16, 16)) -> Iterator[Way]:
    """Tiles for an m x n result of few rows or few columns: as wide as all of those, or the half or the third; of one
    CTA, or of two that divide them and share the others."""
    for few, swap, strip in ((m, True, strips[0]), (n, False, strips[1])):
        least = tilejit.cdiv(few, 256)
        for wide in range(least, least + 2) if few <= SHALLOW else ():
            side = tilejit.cdiv(tilejit.cdiv(few, wide), strip) * strip
            if wide > least and side < DECODED:
                break
            pair = tilejit.cdiv(side, 2 * strip) * 2 * strip
            yield Way(64, side, 4, swap=swap)
            yield Way(128, side, 8 if side > 128 else 4, swap=swap)
            if pair <= 256:
                yield Way(128, pair, 4, 2, "N", swap)


def all_at_once(m: int, n: int, multiprocessors: int, strips: tuple[int, int] = (16, 16)) -> Iterator[Way]:
    """Tiles of an m x n result with few rows or columns of which every program has one: wide ones, and square ones."""
    for t in (*wide_tiles(m, n, strips), *(_SQUARES if min(m, n) <= SHALLOW else ())):
        programs = t.tiles(m, n)
        if programs <= at_once(t.ctas, multiprocessors):
            yield replace(t, programs=programs)


def strips(a_rows: bool, b_rows: bool) -> tuple[int, int]:
    """The `strips` of `choose` for operands of these orders."""
    return 16 if a_rows else 32, 32 if b_rows else 16


def divide(tiles: int, steps: int, multiprocessors: int, split: int | None = None) -> tuple[int, int]:
    """(programs, streamed tiles) for `tiles` tiles of `steps` blocks each."""
    if split is not None:
        return (min(tiles, multiprocessors), 0) if split <= 1 else (tiles * min(split, steps), tiles)
    if tiles >= multiprocessors:
        rest = tiles % multiprocessors
        if rest == 0 or rest >= 0.9 * multiprocessors:
            return multiprocessors, 0
        return multiprocessors, min(tiles, rest + multiprocessors)
    most = max(tiles, min(multiprocessors, tiles * steps // LEAST_BLOCKS))
    even = most // tiles * tiles
    if even >= 0.9 * most:                # every program has one part of one tile
        return even, tiles if even > tiles else 0
    return most, tiles
