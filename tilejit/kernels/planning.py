"""How a product is computed: every way that there is, an estimate of each, and the least of them (docs/planning.md)."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import numpy as np

from tilejit import LaunchError
from tilejit.kernels.chip import Chip
from tilejit.kernels.estimate import LINE, Table, estimate, rates
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import LEAST_BLOCKS, Way

_SHOWN = 12

#: Tiles of one CTA or two; those of 4 warps are taken by two groups of consumers in turn. Odd widths fill last waves.
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
#: Clusters that share columns, or both operands, where L2 gives less than others take: lines that begin within its own.
FOURS = (*(Way(256, n, 4, 4) for n in (128, 160, 192)),
         *(Way(m * ctas // 2, n, 4, ctas, "MN") for ctas in (4, 8) for m, widths in (
             (64, (128, 160, 192, 256, 320, 384)), (128, (128, 192, 256, 320, 384))) for n in widths),
         *(Way(384, n, 12, 4, "MN") for n in (192, 256)))
#: Waves of large tiles from which on products wait for L2 too little for clusters that leave multiprocessors alone.
WAVES = 2
#: Tiles whose K the CTAs of a program divide, which leave room for four blocks beside what those exchange.
BY_K = tuple(Way(m, n, 4, ctas, "K", k_bytes=k) for n in (16, 32, 64, 128) for m, k in ((128, 128), (64, 256))
             for ctas in (2, 4, 8) if n * k < 128 * 256)


def turned(ways: Iterable[Way]) -> tuple[Way, ...]:
    return tuple(replace(w, swap=swap) for w in ways for swap in (False, True))


ALL = Table(turned((*LARGE, *SMALL, *LONG, *FOURS, *BY_K)))
#: Tiles for operands that consumers copy in small pieces: two programs a multiprocessor wait for memory in turn.
POINTED = turned((*(Way(64, n, 4, together=2) for n in (16, 32)),
                  *(Way(128, n, 8, together=2) for n in (16, 32, 48)), Way(128, 64, 8), Way(128, 128, 8)))
#: One operand by TMA: to that role two warpgroups hand registers, and so cannot share a multiprocessor.
HALF_POINTED = turned((*(Way(64, n, 4, together=2) for n in (16, 32)), *(Way(128, n, 8) for n in (32, 64, 128))))
#: Tiles for rows across K, several to a line, which threads read while TMA reads the other operand.
STREWN = (*(Way(64, n, 4, k_bytes=256) for n in (16, 32)), Way(128, 16, 8), Way(128, 32, 8),
          Way(128, 32, 8, k_bytes=256))
#: Tiles whose sums are promoted, first those of few rows. Clusters divide the rows and share B.
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
#: And where all groups have few columns.
NARROW = tuple(Way(128, n, 4) for n in (16, 32, 64))
#: Bytes of K up to which it is one block, read straight by threads; and the tiles for such, by bytes of K and whether
#: threads read both operands.
SHORT = 128
BRIEF = {(k, alone): turned(
    Way(m, n, warps, k_bytes=k, together=t if alone or warps == 4 else 1) for m, n, warps, t in (
        (64, 16, 4, 4), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 8, 2),
        (128, 128, 8, 1)))
    for k in (32, 64, SHORT) for alone in (True, False)}
#: The same of more than a wave of tiles: of results that memory takes.
WRITTEN = {k: turned((Way(128, 128, 8, k_bytes=k),)) for k in (32, 64)}


class Plan(NamedTuple):
    """And what that is estimated to take, in nanoseconds."""

    way: Way
    ns: float


@lru_cache(maxsize=256)
def _there(tiles: Table, hopper: bool, a_rows: bool, b_rows: bool, stores: bool, ended: int | None,
           ended_swapped: int | None, scaled: bool, waves: bool) -> Table:
    """Those of the tiles that there are for operands of these orders."""
    found = []
    for w in tiles.ways:
        beside, size = (not a_rows, ended_swapped) if w.swap else (b_rows, ended)
        simple = w.ctas == 1 and not w.n & w.n - 1 and w.k_bytes <= 128 and not w.swap
        fits = (hopper or simple) and not (stores and w.beside) and not (waves and w.split == "MN")
        if fits and (w.strip >= 32 or not beside) and (size is None or w.roomy(size, scaled)):
            found.append(w)
    return Table(tuple(found))


@lru_cache(maxsize=256)
def table(ways: tuple[Way, ...]) -> Table:
    """One table for equal ways."""
    return Table(ways)


@lru_cache(maxsize=64)
def _shortened(tiles: Table, k_bytes: int) -> Table:
    """Those in blocks of so many bytes of K, which are all of it: TMA fills in what is beyond about as slowly."""
    return table(tuple(w if w.k_ctas > 1 else replace(w, k_bytes=k_bytes)
                       for w in tiles.ways if w.k_ctas > 1 or w.k_bytes == SHORT))


@lru_cache(maxsize=64)
def _covering(lines: int, swap: bool) -> Table:
    """Those whose second operand has all of so many rows of K."""
    return table(tuple(replace(w, swap=swap) for w in STREWN if w.n >= lines))


def ways_of(problem: Problem, chip: Chip, tiles: Table = ALL) -> Table:
    p = problem
    if p.grouped:
        return table(GROUPED[p.step] + NARROW * (p.n <= NARROW[-1].n and p.step == "accumulate"))
    if p.step != "accumulate":
        return table(PROMOTED if p.step == "promote" else WIDENED[64 if p.group % 128 else 128])
    if any(p.units):
        both = all(p.units)
        k = next((k for k, _ in BRIEF if p.k_bytes <= k), SHORT)
        if both and k in WRITTEN and min(p.units) == 16 and not brief(p, chip):
            return table(WRITTEN[k])
        if p.k_bytes <= SHORT and (both or brief(p, chip)):
            return table(BRIEF[k, both])
        narrow = [width // p.size for width, unit in zip(p.across, p.units) if unit and 0 < width < LINE // 2]
        if narrow and not both:
            return _covering(narrow[0], p.units[0] > 0)
        return table(POINTED if both else HALF_POINTED)
    if p.k_bytes <= SHORT // 2:
        tiles = _shortened(tiles, SHORT // 4 if p.k_bytes <= SHORT // 4 else SHORT // 2)
    ended = p.out_bytes if p.ended else None
    # Of the transpose a bias has a value a row, which takes few registers (beside scales ptxas takes more).
    swapped = None if ended is None else 4 if p.scaled else 2
    waves = p.batches * p.m * p.n > WAVES * 128 * 256 * chip.multiprocessors
    return _there(tiles, chip.hopper, p.a_rows, p.b_rows, p.stores > 0, ended, swapped, p.scaled, waves)


def brief(problem: Problem, chip: Chip) -> bool:
    """Whether threads may read operands of any lines: one block of K, and one wave of tiles."""
    results = problem.batches * problem.m * problem.n
    return problem.k_bytes <= SHORT and results <= 128 * 128 * chip.multiprocessors


def considered(problem: Problem, chip: Chip, split: int | None = None,
               tiles: Table = ALL) -> tuple[tuple[Way, ...], Any, Any]:
    """Tiles, the parts of K of each, and what they take: whole tiles, then those divided between as many programs as
    run at once, or into `split`."""
    there = ways_of(problem, chip, tiles)
    f, blocks = there.columns, np.ceil(max(1, problem.k_bytes) / there.columns["k_bytes"])
    many, grids = [f["parts"] if split is None else np.minimum(split, blocks)], there.grids(problem)
    if split is None and problem.batches == 1 and not problem.grouped:
        most = np.minimum(rates(there, chip)["room"] / (grids[0] * grids[1]), blocks * (1 / LEAST_BLOCKS))
        parts = np.maximum(np.floor(most * (f["k_ctas"] == 1)), 1.0)
        many += [parts] * bool(parts.max() > 1)
    all_parts = np.array(many)
    times = estimate(problem, there, chip, all_parts, grids)
    if len(many) > 1:
        times[1][parts == 1] = np.inf
    return there.ways * len(many), all_parts.ravel(), times.ravel()


def _least_first(times: Any) -> Iterator[int]:
    """Mostly the first is all that is asked for."""
    yield int(np.argmin(times))
    yield from np.argsort(times, kind="stable")[1:].tolist()


def ordered(problem: Problem, chip: Chip, split: int | None = None, ctas: int | None = None,
            tiles: Table = ALL) -> Iterator[Plan]:
    """Plans, the likeliest first; with `split` programs a tile (several: of one CTA), or so many CTAs that divide K
    (None: any)."""
    ways, parts, times = considered(problem, chip, split, tiles)
    ctas = 1 if (split or 1) > 1 else ctas
    for i in _least_first(times):
        way, count = ways[i], int(parts[i])
        if way.k_ctas != (ctas or way.k_ctas):
            continue
        if count > 1:
            way = way.divided(problem.m, problem.n, count)
        elif way.warps == 4 and (way.ctas == 1 or way.across > 1) and not problem.grouped:
            one = problem.batches * way.tiles(problem.m, problem.n) <= way.room(chip.multiprocessors)
            way = replace(way, single=one)
        yield Plan(way, float(times[i]))


@lru_cache(maxsize=4096)
def choose(problem: Problem, chip: Chip, split: int | None = None, ctas: int | None = None,
           tiles: Table = ALL) -> Plan:
    """The least estimated time. Raises LaunchError where no CTAs divide K of such operands."""
    for plan in ordered(problem, chip, split, ctas, tiles):
        return plan
    raise LaunchError(f"{problem}: {ctas} CTAs divide K only where TMA reads both operands, and a chip has clusters")


def described(problem: Problem, chip: Chip) -> str:
    """The ways that were considered, the likeliest ones with their estimates, and the choice."""
    plans = [p for p in ordered(problem, chip) if p.ns < inf]
    lines = [f"{problem} on {chip.multiprocessors} multiprocessors of {chip.name}: {len(plans)} ways"]
    lines += [f"  {ns / 1e3:8.1f} us  {way}" for way, ns in plans[:_SHOWN]]
    return "\n".join([*lines, f"chosen, {plans[0].ns / 1e3:.1f} us: {plans[0].way}"])


def likeliest(problem: Problem, chip: Chip, count: int) -> list[Plan]:
    return list(islice(ordered(problem, chip), count))
