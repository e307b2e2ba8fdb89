from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilejit.emulator.events import Listener, WarpId


class Gate(NamedTuple):
    """kind "mbarrier", "barrier" or "cluster"; `place` its offset or number; `phase` counts from 0."""

    kind: str
    cta: int
    place: int
    phase: int


class Ran(NamedTuple):
    instructions: int
    pc: int


class Start(NamedTuple):
    op: int


class Arrive(NamedTuple):
    gate: Gate


class Wait(NamedTuple):
    gate: Gate
    pc: int


class Drain(NamedTuple):
    ops: tuple[int, ...]
    kind: str
    read_only: bool
    pc: int


Action = Ran | Start | Arrive | Wait | Drain


@dataclass
class Op:
    """For wgmma `macs`, `width`: an operand's bits."""

    kind: str
    cta: int
    warp: int
    pc: int
    bytes: int = 0
    macs: int = 0
    width: int = 16
    gates: list[Gate] = field(default_factory=list)
    slot: tuple[int, int] | None = None


#: Bits of a wgmma operand's element, by PTX type.
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}


class Recorder(Listener):
    accesses = False

    def __init__(self, ctas: int = 8):
        super().__init__()
        self.limit = ctas
        self.warps: dict[WarpId, list[Action]] = {}
        self.ops: dict[int, Op] = {}
        self.needs: dict[Gate, int] = {}
        self.names: dict[tuple[int, int], str] = {}  # (cta, offset) of mbarriers
        self.filled: set[tuple[int, int]] = set()  # mbarriers that copies complete on
        self.blocked: dict[WarpId, Wait] = {}
        self.current = WarpId(-1, -1)
        self._rounds: dict[tuple[int, int], int] = {}  # rounds of named barriers that are over
        self._phases: dict[WarpId, int] = {}  # arrivals at the cluster barrier
        self._slots: dict[WarpId, tuple[int, int]] = {}

    def _add(self, agent: WarpId, action: Action) -> bool:
        if agent not in self.warps:
            return False
        self.warps[agent].append(action)
        return True

    def _arrive(self, agent: WarpId, gate: Gate) -> None:
        if self._add(agent, Arrive(gate)):
            self.needs[gate] = self.needs.get(gate, 0) + 1

    # -- warps --
    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        if len({w.cta for w in self.warps}) < self.limit:
            self.warps.update({WarpId(c, w): [] for c in ctas for w in range(warps)})

    def ran(self, agent: WarpId, pc: int, count: int) -> None:
        self.current = agent
        if count:
            self._add(agent, Ran(count, pc))

    # -- asynchronous operations --
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        # A wgmma is told of its warpgroup's first warp when the last of the four issues it.
        if not self._add(self.current if kind == "wgmma" else agent, Start(op)):
            return
        new = self.ops[op] = Op(kind, agent.cta, agent.warp, pc, bytes, slot=barrier)
        if kind == "wgmma":
            new.macs, new.width = shape_of(self.program.text(pc))
            new.slot = self._slots.get(self.current)

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray, size: int) -> None:
        known = self.ops.get(op)
        if known is not None and kind == "read" and space == "shared" and known.kind != "wgmma" and known.slot is None:
            known.bytes += len(starts) * size

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int], read_only: bool) -> None:
        self._add(agent, Drain(tuple(o for o in done if o in self.ops), kind, read_only, pc))

    # -- mbarriers --
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int, live: bool) -> None:
        self.names[cta, offset] = self.program.barrier_name(pc, offset)

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int, lane: int,
                        scope: str, sem: str) -> None:
        gate = Gate("mbarrier", cta, offset, phase)
        if isinstance(agent, int):
            self.mbarrier_complete_tx(agent, cta, offset, phase, 0)
        else:
            self._arrive(agent, gate)

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        gate = Gate("mbarrier", cta, offset, phase)
        if op in self.ops:
            self.filled.add((cta, offset))
            self.ops[op].gates.append(gate)
            self.needs[gate] = self.needs.get(gate, 0) + 1
        elif op < 0:
            self._arrive(self.current, gate)

    def mbarrier_blocked(self, agent: WarpId, pc: int, cta: int, offset: int, parity: int) -> None:
        self.blocked[agent] = Wait(Gate("mbarrier", cta, offset, -1), pc)

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int, scope: str,
                      sem: str) -> None:
        self.blocked.pop(agent, None)
        if (cta, offset) in self.filled:
            self._slots[agent] = cta, offset
        self._add(agent, Wait(Gate("mbarrier", cta, offset, phase), pc))

    # -- named and cluster barriers --
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        gate = Gate("barrier", agent.cta, barrier, self._rounds.get((agent.cta, barrier), 0))
        self._arrive(agent, gate)
        if waits:
            self.blocked[agent] = Wait(gate, pc)

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        self._rounds[cta, barrier] = self._rounds.get((cta, barrier), 0) + 1
        for agent in waiters:
            self._add(agent, self.blocked.pop(agent))

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        phase = self._phases[agent] = self._phases.get(agent, -1) + 1
        self._arrive(agent, Gate("cluster", -1, -1, phase))

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        self._add(agent, Wait(Gate("cluster", -1, -1, self._phases.get(agent, -1)), pc))


def shape_of(instruction: str) -> tuple[int, int]:
    m, n, k = map(int, re.findall(r"\.m(\d+)n(\d+)k(\d+)", instruction)[0])
    types = re.findall(r"\.(" + "|".join(_BITS) + r")\b", instruction)
    return m * n * k, _BITS[types[-1]] if types else 16


def stages(names: dict[tuple[int, int], str], used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Pipeline stages of mbarriers (cta, offset)."""
    at = set(used)
    out = {b: sorted(o for c, o in at if c == b[0]).index(b[1]) for b in at}
    for b, name in names.items():
        index = re.search(r"\[(\d+)\]$", name)
        if index:
            out[b] = int(index.group(1))
    return out
