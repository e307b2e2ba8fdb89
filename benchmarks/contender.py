"""What a comparison is made of: contenders (ours and peers), and the work that they share. No GPU needed to import."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilejit.testing import Burst


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
