"""Execution events: what a listener (the sanitizer, a timeline) may hear while a kernel runs.

`Program.launch(..., listener=L)` calls the methods of `L` in the order in which things happen. Without a
listener nothing is collected and nothing is paid. A listener never changes the machine; it may append
`Finding`s to `self.findings`, which end up in the report.

Vocabulary
  agent      who does it: a warp `WarpId(cta, warp)`, or an asynchronous operation by its number `op` (int).
             `cta` is the linear CTA index in the grid, `warp` the warp's index in its CTA.
  pc         index of the instruction; `program.line(pc)`, `program.loc(pc)`, `program.text(pc)` describe it.
  shared     bytes of shared memory are `(cta, offset)`: the CTA that owns them and the offset in its window.
  proxy      "generic" (ld, st, atom, ldmatrix, stmatrix, cp.async) or "async" (TMA, bulk copies, wgmma).

Order of events of one asynchronous operation: `issue`, then its `async_access`es (its reads of shared or
global memory, its writes), then `complete`. With lazy completion they come as late as PTX allows, with eager
completion at once; a checker should take the *issue* and the *completion's wait* as the bounds.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tilejit.emulator.report import Finding


class WarpId(NamedTuple):
    """A warp: linear CTA index in the grid, and warp index in the CTA."""

    cta: int
    warp: int


class Listener:
    """Base of all listeners: every method does nothing. `program` is set before the first event.

    With `accesses` False the memory accesses and the register checks of ordinary instructions are not told
    (`access`, `register_touch`, `uninitialised`, `diverged`): the machine then runs nearly at full speed."""

    accesses = True

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.program: Any = None

    # -- life of the launch ----------------------------------------------------------------------------
    def launch_begin(self, program: object, grid: tuple[int, int, int], block: int,
                     cluster: tuple[int, int, int], seed: int) -> None:
        """Before the first CTA."""

    def launch_end(self, stopped: Finding | None) -> None:
        """After the last CTA, or after the finding (a deadlock, a fault) with which the launch could not go on."""

    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        """A cluster starts: its linear CTA indices, warps per CTA; shared window bytes [base, base+bytes)."""

    def cluster_end(self, ctas: list[int]) -> None:
        """All warps of the cluster have exited and nothing of it is in flight."""

    def ran(self, agent: WarpId, pc: int, count: int) -> None:
        """The warp has executed `count` instructions since it was last told. It then stopped at instruction `pc`,
        counted and about to be carried out outside the virtual machine, or for another reason (-1)."""

    def warp_exit(self, agent: WarpId) -> None:
        """Every lane of the warp has exited."""

    # -- memory ----------------------------------------------------------------------------------------
    def access(self, agent: WarpId, pc: int, kind: str, space: str, lanes: int, addresses: np.ndarray,
               size: int, cta: int) -> None:
        """One memory instruction of a warp through the generic proxy.

        kind "read", "write" or "atomic"; space "shared", "global", "local"; `lanes` is the mask of active
        lanes, `addresses` (int64[popcount(lanes)]) where each one touches `size` bytes (all elements of a
        vector access). Shared addresses are offsets in the window of `cta`; global ones host addresses.
        ld.param and constants are not told; a read that a polling warp repeats with nothing between is told once.
        """

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray,
                     size: int) -> None:
        """An asynchronous operation reads, writes or reduces ("read" / "write" / "atomic") `size` bytes at
        every start (shared offsets in the window of `cta`, or host addresses with cta = -1)."""

    def beside(self, op: int, starts: np.ndarray, size: int) -> None:
        """A tensor's rows end within units of 16 bytes, which a TMA store or reduction writes whole: `size` bytes from
        every start on are not the tensor's."""

    # -- asynchronous operations -----------------------------------------------------------------------
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        """Operation number `op` starts. kind: "tma_load", "tma_store", "tma_reduce", "bulk_load",
        "bulk_store", "bulk_reduce", "bulk_smem" (shared to shared), "cp_async", "st_async", "red_async",
        "wgmma". For wgmma `agent` is the first warp of the warpgroup (all four take part). `barrier` is the
        mbarrier (cta, offset) on which it completes (multicast: see `complete`), `bytes` its total."""

    def complete(self, op: int, barriers: list[tuple[int, int, int]]) -> None:
        """The operation is done; `barriers` lists (cta, offset, bytes) of every complete_tx it performed.
        The `mbarrier_complete_tx` calls follow."""

    def source_read(self, op: int) -> None:
        """A bulk store has read its source (what `wait_group.read` waits for)."""

    def group_commit(self, agent: WarpId, pc: int, kind: str, lane: int, ops: list[int]) -> None:
        """kind "bulk" (per lane), "cp_async" or "wgmma" (lane -1: the whole warp; every warp of a warpgroup
        commits its wgmmas for itself, with the same operations)."""

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int],
                   read_only: bool) -> None:
        """A wait_group is over; `done` are all operations of the groups it waited for, earlier ones too."""

    # -- wgmma -----------------------------------------------------------------------------------------
    def wgmma_fence(self, agent: WarpId, pc: int) -> None:
        """wgmma.fence, told of every warp of the warpgroup."""

    def wgmma_unfenced(self, agent: WarpId, pc: int, register: int) -> None:
        """The wgmma at `pc` uses a register (the first one told) that the warp has touched since its last
        wgmma.fence, or it has not had a fence."""

    def wgmma_registers(self, op: int, accumulator: list[int], a: list[int]) -> None:
        """Registers (indices into `program.registers`) that the wgmma `op` owns until its wait."""

    def register_touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        """An ordinary instruction touches a register that is in flight: state 2 accumulator, 4 A operand."""

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        """An instruction reads a register that no instruction has written."""

    # -- mbarriers -------------------------------------------------------------------------------------
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int,
                      live: bool) -> None:
        """`live`: the bytes already held an initialised barrier that was not invalidated."""

    def mbarrier_inval(self, agent: WarpId, pc: int, cta: int, offset: int, live: bool) -> None:
        """mbarrier.inval; `live` is False when there was no barrier."""

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int,
                        lane: int, scope: str, sem: str) -> None:
        """An arrival (agent: a warp, or the number of a cp.async group's operation) on absolute phase
        `phase` (0, 1, 2, ...; parity is phase & 1)."""

    def mbarrier_expect(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int,
                        bytes: int) -> None:
        """expect_tx (also the first half of arrive.expect_tx)."""

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        """complete_tx by operation `op` (or -1: by the instruction)."""

    def mbarrier_phase(self, cta: int, offset: int, phase: int) -> None:
        """Absolute phase `phase` completed (after the arrive or complete_tx that did it)."""

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int,
                      scope: str, sem: str) -> None:
        """A successful test or try_wait that observed the completion of absolute phase `phase`
        (-1 for the wait on the opposite parity of a fresh barrier)."""

    def mbarrier_blocked(self, agent: WarpId, pc: int, cta: int, offset: int, parity: int) -> None:
        """A try_wait starts to wait."""

    # -- other synchronisation --------------------------------------------------------------------------
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        """bar.sync / bar.arrive / bar.red on named barrier `barrier`; `waits` is False for bar.arrive."""

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId],
                         waiters: list[WarpId]) -> None:
        """All `agents` have arrived: those in `waiters` go on, having seen all the others."""

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        """barrier.cluster.arrive."""

    def cluster_complete(self, agents: list[WarpId]) -> None:
        """All warps of the cluster have arrived."""

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        """barrier.cluster.wait is over."""

    def warp_sync(self, agent: WarpId, pc: int, lanes: int) -> None:
        """bar.warp.sync and the other .sync instructions that order lanes."""

    def fence(self, agent: WarpId, pc: int, kind: str, scope: str) -> None:
        """kind "proxy.async" (scope "", "shared::cta", "shared::cluster", "global"), "mbarrier_init",
        "acq_rel", "acquire", "release", "sc", "proxy.alias", "proxy.tensormap" (a release)."""

    def map_acquire(self, agent: WarpId, pc: int, address: int) -> None:
        """fence.proxy.tensormap::generic.acquire of the tensor map at a global address."""

    def map_read(self, agent: WarpId, pc: int, address: int) -> None:
        """A tensor copy uses the tensor map at a global address."""

    def diverged(self, agent: WarpId, pc: int, lanes: int, together: int) -> None:
        """An instruction that the live lanes `together` must execute together (an `.aligned` one: all; shfl,
        vote, match, redux, elect: those of the member mask) was executed by `lanes`."""

    def set_registers(self, agent: WarpId, pc: int, count: int, increase: bool) -> None:
        """setmaxnreg, told of every warp of the warpgroup when it has its `count` registers a thread."""


class FanOut(Listener):
    """Several listeners as one: each hears every event, in the order given."""

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
        """What all of them have found."""
        return [f for listener in self.listeners for f in listener.findings]


def _to_each(name: str) -> Any:
    def tell(self: FanOut, *args: Any) -> None:
        for listener in self.listeners:
            getattr(listener, name)(*args)

    return tell


for _name in [n for n, method in vars(Listener).items() if callable(method) and not n.startswith("_")]:
    setattr(FanOut, _name, _to_each(_name))


def fan_out(listeners: Listener | Sequence[Listener] | None) -> Listener | None:
    """One listener for any number of them; None for none, so that nothing is collected."""
    if listeners is None or isinstance(listeners, Listener):
        return listeners
    return FanOut(listeners) if len(listeners) > 1 else next(iter(listeners), None)
