"""The listener: hands each event to the part that it concerns."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.events import Listener, WarpId
from tilejit.emulator.sanitizer.barriers import Barriers, multicast_bits
from tilejit.emulator.sanitizer.registers import Registers
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shared_memory import SharedMemory
from tilejit.emulator.sanitizer.world import World


class Sanitizer(Listener):
    """Checks one launch after another; `findings` grows.

    wgmma_after_fence: a wgmma counts from its warps' last wgmma.fence, since PTX does not order it after other
    earlier instructions; False takes the instruction itself.
    fence_reads: a generic read, too, must be fenced before an asynchronous write to the same bytes.
    """

    def __init__(self, wgmma_after_fence: bool = True, fence_reads: bool = False) -> None:
        super().__init__()
        self.wgmma_after_fence = wgmma_after_fence
        self.reporter = Reporter(self.findings)
        self.shared = SharedMemory(self.reporter, fence_reads)
        self.registers = Registers(self.reporter)
        self.worlds: dict[int, World] = {}
        self.barriers: dict[int, Barriers] = {}
        self.ops: dict[int, World] = {}

    # -- life of the launch ----------------------------------------------------------------------------
    def launch_begin(self, program: object, grid: tuple[int, int, int], block: int,
                     cluster: tuple[int, int, int], seed: int) -> None:
        self.reporter.begin(program, seed)
        self.worlds.clear()
        self.barriers.clear()
        self.ops.clear()

    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        world = World(ctas, warps, base + shared_bytes, self.wgmma_after_fence)
        barriers = Barriers(world, self.reporter, self.shared)
        for cta in ctas:
            self.worlds[cta], self.barriers[cta] = world, barriers

    def cluster_end(self, ctas: list[int]) -> None:
        world = self.worlds[ctas[0]]
        for number in world.ops:
            del self.ops[number]
        for cta in ctas:
            del self.worlds[cta], self.barriers[cta]

    # -- memory ----------------------------------------------------------------------------------------
    def access(self, agent: WarpId, pc: int, kind: str, space: str, lanes: int, addresses: np.ndarray,
               size: int, cta: int) -> None:
        if space == "shared":
            world = self.worlds[agent.cta]
            self.shared.access(world, cta, addresses, size, world.warp_access(agent, pc, kind))

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray, size: int) -> None:
        world = self.ops[op]
        if space == "shared" and len(starts):
            self.shared.access(world, cta, starts, size, world.op_access(world.ops[op], kind, cta))

    # -- asynchronous operations -----------------------------------------------------------------------
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        world = self.ops[op] = self.worlds[agent.cta]
        new = world.issue(op, kind, agent, pc)
        new.barrier, new.bytes = barrier, bytes
        if barrier is not None:
            self.barriers[agent.cta].used(agent, pc, *barrier)
        if kind == "cp_async" and barrier is not None:
            slot = world.slot(agent)
            new.after = sum(o.all_bits() for o in world.ops.values()
                            if o.kind == "cp_async" and o is not new and world.slot(o.agent) == slot)

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int], read_only: bool) -> None:
        world = self.worlds[agent.cta]
        bits = 0
        for number in done:
            op = world.ops[number]
            bits |= op.read_bit if read_only else op.all_bits()
        slot = world.slot(agent)
        world.clocks[slot] = world.clocks[slot].with_ops(bits)

    # -- wgmma -----------------------------------------------------------------------------------------
    def wgmma_fence(self, agent: WarpId, pc: int) -> None:
        world = self.worlds[agent.cta]
        slot = world.slot(agent)
        world.at_fence[slot] = world.clocks[slot]
        world.tick(slot)

    def register_touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        self.registers.touch(agent, pc, register, write, state)

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        self.registers.uninitialised(agent, pc, register)

    # -- mbarriers -------------------------------------------------------------------------------------
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int, live: bool) -> None:
        self.barriers[agent.cta].init(agent, pc, cta, offset, live)

    def mbarrier_inval(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        self.barriers[agent.cta].inval(agent, pc, cta, offset, live)

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int,
                        lane: int, scope: str, sem: str) -> None:
        if isinstance(agent, int):
            self.barriers[cta].op_bits(cta, offset, self.ops[agent].ops[agent].after)
        else:
            self.barriers[cta].arrive(agent, pc, cta, offset, sem)

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        if op >= 0:
            self.barriers[cta].op_bits(cta, offset, multicast_bits(self.ops[op].ops[op], cta))

    def mbarrier_phase(self, cta: int, offset: int, phase: int) -> None:
        self.barriers[cta].completed(cta, offset, phase)

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int,
                      scope: str, sem: str) -> None:
        self.barriers[cta].wait(agent, pc, cta, offset, sem)

    # -- other synchronisation --------------------------------------------------------------------------
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        self.barriers[agent.cta].named_arrive(agent, pc, barrier)

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        self.barriers[cta].named_complete(cta, barrier, agents, waiters)

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        self.barriers[agent.cta].cluster_arrive(agent, relaxed)

    def cluster_complete(self, agents: list[WarpId]) -> None:
        if agents:
            self.barriers[agents[0].cta].cluster_complete()

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        self.barriers[agent.cta].cluster_wait(agent)

    def fence(self, agent: WarpId, pc: int, kind: str, scope: str) -> None:
        world = self.worlds[agent.cta]
        world.fence(world.slot(agent), kind, scope)
