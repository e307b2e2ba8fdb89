"""Races on shared memory: every access against the last write and the reads since, whichever schedule ran.

Two accesses conflict when one of them writes (two atomics do not). They must be ordered by what the later one's
agent knows when it starts, and if a generic one comes before TMA or wgmma, a proxy fence must lie between.
"""
from __future__ import annotations

import numpy as np

from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.records import Access
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shadow import Region, distinct
from tilejit.emulator.sanitizer.world import World


class SharedMemory:
    """Checks and records accesses. `fence_reads`: generic reads, too, need a proxy fence before async writes."""

    def __init__(self, reporter: Reporter, fence_reads: bool):
        self.reporter, self.fence_reads = reporter, fence_reads

    def access(self, world: World, cta: int, starts: np.ndarray, size: int, now: Access) -> None:
        """`now` touches `size` bytes of the CTA at every start."""
        shadow = world.shadows[cta]
        region = Region(starts, size)
        clock = world.clock_of(now)
        writers = distinct(region.get(shadow.writer))
        for earlier in world.recorded(writers):
            self._pair(world, cta, region, earlier, now, clock)
        if now.kind == "read":
            if writers[0] == 0:
                self._fresh(world, cta, region, now)
            shadow.read(region, lambda number: world.with_reader(number, now, clock))
            return
        for number in distinct(region.get(shadow.readers)):
            for earlier in world.recorded(list(world.sets.members[number])):
                self._pair(world, cta, region, earlier, now, clock, number)
        shadow.write(region, now.number)

    def _fresh(self, world: World, cta: int, region: Region, now: Access) -> None:
        start, end = region.where(world.shadows[cta].writer, 0)
        r, where = self.reporter, self.reporter.shared(cta, start, end)
        r.add(kinds.UNINITIALISED_SHARED, f"nothing has written {where} before the {r.access(now)}", now.pc,
              (now.agent,), where)

    def _pair(self, world: World, cta: int, region: Region, earlier: Access, now: Access, clock: Clock,
              readers: int | None = None) -> None:
        if not (earlier.writes or now.writes) or earlier.kind == now.kind == "atomic" or \
                earlier.op is not None and earlier.op is now.op:
            return
        unordered = not earlier.known_to(clock)
        if not unordered and (not now.async_proxy or earlier.async_proxy or earlier.fenced_for(clock)
                              or not (earlier.writes or self.fence_reads)):
            return
        shadow = world.shadows[cta]
        start, end = region.where(shadow.writer, earlier.number) if readers is None else \
            region.where(shadow.readers, readers)
        where = self.reporter.shared(cta, start, end)
        # An operation counts from its issue, so that the name does not depend on when it was carried out.
        first, second = (earlier, now) if earlier.seq <= now.seq else (now, earlier)
        before, after = self.reporter.access(first), self.reporter.access(second)
        if not unordered:
            kind, told = kinds.PROXY_FENCE, f"no fence.proxy.async between the {before} and the {after}"
        elif now.op is not None and earlier.known_to(now.op.at_issue):
            kind, told = kinds.WGMMA_FENCE, f"no wgmma.fence between what orders the {before}, and the {after}"
        else:
            kind, told = race_kind(first, second), f"{after} is not ordered after the {before}"
        self.reporter.add(kind, f"{where}: {told}", second.pc, (second.agent, first.agent), where, first.pc)


def race_kind(first: Access, second: Access) -> str:
    """The name of an unordered pair by who came first (an operation: who was issued first)."""
    if first.op is None and second.op is None:
        return kinds.SHARED_RACE
    if not second.writes:
        return kinds.SLOT_READ_EARLY if first.op is not None else kinds.SHARED_RACE
    return kinds.SLOT_OVERWRITTEN
