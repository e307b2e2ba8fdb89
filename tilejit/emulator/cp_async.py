from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import AsyncOp, Cluster, Site, Waiter, lanes_of
from tilejit.emulator.mbarrier import arrive, barrier_at


# -- cp.async --
def left(c: Cluster, s: Site, e: External, size: int, lane: int) -> int:
    operand = e.operands[3]
    negated = isinstance(operand, tuple)
    value = c.value(s.warp, operand[1] if negated else operand, lane, 32)
    if "ignore-src" in e.mods:
        return 0 if bool(value & 1) != negated else size
    return min(size, value)


@executes("cp.async.global")
def _cp_async(c: Cluster, s: Site, e: External) -> None:
    dst, src, size = e.operands[:3]
    moves = []
    for lane in lanes_of(s.mask):
        place = c.shared_place(s, c.at(s, dst, lane), size, size)
        address = c.at(s, src, lane)
        take = size
        if len(e.operands) > (4 if "hint" in e.mods else 3):
            take = left(c, s, e, size, lane)
        if address % size:
            raise c.stop("misaligned", f"global address {address:#x} is not a multiple of {size}", s)
        data = c.global_bytes(s, address, take) if take else np.zeros(0, np.uint8)
        moves.append((place, data, address))
    op = AsyncOp(c.launch.next_op(), "cp_async", [], [("cp.async", s.warp)])

    def perform() -> None:
        for (cta, offset), data, _ in moves:
            c.shared[cta, offset:offset + len(data)] = data
            c.shared[cta, offset + len(data):offset + size] = 0
        if c.listener is not None:
            where = np.array([o for (_, o), _, _ in moves])
            c.listener.async_access(op.number, "read", "global", -1, np.array([a for _, d, a in moves if len(d)]), size)
            c.listener.async_access(op.number, "write", "shared", c.ctas[s.warp // c.warps_per_cta], where, size)
            c.listener.complete(op.number, [])

    op.steps.append(perform)
    op.describe = "cp.async"
    if c.listener is not None:
        c.listener.issue(op.number, "cp_async", c.agent(s.warp), s.pc, -1, "generic", None, 0)
    c.warp_states[s.warp].copies_open.append((s.mask, op))
    c.start(op)


@executes("cp.async.commit_group")
def _cp_commit(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    mine = [op for lanes, op in state.copies_open if lanes & s.mask]
    state.copies_open = [(lanes & ~s.mask, op) for lanes, op in state.copies_open if lanes & ~s.mask]
    state.copy_groups.append((s.mask, mine))
    if c.listener is not None:
        c.listener.group_commit(c.agent(s.warp), s.pc, "cp_async", -1, [o.number for o in mine])


@executes("cp.async.wait_group", "cp.async.wait_all")
def _cp_wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    state = c.warp_states[s.warp]
    mine = [g for g in state.copy_groups if g[0] & s.mask]
    keep = e.operands[0] if e.operands else 0
    waited = mine[:max(0, len(mine) - keep)]
    ops = [o for _, g in waited for o in g]
    if not e.operands:
        ops += [o for lanes, o in state.copies_open if lanes & s.mask]

    def ready() -> bool:
        return all(o.done for o in ops)

    def resume() -> None:
        state.copy_groups = [g for g in state.copy_groups if g not in waited]
        if c.listener is not None:
            c.listener.group_wait(c.agent(s.warp), s.pc, "cp_async", -1, [o.number for o in ops], False)

    return c.wait(s, ("cp.async", s.warp), ready, resume, lambda: "waits for cp.async copies")


@executes("cp.async.mbarrier.arrive.b64")
def _cp_arrive(c: Cluster, s: Site, e: External) -> None:
    """Arrive when all earlier cp.async of the threads have landed; without .noinc the pending count rises first."""
    state = c.warp_states[s.warp]
    earlier = [o for lanes, o in state.copies_open if lanes & s.mask and not o.done]
    earlier += [o for lanes, g in state.copy_groups if lanes & s.mask for o in g if not o.done]
    groups: dict[int, int] = {}
    for _, address in c.addresses(s, e.operands[0]):
        groups[address] = groups.get(address, 0) + 1
    for address, count in groups.items():
        b = barrier_at(c, s, address)
        if "noinc" not in e.mods:
            b.pending += count
        op = AsyncOp(c.launch.next_op(), "cp_async", [], [])

        def perform(op: AsyncOp = op, b: Any = b, count: int = count) -> None:
            if c.listener is not None:
                c.listener.mbarrier_arrive(op.number, s.pc, c.ctas[b.cta], b.offset, b.phase, count, -1, "cta",
                                           "release")
                c.listener.complete(op.number, [])
            arrive(c, s, b, count)

        op.steps.append(perform)
        op.after = list(earlier)
        op.describe = "cp.async.mbarrier.arrive"
        if c.listener is not None:
            c.listener.issue(op.number, "cp_async", c.agent(s.warp), s.pc, -1, "generic", (c.ctas[b.cta], b.offset), 0)
        c.start(op)
