"""Strong accesses: atomics, and loads and stores with .relaxed, .acquire, .release, .volatile or .mmio.

Two strong accesses never race with each other. What one publishes at an address, a later one that reads the
address learns: warps of a cluster from each other by their clocks, CTAs of a launch by a coarser clock in which
a CTA is one agent. Scopes and the difference between relaxed and acquire or release are not modelled.
"""
from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.world import World

_STRONG = re.compile(r"^(atom|red)\b|^(ld|st)\.(relaxed|acquire|release|volatile|mmio)\b|^multimem")
#: More addresses in one instruction are data (a histogram, a sum), not flags.
MOST_FLAGS = 8


class Instructions:
    """Which instructions of a program are strong, by pc."""

    def __init__(self, program: Any):
        self.program = program
        self._known: dict[int, bool] = {}

    def strong(self, pc: int) -> bool:
        """True for an instruction whose accesses are strong."""
        if pc not in self._known:
            text = re.sub(r"^@!?\S+\s+", "", self.program.text(pc).strip())
            self._known[pc] = _STRONG.match(text) is not None
        return self._known[pc]


class CtaClocks:
    """What CTAs know of each other's program: {cta: tick}."""

    def __init__(self) -> None:
        self.ticks: dict[int, int] = {}
        self.seen: dict[int, dict[int, int]] = {}
        self.flags: dict[int, dict[int, int]] = {}

    def now(self, cta: int) -> int:
        """The CTA's own tick."""
        return self.ticks.get(cta, 1)

    def knows(self, cta: int, other: int, tick: int) -> bool:
        """True if the other CTA's tick happened before what the CTA does now."""
        return other == cta or self.seen.get(cta, {}).get(other, 0) >= tick

    def observe(self, cta: int, address: int) -> None:
        """A strong read."""
        if address in self.flags:
            _merge(self.seen.setdefault(cta, {}), self.flags[address])

    def publish(self, cta: int, address: int) -> None:
        """A strong write."""
        flag = self.flags.setdefault(address, {})
        _merge(flag, self.seen.get(cta, {}))
        flag[cta] = self.now(cta)
        self.ticks[cta] = self.now(cta) + 1


def _merge(into: dict[int, int], other: dict[int, int]) -> None:
    for cta, tick in other.items():
        if tick > into.get(cta, 0):
            into[cta] = tick


def order(world: World, ctas: CtaClocks, agent: WarpId, kind: str, cta: int, addresses: np.ndarray) -> None:
    """A strong access of a warp orders it with those before it at the same addresses (`cta` -1: global ones)."""
    flags = np.unique(addresses).tolist() if len(addresses) > 1 else [int(addresses[0])]
    if len(flags) > MOST_FLAGS:
        return
    slot = world.slot(agent)
    for address in flags:
        key = (cta, address)
        if kind != "write":
            if key in world.flags:
                world.learn(slot, world.flags[key])
            if cta < 0:
                ctas.observe(agent.cta, address)
        if kind != "read":
            known: Clock = world.publish(slot, "release")
            world.flags[key] = world.flags[key].join(known) if key in world.flags else known
            if cta < 0:
                ctas.publish(agent.cta, address)
