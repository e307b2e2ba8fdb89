from __future__ import annotations

import re
from typing import Any, Union

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer.world import World

_STRONG = re.compile(r"^(atom|red)\b|^(ld|st)\.(relaxed|acquire|release|volatile|mmio)\b|^multimem")
#: More addresses in one instruction are data (a histogram, a sum), not flags.
MOST_FLAGS = 8
#: A global address, or a CTA and the offset of its mbarrier (-1: the barrier of the cluster).
Place = Union[int, tuple[int, int]]


class Instructions:
    def __init__(self, program: Any):
        self.program = program
        self._known: dict[int, tuple[bool, str, str]] = {}

    def strong(self, pc: int) -> tuple[bool, str, str]:
        """(strong, semantics of its read, of its write); "acquire", "release" or "relaxed"."""
        if pc not in self._known:
            text = re.sub(r"^@!?\S+\s+", "", self.program.text(pc).strip())
            words = text.split()[0].split(".") if text else []
            both = "acq_rel" in words
            self._known[pc] = (_STRONG.match(text) is not None, "acquire" if both or "acquire" in words else "relaxed",
                               "release" if both or "release" in words else "relaxed")
        return self._known[pc]


class CtaClocks:
    """What CTAs know of each other: {cta: tick}, and under -1 - cta the tick fenced for the async proxy."""

    def __init__(self) -> None:
        self.ticks: dict[int, int] = {}
        self.seen: dict[int, dict[int, int]] = {}
        self.relaxed: dict[int, dict[int, int]] = {}  # observed by relaxed reads, known after the next fence
        self.released: dict[int, dict[int, int]] = {}  # at the last fence: what relaxed writes publish
        self.flags: dict[Place, dict[int, int]] = {}

    def now(self, cta: int) -> int:
        return self.ticks.get(cta, 1)

    def knows(self, cta: int, other: int, tick: int) -> bool:
        return other == cta or self.seen.get(cta, {}).get(other, 0) >= tick

    def knows_fenced(self, cta: int, other: int, tick: int) -> bool:
        return self.seen.get(cta, {}).get(-1 - other, 0) >= tick

    def proxy_fence(self, cta: int) -> None:
        seen = self.seen.setdefault(cta, {})
        _merge(seen, {-1 - other: tick for other, tick in self._release(cta).items() if other >= 0})

    def observe(self, cta: int, address: Place, sem: str) -> None:
        if address in self.flags:
            into = self.relaxed if sem == "relaxed" else self.seen
            _merge(into.setdefault(cta, {}), self.flags[address])

    def publish(self, cta: int, address: Place, sem: str) -> None:
        flag = self.flags.setdefault(address, {})
        _merge(flag, self.released.get(cta, {}) if sem == "relaxed" else self._release(cta))

    def fence(self, cta: int) -> None:
        _merge(self.seen.setdefault(cta, {}), self.relaxed.pop(cta, {}))
        self.released[cta] = self._release(cta)

    def _release(self, cta: int) -> dict[int, int]:
        known = {**self.seen.get(cta, {}), cta: self.now(cta)}
        self.ticks[cta] = self.now(cta) + 1
        return known


def _merge(into: dict[int, int], other: dict[int, int]) -> None:
    for cta, tick in other.items():
        if tick > into.get(cta, 0):
            into[cta] = tick


def order(world: World, ctas: CtaClocks, agent: WarpId, write: bool, sem: str, cta: int, addresses: np.ndarray) -> None:
    """The reading or writing half of a strong access of a warp (`cta` -1: global memory)."""
    flags = np.unique(addresses).tolist() if len(addresses) > 1 else [int(addresses[0])]
    if len(flags) > MOST_FLAGS:
        return
    slot = world.slot(agent)
    for address in flags:
        key = (cta, address)
        if write:
            known = world.publish(slot, sem)
            world.flags[key] = world.flags[key].join(known) if key in world.flags else known
            if cta < 0:
                ctas.publish(agent.cta, address, sem)
        else:
            if key in world.flags:
                world.observe(slot, world.flags[key], sem)
            if cta < 0:
                ctas.observe(agent.cta, address, sem)
