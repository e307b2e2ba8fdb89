"""Named barriers, warp and cluster barriers, setmaxnreg, fences."""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, Waiter, lanes_of


# -- named barriers --
@dataclass
class NamedBarrier:
    threads: int | None = None
    arrived: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    partial: dict[int, int] = field(default_factory=dict)
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    round: int = 0
    result: dict[int, tuple[int, int, int]] = field(default_factory=dict)


def needed(c: Cluster, cta: int, b: NamedBarrier) -> int:
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
            raise c.stop("barrier-count", f"{threads} threads is not a multiple of the warp size", s)
    if number > 15:
        raise c.stop("barrier-count", f"there is no named barrier {number}", s)
    cta = s.warp // c.warps_per_cta
    b = c.named.setdefault((cta, number), NamedBarrier())
    if b.arrived and b.threads != threads:
        raise c.stop("barrier-count", f"barrier {number} is used with {threads or 'all'} and {b.threads or 'all'} "
                     "threads at once", s)
    if s.warp in b.arrived:
        c.report("barrier-participants", f"warp arrives twice on barrier {number} before it completed", s)
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
    members = c.value(s.warp, e.operands[0], lanes_of(s.mask)[0], 32) & int(c.live[s.warp])
    if c.listener is not None:
        c.listener.warp_sync(c.agent(s.warp), s.pc, s.mask)
    if members & ~s.mask == 0:
        return None
    key = ("warp", s.warp)
    here = c.named.setdefault(key, {"lanes": 0, "round": 0})
    here["lanes"] |= s.mask
    mine = here["round"]
    waiter = Waiter(s.warp, s.split, s.pc, lambda: here["round"] > mine, lambda: None,
                    lambda: f"waits at bar.warp.sync for lanes {members & ~here['lanes']:#010x}")
    c.block(key, waiter)
    if members & ~here["lanes"] == 0:
        here["lanes"], here["round"] = 0, mine + 1
        c.notify(key)
    return None


# -- clusters --
def cluster_check(c: Cluster) -> None:
    total = sum(bin(int(x)).count("1") for x in c.live)
    if c.cluster_lanes and c.cluster_lanes >= total:
        c.cluster_lanes = 0
        c.cluster_phase += 1
        if c.listener is not None:
            c.listener.cluster_complete([c.agent(w) for w in range(c.warps) if not c.warp_states[w].exited])
        c.notify("cluster")


@executes("barrier.cluster.arrive")
def _cluster_arrive(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    if state.cluster_owed & s.mask:
        c.report("barrier-cluster", "barrier.cluster.arrive again, with no wait since the last one", s)
    state.cluster_owed |= s.mask
    c.cluster_lanes += bin(s.mask).count("1")
    state.cluster_arrived = c.cluster_phase + 1
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

    state = c.warp_states[s.warp]
    if s.mask & ~state.cluster_owed:
        c.report("barrier-cluster", "barrier.cluster.wait without an arrive", s)
    state.cluster_owed &= ~s.mask
    return c.wait(s, "cluster", lambda: c.cluster_phase >= wanted, resume, lambda: "waits at the cluster barrier")


# -- the rest --
@executes("setmaxnreg.sync.aligned.u32")
def _setmaxnreg(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    """Registers move between the warps of a CTA through a pool; .inc waits until it has enough."""
    wanted = e.operands[0]
    state, cta = c.warp_states[s.warp], s.warp // c.warps_per_cta
    if not 24 <= wanted <= 256 or wanted % 8:
        raise c.stop("setmaxnreg", f"{wanted} is not a multiple of 8 from 24 to 256", s)
    increase = e.mods["dir"] == "inc"
    if increase != (wanted >= state.registers) and wanted != state.registers:
        c.report("setmaxnreg", f"setmaxnreg.{e.mods['dir']} from {state.registers} to {wanted}", s)

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
    return c.wait(s, ("registers", cta), lambda: c.free_registers[cta] >= need, take,
                  lambda: f"waits for {need} more registers a thread (setmaxnreg.inc {wanted}); the pool holds "
                  f"{c.free_registers[cta]}")


@executes("nanosleep.u32")
def _nanosleep(c: Cluster, s: Site, e: External) -> None:
    c.spin(s.warp)


@executes("membar", "membar.proxy", "fence", "fence.mbarrier_init.release.cluster", "fence.proxy",
          "fence.proxy.tensormap::generic.release", "griddepcontrol")
def _fence(c: Cluster, s: Site, e: External) -> None:
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
