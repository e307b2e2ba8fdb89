from __future__ import annotations

from functools import reduce

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.records import Access
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shadow import distinct
from tilejit.emulator.sanitizer.world import World


class Lifetime:
    def __init__(self, world: World, reporter: Reporter):
        self.world, self.reporter = world, reporter
        self.left = {cta: world.warps_per_cta for cta in world.ctas}
        self.remote: dict[int, dict[tuple[int, int], Access]] = {cta: {} for cta in world.ctas}
        self.arrived = self.met = world.nothing
        self.order = [world.nothing] * world.warps

    def used(self, access: Access, cta: int) -> None:
        if not self.left[cta]:
            self._report(access, cta)
            return
        if access.agent.cta == cta:
            return
        # Of a warp the last use counts, of operations each.
        key = (access.slot, 0) if access.op is None else (-1, access.number)
        self.remote[cta][key] = access

    def exits(self, agent: WarpId) -> None:
        cta = agent.cta
        self.left[cta] -= 1
        if self.left[cta]:
            return
        first = self.world.first[cta]
        slots = range(first, first + self.world.warps_per_cta)
        known = reduce(Clock.join, [self.world.clocks[s] for s in slots] + [self.order[s] for s in slots])
        for access in (*self.remote[cta].values(), *self._operations(cta)):
            if not access.known_to(known):
                self._report(access, cta)

    def _operations(self, cta: int) -> list[Access]:
        """Accesses of the CTA's own operations that no later access to the same bytes has followed."""
        shadow, world = self.world.shadows[cta], self.world
        numbers = set(distinct(shadow.writer))
        for number in distinct(shadow.readers):
            numbers.update(world.sets.members[number])
        return [a for a in world.recorded(sorted(numbers)) if a.op is not None and a.agent.cta == cta]

    def _report(self, access: Access, cta: int) -> None:
        place = f"shared memory of CTA {cta}"
        kind = kinds.EXIT_IN_FLIGHT if access.agent.cta == cta else kinds.PEER_EXITED
        self.reporter.add(kind, f"{place}: the {self.reporter.access(access)} may come after that CTA has exited",
                          access.pc, (access.agent,), place)

    # -- the cluster barrier --
    def arrive(self, slot: int) -> None:
        """barrier.cluster.arrive, relaxed or not (before the warp's clock ticks)."""
        self.arrived = self.arrived.join(self.world.clocks[slot]).join(self.order[slot])

    def complete(self) -> None:
        self.met = self.arrived

    def wait(self, slot: int) -> None:
        self.order[slot] = self.order[slot].join(self.met)
