from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilejit.emulator.decode import SHARED_BASE, Address, External
from tilejit.emulator.events import WarpId
from tilejit.emulator.policy import FUEL
from tilejit.emulator.report import Finding
from tilejit.emulator.vm import codes as k

if TYPE_CHECKING:
    from tilejit.emulator.mbarrier import MBarrier
    from tilejit.emulator.program import Launch


class Stop(Exception):
    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Tools:
    run: Callable[[np.ndarray, int, int], int]
    execute: dict[str, Callable[..., Any]]
    deadlock: Callable[[Cluster], Finding | None]
    warp_exited: Callable[[Cluster, int], None]


@dataclass
class Waiter:
    warp: int
    split: int
    pc: int
    ready: Callable[[], bool]
    resume: Callable[[], None]
    describe: Callable[[], str]
    limited: int = -1  # the phase of a wait with a time limit


@dataclass(eq=False)
class AsyncOp:
    number: int
    kind: str
    steps: list[Callable[[], None]]
    keys: list[Hashable] = field(default_factory=list)
    after: list[AsyncOp] = field(default_factory=list)
    describe: str = ""
    read_done: bool = False
    done: bool = False


@dataclass
class WarpState:
    bulk_open: dict[int, list[AsyncOp]] = field(default_factory=dict)  # by lane
    bulk_groups: dict[int, list[list[AsyncOp]]] = field(default_factory=dict)
    copies_open: list[tuple[int, AsyncOp]] = field(default_factory=list)  # cp.async: (lanes, op)
    copy_groups: list[tuple[int, list[AsyncOp]]] = field(default_factory=list)
    wgmma_issued: int = 0
    wgmma_open: list[AsyncOp] = field(default_factory=list)
    wgmma_groups: list[list[AsyncOp]] = field(default_factory=list)
    cluster_arrived: int = 0
    cluster_owed: int = 0  # lanes that have arrived and not waited
    registers: int = 0
    exited: bool = False


class Cluster:
    def __init__(self, launch: Launch, ctas: list[int], rng: random.Random):
        self.tools = launch.tools
        self.launch, self.ctas, self.rng = launch, ctas, rng
        p = self.program = launch.program
        d = p.decoded
        self.listener, self.policy = launch.listener, launch.policy
        self.fetched_maps: dict[tuple[int, int], bytes] = {}  # (CTA of the cluster, address) -> tensor map
        self.warps_per_cta = launch.warps
        self.warps = launch.warps * len(ctas)
        self.shared_bytes = -(-(SHARED_BASE + d.static_shared + launch.shared_bytes) // 16) * 16
        stride = -(-self.shared_bytes // 1024) * 1024
        self.shared = np.full((len(ctas), stride), 0xFF, np.uint8)
        self.regs = launch.register_file(self.warps)
        self.live = np.array([launch.live_lanes(w % launch.warps) for w in range(self.warps)], np.int64)
        self.splits = np.zeros((self.warps, k.SPLITS, k.SP_FIELDS), np.int64)
        self.splits[:, 0] = (0, 0, -1, -1, 0, k.READY)
        self.splits[:, 0, k.SP_MASK] = self.live
        self.local = np.zeros(max(1, self.warps * 32 * d.local_bytes), np.uint8)
        self.states = np.zeros((self.warps, d.registers), np.uint8)
        if self.listener is not None:
            self.states[:, :len(d.entry.registers)] = k.UNINIT | k.TOUCHED
        self.events = np.zeros((4096 if self.listener is not None else 1, k.EVENT_WIDTH), np.int64)
        self.st = self.state_array()
        self.warp_states = [WarpState(registers=launch.entry_registers) for _ in range(self.warps)]
        self.free_registers = [0] * len(ctas)
        self.mbarriers: dict[tuple[int, int], MBarrier] = {}
        self.named: dict[tuple[int, int], Any] = {}
        self.cluster_phase, self.cluster_lanes = 0, 0
        self.timed_out: set[tuple[int, int, int]] = set()  # (warp, pc, phase) of waits that gave up
        self.wgmma_pending: dict[tuple[int, int], Any] = {}
        self.flight_registers: dict[int, tuple[list[int], list[int]]] = {}
        self.waiters: dict[Hashable, list[Waiter]] = {}
        self.runnable: list[int] = list(range(self.warps))
        self.inflight: list[AsyncOp] = []
        self.finished = 0
        self.idle_rounds, self.spun, self.moved = 0, False, False
        self.told = 0  # instructions that the listener has heard of
        launch.fill_specials(self)
        if self.listener is not None:
            self.listener.cluster_begin(list(ctas), self.warps_per_cta, self.shared_bytes - SHARED_BASE, SHARED_BASE)

    def state_array(self) -> np.ndarray:
        launch, d = self.launch, self.program.decoded
        st = np.zeros(k.ST_SIZE, np.int64)
        pairs = {
            k.ST_CODE: d.code.ctypes.data, k.ST_POOL: d.pool.ctypes.data, k.ST_REGS: self.regs.ctypes.data,
            k.ST_NREGS: d.registers, k.ST_SHARED: self.shared.ctypes.data,
            k.ST_SHARED_STRIDE: self.shared.shape[1], k.ST_SHARED_SIZE: self.shared_bytes,
            k.ST_CTAS: len(self.ctas), k.ST_WARPS_PER_CTA: self.warps_per_cta,
            k.ST_PARAM: launch.params.ctypes.data, k.ST_PARAM_SIZE: launch.params_size,
            k.ST_LOCAL: self.local.ctypes.data, k.ST_LOCAL_SIZE: d.local_bytes,
            k.ST_CONST: launch.const_bank.ctypes.data, k.ST_CONST_SIZE: len(d.const_bank),
            k.ST_RANGES: launch.ranges.ctypes.data, k.ST_NRANGES: len(launch.ranges),
            k.ST_SPLITS: self.splits.ctypes.data,
            k.ST_TRACE: 1 if self.listener is not None and self.listener.accesses else 0,
            k.ST_EVENTS: self.events.ctypes.data, k.ST_EVENT_CAPACITY: len(self.events),
            k.ST_LIVE: self.live.ctypes.data, k.ST_STATES: self.states.ctypes.data}
        for slot, value in pairs.items():
            st[slot] = value
        return st

    # -- names --
    def agent(self, warp: int) -> WarpId:
        return WarpId(self.ctas[warp // self.warps_per_cta], warp % self.warps_per_cta)

    def warp_name(self, warp: int) -> str:
        cta, index = self.agent(warp)
        role = self.program.role(index)
        return f"CTA {cta} warp {index}" + (f" ({role})" if role else "")

    def finding(self, kind: str, message: str, pc: int = -1, warps: tuple[int, ...] = ()) -> Finding:
        p = self.program
        return Finding(kind, message, p.line(pc) if pc >= 0 else 0, p.loc(pc) if pc >= 0 else None,
                       tuple(self.warp_name(w) for w in warps), self.launch.seed)

    def report(self, kind: str, message: str, s: Site) -> None:
        self.launch.report.findings.append(self.finding(kind, message, s.pc, (s.warp,)))

    def stop(self, kind: str, message: str, s: Site) -> Stop:
        return Stop(self.finding(kind, message, s.pc, (s.warp,)))

    # -- operands --
    def value(self, warp: int, reg: int, lane: int, bits: int = 64) -> int:
        return int(self.regs[warp, reg, lane]) & ((1 << bits) - 1)

    def at(self, s: Site, operand: Address, lane: int) -> int:
        return self.value(s.warp, operand.base, lane) + operand.offset

    def addresses(self, s: Site, at: Address) -> list[tuple[int, int]]:
        column = self.regs[s.warp, at.base]
        return [(lane, int(column[lane]) + at.offset) for lane in lanes_of(s.mask)]

    def address_groups(self, s: Site, at: Address, also: int | None = None) -> list[tuple[list[int], int]]:
        lanes = lanes_of(s.mask)
        columns = [self.regs[s.warp, at.base]] + ([] if also is None else [self.regs[s.warp, also]])
        if len(lanes) == 1 or len(lanes) == 32 and all((col == col[0]).all() for col in columns):
            return [(lanes, int(columns[0][lanes[0]]) + at.offset)]
        groups: dict[tuple[int, ...], list[int]] = {}
        for lane in lanes:
            groups.setdefault(tuple(int(col[lane]) for col in columns), []).append(lane)
        return [(members, key[0] + at.offset) for key, members in groups.items()]

    def shared_place(self, s: Site, address: int, size: int, align: int) -> tuple[int, int]:
        """(CTA index in the cluster, offset), checked."""
        address &= 0xFFFFFFFF
        offset, cta = address & 0xFFFFFF, address >> k.RANK_SHIFT
        if offset % align:
            raise self.stop("misaligned", f"shared address {offset:#x} is not a multiple of {align}", s)
        if cta >= len(self.ctas) or offset < SHARED_BASE or offset + size > self.shared_bytes:
            raise self.stop("out-of-bounds", f"shared bytes [{offset:#x}, {offset + size:#x}) of CTA rank {cta} lie "
                            f"outside [{SHARED_BASE:#x}, {self.shared_bytes:#x})", s)
        if cta != s.warp // self.warps_per_cta and self.cta_exited(cta):
            self.report("peer-exited", f"shared memory of CTA {self.ctas[cta]} is used after that CTA has exited", s)
        return cta, offset

    def cta_exited(self, cta: int) -> bool:
        first = cta * self.warps_per_cta
        return all(s.exited for s in self.warp_states[first:first + self.warps_per_cta])

    # -- waiting --
    def wait(self, s: Site, key: Hashable, ready: Callable[[], bool], resume: Callable[[], None],
             describe: Callable[[], str]) -> tuple[Hashable, Waiter] | None:
        if ready():
            resume()
            return None
        return key, Waiter(s.warp, s.split, s.pc, ready, resume, describe)

    def block(self, key: Hashable, waiter: Waiter) -> None:
        self.splits[waiter.warp, waiter.split, k.SP_STATE] = k.BLOCKED
        self.waiters.setdefault(key, []).append(waiter)

    def notify(self, key: Hashable) -> None:
        waiting = self.waiters.get(key)
        if not waiting:
            return
        keep = []
        for w in waiting:
            if w.ready():
                w.resume()
                self.splits[w.warp, w.split, k.SP_STATE] = k.READY
                if w.warp not in self.runnable:
                    self.runnable.append(w.warp)
            else:
                keep.append(w)
        if keep:
            self.waiters[key] = keep
        else:
            del self.waiters[key]

    # -- asynchronous operations --
    def start(self, op: AsyncOp) -> None:
        self.inflight.append(op)
        if self.policy.early(op):
            while not op.done:
                self.advance(op)

    def advance(self, op: AsyncOp) -> None:
        for earlier in op.after:
            while not earlier.done:
                self.advance(earlier)
        op.after = []
        op.steps.pop(0)()
        op.read_done = True
        if not op.steps:
            op.done = True
            self.inflight.remove(op)
        for key in op.keys:
            self.notify(key)

    # -- running --
    def step(self) -> bool:
        if not self.runnable:
            if self.inflight:
                self.advance(self.policy.choose(self))
                return True
            if self.finished == self.warps:
                return False
            found = self.tools.deadlock(self)
            if found is not None:
                raise Stop(found)
            return True
        if self.inflight and self.policy.advances(self):
            self.advance(self.policy.choose(self))
            return True
        warp = self.policy.pick(self)
        fuel = self.policy.fuel(self)
        why = self.run_warp(warp, fuel)
        if why == k.R_EXTERNAL:
            self.spun = False
            self.external(warp)
            self.idle_rounds = self.idle_rounds + 1 if self.spun else 0
            if self.splits[warp, self.st[k.ST_SPLIT], k.SP_STATE] != k.READY and not self.has_ready(warp):
                self.runnable.remove(warp)
        elif why == k.R_SWITCH:
            self.runnable.remove(warp)
        elif why == k.R_EXITED:
            self.runnable.remove(warp)
            self.finished += 1
            self.tools.warp_exited(self, warp)
        elif why == k.R_FUEL:
            self.idle_rounds += fuel == FUEL
            self.rotate(warp)
        elif why == k.R_FAULT:
            raise self.fault(warp)
        elif why == k.R_TRAP:
            raise self.stop("trap", "the kernel executed a trap", Site(warp, 0, 0, int(self.st[k.ST_PC])))
        if self.inflight and self.idle_rounds > len(self.runnable):
            self.advance(self.policy.choose(self))
            self.moved = True
        return True

    def run_warp(self, warp: int, fuel: int) -> int:
        self.st[k.ST_FUEL] = fuel
        while True:
            before = int(self.st[k.ST_EXECUTED])
            why = self.tools.run(self.st, warp, -1)
            if self.listener is not None:
                self.tell(warp, why)
            if why != k.R_EVENTS:
                return why
            self.st[k.ST_FUEL] -= int(self.st[k.ST_EXECUTED]) - before

    def external(self, warp: int) -> None:
        pc, split, mask = int(self.st[k.ST_PC]), int(self.st[k.ST_SPLIT]), int(self.st[k.ST_MASK])
        site = Site(warp, split, mask, pc)
        ext: External = self.program.decoded.externals[pc]
        if (ext.form.aligned or "aligned" in ext.mods) and mask != int(self.live[warp]):
            if self.listener is not None:
                self.listener.diverged(self.agent(warp), pc, mask, int(self.live[warp]))
            self.report("divergent", f"{ext.form.name} needs the whole warp, only lanes {mask:#010x} of "
                        f"{int(self.live[warp]):#010x} execute it", site)
        if self.listener is not None:
            self.touch_operands(warp, pc, ext)
        waiting = self.tools.execute[ext.form.name](self, site, ext)
        if waiting is not None:
            key, waiter = waiting
            self.block(key, waiter)

    def touch_operands(self, warp: int, pc: int, ext: External) -> None:
        """Tell the listener of registers read before they were written or while a wgmma owns them."""
        reads, writes, everything = self.program.operand_registers(pc, ext)
        states = self.states[warp]
        if (states[everything] & ~np.uint8(k.TOUCHED)).any():
            listener, agent = self.listener, self.agent(warp)
            assert listener is not None
            for regs, write in ((reads, False), (writes, True)):
                for reg in regs.tolist():
                    state = int(states[reg])
                    if state & k.UNINIT and not write:
                        listener.uninitialised(agent, pc, reg)
                    if state & k.ACC_IN_FLIGHT or write and state & k.A_IN_FLIGHT:
                        listener.register_touch(agent, pc, reg, write, state)
            states[everything] &= ~np.uint8(k.UNINIT)
        if not ext.form.name.startswith("wgmma"):
            states[everything] |= k.TOUCHED

    def has_ready(self, warp: int) -> bool:
        return bool((self.splits[warp, :, k.SP_STATE] == k.READY).any())

    def spin(self, warp: int) -> None:
        """The warp polls in vain: others go first, and the turn does not count as progress."""
        self.spun = True
        self.rotate(warp)

    def rotate(self, warp: int) -> None:
        if warp in self.runnable:
            self.runnable.remove(warp)
            self.runnable.append(warp)

    def fault(self, warp: int) -> Stop:
        pc, lane = int(self.st[k.ST_PC]), int(self.st[k.ST_FAULT_LANE])
        address = int(self.st[k.ST_FAULT_ADDRESS])
        kinds = {k.FAULT_BOUNDS: ("out-of-bounds", "global address {:#x} lies in no registered array"),
                 k.FAULT_ALIGN: ("misaligned", "address {:#x} is not a multiple of the access size"),
                 k.FAULT_SPACE: ("out-of-bounds", "address {:#x} lies outside its state space"),
                 k.FAULT_SHARED_BOUNDS: ("out-of-bounds", "shared address {:#x} lies outside shared memory"),
                 k.FAULT_READONLY: ("out-of-bounds", "address {:#x} lies in a read-only array")}
        kind, message = kinds[int(self.st[k.ST_FAULT])]
        return self.stop(kind, f"{message.format(address)} (lane {lane}, {self.program.text(pc)!r})",
                         Site(warp, 0, 0, pc))

    # -- global memory --
    def global_bytes(self, s: Site, address: int, size: int, write: bool = False) -> np.ndarray:
        for start, end, readonly in self.launch.ranges:
            if start <= address and address + size <= end:
                if write and readonly:
                    raise self.stop("out-of-bounds", f"address {address:#x} lies in a read-only array", s)
                return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        raise self.stop("out-of-bounds", f"global bytes [{address:#x}, {address + size:#x}) lie in no registered "
                        "array", s)

    def tell(self, warp: int, why: int) -> None:
        from tilejit.emulator.trace import deliver

        assert self.listener is not None
        count = int(self.st[k.ST_EVENT_COUNT])
        if count:
            deliver(self, self.events[:count])
            self.st[k.ST_EVENT_COUNT] = 0
        executed = int(self.st[k.ST_EXECUTED])
        self.listener.ran(self.agent(warp), int(self.st[k.ST_PC]) if why == k.R_EXTERNAL else -1,
                          executed - self.told)
        self.told = executed


@dataclass(frozen=True)
class Site:
    warp: int
    split: int
    mask: int
    pc: int


_ALL_LANES = list(range(32))


def lanes_of(mask: int) -> list[int]:
    if mask == 0xFFFFFFFF:
        return _ALL_LANES
    if mask & (mask - 1) == 0:
        return [mask.bit_length() - 1]
    return [lane for lane in _ALL_LANES if mask >> lane & 1]
