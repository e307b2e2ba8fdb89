"""Global memory: what one CTA writes and another one writes or reads with nothing that orders them.

Only the last write of a byte is kept, so of a read and a later write of another CTA nothing is said: CTAs run in
the order of their index, and what races in that order is found.

Strong accesses: atomics, and loads and stores with .relaxed, .acquire, .release, .volatile or .mmio.

Two strong accesses never race with each other. What one releases at an address, a later one that acquires from
the address learns: warps of a cluster from each other by their clocks, CTAs of a launch by a coarser clock in
which a CTA is one agent. Relaxed ones do so together with fences: what was before the fence before the write is
known after the fence after the read (PTX ISA, memory consistency model, release and acquire patterns). Scopes
are not modelled, but that arrivals on mbarriers of other CTAs, and waits, have none that reaches beyond a CTA: they are
relaxed ones.

Tensor maps that a kernel writes: generic writes that TMA reads through the tensormap proxy.

Between a write and a copy through the map lie a release by the warp that wrote (fence.proxy.tensormap::generic.release,
or tensormap.cp_fenceproxy, which is one), and then an acquire of the map's address by the CTA of the copy (PTX ISA,
membar / fence, proxies). That the acquire comes after the release is seen as it happens in the run; schedules differ.
Who writes a map again knows that the copies through it are done: of each some part, as a wait tells it.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.reporting import Reporter
from tilejit.emulator.sanitizer.world import Clock, Op, World, distinct

_STRONG = re.compile(r"^(atom|red)\b|^(ld|st)\.(relaxed|acquire|release|volatile|mmio)\b|^multimem")
#: More addresses in one instruction are data (a histogram, a sum), not flags.
MOST_FLAGS = 8
#: An address of global memory, or a CTA and the offset of one of its mbarriers (-1: the barrier of the cluster).
Place = Union[int, tuple[int, int]]


class Instructions:
    """Which instructions of a program are strong, and how, by pc."""

    def __init__(self, program: Any):
        self.program = program
        self._known: dict[int, tuple[bool, str, str]] = {}

    def strong(self, pc: int) -> tuple[bool, str, str]:
        """(strong, semantics of its read, semantics of its write); "acquire", "release" or "relaxed"."""
        if pc not in self._known:
            text = re.sub(r"^@!?\S+\s+", "", self.program.text(pc).strip())
            words = text.split()[0].split(".") if text else []
            both = "acq_rel" in words
            self._known[pc] = (_STRONG.match(text) is not None, "acquire" if both or "acquire" in words else "relaxed",
                               "release" if both or "release" in words else "relaxed")
        return self._known[pc]


class CtaClocks:
    """What CTAs know of each other's programs: {cta: tick}, and under the key -1 - cta the tick up to which generic
    accesses are fenced for the async proxy."""

    def __init__(self) -> None:
        self.ticks: dict[int, int] = {}
        self.seen: dict[int, dict[int, int]] = {}
        self.relaxed: dict[int, dict[int, int]] = {}       # observed by relaxed reads, known after the next fence
        self.released: dict[int, dict[int, int]] = {}      # at the last fence: what relaxed writes publish
        self.flags: dict[Place, dict[int, int]] = {}

    def now(self, cta: int) -> int:
        """The CTA's own tick."""
        return self.ticks.get(cta, 1)

    def knows(self, cta: int, other: int, tick: int) -> bool:
        """True if the other CTA's tick happened before what the CTA does now."""
        return other == cta or self.seen.get(cta, {}).get(other, 0) >= tick

    def knows_fenced(self, cta: int, other: int, tick: int) -> bool:
        """True if a proxy fence for global memory lies between that and what the CTA does now."""
        return self.seen.get(cta, {}).get(-1 - other, 0) >= tick

    def proxy_fence(self, cta: int) -> None:
        """fence.proxy.async, of global memory or of all, by any of its warps."""
        seen = self.seen.setdefault(cta, {})
        _merge(seen, {-1 - other: tick for other, tick in self._release(cta).items() if other >= 0})

    def observe(self, cta: int, address: Place, sem: str) -> None:
        """A strong read."""
        if address in self.flags:
            into = self.relaxed if sem == "relaxed" else self.seen
            _merge(into.setdefault(cta, {}), self.flags[address])

    def publish(self, cta: int, address: Place, sem: str) -> None:
        """A strong write."""
        flag = self.flags.setdefault(address, {})
        _merge(flag, self.released.get(cta, {}) if sem == "relaxed" else self._release(cta))

    def fence(self, cta: int) -> None:
        """A fence of any of its warps."""
        _merge(self.seen.setdefault(cta, {}), self.relaxed.pop(cta, {}))
        self.released[cta] = self._release(cta)

    def _release(self, cta: int) -> dict[int, int]:
        known = {**self.seen.get(cta, {}), cta: self.now(cta)}
        self.ticks[cta] = self.now(cta) + 1
        return known


def _merge(into: dict[int, int], other: dict[int, int]) -> None:
    for cta, tick in other.items():
        if tick > into.get(cta, 0):
            into[cta] = tick


def order(world: World, ctas: CtaClocks, agent: WarpId, write: bool, sem: str, cta: int, addresses: np.ndarray) -> None:
    """The reading or writing half of a strong access of a warp (`cta` -1: global memory)."""
    flags = np.unique(addresses).tolist() if len(addresses) > 1 else [int(addresses[0])]
    if len(flags) > MOST_FLAGS:
        return
    slot = world.slot(agent)
    for address in flags:
        key = (cta, address)
        if write:
            known = world.publish(slot, sem)
            world.flags[key] = world.flags[key].join(known) if key in world.flags else known
            if cta < 0:
                ctas.publish(agent.cta, address, sem)
        else:
            if key in world.flags:
                world.observe(slot, world.flags[key], sem)
            if cta < 0:
                ctas.observe(agent.cta, address, sem)


PAGE = 1 << 14
#: The tick of a copy's write until its CTA has waited for the copy.
IN_FLIGHT = 1 << 62


@dataclass(eq=False)
class Touch:
    """An access of a CTA, at one of its ticks: by an instruction, or by an operation (`op`)."""

    agent: WarpId
    pc: int
    kind: str
    strong: bool
    tick: int
    op: Op | None = None

    @property
    def what(self) -> str:
        """For messages."""
        return self.kind if self.op is None else f"{self.kind} of {self.op.kind}"


class GlobalMemory:
    """For every byte its last write, in pages that exist where something was written."""

    def __init__(self, reporter: Reporter, ctas: CtaClocks):
        self.reporter, self.ctas = reporter, ctas
        self.pages: dict[int, np.ndarray] = {}
        self.writes: list[Touch | None] = [None]
        self._numbers: dict[tuple[object, ...], int] = {}
        self._in_flight: dict[int, Touch] = {}

    def access(self, agent: WarpId, pc: int, kind: str, strong: bool, starts: np.ndarray, size: int,
               op: Op | None = None) -> None:
        """`size` bytes at every start are read, written, or changed atomically."""
        tick = self.ctas.now(agent.cta)
        now = Touch(agent, pc, kind, strong, tick, op)
        if kind == "read":
            number = 0
        else:
            key = (agent, pc, kind, tick) if op is None else (op.number,)
            number = self._numbers.setdefault(key, len(self.writes))
            if number == len(self.writes):
                self.writes.append(now)
                if op is not None:
                    now.tick = IN_FLIGHT
                    self._in_flight[op.number] = now
        low, high = int(starts.min()), int(starts.max()) + size
        if high - low == size * len(starts) and (len(starts) == 1 or len(np.unique(starts)) == len(starts)):
            for page in range(low // PAGE, (high - 1) // PAGE + 1):
                first = page * PAGE
                self._page(page, slice(max(low - first, 0), min(high - first, PAGE)), now, number)
            return
        addresses = (starts[:, None] + np.arange(size)).reshape(-1)
        pages = addresses // PAGE
        for page in np.unique(pages).tolist():
            if number or page in self.pages:
                self._page(page, addresses[pages == page] - page * PAGE, now, number)

    def last_writes(self, start: int, size: int) -> list[int]:
        """The numbers of the writes that bytes within one page hold; 0: written before the launch."""
        page = self.pages.get(start // PAGE)
        return [0] if page is None else distinct(page[start % PAGE:start % PAGE + size])

    def waited(self, op: Op) -> None:
        """The CTA knows that all writes of the operation are done."""
        write = self._in_flight.pop(op.number, None)
        if write is not None:
            write.tick = self.ctas.now(op.agent.cta)

    def _page(self, page: int, at: slice | np.ndarray, now: Touch, number: int) -> None:
        shadow = self.pages.get(page)
        if shadow is None:
            if not number:
                return
            shadow = self.pages[page] = np.zeros(PAGE, np.int32)
        here = shadow[at]
        for earlier_number in distinct(here):
            earlier = self.writes[earlier_number]
            if earlier is not None and earlier is not now:
                places = np.arange(PAGE)[at][here == earlier_number] + page * PAGE
                self._pair(earlier, now, f"global bytes [{int(places.min()):#x}, {int(places.max()) + 1:#x})")
        if number:
            shadow[at] = number

    def _pair(self, earlier: Touch, now: Touch, where: str) -> None:
        if earlier.strong and now.strong:
            return
        mine, r = now.agent.cta, self.reporter
        if not self.ctas.knows(mine, earlier.agent.cta, earlier.tick):
            told = " and ".join(f"{t.what} by {r.warp(t.agent)} at {r.at(t.pc)}" for t in (earlier, now))
            kind, message = kinds.GLOBAL_RACE, f"{where}: {told}, which nothing orders"
        elif now.op is not None and now.op.async_proxy and earlier.op is None and \
                not self.ctas.knows_fenced(mine, earlier.agent.cta, earlier.tick):
            kind = kinds.PROXY_FENCE
            message = f"{where}: no fence.proxy.async between the {earlier.what} by {r.warp(earlier.agent)} at " \
                      f"{r.at(earlier.pc)} and the {now.what} issued at {r.at(now.pc)}"
        else:
            return
        r.add(kind, message, now.pc, (now.agent, earlier.agent), where, earlier.pc)


_BYTES = 128


class TensorMaps:
    """Which writes of maps have been released, and acquired by which CTA."""

    def __init__(self, reporter: Reporter, memory: GlobalMemory):
        self.reporter, self.memory = reporter, memory
        self.released: dict[WarpId, int] = {}             # writes of the warp below this number
        self.acquired: dict[tuple[int, int], set[int]] = {}       # (CTA, address) -> writes
        self.reading: dict[WarpId, int] = {}              # what the copy that is being issued uses
        self.used: dict[int, list[Op]] = {}               # address -> copies that may not be done

    def release(self, agent: WarpId) -> None:
        """All that the warp has written is released."""
        self.released[agent] = len(self.memory.writes)

    def acquire(self, agent: WarpId, address: int) -> None:
        """The CTA knows what has been released of a map."""
        known = self.acquired.setdefault((agent.cta, address), set())
        for number in self.memory.last_writes(address, _BYTES):
            write = self.memory.writes[number]
            if write is not None and self.released.get(write.agent, 0) > number:
                known.add(number)

    def read(self, agent: WarpId, pc: int, address: int) -> None:
        """A copy, the next that the warp issues, uses a map."""
        self.reading[agent] = address
        known, r = self.acquired.get((agent.cta, address), set()), self.reporter
        for number in self.memory.last_writes(address, _BYTES):
            write = self.memory.writes[number]
            if write is not None and number not in known:
                missing = "no fence.proxy.tensormap::generic.release" \
                    if self.released.get(write.agent, 0) <= number else \
                    "no fence.proxy.tensormap::generic.acquire of it by this CTA"
                r.add(kinds.MAP_FENCE, f"tensor map at {address:#x}: {missing} after the {write.what} by "
                      f"{r.warp(write.agent)} at {r.at(write.pc)}", pc, (agent, write.agent), "", write.pc)
                return

    def issued(self, op: Op) -> None:
        """An asynchronous operation starts."""
        address = self.reading.pop(op.agent, None)
        if address is not None:
            self.used.setdefault(address, []).append(op)

    def written(self, agent: WarpId, pc: int, ctas: list[int], clock: Clock, starts: np.ndarray, size: int) -> None:
        """Global memory is written by a warp of a cluster, which knows what its clock says."""
        for address in [a for a in self.used if ((starts < a + _BYTES) & (a < starts + size)).any()]:
            for op in self.used.pop(address):
                if op.agent.cta in ctas and not clock.ops & op.all_bits():
                    r = self.reporter
                    r.add(kinds.MAP_IN_USE, f"tensor map at {address:#x} is written by {r.warp(agent)}, which does not "
                          f"know that the {r.operation(op)} is done", pc, (agent, op.agent), "", op.pc)
                    return
