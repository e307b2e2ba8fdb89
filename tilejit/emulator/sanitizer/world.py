from __future__ import annotations

from functools import reduce

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer.clocks import SEEN, Clock
from tilejit.emulator.sanitizer.records import GROUPED, Access, Op
from tilejit.emulator.sanitizer.shadow import ReaderSets, Shadow

GROUP = 4


class World:
    def __init__(self, ctas: list[int], warps: int, size: int, wgmma_after_fence: bool):
        self.ctas, self.warps_per_cta = ctas, warps
        self.first = {cta: i * warps for i, cta in enumerate(ctas)}
        self.warps = len(ctas) * warps
        self.wgmma_after_fence = wgmma_after_fence
        nothing = Clock.nothing(self.warps)
        self.nothing = nothing
        # Every warp starts at tick 1: tick 0 means "nothing of it".
        self.clocks = [nothing.ticked(w) for w in range(self.warps)]
        self.released = [nothing] * self.warps  # at the warp's last fence: what relaxed arrivals publish
        self.relaxed = [nothing] * self.warps  # observed by relaxed waits, known after the next fence
        self.waited = [0] * self.warps  # up to which tick of its own a wait or proxy fence has come back
        self.at_fence: list[Clock | None] = [None] * self.warps  # at the warp's last wgmma.fence
        self.shadows = {cta: Shadow(size) for cta in ctas}
        self.sets = ReaderSets()
        self.accesses: list[Access | None] = [None]
        self._interned: dict[tuple[object, ...], Access] = {}
        self.ops: dict[int, Op] = {}
        self.flags: dict[tuple[int, int], Clock] = {}  # what strong writes to (CTA or -1, address) publish
        self.barrier_bytes: dict[int, dict[int, str]] = {cta: {} for cta in ctas}  # live mbarriers: offset -> name
        self.strong_writes = False  # there have been some to shared memory
        self.seq = 0
        self._bits = 0

    def slot(self, agent: WarpId) -> int:
        return self.first[agent.cta] + agent.warp

    def tick(self, slot: int) -> None:
        """What the warp does from now on is not known to those who learn of it up to now."""
        self.clocks[slot] = self.clocks[slot].ticked(slot)

    def learn(self, slot: int, clock: Clock) -> None:
        self.waited[slot] = max(self.waited[slot], int(clock.ticks[SEEN, slot]))
        self.clocks[slot] = self.clocks[slot].join(clock)

    def new_bit(self) -> int:
        self._bits += 1
        return 1 << (self._bits - 1)

    # -- publishing and observing --
    def publish(self, slot: int, sem: str) -> Clock:
        clock = self.released[slot] if sem == "relaxed" else self.clocks[slot]
        self.tick(slot)
        return clock

    def observe(self, slot: int, clock: Clock, sem: str) -> None:
        if sem == "relaxed":
            self.relaxed[slot] = self.relaxed[slot].join(clock)
        else:
            self.learn(slot, clock)

    def fence(self, slot: int, kind: str, scope: str) -> None:
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

    # -- operations --
    def issue(self, number: int, kind: str, agent: WarpId, pc: int) -> Op:
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
        if kind == "read":
            bit = op.read_bit
        else:
            if cta not in op.write_bits:
                op.write_bits[cta] = self.new_bit()
            bit = op.write_bits[cta]
        return self._access((op.number, kind, bit), op.agent, -1, 0, op, bit, kind, kind == "atomic", op.pc, op.seq)

    def warp_access(self, agent: WarpId, pc: int, kind: str, strong: bool = False) -> Access:
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
        return access.op.clock if access.op is not None else self.clocks[access.slot]

    def with_reader(self, number: int, reader: Access, clock: Clock) -> int:
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
        return [self._access_at(n) for n in numbers if n]
