from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilejit.emulator.events import Listener, WarpId
from tilejit.emulator.report import Finding
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.barriers import Barriers, multicast_bits
from tilejit.emulator.sanitizer.global_memory import GlobalMemory
from tilejit.emulator.sanitizer.late_reads import late_reads
from tilejit.emulator.sanitizer.lifetime import Lifetime
from tilejit.emulator.sanitizer.records import Op
from tilejit.emulator.sanitizer.registers import Registers
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.shared_memory import SharedMemory
from tilejit.emulator.sanitizer.strong import CtaClocks, Instructions, order
from tilejit.emulator.sanitizer.tensor_maps import TensorMaps
from tilejit.emulator.sanitizer.world import World


@dataclass
class Parts:
    world: World
    barriers: Barriers
    lifetime: Lifetime
    registers: Registers


class Sanitizer(Listener):
    """Checks one launch after another; `findings` are the last one's."""

    def __init__(self, wgmma_after_fence: bool = True, fence_reads: bool = False) -> None:
        super().__init__()
        self.wgmma_after_fence = wgmma_after_fence
        self.reporter = Reporter(self.findings)
        self.shared = SharedMemory(self.reporter, fence_reads)

    # -- life of the launch --
    def launch_begin(self, program: object, grid: tuple[int, int, int], block: int,
                     cluster: tuple[int, int, int], seed: int) -> None:
        self.reporter.begin(program, seed)
        self.block = block
        self.parts: dict[int, Parts] = {}  # by CTA
        self.parts_of_op: dict[int, Parts] = {}
        self.instructions = Instructions(program)
        self.late = late_reads(program)
        self.under_way: dict[WarpId, dict[int, tuple[int, np.ndarray, int]]] = {}  # by load: CTA, addresses, bytes
        self.ctas = CtaClocks()
        self.globals = GlobalMemory(self.reporter, self.ctas)
        self.maps = TensorMaps(self.reporter, self.globals)

    def launch_end(self, stopped: Finding | None) -> None:
        if stopped is not None and stopped.kind == kinds.DEADLOCK:
            for parts in self.parts.values():
                parts.barriers.check_bytes(False)
                parts.barriers.left_over()

    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        world = World(ctas, warps, base + shared_bytes, self.wgmma_after_fence)
        lifetime = Lifetime(world, self.reporter)
        parts = Parts(world, Barriers(world, self.reporter, self.shared, lifetime), lifetime,
                      Registers(self.reporter, self.reporter.program.entry_registers(self.block)))
        self.parts.update(dict.fromkeys(ctas, parts))

    def cluster_end(self, ctas: list[int]) -> None:
        parts = self.parts[ctas[0]]
        parts.barriers.check_bytes(True)
        parts.barriers.left_over()
        for number in parts.world.ops:
            del self.parts_of_op[number]
        for cta in ctas:
            del self.parts[cta]

    def warp_exit(self, agent: WarpId) -> None:
        self.parts[agent.cta].lifetime.exits(agent)

    # -- memory --
    def access(self, agent: WarpId, pc: int, kind: str, space: str, lanes: int, addresses: np.ndarray,
               size: int, cta: int) -> None:
        parts = self.parts[agent.cta]
        strong, reads, writes = self.instructions.strong(pc)
        if strong and space != "local" and kind != "write":
            order(parts.world, self.ctas, agent, False, reads, cta, addresses)
        if space == "shared":
            now = parts.world.warp_access(agent, pc, kind, strong)
            parts.lifetime.used(now, cta)
            self.shared.access(parts.world, cta, addresses, size, now)
            if pc in self.late:
                self.under_way.setdefault(agent, {})[pc] = cta, addresses.copy(), size
        elif space == "global":
            self.globals.access(agent, pc, kind, strong, addresses, size)
            if self.maps.used and kind != "read":
                world = parts.world
                self.maps.written(agent, pc, world.ctas, world.clocks[world.slot(agent)], addresses, size)
        if strong and space != "local" and kind != "read":
            order(parts.world, self.ctas, agent, True, writes, cta, addresses)

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray, size: int) -> None:
        parts = self.parts_of_op[op]
        issued = parts.world.ops[op]
        if not len(starts):
            return
        if space == "shared":
            now = parts.world.op_access(issued, kind, cta)
            parts.lifetime.used(now, cta)
            self.shared.access(parts.world, cta, starts, size, now)
        else:
            self.globals.access(issued.agent, issued.pc, kind, kind == "atomic", starts, size, issued)

    def beside(self, op: int, starts: np.ndarray, size: int) -> None:
        issued = self.parts_of_op[op].world.ops[op]
        first = int(starts[0])
        self.reporter.add(kinds.TMA_BESIDE, f"{issued.kind} writes whole units of 16 bytes: global bytes [{first:#x}, "
                          f"{first + size:#x}) lie behind the end of a row of the tensor and are overwritten"
                          + (f", and as many in {len(starts) - 1} other rows" if len(starts) > 1 else ""), issued.pc,
                          (issued.agent,))

    # -- asynchronous operations --
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        parts = self.parts_of_op[op] = self.parts[agent.cta]
        new = parts.world.issue(op, kind, agent, pc)
        self.maps.issued(new)
        if barrier is None:
            return
        new.barrier, new.bytes = barrier, bytes
        if kind == "cp_async":
            new.after = [o for o in parts.world.ops.values() if o.kind == kind and o is not new and o.agent == agent]
        else:
            parts.barriers.issue(new)
            if kind == "st_async":  # its complete-tx releases
                self.ctas.publish(agent.cta, barrier, "release")

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int], read_only: bool) -> None:
        parts = self.parts[agent.cta]
        bits = 0
        for number in done:
            op = parts.world.ops[number]
            bits |= op.read_bit if read_only else op.all_bits()
            if kind == "wgmma":
                parts.registers.done(op)
            elif not read_only:
                self.globals.waited(op)
        slot = parts.world.slot(agent)
        parts.world.clocks[slot] = parts.world.clocks[slot].with_ops(bits)

    # -- wgmma and registers --
    def wgmma_fence(self, agent: WarpId, pc: int) -> None:
        world = self.parts[agent.cta].world
        slot = world.slot(agent)
        world.at_fence[slot] = world.clocks[slot]
        world.tick(slot)

    def wgmma_unfenced(self, agent: WarpId, pc: int, register: int) -> None:
        self.parts[agent.cta].registers.unfenced(agent, pc, register)

    def wgmma_registers(self, op: int, accumulator: list[int], a: list[int]) -> None:
        parts: Parts = self.parts_of_op[op]
        issued: Op = parts.world.ops[op]
        parts.registers.issue(issued, accumulator, a)

    def register_touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        self.parts[agent.cta].registers.touch(agent, pc, register, write, state)

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        self.parts[agent.cta].registers.uninitialised(agent, pc, register)

    def set_registers(self, agent: WarpId, pc: int, count: int, increase: bool) -> None:
        self.parts[agent.cta].registers.budget[agent] = count

    # -- mbarriers --
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int, live: bool) -> None:
        self.parts[cta].barriers.init(agent, pc, cta, offset, live)

    def mbarrier_inval(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        self.parts[cta].barriers.inval(agent, pc, cta, offset)

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int,
                        lane: int, scope: str, sem: str) -> None:
        parts = self.parts[cta]
        if isinstance(agent, int):
            for earlier in parts.world.ops[agent].after:
                parts.barriers.op_bits(cta, offset, earlier.all_bits())
        else:
            parts.barriers.arrive(agent, pc, cta, offset, sem)
            for load, (of, addresses, size) in self.under_way.get(agent, {}).items():
                if pc in self.late[load]:
                    now = parts.world.warp_access(agent, load, "read")
                    self.shared.access(parts.world, of, addresses, size, now)
            if agent.cta != cta:
                self.ctas.publish(agent.cta, (cta, offset), "relaxed")

    def mbarrier_expect(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        self.parts[cta].barriers.expect(agent, pc, cta, offset, phase, bytes)

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        parts = self.parts[cta]
        done = parts.world.ops[op] if op >= 0 else None
        parts.barriers.bring(done, cta, offset, phase, bytes)
        if done is not None:
            parts.barriers.op_bits(cta, offset, multicast_bits(done, cta))

    def mbarrier_phase(self, cta: int, offset: int, phase: int) -> None:
        self.parts[cta].barriers.completed(cta, offset, phase)

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int,
                      scope: str, sem: str) -> None:
        self.parts[cta].barriers.wait(agent, pc, cta, offset, sem)
        self.ctas.observe(agent.cta, (cta, offset), "relaxed")

    # -- other synchronisation --
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        self.parts[agent.cta].barriers.named_arrive(agent, pc, barrier)

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        self.parts[cta].barriers.named_complete(cta, barrier, agents, waiters)

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        parts = self.parts[agent.cta]
        parts.barriers.cluster_arrive(agent, relaxed)
        self.ctas.publish(agent.cta, (parts.world.ctas[0], -1), "relaxed" if relaxed else "release")

    def cluster_complete(self, agents: list[WarpId]) -> None:
        if agents:
            self.parts[agents[0].cta].barriers.cluster_complete()

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        parts = self.parts[agent.cta]
        parts.barriers.cluster_wait(agent)
        self.ctas.observe(agent.cta, (parts.world.ctas[0], -1), "acquire")

    def fence(self, agent: WarpId, pc: int, kind: str, scope: str) -> None:
        parts = self.parts[agent.cta]
        parts.world.fence(parts.world.slot(agent), kind, scope)
        if kind == "mbarrier_init":
            parts.barriers.init_fence(agent)
        elif kind == "proxy.async" and scope in ("", "global"):
            self.ctas.proxy_fence(agent.cta)
        elif kind == "proxy.tensormap":
            self.maps.release(agent)
            self.ctas.fence(agent.cta)  # what is written from here on is another write
        elif not kind.startswith("proxy"):
            self.ctas.fence(agent.cta)

    def map_acquire(self, agent: WarpId, pc: int, address: int) -> None:
        self.maps.acquire(agent, address)

    def map_read(self, agent: WarpId, pc: int, address: int) -> None:
        self.maps.read(agent, pc, address)

    def diverged(self, agent: WarpId, pc: int, lanes: int, together: int) -> None:
        # The machine itself reports the aligned instructions that it carries out in Python.
        if pc not in self.reporter.program.decoded.externals:
            told = f"{self.reporter.program.text(pc)!r} needs lanes {together:#010x} together, {lanes:#010x} execute it"
            self.reporter.add(kinds.DIVERGENT, told, pc, (agent,))
