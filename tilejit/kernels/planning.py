"""How a product is computed: every way that there is, an estimate of each, and the least of them.

    print(tilejit.kernels.plan(a, b))

Most often one launch computes the result. Where few tiles leave multiprocessors idle, K is divided between CTAs or
programs; where a last wave of tiles would, whole waves of large tiles are followed by strips of smaller ones.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import ceil, inf
from typing import Any

import numpy as np

from tilejit.kernels.chip import Chip
from tilejit.kernels.estimate import Table, estimate, grids
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import LEAST_BLOCKS, Part, Way

#: Blocks in shared memory at least, beside what CTAs exchange that divide K.
_LEAST_SLOTS = 4
#: Rows or columns up to which tiles of few of them, and CTAs that divide K, are looked at.
FEW = 128
#: By how much a division of the result between launches must be faster than one launch.
_GAIN = 1.015
#: The share of the last waves that is empty from which on divisions are looked at.
_LOSS = 0.03
#: Tiles that a division begins with: those that take at most so much longer alone.
_NEAR = 1.15
#: First parts of a division that strips are looked for.
_FIRSTS = 4
#: Ways that a printed plan shows.
_SHOWN = 12

#: Tiles of one CTA, or of two that divide rows or columns. Those of 4 warps are taken by two groups of consumers in
#: turn. Widths between powers of two fill last waves. Those whose CTAs divide columns have 256 rows a CTA, and read
#: least, or 192, of three warpgroups, or 128, in turn.
LARGE = (Way(128, 256, 8), Way(256, 256, 8, 2), Way(256, 224, 8, 2),
         *(Way(256, n, 8, 2, "N") for n in (384, 352, 320, 288)), *(Way(192, n, 12, 2, "N") for n in (384, 352, 320)),
         *(Way(128, n, 4, 2, "N") for n in (384, 352, 320)), *(Way(256, n, 4, 2) for n in (192, 176, 160)),
         Way(128, 192, 4), Way(128, 160, 4), *(Way(256, n, 8, 2) for n in (208, 192, 176, 160)), Way(128, 192, 8),
         Way(128, 160, 8), Way(256, 128, 8, 2))
#: Tiles as wide as few rows or columns, and small ones; and those in long blocks of K.
SMALL = (*(Way(64, n, 4) for n in (*range(16, 144, 16), 160, 192, 224, 256)),
         *(Way(128, n, 4) for n in range(16, 144, 16)),
         *(Way(128, n, 8) for n in (128, 144, 176, 208, 224)), *(Way(128, n, 4, 2, "N") for n in range(32, 288, 32)))
LONG = tuple(Way(64, n, 4, k_bytes=256) for n in (16, 32, 48, 64, 80, 96, 112, 128))
#: Tiles whose K the CTAs of a program divide.
BY_K = tuple(Way(m, n, 4, ctas, "K", k_bytes=k) for n in (16, 32, 64, 128) for m, k in ((128, 128), (64, 256))
             for ctas in (2, 4, 8))
#: All of those.
ALL = Table((*LARGE, *SMALL, *LONG, *BY_K))
#: Tiles for operands that TMA does not read, which consumers copy in small pieces: where memory is the limit, two
#: programs a multiprocessor wait for it in turn.
POINTED = (*(Way(64, n, 4, together=2) for n in (16, 32)), *(Way(128, n, 8, together=2) for n in (16, 32, 48)),
           Way(128, 64, 8), Way(128, 128, 8))
#: Those where TMA reads one of the operands: a role of its own does, to which programs of two warpgroups hand
#: registers, so that they cannot share a multiprocessor.
HALF_POINTED = (*(Way(64, n, 4, together=2) for n in (16, 32)), *(Way(128, n, 8) for n in (32, 64, 128)))


#: Tiles whose sums are promoted, first those of few rows. Clusters divide the rows and share B. A warpgroup has sums of
#: 64 x 128 results, and of two each has a product in flight beside the one that it adds to them; of three one adds
#: while the others multiply.
PROMOTED = (*(Way(m, n, 4, swap=True) for n in (16, 32) for m in (64, 128)), Way(384, 128, 12, 2), Way(256, 128, 8, 2),
            Way(192, 128, 12), Way(128, 128, 8), Way(64, 128, 4), Way(64, 64, 4))
#: Tiles of weights that are widened, transposed, in blocks of as many elements of K as scales have at least.
WIDENED = {bk: (*(Way(m, n, 4, swap=True, k_bytes=2 * bk, together=t)
                  for m, t in ((128, 2), (64, 3)) for n in (16, 32)),
                *(Way(128, n, 8, swap=True, k_bytes=2 * bk) for n in (64, 128)),
                *(Way(128, n, 8, swap=True) for n in (160, 192, 256))) for bk in (64, 128)}
#: Tiles of groups of rows: of few of them transposed.
GROUPED = {step: (*tiles, *(Way(128, n, 4, swap=True) for n in (16, 32, 64))) for step, tiles in (
    ("accumulate", (Way(128, 256, 8), Way(64, 256, 8), *(Way(128, n, 4) for n in (192, 160, 128)))),
    ("promote", (Way(128, 128, 8), Way(64, 128, 4))))}


#: Bytes of K up to which it is one block, no longer than K must be, whose operands threads read straight, whatever
#: their lines; and the tiles for such blocks, by their bytes of K and whether threads read both operands (else there is
#: a role that loads by TMA, to which two warpgroups hand registers).
SHORT = 128
BRIEF = {(k, alone): tuple(Way(m, n, warps, k_bytes=k, together=t if alone or warps == 4 else 1) for m, n, warps, t in (
    (64, 16, 4, 4), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 8, 2), (128, 128, 8, 1)))
    for k in (32, 64, SHORT) for alone in (True, False)}


@dataclass(frozen=True)
class Plan:
    """How a product is computed: parts of its result, each by a way, and what that is estimated to take."""

    parts: tuple[Part, ...]
    ns: float


@lru_cache(maxsize=256)
def table(tiles: Table, turned: bool, hopper: bool, a_rows: bool, b_rows: bool, ended: int | None,
          ended_swapped: int | None, scaled: bool) -> Table:
    """Those of the tiles that there are for operands of these orders, straight and (`turned`) swapped too. Second
    operands that lie side by side are read in strips of 32 columns at least. ended, ended_swapped: bytes of results
    with a bias or an activation (None: without those), which find registers beside the sums."""
    found = []
    for w in tiles.ways:
        if not hopper and (w.ctas > 1 or w.n & w.n - 1 or w.k_bytes > 128):
            continue
        if w.k_ctas > 1 and (w.depth(2) or 0) < _LEAST_SLOTS:
            continue
        for swap, beside, size in ((False, b_rows, ended), (True, not a_rows, ended_swapped))[:1 + (turned and hopper)]:
            if not (beside and w.strip < 32 or size is not None and not w.roomy(size, scaled)):
                found.append(replace(w, swap=swap))
    return Table(tuple(found))


@lru_cache(maxsize=4096)
def best(problem: Problem, chip: Chip, tiles: tuple[Way, ...], hopper: bool = True,
         turned: bool = False) -> tuple[Way, float]:
    """The one of these tiles, undivided, straight or (`turned`) swapped, with the least estimated time, of those that
    there are for a problem; and that time."""
    there = ways_of(problem, hopper, _table(tiles), turned)
    times = estimate(problem, there, chip)
    return there.ways[int(times.argmin())], float(times.min())


@lru_cache(maxsize=256)
def _table(ways: tuple[Way, ...]) -> Table:
    return Table(ways)


def ways_of(problem: Problem, hopper: bool = True, tiles: Table = ALL, turned: bool = True) -> Table:
    """Those of the tiles that there are for a problem."""
    p = problem
    if p.grouped:
        return _table(GROUPED[p.step])
    if p.step != "accumulate":
        return _table(PROMOTED if p.step == "promote" else WIDENED[64 if p.group % 128 else 128])
    if any(p.units):
        if p.k_bytes <= SHORT:
            return _turned(BRIEF[next(k for k, _ in BRIEF if p.k_bytes <= k), all(p.units)])
        return _turned(POINTED if all(p.units) else HALF_POINTED)
    ended = p.out_bytes if p.ended else None
    # Of the transpose a bias has a value a row, which takes few registers (beside scales ptxas takes more).
    swapped = None if ended is None else 4 if p.scaled else 2
    return table(tiles, turned, hopper, p.a_rows, p.b_rows, ended, swapped, p.scaled)


@lru_cache(maxsize=16)
def _turned(tiles: tuple[Way, ...]) -> Table:
    return Table(tuple(replace(w, swap=swap) for w in tiles for swap in (False, True)))


def brief(problem: Problem, chip: Chip) -> bool:
    """Whether threads may read operands of any lines: one block of K, and one wave of tiles (what takes the time of
    more is the results)."""
    return problem.k_bytes <= SHORT and problem.m * problem.n <= 128 * 128 * chip.multiprocessors


def parts_of(problem: Problem, tiles: Table, chip: Chip) -> Any:
    """Programs of one CTA that divide K of each tile evenly, as many as run at once. (Those of pairs took longer at
    three products: 512x512x65536 on an H200 75 us by 256x128w8-c2M-parts8, 51 by 128x128w8-parts8.)"""
    f = tiles.columns
    down, across = grids(problem, tiles)
    most = np.minimum(tiles.rates(chip)["room"] / (down * across),
                      np.ceil(problem.k_bytes / f["k_bytes"]) * (1 / LEAST_BLOCKS))
    return np.maximum(np.floor(np.where(f["ctas"] > 1, 1.0, most)), 1.0)


def considered(problem: Problem, chip: Chip, hopper: bool = True,
               split: int | None = None) -> tuple[tuple[Way, ...], Any, Any]:
    """Tiles, the parts of K of each, and what they take: first of all whole tiles, then of those that are divided; or
    of `split` parts, as far as there are blocks."""
    tiles = ways_of(problem, hopper)
    if split is not None:
        parts = np.minimum(split, -(-max(1, problem.k_bytes) // tiles.columns["k_bytes"]))
        return tiles.ways, parts, estimate(problem, tiles, chip, parts=parts)
    once = tiles.rates(chip)["once"]
    parts = parts_of(problem, tiles, chip) if problem.batches == 1 and not problem.grouped else once
    if parts[parts.argmax()] == 1:
        return tiles.ways, once, estimate(problem, tiles, chip, parts=once)
    both = np.empty((2, len(once)))
    both[0], both[1] = 1, parts
    times = estimate(problem, tiles, chip, parts=both)
    times[1, parts == 1] = np.inf
    return tiles.ways * 2, both.ravel(), times.ravel()


def settled(problem: Problem, way: Way, parts: int, chip: Chip) -> Way:
    """The way with its programs."""
    if parts > 1:
        return way.divided(problem.m, problem.n, parts)
    if problem.grouped:
        return way
    count = problem.batches * way.tiles(problem.m, problem.n)
    one = count <= way.room(chip.multiprocessors) and way.warps == 4 and (way.ctas == 1 or way.columns)
    return way.once if one else way


def ordered(problem: Problem, chip: Chip, hopper: bool = True, split: int | None = None,
            ctas: int | None = None) -> Iterator[tuple[Way, float]]:
    """Ways of one launch with what they take, the likeliest first; with `split` programs a tile, or so many CTAs that
    divide K (None: any)."""
    tiles, parts, times = considered(problem, chip, hopper, split)
    for i in np.argsort(times, kind="stable"):
        if tiles[i].k_ctas == (ctas or tiles[i].k_ctas):
            yield settled(problem, tiles[i], int(parts[i]), chip), float(times[i])


def alone(problem: Problem, way: Way, ns: float) -> Plan:
    """The plan of one launch."""
    return Plan((Part(0, 0, *way.computed(problem.m, problem.n), way),), ns)


@lru_cache(maxsize=4096)
def choose(problem: Problem, chip: Chip, hopper: bool = True) -> Plan:
    """The plan with the least estimated time."""
    p, (tiles, parts, times) = problem, considered(problem, chip, hopper)
    i, ns = int(times.argmin()), float(times.min())          # the first that `ordered` has, without an order
    way = settled(p, tiles[i], int(parts[i]), chip)
    whole = alone(p, way, ns)
    waves = way.tiles(p.m, p.n) / way.room(chip.multiprocessors)
    full = ceil(waves) < (1 + _LOSS) * waves
    if way.parts or way.k_ctas > 1 or not hopper or p.batches > 1 or waves <= 1 or full or any(p.units):
        return whole
    return divided(p, chip, ns / _GAIN) or whole


def divided(problem: Problem, chip: Chip, least: float) -> Plan | None:
    """The best division of the result between launches: whole tiles, or whole waves of them, and strips beside and
    below of other tiles; None where nothing takes less than `least`."""
    tiles = _undivided(ways_of(problem))
    alone = estimate(problem, tiles, chip)
    if _without_loss(problem, tiles, alone, chip) >= least:
        return None
    mains = tiles.take(np.flatnonzero(alone < _NEAR * alone.min()).tolist(), chip)
    swapped = mains.columns["swap"]
    rows, columns, taken = _mains(np.where(swapped, problem.n, problem.m), np.where(swapped, problem.m, problem.n),
                                  mains, chip)
    times = np.where(taken, estimate(problem, mains, chip, rows, columns), np.inf)
    best: Plan | None = None
    for swap in (False, True):
        high, wide = (problem.n, problem.m) if swap else (problem.m, problem.n)
        firsts: dict[Part, float] = {}
        mine = np.where(swapped == swap, times, np.inf)
        for j in np.argsort(mine, axis=None):
            place = np.unravel_index(j, mine.shape)
            if len(firsts) == _FIRSTS or mine[place] + chip.second >= least:
                break
            firsts.setdefault(Part(0, 0, int(rows[place]), int(columns[place]), mains.ways[place[1]]),
                              float(mine[place]))
        for parts, time in _with_strips(problem, tiles, swap, high, wide, firsts, chip):
            if time < least:
                least, best = time, Plan(parts, time)
    return best


@lru_cache(maxsize=256)
def _undivided(tiles: Table) -> Table:
    return Table(tuple(w for w in tiles.ways if w.k_ctas == 1 and w.n >= 64 and w.k_bytes == 128))


def _without_loss(problem: Problem, tiles: Table, alone: Any, chip: Chip) -> float:
    """What no division takes less than: two launches of the tiles that take the least if all waves of them are full."""
    down, across = grids(problem, tiles)
    waves = down * across / tiles.rates(chip)["room"]
    return chip.launch + chip.second + float(np.min((alone - chip.launch) * waves / np.ceil(waves)))


def _mains(high: Any, wide: Any, tiles: Table, chip: Chip) -> tuple[Any, Any, Any]:
    """Rows and columns of first parts made of whole tiles, [form, tile]: all that fit, or as many rows or columns of
    tiles as fill whole waves; and which of them there are, the whole result left out."""
    m, n, room = tiles.columns["m"], tiles.columns["n"], tiles.rates(chip)["room"]
    rows = np.stack([high, high, high // m * m, high // m * m])
    columns = np.stack([wide, wide // n * n, wide, wide // n * n])
    down, across = np.ceil(rows / m), np.ceil(columns / n)
    places = down * across // room * room
    filled = np.maximum(across, 1), np.maximum(down, 1)
    rows = np.concatenate([rows, np.minimum(rows, places // filled[0] * m), rows])
    columns = np.concatenate([columns, columns, np.minimum(columns, places // filled[1] * n)])
    taken = (rows > 0) & (columns > 0) & ~((rows == high) & (columns == wide))
    return np.maximum(rows, 1), np.maximum(columns, 1), taken


def _with_strips(problem: Problem, tiles: Table, swap: bool, high: int, wide: int, firsts: dict[Part, float],
                 chip: Chip) -> Iterator[tuple[tuple[Part, ...], float]]:
    """First parts with the best parts beside and below them, and what all take; no tile crosses an inner end."""
    strips = list({(m1 - m0, n1 - n0, m1 < high): None for first in firsts
                   for m0, n0, m1, n1 in _beside(first, high, wide)})
    if not strips:
        return
    rows, columns, inner = (np.array(x)[:, None] for x in zip(*strips))
    fits = (tiles.columns["swap"] == swap) & ~(inner & (rows % tiles.columns["m"] > 0))
    times = np.where(fits, estimate(problem, tiles, chip, rows, columns), np.inf)
    best = {strip: (tiles.ways[i], float(times[j, i])) for j, (strip, i) in enumerate(zip(strips, times.argmin(1)))}
    for first, time in firsts.items():
        parts = [first]
        for m0, n0, m1, n1 in _beside(first, high, wide):
            way, ns = best[m1 - m0, n1 - n0, m1 < high]
            parts.append(Part(m0, n0, m1, n1, way))
            time += ns + chip.second - chip.launch
        yield tuple(parts), time


def _beside(first: Part, high: int, wide: int) -> list[tuple[int, int, int, int]]:
    """What a first part leaves: rows and columns beside it, and below it."""
    left = (0, first.n1, first.m1, wide), (first.m1, 0, high, wide)
    return [x for x in left if x[0] < x[2] and x[1] < x[3]]


def described(problem: Problem, chip: Chip, hopper: bool = True) -> str:
    """The ways that were considered, the likeliest ones with their estimates, and the choice."""
    ways, chosen = [x for x in ordered(problem, chip, hopper) if x[1] < inf], choose(problem, chip, hopper)
    lines = [f"{problem} on {chip.multiprocessors} multiprocessors of {chip.name}: {len(ways)} ways"]
    lines += [f"  {ns / 1e3:8.1f} us  {way}" for way, ns in ways[:_SHOWN]]
    lines.append(f"chosen, {chosen.ns / 1e3:.1f} us: " + "; ".join(
        f"{p.way}" + (f" for rows {p.m0} to {p.m1} and columns {p.n0} to {p.n1}" if len(chosen.parts) > 1 else "")
        for p in chosen.parts))
    return "\n".join(lines)


def restricted(problem: Problem, chip: Chip, hopper: bool, split: int | None = None, ctas: int | None = None) -> Way:
    """The best way of one launch (`ordered`); parts are those of single CTAs."""
    return next(ordered(problem, chip, hopper, split, 1 if split else ctas))[0]


def likeliest(problem: Problem, chip: Chip, hopper: bool, count: int) -> list[Plan]:
    """The choice, and the plans of one launch that come next."""
    ways = islice(ordered(problem, chip, hopper), count)
    found = [choose(problem, chip, hopper), *(alone(problem, *x) for x in ways)]
    return list({p.parts: p for p in found}.values())[:count]
