"""How long a way to compute a product takes: one estimate for all of them."""
from __future__ import annotations

from functools import cached_property, lru_cache
from math import exp
from typing import Any

import numpy as np

from tilejit.kernels.chip import Chip
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import SHARED, Way
from tilejit.records import dataclass

LINE, SECTOR = 128, 32
#: Lines that L2 could give while it gives a row of less than half of one.
SHORT = 2
#: Share of busy multiprocessors from which on launches overlap without harm to memory's share of each.
BUSY = 0.9
#: Nanoseconds of memory's that change no choice.
LEAST = 0.1
#: Bytes within which L2 comes to keep nothing of what is more than it has room for.
SOFT = 2e6
#: How often memory does results whose sectors are written in parts.
INSIDE = 2.0
#: What hangs over the end of a group of rows, which may be anywhere, of a tile, on average.
HUNG = 0.5
_Array = Any


@dataclass(frozen=True, eq=False)
class Table:
    """Ways as columns of their fields, to be estimated at once. (Equal to itself only: caches look it up quickly.)"""

    ways: tuple[Way, ...]

    @cached_property
    def columns(self) -> dict[str, _Array]:
        """What the estimate reads of each way, as floats, which numpy divides fastest. parts: programs that divide K
        of a tile."""
        def of(value: Any) -> _Array:
            return np.array([float(value(w)) for w in self.ways])

        f: dict[str, _Array] = dict(
            m=of(lambda w: w.m), n=of(lambda w: w.n), ctas=of(lambda w: w.ctas), k_ctas=of(lambda w: w.k_ctas),
            k_bytes=of(lambda w: w.k_bytes), swap=of(lambda w: w.swap),
            together=of(lambda w: w.together), turns=np.array([w.in_turn for w in self.ways], bool),
            strip=of(lambda w: w.strip), parts=of(lambda w: max(1, w.parts)), coming=of(lambda w: w.scales_come),
            warpgroups=of(lambda w: w.warps // 4))
        high = of(lambda w: w.m // (w.ctas // w.k_ctas // w.across))
        wide = of(lambda w: w.n // w.across)
        # Those beside one another ask for a share of what they have in common, too.
        f.update(results=high * wide, first=f["m"] // (f["ctas"] / f["k_ctas"]),
                 second=f["n"] // (f["ctas"] / f["k_ctas"]), area=f["m"] * f["n"])
        slots = (SHARED // f["together"] - 2 * f["results"]) // ((high + wide) * f["k_bytes"])
        f["slots"] = np.clip(slots, 2, 12)
        f["ends"] = np.where(f["swap"] > 0, 1.0, LINE / f["strip"])
        f["stored"] = f["results"] / np.where(f["k_ctas"] > 1, f["ctas"], 1.0)
        # Without TMA, tiles pass through shared memory; those of odd widths, several CTAs and transposes are stored as
        # held.
        held = np.array([w.ctas > 1 or w.n & w.n - 1 > 0 or w.swap for w in self.ways], bool)
        share = 8 / of(lambda w: w.warps)
        f.update(scattered=np.where(held, 3.0, 1.0) * share, lines=np.where(held, 0.0, high) * share)
        return f

    @cached_property
    def alone(self) -> bool:
        """Whether no programs share a multiprocessor."""
        return all(w.together == 1 for w in self.ways)

    def sides(self, of_a: float, of_b: float) -> tuple[Any, Any]:
        """What is known of a and b, as each way's tiles take them: of a transpose b is the first operand."""
        if of_a == of_b:
            return of_a, of_b
        more = (of_b - of_a) * self.columns["swap"]
        return of_a + more, of_b - more

    def grids(self, problem: Problem) -> tuple[_Array, _Array]:
        """In tiles of each way."""
        high, wide = self.sides(problem.m, problem.n)
        return np.ceil(high / self.columns["m"]), np.ceil(wide / self.columns["n"])


@lru_cache(maxsize=256)
def rates(table: Table, chip: Chip) -> dict[str, _Array]:
    """Whatever the problem."""
    f, e = table.columns, chip.hiding
    speeds = np.array([chip.speeds.get(str(Way(w.m, w.n, w.warps, w.ctas, w.split)), 1.0) for w in table.ways])
    # The multiprocessors of a cluster are neighbours: larger ones than 2 leave some alone.
    room = np.where(f["ctas"] <= 2, np.maximum(1.0, chip.multiprocessors * f["together"] // f["ctas"]),
                    max(0, chip.multiprocessors // 8 - 1) * 8 // f["ctas"])
    split = f["k_ctas"] > 1
    shared = np.where(f["ctas"] > f["k_ctas"], 1 + chip.pair, 1.0)
    products = f["results"] * f["k_bytes"] / (chip.tensor * speeds) * shared
    exchanged = f["area"] * 4 * (f["k_ctas"] - 1) / f["k_ctas"] / chip.exchange
    return dict(
        room=np.maximum(room, 1.0), products=products ** e,
        waited=(chip.latency / f["slots"] + chip.block) ** e,
        load=f["k_bytes"] / chip.load, l2=f["k_bytes"] / (chip.l2 * chip.multiprocessors),
        meet=np.where(split, chip.meet + exchanged, 0.0), meeting=8 * f["area"] / chip.multiprocessors / chip.part,
        # Sums of the transpose's parts are written, and read before, sector by sector.
        turned=np.where(f["swap"], 2 * SECTOR / chip.multiprocessors / chip.part, 0.0),
        shown=np.where(f["turns"], chip.shown, 1.0),
        fixed=np.where(room > 0, chip.launch + chip.cluster * np.sqrt(np.log2(f["ctas"])), np.inf))


def ragged(pitch: int, chip: Chip) -> float:
    """How much longer bytes of lines take that begin `pitch` bytes after one another."""
    return 1.0 if pitch % LINE == 0 else 1 + (chip.ragged if pitch % SECTOR else chip.sector)


def estimate(problem: Problem, table: Table, chip: Chip, parts: _Array | None = None,
             grids: tuple[_Array, _Array] | None = None) -> _Array:
    """Nanoseconds, infinite for ways that do not run on the chip. parts: programs a tile, instead of the way's own;
    grids: the table's, where they are known."""
    p, f, r, e = problem, table.columns, rates(table, chip), chip.hiding
    down, across = grids or table.grids(p)
    if p.grouped:
        tall: _Array = np.where(f["swap"], f["n"], f["m"])
        rows_of = np.maximum(1.0, p.m / tall + HUNG)
        down, across = np.where(f["swap"], down, rows_of), np.where(f["swap"], rows_of, across)
    count = p.batches * down * across
    split, room = f["parts"] if parts is None else parts, r["room"]
    divided = split > 1
    programs = np.where(divided, count * split, np.minimum(count, room))
    blocks = np.ceil(max(1, p.k_bytes) / f["k_bytes"])
    mine = np.ceil(np.ceil(blocks / f["k_ctas"]) / split)
    waves = count / programs
    turns = np.ceil(np.where(divided, programs / room, waves))
    sharing = 1.0 if table.alone else np.clip(np.ceil(programs / chip.multiprocessors), 1.0, f["together"])
    alone, loads, read = _block(p, table, chip, down, across, programs, sharing)

    def block(programs: _Array) -> _Array:
        # Two neighbours have one way to L2.
        loaded = loads * (1 + chip.neighbour * (programs * f["ctas"] > chip.multiprocessors / 2))
        return (alone + loaded ** e + (read * programs * f["k_ctas"]) ** e) ** (1 / e)

    rest = np.where(divided, 0.0, count - np.floor(waves) * programs)
    several = (rest > 0) & (turns > 1)
    full = block(programs)
    time = turns * mine * full
    if several.any():
        time = time - np.where(several, mine * (full - block(rest)), 0.0)
    # Of rows that begin within sectors L2 has parts to complete at both ends of strips; fewer where programs do not
    # read ahead.
    inside = p.pitches[2] % SECTOR and not all(p.units)
    within: Any = 1 + chip.within * f["ends"] if inside else 1.0
    if not p.stores:
        moved = within * p.out_bytes / 2 / chip.store * (1 + chip.ragged_result if p.pitches[2] % LINE else 1)
    else:
        moved = f["scattered"] / chip.lined + f["lines"] * chip.row / f["stored"]
    there = 1.0 if p.grouped or any(p.units) else p.m * p.n / (down * across * f["area"])
    stored = f["stored"] * there * (moved + (1 / chip.activation if p.activated else 0)) + chip.stored
    ends = stored * (1 + (turns - 1) * r["shown"])
    meeting = chip.second + r["meeting"] * programs + r["turned"] * (p.m * p.n)
    time = time + np.where(divided, 0.0, ends)
    memory = from_memory(p, chip, INSIDE if inside else 1.0)
    if memory >= LEAST:
        busy = programs * f["ctas"] >= BUSY * chip.multiprocessors
        time = (time ** chip.behind + memory ** chip.behind) ** (1 / chip.behind)
        time = time + np.where(busy, 0.0, min(chip.overlap, chip.idle * memory))
    return r["fixed"] + chip.start * (sharing - 1) + time + np.where(divided, meeting, 0.0) + turns * r["meet"]


def from_memory(p: Problem, chip: Chip, inside: float = 1.0) -> float:
    """Nanoseconds of memory's: all bytes where L2 does not keep them from one product to the next of the same arrays,
    as what was used last goes last. inside: how often it does those of the result."""
    read, written = p.batches * (p.m + p.n * p.share) * p.k_bytes, p.batches * p.m * p.n * p.out_bytes
    beyond = 1 / (1 + exp(min(50.0, (chip.resident - read - written) / SOFT)))
    return beyond * (read + inside * written) / (chip.memory * chip.multiprocessors)


def _block(p: Problem, table: Table, chip: Chip, down: _Array, across: _Array, programs: _Array,
           sharing: _Array) -> tuple[_Array, _Array, _Array]:
    """Of a block of K: what takes as long however many programs run, to the power of `hiding`, nanoseconds of loads,
    and of L2. down, across: tiles; sharing: programs of a multiprocessor."""
    f, r, e = table.columns, rates(table, chip), chip.hiding
    a, b = (1.0 if unit else ragged(pitch, chip) for pitch, unit in zip(p.pitches, p.units))
    first, second = table.sides(a, b * p.share)
    strips: Any = second
    if p.b_rows or not p.a_rows:
        # TMA reads rows of a second operand that lie side by side a strip at a time.
        _, beside = table.sides(not p.a_rows, p.b_rows)
        strips = second * np.where(beside, LINE / p.size / np.minimum(f["strip"], LINE / p.size), 1.0)
    loads = (f["first"] * first + f["second"] * strips) * r["load"] * sharing
    if any(p.units):
        of_first, of_second = table.sides(*(1 / unit if unit else 0.0 for unit in p.units))
        loads += (f["first"] * of_first + f["second"] * of_second) * f["k_bytes"] * f["together"] / chip.pieces
    products = r["products"]
    if p.step != "accumulate":
        products = (products ** (1 / e) + _beside(p, f, chip, sharing)) ** e
    alone = r["waited"] + products * sharing ** e
    # Programs that read the same rows across K, which share lines of L2, ask for them at once, one by one.
    shares = [float(width > 0 and not unit and pitch % LINE > 0)
              for width, unit, pitch in zip(p.across, p.units, p.pitches)]
    if any(shares):
        of_first, of_second = table.sides(*shares)
        asking = np.maximum(np.minimum(across, programs) * of_first, np.minimum(down, programs) * of_second)
        alone = alone + (asking * f["k_bytes"] / p.size * chip.line) ** e
    high, wide = table.sides(p.m, p.n)
    rows, columns = high / down, wide / across
    if chip.outside and not any(p.units):
        # What TMA fills in are lines of K (beyond a group's end are other rows, and threads read nothing there).
        of_first, of_second = table.sides(chip.outside * (p.a_rows and not p.grouped), chip.outside * (not p.b_rows))
        rows, columns = rows + of_first * (f["m"] - rows), columns + of_second * (f["n"] - columns)
    asked, others = rows * first, columns * second
    # Rows across K of which there are several to a line TMA asks for one by one.
    least = [SHORT * LINE / p.size if 0 < width < LINE / 2 and not unit else 0.0
             for width, unit in zip(p.across, p.units)]
    if any(least):
        of_first, of_second = table.sides(*least)
        asked, others = np.maximum(asked, of_first), np.maximum(others, of_second)
    return alone, loads, (asked + others) * r["l2"]


def _beside(p: Problem, f: dict[str, _Array], chip: Chip, sharing: _Array) -> Any:
    """Nanoseconds of a block's instructions beside its products: sums promoted, or weights widened."""
    if p.step == "promote":
        return np.where(f["coming"], chip.promote, chip.block + f["results"] / chip.promoted)
    weights = f["first"] * f["k_bytes"] / p.size
    return weights * np.maximum(1 / chip.widened, 1 / (chip.widens * f["warpgroups"] * sharing))


def overlapping(problem: Problem, way: Way, programs: int, chip: Chip) -> bool:
    """Whether a launch should begin while the one ahead ends: its programs get multiprocessors unevenly."""
    return programs * way.ctas >= BUSY * chip.multiprocessors or chip.idle * from_memory(problem, chip) < chip.overlap
