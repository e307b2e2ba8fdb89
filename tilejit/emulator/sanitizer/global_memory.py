from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.records import Op
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shadow import distinct
from tilejit.emulator.sanitizer.strong import CtaClocks

PAGE = 1 << 14
#: The tick of a copy's write until its CTA has waited for the copy.
IN_FLIGHT = 1 << 62


@dataclass(eq=False)
class Touch:
    agent: WarpId
    pc: int
    kind: str
    strong: bool
    tick: int
    op: Op | None = None

    @property
    def what(self) -> str:
        return self.kind if self.op is None else f"{self.kind} of {self.op.kind}"


class GlobalMemory:
    def __init__(self, reporter: Reporter, ctas: CtaClocks):
        self.reporter, self.ctas = reporter, ctas
        self.pages: dict[int, np.ndarray] = {}
        self.writes: list[Touch | None] = [None]
        self._numbers: dict[tuple[object, ...], int] = {}
        self._in_flight: dict[int, Touch] = {}

    def access(self, agent: WarpId, pc: int, kind: str, strong: bool, starts: np.ndarray, size: int,
               op: Op | None = None) -> None:
        tick = self.ctas.now(agent.cta)
        now = Touch(agent, pc, kind, strong, tick, op)
        if kind == "read":
            number = 0
        else:
            key = (agent, pc, kind, tick) if op is None else (op.number,)
            number = self._numbers.setdefault(key, len(self.writes))
            if number == len(self.writes):
                self.writes.append(now)
                if op is not None:
                    now.tick = IN_FLIGHT
                    self._in_flight[op.number] = now
        low, high = int(starts.min()), int(starts.max()) + size
        if high - low == size * len(starts) and (len(starts) == 1 or len(np.unique(starts)) == len(starts)):
            for page in range(low // PAGE, (high - 1) // PAGE + 1):
                first = page * PAGE
                self._page(page, slice(max(low - first, 0), min(high - first, PAGE)), now, number)
            return
        addresses = (starts[:, None] + np.arange(size)).reshape(-1)
        pages = addresses // PAGE
        for page in np.unique(pages).tolist():
            if number or page in self.pages:
                self._page(page, addresses[pages == page] - page * PAGE, now, number)

    def last_writes(self, start: int, size: int) -> list[int]:
        """The numbers of the writes that bytes within one page hold; 0: written before the launch."""
        page = self.pages.get(start // PAGE)
        return [0] if page is None else distinct(page[start % PAGE:start % PAGE + size])

    def waited(self, op: Op) -> None:
        write = self._in_flight.pop(op.number, None)
        if write is not None:
            write.tick = self.ctas.now(op.agent.cta)

    def _page(self, page: int, at: slice | np.ndarray, now: Touch, number: int) -> None:
        shadow = self.pages.get(page)
        if shadow is None:
            if not number:
                return
            shadow = self.pages[page] = np.zeros(PAGE, np.int32)
        here = shadow[at]
        for earlier_number in distinct(here):
            earlier = self.writes[earlier_number]
            if earlier is not None and earlier is not now:
                places = np.arange(PAGE)[at][here == earlier_number] + page * PAGE
                self._pair(earlier, now, f"global bytes [{int(places.min()):#x}, {int(places.max()) + 1:#x})")
        if number:
            shadow[at] = number

    def _pair(self, earlier: Touch, now: Touch, where: str) -> None:
        if earlier.strong and now.strong:
            return
        mine, r = now.agent.cta, self.reporter
        if not self.ctas.knows(mine, earlier.agent.cta, earlier.tick):
            told = " and ".join(f"{t.what} by {r.warp(t.agent)} at {r.at(t.pc)}" for t in (earlier, now))
            kind, message = kinds.GLOBAL_RACE, f"{where}: {told}, which nothing orders"
        elif now.op is not None and now.op.async_proxy and earlier.op is None and \
                not self.ctas.knows_fenced(mine, earlier.agent.cta, earlier.tick):
            kind = kinds.PROXY_FENCE
            message = f"{where}: no fence.proxy.async between the {earlier.what} by {r.warp(earlier.agent)} at " \
                      f"{r.at(earlier.pc)} and the {now.what} issued at {r.at(now.pc)}"
        else:
            return
        r.add(kind, message, now.pc, (now.agent, earlier.agent), where, earlier.pc)
