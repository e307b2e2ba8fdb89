"""mbarriers, named barriers, cluster barriers, warp barriers, setmaxnreg, fences.

An mbarrier's state lives beside the shared bytes that it occupies (PTX ISA, "Parallel Synchronization and
Communication Instructions: mbarrier"): expected and pending arrivals, the transaction count, and an absolute
phase whose low bit is the parity. A phase completes when pending and tx-count are both zero.
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tilejit.emulator.decode import Address, External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, Waiter, lanes_of

MAX_COUNT = (1 << 20) - 1
#: How often a try_wait gives up at once under the random policy.
EARLY_TIMEOUT = 0.05


@dataclass
class MBarrier:
    """One mbarrier; `phase` counts completed phases, `name` is for reports."""

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
        """What its waiters wait under."""
        return ("mbarrier", self.cta, self.offset)

    def describe(self) -> str:
        """State for reports."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.expected} arrivals missing")
        if self.tx:
            parts.append(f"expected {self.expected_tx} bytes, received {self.expected_tx - self.tx}")
        return f"{self.name} in phase {self.phase} (parity {self.phase & 1}): " + (", ".join(parts) or "complete")


def barrier_at(c: Cluster, s: Site, address: int) -> MBarrier:
    """The initialised mbarrier at a shared address."""
    place = c.shared_place(s.warp, address, 8, 8, s.pc)
    found = c.mbarriers.get(place)
    if found is None:
        raise c.stop("barrier-uninitialised", f"no mbarrier is initialised at shared address {place[1]:#x} of CTA "
                     f"{c.ctas[place[0]]}", s.pc, s.warp)
    return found


def complete_if_done(c: Cluster, b: MBarrier) -> None:
    """Advance the phase when nothing is missing, and wake who waits."""
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
    """`count` arrivals on the current phase."""
    if count > b.pending:
        raise c.stop("barrier-underflow", f"{count} arrivals on {b.describe()}: more than the pending count", s.pc,
                     s.warp)
    b.pending -= count
    b.arrivals.append(s.warp)
    if drop:
        b.expected -= count
    complete_if_done(c, b)


def complete_tx(c: Cluster, op: int, cta: int, offset: int, count: int, pc: int, warp: int) -> None:
    """complete_tx by an asynchronous operation."""
    b = c.mbarriers.get((cta, offset))
    if b is None:
        raise c.stop("barrier-uninitialised", f"a copy completes on shared address {offset:#x} of CTA {c.ctas[cta]}, "
                     "where no mbarrier is initialised", pc, warp)
    b.tx -= count
    if c.listener is not None:
        c.listener.mbarrier_complete_tx(op, c.ctas[cta], offset, b.phase, count)
    if abs(b.tx) > MAX_COUNT:
        raise c.stop("barrier-overflow", f"the tx-count of {b.name} leaves its range", pc, warp)
    complete_if_done(c, b)


@executes("mbarrier.init.b64")
def _init(c: Cluster, s: Site, e: External) -> None:
    for lane, address in c.addresses(s.warp, e.operands[0], s.mask):
        count = c.value(s.warp, e.operands[1], lane, 32)
        cta, offset = c.shared_place(s.warp, address, 8, 8, s.pc)
        if not 1 <= count <= MAX_COUNT:
            raise c.stop("barrier-count", f"mbarrier count {count} is not 1 to {MAX_COUNT}", s.pc, s.warp)
        live = (cta, offset) in c.mbarriers
        name = c.program.barrier_name(s.pc, offset)
        c.mbarriers[cta, offset] = MBarrier(cta, offset, count, count, name)
        c.shared[cta, offset:offset + 8] = 0
        if c.listener is not None:
            c.listener.mbarrier_init(c.agent(s.warp), s.pc, c.ctas[cta], offset, count, live)


@executes("mbarrier.inval.b64")
def _inval(c: Cluster, s: Site, e: External) -> None:
    for _, address in c.addresses(s.warp, e.operands[0], s.mask):
        cta, offset = c.shared_place(s.warp, address, 8, 8, s.pc)
        live = c.mbarriers.pop((cta, offset), None) is not None
        c.shared[cta, offset:offset + 8] = 0xFF
        if c.listener is not None:
            c.listener.mbarrier_inval(c.agent(s.warp), s.pc, c.ctas[cta], offset, live)


def token(b: MBarrier) -> int:
    """The opaque state that arrive returns: phase and pending count."""
    return (b.phase << 20) | b.pending


def _arrivals(c: Cluster, s: Site, e: External, at: Address, count_reg: int | None, expect_reg: int | None,
              drop: bool) -> None:
    """Arrivals of all active lanes; lanes with one address arrive together."""
    dest = e.operands[0]
    for lanes, address in c.address_groups(s.warp, at, s.mask):
        b = barrier_at(c, s, address)
        if dest != c.program.sink and b.cta != s.warp // c.warps_per_cta:
            c.report("barrier-remote", "a remote arrive returns no state", s.pc, s.warp)
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
    """expect_tx."""
    b.tx += count
    b.expected_tx += count
    if abs(b.tx) > MAX_COUNT:
        raise c.stop("barrier-overflow", f"the tx-count of {b.name} leaves its range", s.pc, s.warp)
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
    for lane, address in c.addresses(s.warp, e.operands[0], s.mask):
        expect(c, s, barrier_at(c, s, address), c.value(s.warp, e.operands[1], lane, 32))


@executes("mbarrier.complete_tx.b64")
def _complete(c: Cluster, s: Site, e: External) -> None:
    for lane, address in c.addresses(s.warp, e.operands[0], s.mask):
        b = barrier_at(c, s, address)
        complete_tx(c, -1, b.cta, b.offset, c.value(s.warp, e.operands[1], lane, 32), s.pc, s.warp)


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
    items = []                                    # (lanes, barrier, phase or parity)
    for lanes, address in c.address_groups(s.warp, at, s.mask, phase_reg):
        b = barrier_at(c, s, address)
        if b.cta != s.warp // c.warps_per_cta:
            raise c.stop("barrier-remote", "a barrier of another CTA cannot be waited for", s.pc, s.warp)
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
    impatient = c.launch.policy == "random" and c.rng.random() < EARLY_TIMEOUT
    if not blocking or impatient or ready():
        resume()
        if not ready():
            c.spin(s.warp)
        return None
    first, wanted = items[0][1], items[0][2]
    if c.listener is not None:
        c.listener.mbarrier_blocked(c.agent(s.warp), s.pc, c.ctas[first.cta], first.offset, wanted & 1)
    keys = {b.key for _, b, _ in items}
    waiter = Waiter(s.warp, s.split, s.pc, ready, resume,
                    lambda: f"waits for parity {wanted & 1} of {first.describe()}")
    if len(keys) > 1:
        for key in keys - {first.key}:      # woken by any of its barriers: `watch` forwards to the first
            c.waiters.setdefault(key, []).append(
                Waiter(s.warp, s.split, s.pc, lambda: (c.notify(first.key), False)[1], lambda: None, waiter.describe))
    return first.key, waiter


# -- named barriers ---------------------------------------------------------------------------------------
@dataclass
class NamedBarrier:
    """bar 0..15 of a CTA: warps that have arrived in this round, those of them that wait."""

    threads: int | None = None
    arrived: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    partial: dict[int, int] = field(default_factory=dict)
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    round: int = 0
    result: dict[int, tuple[int, int, int]] = field(default_factory=dict)


def needed(c: Cluster, cta: int, b: NamedBarrier) -> int:
    """Warps that must arrive: the given count, or all that have not exited."""
    if b.threads is not None:
        return b.threads // 32
    first = cta * c.warps_per_cta
    return sum(not w.exited for w in c.warp_states[first:first + c.warps_per_cta])


def _arrive_named(c: Cluster, s: Site, e: External, number_at: int, waits: bool) -> tuple[NamedBarrier, int, int]:
    lane = lanes_of(s.mask)[0]
    number = c.value(s.warp, e.operands[number_at], lane, 32)
    threads = None
    if len(e.operands) > number_at + 1:
        threads = c.value(s.warp, e.operands[number_at + 1], lane, 32)
        if threads == 0 or threads % 32:
            raise c.stop("barrier-count", f"{threads} threads is not a multiple of the warp size", s.pc, s.warp)
    if number > 15:
        raise c.stop("barrier-count", f"there is no named barrier {number}", s.pc, s.warp)
    cta = s.warp // c.warps_per_cta
    b = c.named.setdefault((cta, number), NamedBarrier())
    if b.arrived and b.threads != threads:
        raise c.stop("barrier-count", f"barrier {number} is used with {threads or 'all'} and {b.threads or 'all'} "
                     "threads at once", s.pc, s.warp)
    if s.warp in b.arrived:
        c.report("barrier-participants", f"warp arrives twice on barrier {number} before it completed", s.pc, s.warp)
    b.threads = threads
    # A divided warp counts once, when the last of its lanes has come.
    b.partial[s.warp] = b.partial.get(s.warp, 0) | s.mask
    if int(c.live[s.warp]) & ~b.partial[s.warp]:
        return b, cta, number
    del b.partial[s.warp]
    b.arrived.append(s.warp)
    if waits:
        b.waiting.append(s.warp)
    if c.listener is not None:
        first = cta * c.warps_per_cta
        count = threads or 32 * sum(not w.exited for w in c.warp_states[first:first + c.warps_per_cta])
        c.listener.barrier_arrive(c.agent(s.warp), s.pc, number, count, waits)
    return b, cta, number


def named_complete(c: Cluster, cta: int, number: int) -> None:
    """Let the waiting warps go when enough have arrived."""
    b = c.named[cta, number]
    if not b.arrived or len(b.arrived) < needed(c, cta, b):
        return
    if c.listener is not None:
        c.listener.barrier_complete(c.ctas[cta], number, [c.agent(w) for w in b.arrived],
                                    [c.agent(w) for w in b.waiting])
    ones = sum(b.votes.values())
    total = len(b.votes)
    b.result[b.round] = (ones, int(ones == total), int(ones > 0))
    b.result.pop(b.round - 2, None)
    b.arrived, b.waiting, b.votes = [], [], {}
    b.round += 1
    c.notify(("bar", cta, number))


@executes("bar.sync", "barrier.sync", "bar.red.popc.u32", "bar.red.pred")
def _bar_sync(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter]:
    reduces = "red" in e.form.name
    number_at = 1 if reduces else 0
    operands = e.operands
    if reduces:
        value = operands[-1]
        negated = isinstance(value, tuple)
        reg = value[1] if negated else value
        trimmed = External(e.form, e.mods, operands[:-1])
    else:
        trimmed = e
    b, cta, number = _arrive_named(c, s, trimmed, number_at, True)
    if reduces:
        for lane in lanes_of(s.mask):
            b.votes[s.warp, lane] = (c.value(s.warp, reg, lane) & 1) ^ int(negated)
    mine = b.round
    c.launch.report.barrier_waits += 1

    def resume() -> None:
        if reduces:
            ones, every, some = b.result[mine]
            r = ones if "popc" in e.form.name else (every if e.mods["op"] == "and" else some)
            for lane in lanes_of(s.mask):
                c.regs[s.warp, operands[0], lane] = r

    waiter = Waiter(s.warp, s.split, s.pc, lambda: b.round > mine, resume,
                    lambda: f"waits at barrier {number}: {len(b.arrived)} of {needed(c, cta, b)} warps have arrived ("
                    + ", ".join(c.warp_name(w) for w in b.arrived) + ")")
    c.block(("bar", cta, number), waiter)
    named_complete(c, cta, number)
    return None  # type: ignore[return-value]


@executes("bar.arrive", "barrier.arrive")
def _bar_arrive(c: Cluster, s: Site, e: External) -> None:
    _, cta, number = _arrive_named(c, s, e, 0, False)
    named_complete(c, cta, number)


@executes("bar.warp.sync")
def _warp_sync(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    """Waits until every member lane that is still there has come to a warp barrier."""
    members = c.value(s.warp, e.operands[0], lanes_of(s.mask)[0], 32) & int(c.live[s.warp])
    if c.listener is not None:
        c.listener.warp_sync(c.agent(s.warp), s.pc, s.mask)
    if members & ~s.mask == 0:
        return None
    key = ("warp", s.warp)
    here = c.named.setdefault(key, {"lanes": 0, "round": 0})  # type: ignore[arg-type]
    here["lanes"] |= s.mask
    mine = here["round"]
    waiter = Waiter(s.warp, s.split, s.pc, lambda: here["round"] > mine, lambda: None,
                    lambda: f"waits at bar.warp.sync for lanes {members & ~here['lanes']:#010x}")
    c.block(key, waiter)
    if members & ~here["lanes"] == 0:
        here["lanes"], here["round"] = 0, mine + 1
        c.notify(key)
    return None


# -- clusters ---------------------------------------------------------------------------------------------
def cluster_check(c: Cluster) -> None:
    """Complete the cluster barrier when every live lane has arrived."""
    total = sum(bin(int(x)).count("1") for x in c.live)
    if c.cluster_lanes and c.cluster_lanes >= total:
        c.cluster_lanes = 0
        c.cluster_phase += 1
        if c.listener is not None:
            c.listener.cluster_complete([c.agent(w) for w in range(c.warps) if not c.warp_states[w].exited])
        c.notify("cluster")


@executes("barrier.cluster.arrive")
def _cluster_arrive(c: Cluster, s: Site, e: External) -> None:
    c.cluster_lanes += bin(s.mask).count("1")
    c.warp_states[s.warp].cluster_arrived = c.cluster_phase + 1
    if c.listener is not None:
        c.listener.cluster_arrive(c.agent(s.warp), s.pc, e.mods.get("sem") == "relaxed")
    cluster_check(c)


@executes("barrier.cluster.wait")
def _cluster_wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    wanted = c.warp_states[s.warp].cluster_arrived
    c.launch.report.barrier_waits += 1

    def resume() -> None:
        if c.listener is not None:
            c.listener.cluster_wait(c.agent(s.warp), s.pc)

    if wanted == 0:
        c.report("barrier-cluster", "barrier.cluster.wait without an arrive", s.pc, s.warp)
    if c.cluster_phase >= wanted:
        resume()
        return None
    return "cluster", Waiter(s.warp, s.split, s.pc, lambda: c.cluster_phase >= wanted, resume,
                             lambda: "waits at the cluster barrier")


# -- the rest ---------------------------------------------------------------------------------------------
@executes("setmaxnreg.sync.aligned.u32")
def _setmaxnreg(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    """Registers move between the warps of a CTA through a pool; .inc waits until the pool has enough."""
    wanted = e.operands[0]
    state, cta = c.warp_states[s.warp], s.warp // c.warps_per_cta
    if not 24 <= wanted <= 256 or wanted % 8:
        raise c.stop("setmaxnreg", f"{wanted} is not a multiple of 8 from 24 to 256", s.pc, s.warp)
    increase = e.mods["dir"] == "inc"
    if increase != (wanted >= state.registers) and wanted != state.registers:
        c.report("setmaxnreg", f"setmaxnreg.{e.mods['dir']} from {state.registers} to {wanted}", s.pc, s.warp)

    def take() -> None:
        c.free_registers[cta] -= wanted - state.registers
        state.registers = wanted
        if c.listener is not None:
            c.listener.set_registers(c.agent(s.warp), s.pc, wanted, increase)

    if not increase:
        take()
        c.notify(("registers", cta))
        return None
    need = wanted - state.registers
    if c.free_registers[cta] >= need:
        take()
        return None
    return ("registers", cta), Waiter(
        s.warp, s.split, s.pc, lambda: c.free_registers[cta] >= need, take,
        lambda: f"waits for {need} more registers a thread (setmaxnreg.inc {wanted}); the pool holds "
        f"{c.free_registers[cta]}")


@executes("nanosleep.u32")
def _nanosleep(c: Cluster, s: Site, e: External) -> None:
    c.spin(s.warp)


@executes("membar", "membar.proxy", "fence", "fence.mbarrier_init.release.cluster", "fence.proxy",
          "fence.proxy.tensormap::generic.acquire", "fence.proxy.tensormap::generic.release", "griddepcontrol")
def _fence(c: Cluster, s: Site, e: External) -> None:
    """Only when somebody listens: memory here is always coherent."""
    if c.listener is None or e.form.name == "griddepcontrol":
        return
    name, scope = e.form.name, e.mods.get("scope", e.mods.get("level", ""))
    if name in ("fence.proxy", "membar.proxy"):
        kind, _, scope = e.mods["kind"].partition(".")
        kind = f"proxy.{kind}"
    elif name.startswith("fence.proxy.tensormap"):
        kind = "proxy.tensormap"
    elif name == "fence.mbarrier_init.release.cluster":
        kind, scope = "mbarrier_init", "cluster"
    else:
        kind = e.mods.get("sem", "acq_rel" if name == "fence" else "sc")
    c.listener.fence(c.agent(s.warp), s.pc, kind, scope)


def warp_exited(c: Cluster, warp: int) -> None:
    """Barriers without a count no longer expect the warp."""
    c.warp_states[warp].exited = True
    if c.listener is not None:
        c.listener.warp_exit(c.agent(warp))
    cta = warp // c.warps_per_cta
    for key, b in list(c.named.items()):
        if key[0] == cta and isinstance(b, NamedBarrier) and b.threads is None:
            named_complete(c, cta, key[1])
    state = c.warp_states[warp]
    c.free_registers[cta] += state.registers
    c.notify(("registers", cta))
    cluster_check(c)


