"""Barriers: what arrivals publish, what waits learn; mbarriers' lives and bytes."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.lifetime import Lifetime
from tilejit.emulator.sanitizer.records import Access, Op
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shared_memory import BARRIER_BYTES, SharedMemory
from tilejit.emulator.sanitizer.transactions import Transactions
from tilejit.emulator.sanitizer.world import World


@dataclass
class Barrier:
    """`fenced`: fence.mbarrier_init followed; `open`: what is published; `done`: what a wait on the last completed
    phase learns."""

    name: str
    init: Access
    open: Clock
    done: Clock
    fenced: bool = False
    phase: int = 0
    bytes: Transactions = field(default_factory=Transactions)


class Barriers:
    def __init__(self, world: World, reporter: Reporter, shared: SharedMemory, lifetime: Lifetime):
        self.world, self.reporter, self.shared, self.lifetime = world, reporter, shared, lifetime
        self.mbarriers: dict[tuple[int, int], Barrier] = {}
        self.named: dict[tuple[int, int], dict[WarpId, tuple[Clock, int]]] = {}
        self.cluster_open = world.nothing
        self.cluster_done = world.nothing

    # -- mbarriers --
    def init(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        w, name = self.world, self.reporter.program.barrier_name(pc, offset)
        if live:
            self.reporter.add(kinds.BARRIER_LIVE, f"mbarrier.init on {name}, which is live", pc, (agent,), name)
        self._end(cta, offset)
        now = w.warp_access(agent, pc, "write")
        self.shared.access(w, cta, np.array([offset]), BARRIER_BYTES, now)
        self.mbarriers[cta, offset] = Barrier(name, now, w.nothing, w.nothing)
        w.barrier_bytes[cta][offset] = name

    def _end(self, cta: int, offset: int) -> bool:
        old = self.mbarriers.pop((cta, offset), None)
        self.world.barrier_bytes[cta].pop(offset, None)
        if old is not None:
            old.bytes.check(self.reporter, f"{old.name} of CTA {cta}", True)
        return old is not None

    def inval(self, agent: WarpId, pc: int, cta: int, offset: int) -> None:
        if not self._end(cta, offset):
            name = f"mbarrier {offset:#x}"
            told = f"mbarrier.inval of {name}, which is not live"
            self.reporter.add(kinds.BARRIER_LIVE, told, pc, (agent,), name)
        now = self.world.warp_access(agent, pc, "write")
        self.shared.access(self.world, cta, np.array([offset]), BARRIER_BYTES, now)

    def used(self, agent: WarpId, pc: int, cta: int, offset: int) -> Barrier | None:
        b = self.mbarriers.get((cta, offset))
        if b is not None and not b.init.known_to(self.world.clocks[self.world.slot(agent)]):
            r = self.reporter
            r.add(kinds.BARRIER_INIT_RACE, f"{r.warp(agent)} uses {b.name} of CTA {cta}, and nothing orders that after "
                  f"its init by {r.warp(b.init.agent)} at {r.at(b.init.pc)}", pc, (agent, b.init.agent), b.name,
                  b.init.pc)
        return b

    def arrive(self, agent: WarpId, pc: int, cta: int, offset: int, sem: str) -> None:
        b = self.used(agent, pc, cta, offset)
        self.lifetime.used(self.world.warp_access(agent, pc, "atomic", True), cta)
        clock = self.world.publish(self.world.slot(agent), sem)
        if b is not None:
            b.open = b.open.join(clock)

    def expect(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, count: int) -> None:
        b = self.used(agent, pc, cta, offset)
        if b is not None:
            b.bytes.expect(agent, pc, phase, count)

    def issue(self, op: Op) -> None:
        assert op.barrier is not None
        b = self.used(op.agent, op.pc, *op.barrier)
        if b is None:
            return
        op.phase = b.bytes.phase_of_issue(op.agent, b.phase)
        if op.async_proxy and not b.fenced and b.init.known_to(op.clock) and not b.init.fenced_for(op.clock):
            self.reporter.add(kinds.PROXY_FENCE, f"{self.reporter.operation(op)} completes on {b.name}, and no "
                              f"fence.mbarrier_init or fence.proxy.async has made its init at "
                              f"{self.reporter.at(b.init.pc)} visible to the async proxy", op.pc, (op.agent,), b.name,
                              b.init.pc)

    def init_fence(self, agent: WarpId) -> None:
        for b in self.mbarriers.values():
            if b.init.agent == agent:
                b.fenced = True

    def bring(self, op: Op | None, cta: int, offset: int, phase: int, count: int) -> None:
        b = self.mbarriers.get((cta, offset))
        if b is not None and op is not None:
            b.bytes.bring(op, count)
        elif b is not None:
            b.bytes.brought[phase] += count

    def check_bytes(self, all_done: bool) -> None:
        for (cta, _), b in self.mbarriers.items():
            b.bytes.check(self.reporter, f"{b.name} of CTA {cta}", all_done)

    def left_over(self) -> None:
        for (_, number), here in self.named.items():
            for agent, (_, pc) in here.items():
                r, name = self.reporter, f"barrier {number}"
                r.add(kinds.BARRIER_PARTICIPANTS, f"{r.warp(agent)} has arrived at {name} of its CTA, and not all that "
                      "the barrier counts", pc, (agent,), name)

    def op_bits(self, cta: int, offset: int, bits: int) -> None:
        b = self.mbarriers.get((cta, offset))
        if b is not None:
            b.open = b.open.with_ops(bits)

    def completed(self, cta: int, offset: int, phase: int) -> None:
        b = self.mbarriers.get((cta, offset))
        if b is not None:
            b.done, b.phase = b.open, phase + 1

    def wait(self, agent: WarpId, pc: int, cta: int, offset: int, sem: str) -> None:
        b = self.used(agent, pc, cta, offset)
        if b is not None:
            self.world.observe(self.world.slot(agent), b.done, sem)

    # -- named barriers and the cluster's --
    def named_arrive(self, agent: WarpId, pc: int, number: int) -> None:
        slot = self.world.slot(agent)
        self.named.setdefault((agent.cta, number), {})[agent] = (self.world.publish(slot, "release"), pc)

    def named_complete(self, cta: int, number: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        here = self.named.get((cta, number), {})
        total = self.world.nothing
        for agent in agents:
            found = here.pop(agent, None)
            if found is not None:
                total = total.join(found[0])
        for agent in waiters:
            self.world.learn(self.world.slot(agent), total)

    def cluster_arrive(self, agent: WarpId, relaxed: bool) -> None:
        self.lifetime.arrive(self.world.slot(agent))
        clock = self.world.publish(self.world.slot(agent), "relaxed" if relaxed else "release")
        self.cluster_open = self.cluster_open.join(clock)

    def cluster_complete(self) -> None:
        self.cluster_done = self.cluster_open
        self.lifetime.complete()

    def cluster_wait(self, agent: WarpId) -> None:
        self.world.learn(self.world.slot(agent), self.cluster_done)
        self.lifetime.wait(self.world.slot(agent))


def multicast_bits(op: Op, cta: int) -> int:
    """What a complete_tx on a barrier of `cta` tells: of a multicast only the part for this CTA."""
    return op.write_bits[cta] if len(op.write_bits) > 1 and cta in op.write_bits else op.all_bits()
