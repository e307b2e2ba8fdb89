from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tilejit.emulator.report import Finding


class WarpId(NamedTuple):
    cta: int
    warp: int


class Listener:
    """`program` is set before the first event."""

    accesses = True

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.program: Any = None

    # -- life of the launch --
    def launch_begin(self, program: object, grid: tuple[int, int, int], block: int,
                     cluster: tuple[int, int, int], seed: int) -> None:
        """Before the first CTA."""

    def launch_end(self, stopped: Finding | None) -> None:
        """`stopped`: the finding with which the launch could not go on."""

    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        """Shared windows are [base, base + shared_bytes)."""

    def cluster_end(self, ctas: list[int]) -> None:
        """All warps have exited and nothing is in flight."""

    def ran(self, agent: WarpId, pc: int, count: int) -> None:
        """`count` more instructions; `pc` is the last one if it is carried out outside the virtual machine, else -1."""

    def warp_exit(self, agent: WarpId) -> None:
        """Every lane has exited."""

    # -- memory --
    def access(self, agent: WarpId, pc: int, kind: str, space: str, lanes: int, addresses: np.ndarray,
               size: int, cta: int) -> None:
        """One memory instruction of the generic proxy (not ld.param and constants); a read that polls is told once."""

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray,
                     size: int) -> None:
        """"read", "write" or "atomic"."""

    def beside(self, op: int, starts: np.ndarray, size: int) -> None:
        """A TMA store or reduction writes whole units of 16 bytes: `size` bytes from every start are not the
        tensor's."""

    # -- asynchronous operations --
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        """An asynchronous operation begins, which completes on `barrier` (cta, offset)."""

    def complete(self, op: int, barriers: list[tuple[int, int, int]]) -> None:
        """An asynchronous operation is over."""

    def source_read(self, op: int) -> None:
        """A bulk store has read its source."""

    def group_commit(self, agent: WarpId, pc: int, kind: str, lane: int, ops: list[int]) -> None:
        """kind "bulk" (per lane), "cp_async" or "wgmma" (lane -1; every warp of a warpgroup commits the same
        operations)."""

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int],
                   read_only: bool) -> None:
        """`done`: all operations of the groups it waited for, earlier ones too."""

    # -- wgmma --
    def wgmma_fence(self, agent: WarpId, pc: int) -> None:
        """Told of every warp of the warpgroup."""

    def wgmma_unfenced(self, agent: WarpId, pc: int, register: int) -> None:
        """The wgmma at `pc` uses a register (the first one told) that the warp has touched since a wgmma.fence."""

    def wgmma_registers(self, op: int, accumulator: list[int], a: list[int]) -> None:
        """Indices into `program.registers` that the wgmma owns until its wait."""

    def register_touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        """A register in flight is touched: state 2 accumulator, 4 A operand."""

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        """A read of a register that nothing has written."""

    # -- mbarriers --
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int,
                      live: bool) -> None:
        """`live`: the bytes held an initialised barrier."""

    def mbarrier_inval(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        """`live` is False when there was no barrier."""

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int,
                        lane: int, scope: str, sem: str) -> None:
        """An arrival on an mbarrier's phase."""

    def mbarrier_expect(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int,
                        bytes: int) -> None:
        """Also the first half of arrive.expect_tx."""

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        """`op` is -1 when an instruction does it."""

    def mbarrier_phase(self, cta: int, offset: int, phase: int) -> None:
        """Phase completed, told after the arrive or complete_tx that did it."""

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int,
                      scope: str, sem: str) -> None:
        """A successful test or try_wait on absolute phase `phase` (-1: on the opposite parity of a fresh barrier)."""

    def mbarrier_blocked(self, agent: WarpId, pc: int, cta: int, offset: int, parity: int) -> None:
        """A try_wait starts to wait."""

    # -- other synchronisation --
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        """`waits` is False for bar.arrive."""

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId],
                         waiters: list[WarpId]) -> None:
        """`waiters` go on, having seen all the others."""

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        """barrier.cluster.arrive."""

    def cluster_complete(self, agents: list[WarpId]) -> None:
        """All warps have arrived."""

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        """The wait is over."""

    def warp_sync(self, agent: WarpId, pc: int, lanes: int) -> None:
        """bar.warp.sync and other .sync instructions that order lanes."""

    def fence(self, agent: WarpId, pc: int, kind: str, scope: str) -> None:
        """kind "proxy.async" (scope "", "shared::cta", "shared::cluster", "global"), "mbarrier_init",
        "acq_rel", "acquire", "release", "sc", "proxy.alias", "proxy.tensormap" (a release)."""

    def map_acquire(self, agent: WarpId, pc: int, address: int) -> None:
        """fence.proxy.tensormap::generic.acquire of the map at a global address."""

    def map_read(self, agent: WarpId, pc: int, address: int) -> None:
        """A tensor copy uses the map at a global address."""

    def diverged(self, agent: WarpId, pc: int, lanes: int, together: int) -> None:
        """The live lanes `together` (all, or the member mask) must execute it together, but `lanes` did."""

    def set_registers(self, agent: WarpId, pc: int, count: int, increase: bool) -> None:
        """Told of every warp of the warpgroup when it has its `count` registers a thread."""


class FanOut(Listener):
    def __init__(self, listeners: Sequence[Listener]):
        self.listeners = tuple(listeners)
        self.accesses = any(listener.accesses for listener in self.listeners)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "program":
            for listener in self.listeners:
                listener.program = value

    @property
    def findings(self) -> list[Finding]:  # type: ignore[override]
        return [f for listener in self.listeners for f in listener.findings]


def _to_each(name: str) -> Any:
    def tell(self: FanOut, *args: Any) -> None:
        for listener in self.listeners:
            getattr(listener, name)(*args)

    return tell


for _name in [n for n, method in vars(Listener).items() if callable(method) and not n.startswith("_")]:
    setattr(FanOut, _name, _to_each(_name))


def fan_out(listeners: Listener | Sequence[Listener] | None) -> Listener | None:
    if listeners is None or isinstance(listeners, Listener):
        return listeners
    return FanOut(listeners) if len(listeners) > 1 else next(iter(listeners), None)
