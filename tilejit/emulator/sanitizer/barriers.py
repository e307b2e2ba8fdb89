"""Barriers: what arrivals publish, what waits learn; the life of mbarriers; transaction bytes."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.records import Access, Op
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shared_memory import SharedMemory
from tilejit.emulator.sanitizer.world import World

BYTES = 8


@dataclass
class Barrier:
    """One mbarrier: its init; what has been published (`open`, arrivals of earlier phases too) and what a wait
    on the last completed phase learns (`done`); bytes expected and issued by phase."""

    name: str
    init: Access
    open: Clock
    done: Clock
    fenced: bool = False
    phase: int = 0
    expected: Counter[int] = field(default_factory=Counter)
    issued: Counter[int] = field(default_factory=Counter)
    expect_pc: dict[int, tuple[int, WarpId]] = field(default_factory=dict)
    own_phase: dict[WarpId, int] = field(default_factory=dict)


class Barriers:
    """mbarriers, named barriers and cluster barriers of one cluster."""

    def __init__(self, world: World, reporter: Reporter, shared: SharedMemory):
        self.world, self.reporter, self.shared = world, reporter, shared
        self.mbarriers: dict[tuple[int, int], Barrier] = {}
        self.named: dict[tuple[int, int], dict[WarpId, tuple[Clock, int]]] = {}
        self.cluster_open = world.nothing
        self.cluster_done = world.nothing

    # -- mbarriers -----------------------------------------------------------------------------------
    def init(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        """mbarrier.init: a write of 8 bytes that begins a barrier's life."""
        w, name = self.world, self.reporter.program.barrier_name(pc, offset)
        if live:
            self.reporter.add(kinds.BARRIER_LIVE, f"mbarrier.init on {name}, which is live", pc, (agent,), name)
        self.mbarriers.pop((cta, offset), None)
        now = w.warp_access(agent, pc, "write")
        self.shared.access(w, cta, np.array([offset]), BYTES, now)
        self.mbarriers[cta, offset] = Barrier(name, now, w.nothing, w.nothing)

    def inval(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        """mbarrier.inval: the bytes are ordinary again."""
        old = self.mbarriers.pop((cta, offset), None)
        if not live or old is None:
            self.reporter.add(kinds.BARRIER_LIVE, f"mbarrier.inval at {offset:#x}, where no mbarrier is", pc, (agent,),
                              f"mbarrier {offset:#x}")
        self.shared.access(self.world, cta, np.array([offset]), BYTES, self.world.warp_access(agent, pc, "write"))

    def used(self, agent: WarpId, pc: int, cta: int, offset: int) -> Barrier | None:
        """The barrier at a place that a warp uses; it must know of the init."""
        b = self.mbarriers.get((cta, offset))
        if b is not None and not b.init.known_to(self.world.clocks[self.world.slot(agent)]):
            r = self.reporter
            r.add(kinds.BARRIER_INIT_RACE, f"{r.warp(agent)} uses {b.name} of CTA {cta}, and nothing orders that after "
                  f"its init by {r.warp(b.init.agent)} at {r.at(b.init.pc)}", pc, (agent, b.init.agent), b.name,
                  b.init.pc)
        return b

    def arrive(self, agent: WarpId, pc: int, cta: int, offset: int, sem: str) -> None:
        """An arrival of a warp."""
        b = self.used(agent, pc, cta, offset)
        clock = self.world.publish(self.world.slot(agent), sem)
        if b is not None:
            b.open = b.open.join(clock)

    def op_bits(self, cta: int, offset: int, bits: int) -> None:
        """Parts of operations are done, and the barrier tells of it (and of nothing else)."""
        b = self.mbarriers.get((cta, offset))
        if b is not None:
            b.open = b.open.with_ops(bits)

    def completed(self, cta: int, offset: int, phase: int) -> None:
        """A phase is over."""
        b = self.mbarriers.get((cta, offset))
        if b is not None:
            b.done, b.phase = b.open, phase + 1

    def wait(self, agent: WarpId, pc: int, cta: int, offset: int, sem: str) -> None:
        """A successful wait."""
        b = self.used(agent, pc, cta, offset)
        if b is not None:
            self.world.observe(self.world.slot(agent), b.done, sem)

    # -- named barriers and the cluster's --------------------------------------------------------------
    def named_arrive(self, agent: WarpId, pc: int, number: int) -> None:
        """A warp comes to a named barrier."""
        slot = self.world.slot(agent)
        self.named.setdefault((agent.cta, number), {})[agent] = (self.world.publish(slot, "release"), pc)

    def named_complete(self, cta: int, number: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        """Those who wait learn what all who came know."""
        here = self.named.get((cta, number), {})
        total = self.world.nothing
        for agent in agents:
            found = here.pop(agent, None)
            if found is not None:
                total = total.join(found[0])
        for agent in waiters:
            self.world.learn(self.world.slot(agent), total)

    def cluster_arrive(self, agent: WarpId, relaxed: bool) -> None:
        """barrier.cluster.arrive."""
        clock = self.world.publish(self.world.slot(agent), "relaxed" if relaxed else "release")
        self.cluster_open = self.cluster_open.join(clock)

    def cluster_complete(self) -> None:
        """All have arrived."""
        self.cluster_done = self.cluster_open

    def cluster_wait(self, agent: WarpId) -> None:
        """barrier.cluster.wait is over."""
        self.world.learn(self.world.slot(agent), self.cluster_done)


def multicast_bits(op: Op, cta: int) -> int:
    """What a complete_tx on a barrier of `cta` tells: of a multicast only the part that went to this CTA."""
    return op.write_bits[cta] if len(op.write_bits) > 1 and cta in op.write_bits else op.all_bits()
