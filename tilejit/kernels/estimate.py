"""How long a way to compute a product takes: one estimate for all of them, from quantities that mean something.

A program's blocks of K take as long as their products, their bytes (of one multiprocessor, and of L2 for all), or a
share of a load's latency; what happens at once hides each other in part, so these are added with an exponent. Stores
follow, which other tiles' products hide where tiles are taken in turn. Then there are launches, what memory brings
beyond what L2 keeps, and what handing over parts costs. The numbers are the chip's (`chip.py`).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilejit.kernels.chip import Chip
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import SHARED, Way

#: Bytes of L2's lines and of what it moves at least.
LINE, SECTOR = 128, 32
#: Share of the multiprocessors that are busy from which on launches overlap without harm to memory's share of each.
BUSY = 0.9
_Array = Any


@dataclass(frozen=True)
class Table:
    """Ways as columns of their fields, to be estimated at once. parts: programs that divide K of each tile, 1 for none;
    stream, programs: as ways have them, 0 for whole tiles and as many programs as run at once."""

    ways: tuple[Way, ...]

    @cached_property
    def columns(self) -> dict[str, _Array]:
        """What the estimate reads of each way, once for all problems."""
        def of(value: Any) -> _Array:
            return np.array([value(w) for w in self.ways])

        f: dict[str, _Array] = dict(
            m=of(lambda w: w.m), n=of(lambda w: w.n), ctas=of(lambda w: w.ctas), k_ctas=of(lambda w: w.k_ctas),
            k_bytes=of(lambda w: w.k_bytes), swap=of(lambda w: w.swap), together=of(lambda w: w.together),
            turns=of(lambda w: w.in_turn), strip=of(lambda w: w.strip), stream=of(lambda w: w.stream),
            programs=of(lambda w: w.programs), parts=of(lambda w: max(1, w.parts)))
        high = of(lambda w: w.m // w.ctas if w.beside and not w.columns else w.m)
        wide = of(lambda w: w.n // w.ctas if w.columns else w.n)
        # Rows that each CTA asks for: those beside one another ask for a share of what they have in common, too.
        f.update(results=high * wide, first=f["m"] // (f["ctas"] // f["k_ctas"]),
                 second=f["n"] // (f["ctas"] // f["k_ctas"]))
        slots = (SHARED - 2 * f["results"]) // ((high + wide) * f["k_bytes"])
        f["slots"] = np.clip(slots, 2, 12)
        return f

    def speeds(self, chip: Chip) -> _Array:
        """By how much faster than the chip's rate each way's tile multiplies under load."""
        found = self._speeds.get(id(chip.speeds))
        if found is None:
            found = np.array([chip.speeds.get(str(w.tile), 1.0) for w in self.ways])
            self._speeds[id(chip.speeds)] = found
        return found

    @cached_property
    def _speeds(self) -> dict[int, _Array]:
        return {}

    def take(self, places: Sequence[int]) -> Table:
        """The table of some of the ways, in this order."""
        found = Table(tuple([self.ways[i] for i in places]))
        at = np.array(places, int)
        found.__dict__.update(columns={k: v[at] for k, v in self.columns.items()},
                              _speeds={k: v[at] for k, v in self._speeds.items()})
        return found


def whole_programs(table: Table, chip: Chip) -> _Array:
    """Programs of each way that run at once."""
    f = table.columns
    pairs = chip.multiprocessors * f["together"] // f["ctas"]
    # The multiprocessors of a cluster are neighbours: larger ones than 2 leave some alone.
    return np.where(f["ctas"] <= 2, np.maximum(1, pairs), max(0, chip.multiprocessors // 8 - 1) * 8 // f["ctas"])


def ragged(pitch: int, chip: Chip) -> float:
    """How much longer bytes of lines take that begin `pitch` bytes after one another."""
    return 1.0 if pitch % LINE == 0 else 1 + (chip.ragged if pitch % SECTOR else chip.sector)


def estimate(problem: Problem, table: Table, chip: Chip, rows: _Array | None = None, columns: _Array | None = None,
             parts: _Array | None = None) -> _Array:
    """Nanoseconds that each way takes, infinite for those that do not run on the chip. rows, columns: of the result as
    the way sees it, instead of all; parts: programs a tile, instead of the way's own."""
    p, f = problem, table.columns
    high = np.where(f["swap"], p.n, p.m) if rows is None else rows
    wide = np.where(f["swap"], p.m, p.n) if columns is None else columns
    split = f["parts"] if parts is None else parts
    down, across = -(-high // f["m"]), -(-wide // f["n"])
    count = p.batches * down * across
    room = whole_programs(table, chip)
    streamed = np.where(split > 1, 0, f["stream"])
    programs = np.where(streamed > 0, f["programs"], np.minimum(count, np.maximum(room, 1)))
    programs = np.where(split > 1, count * split, programs)
    blocks = -(-max(1, p.k_bytes) // f["k_bytes"])
    each = -(-blocks // f["k_ctas"])
    mine = -(-each // split)
    left = np.maximum(count - streamed, 0)
    turns = np.where(split > 1, -(-programs // np.maximum(room, 1)), -(-left // programs))
    steps = turns * mine + -(-streamed * blocks // programs)

    a, b = ragged(p.pitches[0], chip), ragged(p.pitches[1], chip)
    first = np.where(f["swap"], b, a)
    second = np.where(f["swap"], a, b)
    # TMA reads rows of a second operand that lie side by side a strip at a time.
    beside = np.where(f["swap"], not p.a_rows, p.b_rows)
    strips = np.where(beside, LINE // p.size / np.minimum(f["strip"], LINE // p.size), 1)
    loads = (f["first"] * first + f["second"] * second * strips) * f["k_bytes"] / chip.load
    read = np.minimum(f["m"], high / down) * first + np.minimum(f["n"], wide / across) * second
    read = read * f["k_bytes"] / (chip.l2 * chip.multiprocessors)
    results = f["results"]
    products = results * f["k_bytes"] / (chip.tensor * table.speeds(chip))
    waits = chip.latency / f["slots"] + chip.block
    e = chip.hiding
    alone = products ** e + loads ** e + waits ** e

    # Programs that read the same block ask for the same lines, one request a row of it: narrow rows are many to a line.
    narrow_a = 1 if p.a_rows else LINE / min(LINE, max(1, p.m * p.size))
    narrow_b = LINE / min(LINE, max(1, p.n * p.size)) if p.b_rows else 1
    asked = np.maximum(np.minimum(across, programs) * np.where(f["swap"], narrow_b, narrow_a),
                       np.minimum(down, programs) * np.where(f["swap"], narrow_a, narrow_b))
    alone = alone + (asked * chip.line) ** e

    def block(busy: _Array) -> _Array:
        return (alone + (read * busy) ** e) ** (1 / e)

    full = block(programs * f["k_ctas"])
    rest = np.where((split > 1) | (streamed > 0), 0, left % programs)
    time = steps * full - np.where((rest > 0) & (turns > 1), mine * (full - block(rest * f["k_ctas"])), 0)
    # Memory, beyond what L2 keeps; softly where it just begins.
    excess = (p.batches * (high + wide) * p.k_bytes - chip.resident) / 5e6
    memory = 5e6 * np.logaddexp(0, excess) / (chip.memory * chip.multiprocessors)
    busy = programs * f["ctas"] >= BUSY * chip.multiprocessors
    time = time + memory + np.where(busy, 0, np.minimum(chip.overlap, chip.idle * memory))

    stored = results / np.where(f["k_ctas"] > 1, f["ctas"], 1) * p.out_bytes / 2 / chip.store
    if p.pitches[2] % LINE:
        stored = stored * (1 + chip.ragged_result)
    if p.activated:
        stored = stored + results / np.where(f["k_ctas"] > 1, f["ctas"], 1) / chip.activation
    stored = stored + chip.stored
    tiles = turns + -(-streamed // programs)
    ends = stored * (1 + (tiles - 1) * np.where(f["turns"] & (tiles > 1), chip.shown, 1))
    meeting = chip.second + 8 * f["m"] * f["n"] * programs / chip.multiprocessors / chip.part
    time = time + np.where(split > 1, meeting, ends)
    exchanged = f["m"] * f["n"] * 4 * (f["k_ctas"] - 1) / f["k_ctas"] / chip.exchange
    time = time + np.where(f["k_ctas"] > 1, turns * (chip.meet + exchanged), 0)
    time = time + np.where(streamed > 0, chip.handed + f["m"] * f["n"] / chip.hand, 0)
    time = chip.launch + time + np.where(f["ctas"] > 1, chip.cluster, 0)
    return np.where(room > 0, time, np.inf)


def one(problem: Problem, way: Way, chip: Chip) -> float:
    """Nanoseconds that a way takes."""
    return float(estimate(problem, Table((way,)), chip)[0])


def overlapping(problem: Problem, way: Way, programs: int, chip: Chip) -> bool:
    """Whether a launch should begin while the one ahead of it ends. Its programs then get the multiprocessors that are
    free first, not those that share memory's bandwidth evenly: that is slower where many stay idle and memory is what
    takes the time (measured on an H200)."""
    excess = problem.batches * (problem.m + problem.n) * problem.k_bytes - chip.resident
    memory = max(0.0, excess) / (chip.memory * chip.multiprocessors)
    return programs * way.ctas >= BUSY * chip.multiprocessors or chip.idle * memory < chip.overlap
