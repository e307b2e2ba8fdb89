"""What the sanitizer knows of one running cluster: the clocks of its warps, its operations, its accesses.

Vector clocks over warps and asynchronous operations, and a second clock of what is fenced between proxies.

A clock is what an agent knows to have happened: for every warp of the cluster the last tick of its program,
and the completed parts of asynchronous operations as bits of an integer (operations complete in any order, so
a counter would not do). Row 1 and `fenced_ops` are the part of that knowledge that a proxy fence covers:
generic accesses before them are visible to TMA and wgmma. Clocks are never changed, only replaced.

Shadow of one CTA's shared memory: for every byte who wrote it last and who has read it since.

Bytes hold numbers: of the last writing access, and of a set of reading accesses. Sets and accesses are few and
interned, so an instruction that touches thousands of bytes costs a few array operations and one check per
distinct number.

What the sanitizer remembers of asynchronous operations and of accesses to shared memory.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from tilejit.emulator.events import WarpId

SEEN, FENCED = 0, 1


class Clock:
    """`ticks` int64[2, warps] (seen, fenced); `ops` and `fenced_ops` are bit sets."""

    __slots__ = ("ticks", "ops", "fenced_ops")

    def __init__(self, ticks: np.ndarray, ops: int = 0, fenced_ops: int = 0):
        self.ticks, self.ops, self.fenced_ops = ticks, ops, fenced_ops

    @staticmethod
    def nothing(warps: int) -> Clock:
        """The clock of who knows nothing."""
        return Clock(np.zeros((2, warps), np.int64))

    def join(self, other: Clock) -> Clock:
        """What either knows."""
        if other is self:
            return self
        return Clock(np.maximum(self.ticks, other.ticks), self.ops | other.ops, self.fenced_ops | other.fenced_ops)

    def meet(self, other: Clock) -> Clock:
        """What both know."""
        return Clock(np.minimum(self.ticks, other.ticks), self.ops & other.ops, self.fenced_ops & other.fenced_ops)

    def with_ops(self, bits: int) -> Clock:
        """Also knows these parts of operations."""
        return self if self.ops | bits == self.ops else Clock(self.ticks, self.ops | bits, self.fenced_ops)

    def ticked(self, warp: int) -> Clock:
        """The warp itself has gone on: what it does from now on is not part of earlier copies of the clock."""
        ticks = self.ticks.copy()
        ticks[SEEN, warp] += 1
        return Clock(ticks, self.ops, self.fenced_ops)

    def fenced(self) -> Clock:
        """After fence.proxy.async: all that is known is visible to the async proxy."""
        return Clock(np.stack([self.ticks[SEEN]] * 2), self.ops, self.ops)


_WIDTHS = frozenset({1, 2, 4, 8, 16})


class Region:
    """The bytes [start, start + size) of every start, as rows of the shadow arrays."""

    __slots__ = ("width", "at")

    def __init__(self, starts: np.ndarray, size: int):
        if size in _WIDTHS and not (starts & (size - 1)).any():
            self.width, rows = size, starts // size
        else:
            self.width, rows = 1, (starts[:, None] + np.arange(size)).reshape(-1)
        n, low = len(rows), int(rows.min())
        dense = int(rows.max()) - low + 1 == n
        if dense and n > 1:
            ordered = rows if rows[0] == low and rows[-1] == low + n - 1 else np.sort(rows)
            dense = bool((ordered[1:] - ordered[:-1] == 1).all())
        self.at: slice | np.ndarray = slice(low, low + n) if dense else rows

    def get(self, array: np.ndarray) -> np.ndarray:
        """The numbers of the region's bytes."""
        return array.reshape(-1, self.width)[self.at]

    def put(self, array: np.ndarray, values: np.ndarray | int) -> None:
        """Replace them."""
        array.reshape(-1, self.width)[self.at] = values

    def where(self, array: np.ndarray, number: int) -> tuple[int, int]:
        """[first, last + 1) of the bytes of the region that hold a number."""
        index = np.arange(len(array)).reshape(-1, self.width)[self.at]
        hits = index[self.get(array) == number]
        return int(hits.min()), int(hits.max()) + 1


def distinct(values: np.ndarray) -> list[int]:
    """The different numbers of an array; quick when there are few runs."""
    flat = values.reshape(-1)
    changes = (flat[1:] != flat[:-1]).nonzero()[0]
    return sorted({*flat[changes].tolist(), int(flat[-1])})


class Shadow:
    """`size` bytes. `sets` is shared by all shadows of a cluster: number -> accesses."""

    def __init__(self, size: int):
        size = -(-size // 16) * 16
        self.writer = np.zeros(size, np.int32)
        self.readers = np.zeros(size, np.int32)

    def write(self, region: Region, number: int) -> None:
        """The access `number` has written the region."""
        region.put(self.writer, number)
        region.put(self.readers, 0)

    def read(self, region: Region, extended: Callable[[int], int]) -> None:
        """Replace every set of readers s of the region by extended(s)."""
        old = region.get(self.readers)
        numbers = distinct(old)
        if len(numbers) == 1:
            region.put(self.readers, extended(numbers[0]))
            return
        new = old.copy()
        for number in numbers:
            new[old == number] = extended(number)
        region.put(self.readers, new)


class ReaderSets:
    """Interned sets of reading accesses; 0 is the empty set."""

    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def number(self, members: tuple[int, ...]) -> int:
        """The number of a set."""
        found = self._numbers.get(members)
        if found is None:
            found = self._numbers[members] = len(self.members)
            self.members.append(members)
        return found


#: Operations that run in the async proxy (PTX ISA, "Async proxy"); the others are generic.
ASYNC_PROXY = frozenset({"tma_load", "tma_store", "tma_reduce", "bulk_load", "bulk_store", "bulk_reduce", "bulk_smem",
                         "wgmma"})
#: Operations whose issuers wait for them themselves, by groups.
GROUPED = frozenset({"wgmma", "tma_store", "tma_reduce", "bulk_store", "bulk_reduce", "cp_async"})


@dataclass(eq=False)
class Op:
    """An asynchronous operation: who issued it, with what knowledge (`at_issue` is that of the
    instruction, `clock` what counts: a wgmma's is that of its fence); `read_bit` and `write_bits` (by target
    CTA) are its parts in clocks; `waited` is up to which tick of its own the issuer had waited; `phase` is that of
    its mbarrier when it was issued, `after` the copies that it follows (cp.async.mbarrier.arrive)."""

    number: int
    kind: str
    agent: WarpId
    pc: int
    seq: int
    clock: Clock
    at_issue: Clock
    read_bit: int
    waited: int
    write_bits: dict[int, int] = field(default_factory=dict)
    barrier: tuple[int, int] | None = None
    bytes: int = 0
    phase: int = -1
    after: list[Op] = field(default_factory=list)

    @property
    def async_proxy(self) -> bool:
        """True for TMA, bulk copies and wgmma."""
        return self.kind in ASYNC_PROXY

    def all_bits(self) -> int:
        """Every part."""
        bits = self.read_bit
        for bit in self.write_bits.values():
            bits |= bit
        return bits


class Access:
    """One access to shared memory: by a warp at a tick, or by a part of an operation."""

    __slots__ = ("number", "slot", "tick", "op", "bit", "kind", "strong", "pc", "seq", "agent", "early", "replaced")

    def __init__(self, number: int, agent: WarpId, slot: int, tick: int, op: Op | None, bit: int, kind: str,
                 strong: bool, pc: int, seq: int):
        self.number, self.agent, self.slot, self.tick = number, agent, slot, tick
        self.op, self.bit, self.kind, self.strong, self.pc, self.seq = op, bit, kind, strong, pc, seq
        self.early = False                      # a read of bytes whose writer it did not know of, or had none
        self.replaced: set[int] = set()         # a write: the accesses that wrote its bytes before

    @property
    def writes(self) -> bool:
        """True for writes and atomics."""
        return self.kind != "read"

    @property
    def async_proxy(self) -> bool:
        """True when made through the async proxy."""
        return self.op is not None and self.op.async_proxy

    def known_to(self, clock: Clock) -> bool:
        """True if it happened before what the clock's owner does now."""
        if self.op is not None:
            return clock.ops & self.bit == self.bit
        return bool(clock.ticks[SEEN, self.slot] >= self.tick)

    def fenced_for(self, clock: Clock) -> bool:
        """True if a proxy fence lies between it and what the clock's owner does now."""
        if self.op is not None:
            return clock.fenced_ops & self.bit == self.bit
        return bool(clock.ticks[FENCED, self.slot] >= self.tick)


#: The four warps of a warpgroup.
GROUP = 4


class World:
    """One cluster: `slot` numbers its warps, CTA after CTA."""

    def __init__(self, ctas: list[int], warps: int, size: int, wgmma_after_fence: bool):
        self.ctas, self.warps_per_cta = ctas, warps
        self.first = {cta: i * warps for i, cta in enumerate(ctas)}
        self.warps = len(ctas) * warps
        self.wgmma_after_fence = wgmma_after_fence
        nothing = Clock.nothing(self.warps)
        self.nothing = nothing
        # Every warp is at tick 1 of its own program, so that tick 0 means "nothing of it".
        self.clocks = [nothing.ticked(w) for w in range(self.warps)]
        self.released = [nothing] * self.warps        # at the warp's last fence: what relaxed arrivals publish
        self.relaxed = [nothing] * self.warps         # observed by relaxed waits, known after the next fence
        self.waited = [0] * self.warps                # up to which tick of its own a wait or proxy fence has come back
        self.at_fence: list[Clock | None] = [None] * self.warps      # at the warp's last wgmma.fence
        self.shadows = {cta: Shadow(size) for cta in ctas}
        self.sets = ReaderSets()
        self.accesses: list[Access | None] = [None]
        self._interned: dict[tuple[object, ...], Access] = {}
        self.ops: dict[int, Op] = {}
        self.flags: dict[tuple[int, int], Clock] = {}        # what strong writes to (CTA or -1, address) publish
        self.barrier_bytes: dict[int, dict[int, str]] = {cta: {} for cta in ctas}      # live mbarriers: offset -> name
        self.strong_writes = False                           # there have been some to shared memory
        self.seq = 0
        self._bits = 0

    def slot(self, agent: WarpId) -> int:
        """The index of a warp in clocks."""
        return self.first[agent.cta] + agent.warp

    def tick(self, slot: int) -> None:
        """What the warp does from now on is not known to those who learn of it up to now."""
        self.clocks[slot] = self.clocks[slot].ticked(slot)

    def learn(self, slot: int, clock: Clock) -> None:
        """The warp knows what the clock knows."""
        self.waited[slot] = max(self.waited[slot], int(clock.ticks[SEEN, slot]))
        self.clocks[slot] = self.clocks[slot].join(clock)

    def new_bit(self) -> int:
        """A fresh bit of the operations' sets."""
        self._bits += 1
        return 1 << (self._bits - 1)

    # -- publishing and observing --------------------------------------------------------------------
    def publish(self, slot: int, sem: str) -> Clock:
        """What an arrival or a strong write of the warp makes known; the warp goes on in a new tick."""
        clock = self.released[slot] if sem == "relaxed" else self.clocks[slot]
        self.tick(slot)
        return clock

    def observe(self, slot: int, clock: Clock, sem: str) -> None:
        """The warp has seen the result of `publish`es."""
        if sem == "relaxed":
            self.relaxed[slot] = self.relaxed[slot].join(clock)
        else:
            self.learn(slot, clock)

    def fence(self, slot: int, kind: str, scope: str) -> None:
        """A fence of the warp."""
        if kind == "proxy.async":
            if scope != "global":
                self.learn(slot, self.clocks[slot].fenced())
                self.tick(slot)
            return
        if kind in ("acq_rel", "sc", "acquire"):
            self.learn(slot, self.relaxed[slot])
        if kind in ("acq_rel", "sc", "release", "mbarrier_init"):
            self.released[slot] = self.clocks[slot]
            self.tick(slot)

    # -- operations ----------------------------------------------------------------------------------
    def issue(self, number: int, kind: str, agent: WarpId, pc: int) -> Op:
        """A new operation; it knows what its issuer knows (a wgmma: what all four warps of the group know)."""
        slot = self.slot(agent)
        self.seq += 1
        at_issue = clock = self.clocks[slot]
        if kind == "wgmma":
            group = range(slot, min(slot + GROUP, self.first[agent.cta] + self.warps_per_cta))
            at_issue = reduce(Clock.meet, (self.clocks[w] for w in group))
            clock = reduce(Clock.meet, (self.at_fence[w] or self.clocks[w] for w in group))
            for w in group:
                self.tick(w)
        else:
            self.tick(slot)
        op = self.ops[number] = Op(number, kind, agent, pc, self.seq, clock if self.wgmma_after_fence else at_issue,
                                   at_issue, self.new_bit(), self.waited[slot])
        return op

    def op_access(self, op: Op, kind: str, cta: int) -> Access:
        """The access of one part of an operation: all its reads, or its writes to one CTA."""
        if kind == "read":
            bit = op.read_bit
        else:
            if cta not in op.write_bits:
                op.write_bits[cta] = self.new_bit()
            bit = op.write_bits[cta]
        return self._access((op.number, kind, bit), op.agent, -1, 0, op, bit, kind, kind == "atomic", op.pc, op.seq)

    def warp_access(self, agent: WarpId, pc: int, kind: str, strong: bool = False) -> Access:
        """The access of a warp at its present tick."""
        slot = self.slot(agent)
        self.seq += 1
        tick = int(self.clocks[slot].ticks[SEEN, slot])
        return self._access((slot, tick, pc, kind), agent, slot, tick, None, 0, kind, strong, pc, self.seq)

    def _access(self, key: tuple[object, ...], agent: WarpId, slot: int, tick: int, op: Op | None, bit: int, kind: str,
                strong: bool, pc: int, seq: int) -> Access:
        found = self._interned.get(key)
        if found is None:
            found = Access(len(self.accesses), agent, slot, tick, op, bit, kind, strong, pc, seq)
            self._interned[key] = found
            self.accesses.append(found)
        return found

    def clock_of(self, access: Access) -> Clock:
        """What the agent of a present access knows."""
        return access.op.clock if access.op is not None else self.clocks[access.slot]

    def with_reader(self, number: int, reader: Access, clock: Clock) -> int:
        """The set `number` and a reader. Who knows of the new reader's end knows of the earlier ones that it
        knew of, so these need not be kept; an operation that completes on an mbarrier tells only of itself."""
        members = self.sets.members[number]
        if reader.number in members:
            return number
        kept = members
        if reader.op is None or reader.op.kind in GROUPED:
            kept = tuple(m for m in members if not self._access_at(m).known_to(clock))
        return self.sets.number((*kept, reader.number))

    def _access_at(self, number: int) -> Access:
        access = self.accesses[number]
        assert access is not None
        return access

    def recorded(self, numbers: list[int]) -> list[Access]:
        """The accesses with these numbers, 0 left out."""
        return [self._access_at(n) for n in numbers if n]
