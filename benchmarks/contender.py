"""What a comparison is made of: contenders (ours and peers), and the work that they share. No GPU needed to import."""
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bursts import Burst, bench_group


class Absent(Exception):
    """A contender cannot take part; the text says why."""


@dataclass(frozen=True)
class Contender:
    """One way to do a case's work. `call` computes and returns the result, into `out` if there is one.

    `burst` times calls (None: CUDA events on torch's stream). `judged` peers count when the best is looked for.
    `view` brings the result into the case's shape for the check. `amount` is what a call does (bytes for GB/s) where
    that is not the case's work; its result is then not checked."""

    call: Callable[[], Any]
    out: Any = None
    burst: Burst | None = None
    judged: bool = True
    note: str = ""
    view: Callable[[Any], Any] = lambda result: result
    unit: str = "TFLOP/s"
    amount: float = 0.0


#: Makes a contender; raises Absent, or whatever a library raises, where it cannot.
Build = Callable[[], Contender]


@dataclass(frozen=True)
class Work:
    """A prepared case: `ours` and `peers` to build, and how far a result is from the reference (`bound` at most)."""

    ours: Build
    peers: dict[str, Build]
    error: Callable[[Any], float]
    bound: float
    notes: dict[str, str] = field(default_factory=dict)


def rotate(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """One call after another in turn: operands change so that none stays in the L2 cache."""
    if len(calls) == 1:
        return calls[0]
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


def reason(error: BaseException) -> str:
    """One line on why a contender is absent."""
    text = " ".join(str(error).split())
    return text[:160] if isinstance(error, Absent) else f"{type(error).__name__}: {text[:160]}"


def fatal(error: Exception) -> bool:
    """Whether nothing works in this process after this error: one of the GPU's, but not a full memory."""
    text = str(error)
    return ("CUDA error" in text or "CUDA_ERROR" in text) and "out of memory" not in text.lower()


#: A way that takes this much longer than the best in a first look is timed no more; at most so many are.
SLOWER, FINALISTS = 1.15, 3


def finalists(first: Mapping[str, float]) -> list[str]:
    """Who is timed again after a first look (name -> milliseconds), the fastest first."""
    order = sorted(first, key=lambda x: first[x])
    return [x for x in order if first[x] <= SLOWER * first[order[0]]][:FINALISTS]


@dataclass(frozen=True)
class Race:
    """Those that were timed to the end, the fastest first, and why some could not start."""

    order: tuple[str, ...]
    failed: dict[str, str]


def race(entrants: Mapping[str, Callable[[], Burst]], rest: float = 8.0) -> Race:
    """Looks at many ways to do one thing once, then times the best few in interleaved bursts. Whoever is looked at finds
    a GPU that rested (a tenth of a second at most) `rest` times as long as the look before took.

    An entrant makes its burst, or raises what keeps it from taking part; what ends the GPU's work is raised on."""
    bursts: dict[str, Burst] = {}
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, make in entrants.items():
        try:
            burst = make()
            burst(2)
            bursts[name], first[name] = burst, burst(2)
            time.sleep(min(0.1, rest * 4e-3 * first[name]))
        except Exception as error:
            if fatal(error):
                raise
            failed[name] = reason(error)
    best = finalists(first) if first else []
    if len(best) > 1:
        again = bench_group({x: bursts[x] for x in best}, rounds=3, burst_ms=3.0, rest=rest)
        best.sort(key=lambda x: sorted(again[x])[1])
    return Race(tuple(best), failed)
