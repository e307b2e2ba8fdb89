"""Global memory: writes of two CTAs to the same bytes that nothing orders."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shadow import distinct
from tilejit.emulator.sanitizer.strong import CtaClocks

PAGE = 1 << 14


@dataclass(frozen=True)
class Write:
    """A write of a CTA at one of its ticks."""

    agent: WarpId
    tick: int
    pc: int
    what: str


class GlobalMemory:
    """For every byte its last write, in pages that exist where something was written."""

    def __init__(self, reporter: Reporter, ctas: CtaClocks):
        self.reporter, self.ctas = reporter, ctas
        self.pages: dict[int, np.ndarray] = {}
        self.writes: list[Write | None] = [None]
        self._numbers: dict[Write, int] = {}

    def write(self, agent: WarpId, pc: int, what: str, atomic: bool, starts: np.ndarray, size: int) -> None:
        """`what` (an instruction, or an operation's kind) writes `size` bytes at every start."""
        now = Write(agent, self.ctas.now(agent.cta), pc, "atomic" if atomic else what)
        number = self._numbers.get(now)
        if number is None:
            number = self._numbers[now] = len(self.writes)
            self.writes.append(now)
        low, high = int(starts.min()), int(starts.max()) + size
        if high - low == size * len(starts) and (len(starts) == 1 or len(np.unique(starts)) == len(starts)):
            for page in range(low // PAGE, (high - 1) // PAGE + 1):
                first = page * PAGE
                self._mark(page, slice(max(low - first, 0), min(high - first, PAGE)), now, number)
            return
        addresses = (starts[:, None] + np.arange(size)).reshape(-1)
        pages = addresses // PAGE
        for page in np.unique(pages).tolist():
            self._mark(page, addresses[pages == page] - page * PAGE, now, number)

    def _mark(self, page: int, at: slice | np.ndarray, now: Write, number: int) -> None:
        shadow = self.pages.get(page)
        if shadow is None:
            shadow = self.pages[page] = np.zeros(PAGE, np.int32)
        here = shadow[at]
        for earlier_number in distinct(here):
            earlier = self.writes[earlier_number]
            if earlier is None or earlier.agent.cta == now.agent.cta or earlier.what == now.what == "atomic" or \
                    self.ctas.knows(now.agent.cta, earlier.agent.cta, earlier.tick):
                continue
            places = np.arange(PAGE)[at][here == earlier_number] + page * PAGE
            where = f"global bytes [{int(places.min()):#x}, {int(places.max()) + 1:#x})"
            told = " and ".join(f"{w.what} by {self.reporter.warp(w.agent)} at {self.reporter.at(w.pc)}"
                                for w in (earlier, now))
            self.reporter.add(kinds.GLOBAL_RACE, f"{where}: {told}, which nothing orders", now.pc,
                              (now.agent, earlier.agent), where, earlier.pc)
        shadow[at] = number
