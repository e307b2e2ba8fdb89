"""Which tiles compute a matrix product, and how its result is divided between launches: estimates, no measuring."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from tilejit import cdiv
from tilejit.kernels.copy import LINE
from tilejit.kernels.way import Part, Way


class Rates(NamedTuple):
    """Of a tile: `speed`: products in the loop over K, of the tensor cores' most; `ragged`: the same where rows of
    operands do not start with L2's lines (128 bytes) nor sectors (32 bytes), so that TMA reads two for one; `stored`:
    results stored in a cycle, as far as another tile's products do not hide it (all measured on an H200)."""

    speed: float = 1.0
    ragged: float = 1.0
    stored: int = 17


#: Of two equals the first is taken: the larger. Those of 4 warps are run by two groups of consumers in turn. Widths
#: between powers of two fill last waves; narrower ones read more for each product, which tells where rows are ragged.
#: Those whose CTAs divide columns have 256 rows a CTA, and read least, or 192, of three warpgroups, or 128, in turn.
RATES = {Way(128, 256, 8): Rates(1.0, 0.78), Way(256, 256, 8, 2): Rates(1.005, 0.96),
         Way(256, 224, 8, 2): Rates(1.0, 0.915, 13),
         **{Way(256, n, 8, 2, "N"): Rates(*rates)
            for n, *rates in ((384, 1.048, 0.97, 12), (352, 1.042, 0.95, 9), (320, 1.031, 0.964, 12),
                              (288, 1.023, 0.955, 11))},
         **{Way(192, n, 12, 2, "N"): Rates(*rates)
            for n, *rates in ((384, 1.02, 0.963, 15), (352, 1.018, 0.937, 11), (320, 1.007, 0.935, 14))},
         **{Way(128, n, 4, 2, "N"): Rates(*rates)
            for n, *rates in ((384, 0.988, 0.8, 17), (352, 0.992, 0.775, 15), (320, 0.982, 0.755, 17))},
         **{Way(256, n, 4, 2): Rates(*rates)
            for n, *rates in ((192, 0.987, 0.88), (176, 0.974, 0.845), (160, 0.97, 0.81))},
         Way(128, 192, 4): Rates(0.988, 0.66), Way(128, 160, 4): Rates(0.972, 0.59),
         Way(256, 208, 8, 2): Rates(1.0, 0.9, 12), Way(256, 192, 8, 2): Rates(1.0, 0.885),
         Way(256, 176, 8, 2): Rates(0.98, 0.855, 14), Way(256, 160, 8, 2): Rates(0.978, 0.815),
         Way(128, 192, 8): Rates(1.0, 0.7), Way(128, 160, 8): Rates(0.982, 0.65), Way(128, 128, 4): Rates(0.944, 0.61),
         Way(64, 256, 4): Rates(0.925, 0.61), Way(64, 128, 4): Rates(0.8, 0.42), Way(64, 64, 4): Rates(0.5, 0.3, 8),
         # Of `fused_matmul`: by two warpgroups at once, slower in the loop than by two in turn.
         Way(128, 128, 8): Rates(0.905, 0.61, 20)}
TILES = tuple(RATES)[:-1]
_USUAL = Rates()
#: Those whose last waves may be shared out.
STREAMED = TILES[1]
#: Those for chips without clusters and wgmma: of a single CTA, and as wide as fragments of mma.sync spread over warps.
SINGLE_TILES = tuple(t for t in TILES if t.ctas == 1 and t.n & t.n - 1 == 0)


def suited(tiles: tuple[Way, ...], side_by_side: bool, ragged: float, ended: int | None,
           scaled: bool = False) -> tuple[Way, ...]:
    """Tiles for a second operand whose columns lie side by side in memory (or not), so that they are read in whole
    lines; and with registers for a bias or an activation of (scaled) results of `ended` bytes (None: without those)."""
    strip = (64 if ragged else 32) if side_by_side else 0
    return tuple(t for t in tiles if t.strip >= strip and (ended is None or t.roomy(ended, scaled)))


#: Cycles by which one more launch delays the end, and by which a cluster's start does.
LAUNCH, CLUSTER = 4000, 1000
#: Cycles until a tile that is stored is there.
ROUND_TRIP = 1000
#: Results in a cycle that "gelu" is computed for; and what is left of its time where products of another tile hide it.
ACTIVATED, HIDDEN = 14, 0.4
#: Results are divided where at least this share of the time is lost to a last wave that is not full, and where at least
#: that share is gained for each launch more. Set by seven products of `benchmarks/matmul.py` on an H200, none held out:
#: six that are divided so gained 1.5 to 3%, the one that 1.5% would have divided as well (8192 cubed) lost 1.7%.
LOSS, GAIN = 0.03, 0.017
#: Cycles by which a launch takes longer whose programs hand parts of tiles on, beside two more tiles to store (six
#: products on an H200: 20000 to 35000).
STREAM = 26000
#: By how much the estimate for the transpose must be less: its stores cost up to 0.7% more where tiles are as many.
TURNED = 1.005
#: Cycles that a row of a strip of less than 64 columns costs where rows of the result are ragged: sectors are written
#: in parts (seven products on an H200: 0.3 to 1.3). Transposed tiles are stored in strips of 64, whatever their width.
STRIP = 0.6
#: What a last wave of few tiles takes of a full one's time: those that run have more of the memory and of the power.
LAST = 0.8
#: Bytes that L2 moves at least, and what rows cost that start with such but not with lines, of what others do that
#: start with no line (of 17 tiles at 3000x7000x2000 on an H200).
SECTOR, OF_SECTORS = 32, 0.27


def raggedness(pitch: int) -> float:
    """How ragged rows are that begin `pitch` bytes after one another: from 0 (all with a line of L2) to 1."""
    return 0.0 if pitch % LINE == 0 else OF_SECTORS if pitch % SECTOR == 0 else 1.0


@dataclass(frozen=True)
class Chip:
    """What an estimate needs to know: multiprocessors, blocks of K of the product, how ragged rows of the operands are
    (`raggedness`), whether columns are stored in rows of the result that are ragged at all, and whether an activation
    function of many instructions ends a tile."""

    multiprocessors: int
    blocks: int
    ragged: float = 0.0
    ragged_result: bool = False
    activated: bool = False

    def speed(self, t: Way) -> float:
        """Products in the loop over K, of the tensor cores' most."""
        rates = RATES.get(t.tile, _USUAL)
        return rates.speed + self.ragged * (rates.ragged - rates.speed)

    def tile(self, t: Way) -> float:
        """Cycles of the products of one tile: a block takes 1 per 32 results at full speed."""
        return self.blocks * t.m * t.n / t.ctas / 32 / self.speed(t)

    def cost(self, t: Way) -> Cost:
        """What such tiles take."""
        products = self.tile(t)
        return Cost(t, t.m, t.n, t.room(self.multiprocessors), products, products + self.store(t, False),
                    products + self.store(t, True), CLUSTER * (t.ctas > 1))

    def costs(self, tiles: tuple[Way, ...]) -> list[Cost]:
        """What each of these takes."""
        return [self.cost(t) for t in tiles]

    def cycles(self, t: Way, m: int, n: int, batches: int = 1) -> float:
        """Of so many m x n results."""
        return self.cost(t).cycles(m, n, batches)

    def store(self, t: Way, more: bool) -> float:
        """Cycles that storing a tile takes, of which another one's products hide some if there are `more`."""
        results, hidden = t.m * t.n / t.ctas, t.in_turn and more
        strips = STRIP / t.strip * (self.ragged_result and t.strip < 64)
        activation = self.activated * (HIDDEN if hidden else 1) / ACTIVATED
        return ROUND_TRIP * (not hidden) + results * (1 / RATES.get(t.tile, _USUAL).stored + strips + activation)

    def time(self, p: Part) -> float:
        """Cycles of a part of a result."""
        return self.cost(p.way).time(p.m1 - p.m0, p.n1 - p.n0, p.way.stream)

    def best(self, m: int, n: int, tiles: tuple[Way, ...], batches: int = 1) -> Way:
        """The tiles with the least time for so many m x n results."""
        return cheapest(self.costs(tiles), m, n, batches).way


class Cost(NamedTuple):
    """What m x n tiles take on a chip, in cycles: the products of one, those and its store, alone or with another
    tile's products behind it, and the start of a program. So many programs run at once."""

    way: Way
    m: int
    n: int
    programs: int
    products: float
    alone: float
    followed: float
    start: int

    def cycles(self, m: int, n: int, batches: int = 1) -> float:
        """Of so many m x n results. All programs run at once, in waves; storing a tile takes a round trip as well. The
        constants are fitted to launches of 40 shapes, those of `benchmarks/matmul.py` and others, on an H200."""
        programs = self.programs
        whole, rest = divmod(batches * -(-m // self.m) * -(-n // self.n), programs)
        if not rest:
            waves = float(whole)
        else:
            waves = whole + LAST + (1 - LAST) * rest / programs if whole else 1.0
        return waves * (self.followed if waves > 1 else self.alone) + self.start

    def shared(self, m: int, n: int) -> int:
        """Tiles of an m x n result to stream: a last wave that is not full, and the one before, so that no program has
        parts of more than two tiles, and none waits. 0 where there are no such waves."""
        waves, rest = divmod(-(-m // self.m) * -(-n // self.n), self.programs)
        return self.programs + rest if waves and rest else 0

    def time(self, m: int, n: int, stream: int) -> float:
        """Cycles of m x n results, of which so many tiles are streamed."""
        if not stream:
            return self.cycles(m, n)
        waves = -(-m // self.m) * -(-n // self.n) / self.programs
        return waves * self.products + (ceil(waves) + 1) * (self.followed - self.products) + self.start + STREAM


def cheapest(costs: Sequence[Cost], m: int, n: int, batches: int = 1) -> Cost:
    """The tiles with the least time for so many m x n results, the first of equals."""
    return min(costs, key=lambda c: c.cycles(m, n, batches))


def strips_of(costs: Sequence[Cost], m: int, n: int, rows: int, columns: int) -> Iterator[tuple[Part, float]]:
    """The parts beside and below the first rows and columns of an m x n result, and their cycles; no tile crosses an
    inner end."""
    if columns < n:
        beside = cheapest(costs if rows == m else [c for c in costs if rows % c.m == 0], rows, n - columns)
        yield Part(0, columns, rows, n, beside.way), beside.cycles(rows, n - columns)
    if rows < m:
        below = cheapest(costs, m - rows, n)
        yield Part(rows, 0, m, n, below.way), below.cycles(m - rows, n)


def choose_tiles(m: int, n: int, blocks: int, multiprocessors: int, ragged: float = 0.0,
                 tiles: tuple[Way, ...] = TILES, batches: int = 1) -> Way:
    """The tiles with the least estimated time for so many m x n results and `blocks` blocks of K, in one launch."""
    return Chip(multiprocessors, blocks, ragged).best(m, n, tiles, batches)


@lru_cache(maxsize=1024)
def divide_result(m: int, n: int, blocks: int, multiprocessors: int, ragged: float = 0.0,
                  tiles: tuple[Way, ...] = TILES, turned: tuple[Way, ...] = (),
                  ragged_result: bool = False, activated: bool = False) -> tuple[Part, ...]:
    """The parts in which an m x n result, or its transpose by the tiles of `turned`, is computed with the least
    estimated time, largest first. ragged, ragged_result: how rows of operands, and whether those of the result start
    elsewhere than with lines. activated: whether a function of many instructions ends a tile.

    Most often that is one part. Where its last wave would leave much of the chip idle, or its last tiles would hold a
    few rows or columns only, whole waves of large tiles are followed by strips of smaller ones, or the tiles of the
    last two waves are shared out evenly (of the tiles that read least)."""
    time, parts = _divided(Chip(multiprocessors, blocks, ragged, ragged_result, activated), m, n, tiles)
    if turned:
        other, transposed = _divided(Chip(multiprocessors, blocks, ragged, activated=activated), n, m, turned)
        if other * TURNED < time:
            return tuple(p._replace(way=replace(p.way, swap=True)) for p in transposed)
    return parts


def _divided(chip: Chip, m: int, n: int, tiles: tuple[Way, ...]) -> tuple[float, tuple[Part, ...]]:
    """The least time of all ways, more launches counted as `GAIN` says; and the parts."""
    costs = chip.costs(tiles)
    whole = cheapest(costs, m, n)
    best, least = (Part(0, 0, m, n, whole.way),), whole.cycles(m, n)
    result = chip.blocks / 32 / chip.multiprocessors              # cycles of one, of the tensor cores' most
    if m * n * result / chip.speed(whole.way) > (1 - LOSS) * least:
        return least, best
    result, quickest = result / max(map(chip.speed, tiles)), min(min(c.alone, c.followed) for c in costs)
    ways = []                                                      # with the least that each may take
    for i, c in enumerate(costs):
        for rows, columns in dict.fromkeys(mains(m, n, c.way, c.programs)):
            strips = (columns < n) + (rows < m)
            left = max((m * n - rows * columns) * result, strips * quickest)
            for stream in {0, c.shared(rows, columns) if c.way is STREAMED else 0}:
                first, more = c.time(rows, columns, stream), 1 - GAIN * (strips + (stream > 0))
                ways.append(((first + left + strips * LAUNCH) / more, i, rows, columns, stream, first, more))
    for lower, i, rows, columns, stream, first, more in sorted(ways):
        if lower >= least:
            break
        rest = list(strips_of(costs, m, n, rows, columns))
        time = first + sum(cycles + LAUNCH for _, cycles in rest)
        if time < more * least:
            way = replace(tiles[i], stream=stream, programs=costs[i].programs) if stream else tiles[i]
            best, least = (Part(0, 0, rows, columns, way), *(part for part, _ in rest)), time / more
    return least, best


def mains(m: int, n: int, t: Way, programs: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of first parts made of whole tiles: all that fit, or as many rows or columns of tiles as fill
    whole waves."""
    for rows in {m, m // t.m * t.m} - {0}:
        for columns in {n, n // t.n * t.n} - {0}:
            high, wide = cdiv(rows, t.m), cdiv(columns, t.n)
            places = high * wide // programs * programs
            yield rows, columns
            if places >= wide:
                yield min(rows, places // wide * t.m), columns
            if places >= high:
                yield rows, min(columns, places // high * t.n)
