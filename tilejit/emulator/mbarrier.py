from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tilejit.emulator.decode import Address, External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, Waiter, lanes_of

MAX_COUNT = (1 << 20) - 1


@dataclass
class MBarrier:
    cta: int
    offset: int
    expected: int
    pending: int
    name: str
    phase: int = 0
    tx: int = 0
    expected_tx: int = 0
    arrivals: list[int] = field(default_factory=list)

    @property
    def key(self) -> Hashable:
        return ("mbarrier", self.cta, self.offset)

    def describe(self) -> str:
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.expected} arrivals missing")
        if self.tx:
            parts.append(f"expected {self.expected_tx} bytes, received {self.expected_tx - self.tx}")
        return f"{self.name} in phase {self.phase} (parity {self.phase & 1}): " + (", ".join(parts) or "complete")


def barrier_at(c: Cluster, s: Site, address: int) -> MBarrier:
    place = c.shared_place(s, address, 8, 8)
    found = c.mbarriers.get(place)
    if found is None:
        raise c.stop("barrier-uninitialised", f"no mbarrier is initialised at shared address {place[1]:#x} of CTA "
                     f"{c.ctas[place[0]]}", s)
    return found


def complete_if_done(c: Cluster, b: MBarrier) -> None:
    if b.pending == 0 and b.tx == 0:
        finished = b.phase
        b.phase += 1
        b.pending = b.expected
        b.expected_tx = 0
        b.arrivals.clear()
        if c.listener is not None:
            c.listener.mbarrier_phase(c.ctas[b.cta], b.offset, finished)
        c.notify(b.key)


def arrive(c: Cluster, s: Site, b: MBarrier, count: int, drop: bool = False) -> None:
    if count > b.pending:
        raise c.stop("barrier-underflow", f"{count} arrivals on {b.describe()}: more than the pending count", s)
    b.pending -= count
    b.arrivals.append(s.warp)
    if drop:
        b.expected -= count
    complete_if_done(c, b)


def complete_tx(c: Cluster, op: int, cta: int, offset: int, count: int, s: Site) -> None:
    b = c.mbarriers.get((cta, offset))
    if b is None:
        raise c.stop("barrier-uninitialised", f"a copy completes on shared address {offset:#x} of CTA {c.ctas[cta]}, "
                     "where no mbarrier is initialised", s)
    b.tx -= count
    if c.listener is not None:
        c.listener.mbarrier_complete_tx(op, c.ctas[cta], offset, b.phase, count)
    if abs(b.tx) > MAX_COUNT:
        raise c.stop("barrier-overflow", f"the tx-count of {b.name} leaves its range", s)
    complete_if_done(c, b)


@executes("mbarrier.init.b64")
def _init(c: Cluster, s: Site, e: External) -> None:
    for lane, address in c.addresses(s, e.operands[0]):
        count = c.value(s.warp, e.operands[1], lane, 32)
        cta, offset = c.shared_place(s, address, 8, 8)
        if not 1 <= count <= MAX_COUNT:
            raise c.stop("barrier-count", f"mbarrier count {count} is not 1 to {MAX_COUNT}", s)
        live = (cta, offset) in c.mbarriers
        name = c.program.barrier_name(s.pc, offset)
        c.mbarriers[cta, offset] = MBarrier(cta, offset, count, count, name)
        c.shared[cta, offset:offset + 8] = 0
        if c.listener is not None:
            c.listener.mbarrier_init(c.agent(s.warp), s.pc, c.ctas[cta], offset, count, live)


@executes("mbarrier.inval.b64")
def _inval(c: Cluster, s: Site, e: External) -> None:
    for _, address in c.addresses(s, e.operands[0]):
        cta, offset = c.shared_place(s, address, 8, 8)
        live = c.mbarriers.pop((cta, offset), None) is not None
        c.shared[cta, offset:offset + 8] = 0xFF
        if c.listener is not None:
            c.listener.mbarrier_inval(c.agent(s.warp), s.pc, c.ctas[cta], offset, live)


def token(b: MBarrier) -> int:
    return (b.phase << 20) | b.pending


def _arrivals(c: Cluster, s: Site, e: External, at: Address, count_reg: int | None, expect_reg: int | None,
              drop: bool) -> None:
    dest = e.operands[0]
    for lanes, address in c.address_groups(s, at):
        b = barrier_at(c, s, address)
        if dest != c.program.sink and b.cta != s.warp // c.warps_per_cta:
            c.report("barrier-remote", "a remote arrive returns no state", s)
        c.regs[s.warp, dest, lanes] = token(b)
        if expect_reg is not None:
            total = sum(c.value(s.warp, expect_reg, lane, 32) for lane in lanes)
            expect(c, s, b, total)
        count = sum(c.value(s.warp, count_reg, lane, 32) for lane in lanes) if count_reg is not None else len(lanes)
        if c.listener is not None:
            c.listener.mbarrier_arrive(c.agent(s.warp), s.pc, c.ctas[b.cta], b.offset, b.phase, count, lanes[0],
                                       e.mods.get("scope", "cta"), e.mods.get("sem", "release"))
        arrive(c, s, b, count, drop)


def expect(c: Cluster, s: Site, b: MBarrier, count: int) -> None:
    b.tx += count
    b.expected_tx += count
    if abs(b.tx) > MAX_COUNT:
        raise c.stop("barrier-overflow", f"the tx-count of {b.name} leaves its range", s)
    if c.listener is not None:
        c.listener.mbarrier_expect(c.agent(s.warp), s.pc, c.ctas[b.cta], b.offset, b.phase, count)


@executes("mbarrier.arrive.b64", "mbarrier.arrive_drop.b64", "mbarrier.arrive.noComplete.b64")
def _arrive(c: Cluster, s: Site, e: External) -> None:
    count = e.operands[2] if len(e.operands) > 2 else None
    _arrivals(c, s, e, e.operands[1], count, None, "drop" in e.form.name)


@executes("mbarrier.arrive.expect_tx.b64", "mbarrier.arrive_drop.expect_tx.b64")
def _arrive_expect(c: Cluster, s: Site, e: External) -> None:
    _arrivals(c, s, e, e.operands[1], None, e.operands[2], "drop" in e.form.name)


@executes("mbarrier.expect_tx.b64")
def _expect(c: Cluster, s: Site, e: External) -> None:
    for lane, address in c.addresses(s, e.operands[0]):
        expect(c, s, barrier_at(c, s, address), c.value(s.warp, e.operands[1], lane, 32))


@executes("mbarrier.complete_tx.b64")
def _complete(c: Cluster, s: Site, e: External) -> None:
    for lane, address in c.addresses(s, e.operands[0]):
        b = barrier_at(c, s, address)
        complete_tx(c, -1, b.cta, b.offset, c.value(s.warp, e.operands[1], lane, 32), s)


@executes("mbarrier.pending_count.b64")
def _pending(c: Cluster, s: Site, e: External) -> None:
    for lane in lanes_of(s.mask):
        c.regs[s.warp, e.operands[0], lane] = c.value(s.warp, e.operands[1], lane) & MAX_COUNT


@executes("mbarrier.test_wait.b64", "mbarrier.test_wait.parity.b64", "mbarrier.try_wait.b64",
          "mbarrier.try_wait.parity.b64")
def _wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    """A test returns at once (and gives way); a try blocks until the phase of some lane has completed."""
    dest, at, phase_reg = e.operands[:3]
    parity_form, blocking = "parity" in e.form.name, "try" in e.form.name
    items = []  # (lanes, barrier, phase or parity)
    for lanes, address in c.address_groups(s, at, phase_reg):
        b = barrier_at(c, s, address)
        if b.cta != s.warp // c.warps_per_cta:
            raise c.stop("barrier-remote", "a barrier of another CTA cannot be waited for", s)
        value = c.value(s.warp, phase_reg, lanes[0])
        items.append((lanes, b, (value & 1) if parity_form else value >> 20))
    c.launch.report.barrier_waits += 1

    def done(b: MBarrier, wanted: int) -> bool:
        return (b.phase & 1) != wanted if parity_form else b.phase > wanted

    def ready() -> bool:
        return any(done(b, wanted) for _, b, wanted in items)

    def resume() -> None:
        passed: dict[tuple[int, int], int] = {}
        for lanes, b, wanted in items:
            ok = done(b, wanted)
            c.regs[s.warp, dest, lanes] = int(ok)
            if ok:
                key = (b.cta, b.offset)
                passed[key] = passed.get(key, 0) | sum(1 << lane for lane in lanes)
        if c.listener is not None:
            for (cta, offset), mask in passed.items():
                b = c.mbarriers[cta, offset]
                c.listener.mbarrier_wait(c.agent(s.warp), s.pc, c.ctas[cta], offset, b.phase - 1, mask,
                                         e.mods.get("scope", "cta"), e.mods.get("sem", "acquire"))

    # A try may also give up early (PTX ISA, mbarrier.try_wait: a system-dependent time limit).
    if not blocking or ready() or c.policy.impatient(c):
        resume()
        if not ready():
            c.spin(s.warp)
        return None
    first, wanted = items[0][1], items[0][2]
    if c.listener is not None:
        c.listener.mbarrier_blocked(c.agent(s.warp), s.pc, c.ctas[first.cta], first.offset, wanted & 1)
    keys = {b.key for _, b, _ in items}
    waiter = Waiter(s.warp, s.split, s.pc, ready, resume,
                    lambda: f"waits for parity {wanted & 1} of {first.describe()}",
                    first.phase if len(e.operands) > 3 else -1)
    if len(keys) > 1:
        for key in keys - {first.key}:  # woken by any of its barriers: `watch` forwards to the first
            c.waiters.setdefault(key, []).append(
                Waiter(s.warp, s.split, s.pc, lambda: (c.notify(first.key), False)[1], lambda: None, waiter.describe))
    return first.key, waiter
