from __future__ import annotations

import numpy as np

from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.records import Access
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shadow import Region, distinct
from tilejit.emulator.sanitizer.world import World

BARRIER_BYTES = 8


class SharedMemory:
    """`fence_reads`: generic reads, too, need a proxy fence before async writes."""

    def __init__(self, reporter: Reporter, fence_reads: bool):
        self.reporter, self.fence_reads = reporter, fence_reads

    def access(self, world: World, cta: int, starts: np.ndarray, size: int, now: Access) -> None:
        shadow = world.shadows[cta]
        region = Region(starts, size)
        clock = world.clock_of(now)
        if world.barrier_bytes[cta]:
            self._barriers(world, cta, starts, size, now)
        writers = distinct(region.get(shadow.writer))
        for earlier in world.recorded(writers):
            self._pair(world, cta, region, earlier, now, clock)
        if writers[0] == 0 and now.kind != "write":
            self._fresh(world, cta, region, now)
        if now.kind == "read":
            if world.strong_writes:
                self._readers(world, cta, region, now, clock)
            now.early = any(not w.known_to(clock) for w in world.recorded(writers)) or 0 in writers
            shadow.read(region, lambda number: world.with_reader(number, now, clock))
            return
        self._readers(world, cta, region, now, clock)
        now.replaced.update(w.number for w in world.recorded(writers) if w is not now)
        if now.strong:
            # The last write is one of several that need not be ordered: all are kept with the readers.
            world.strong_writes = True
            shadow.read(region, lambda number: world.with_reader(number, now, clock))
            region.put(shadow.writer, now.number)
        else:
            shadow.write(region, now.number)

    def _readers(self, world: World, cta: int, region: Region, now: Access, clock: Clock) -> None:
        for number in distinct(region.get(world.shadows[cta].readers)):
            for earlier in world.recorded(list(world.sets.members[number])):
                self._pair(world, cta, region, earlier, now, clock, number)

    def _barriers(self, world: World, cta: int, starts: np.ndarray, size: int, now: Access) -> None:
        live = world.barrier_bytes[cta]
        low, high = int(starts.min()), int(starts.max()) + size
        for offset, name in live.items():
            if low < offset + BARRIER_BYTES and offset < high and \
                    ((starts < offset + BARRIER_BYTES) & (offset < starts + size)).any():
                told = f"{self.reporter.access(now)} touches the bytes of {name} of CTA {cta}, which is live"
                self.reporter.add(kinds.BARRIER_OVERLAPPED, told, now.pc, (now.agent,), name)

    def _fresh(self, world: World, cta: int, region: Region, now: Access) -> None:
        start, end = region.where(world.shadows[cta].writer, 0)
        r, where = self.reporter, self.reporter.shared(cta, start, end)
        r.add(kinds.UNINITIALISED_SHARED, f"nothing has written {where} before the {r.access(now)}", now.pc,
              (now.agent,), where)

    def _pair(self, world: World, cta: int, region: Region, earlier: Access, now: Access, clock: Clock,
              readers: int | None = None) -> None:
        if not (earlier.writes or now.writes) or earlier.strong and now.strong or \
                earlier.op is not None and earlier.op is now.op:
            return
        unordered = not earlier.known_to(clock)
        overtaken = not unordered and self._overtaken(world, earlier, now)
        if not unordered and not overtaken and (not now.async_proxy or earlier.async_proxy or earlier.fenced_for(clock)
                              or not (earlier.writes or self.fence_reads)):
            return
        shadow = world.shadows[cta]
        start, end = region.where(shadow.writer, earlier.number) if readers is None else \
            region.where(shadow.readers, readers)
        where = self.reporter.shared(cta, start, end)
        # An operation counts from its issue, so that the name does not depend on the schedule.
        first, second = (earlier, now) if earlier.seq <= now.seq else (now, earlier)
        before, after = self.reporter.access(first), self.reporter.access(second)
        if overtaken:
            kind, told = kinds.SLOT_OVERWRITTEN, f"{after} may overtake the {before}, which its warp did not wait for"
        elif not unordered:
            kind, told = kinds.PROXY_FENCE, f"no fence.proxy.async between the {before} and the {after}"
        elif now.op is not None and earlier.known_to(now.op.at_issue):
            kind, told = kinds.WGMMA_FENCE, f"no wgmma.fence between what orders the {before}, and the {after}"
        else:
            kind, told = self._race(world, earlier, now, clock), f"{after} is not ordered after the {before}"
        self.reporter.add(kind, f"{where}: {told}", second.pc, (second.agent, first.agent), where, first.pc)

    def _overtaken(self, world: World, earlier: Access, now: Access) -> bool:
        """Whether an asynchronous write comes behind a read of its issuer with no wait in between."""
        return now.op is not None and now.async_proxy and earlier.op is None and not earlier.writes and \
            earlier.slot == world.slot(now.agent) and earlier.tick > now.op.waited

    def _race(self, world: World, earlier: Access, now: Access, clock: Clock) -> str:
        """The name of an unordered pair."""
        if earlier.op is None and now.op is None:
            return kinds.SHARED_RACE
        if earlier.writes and now.writes:
            return kinds.SLOT_OVERWRITTEN
        write = earlier if earlier.writes else now
        if earlier.writes:
            had_data = any(w.known_to(clock) for w in world.recorded(sorted(earlier.replaced)))
        else:
            had_data = not earlier.early
        if had_data:
            return kinds.SLOT_OVERWRITTEN
        return kinds.SLOT_READ_EARLY if write.op is not None else kinds.SHARED_RACE
