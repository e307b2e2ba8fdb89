"""What all bulk copies share: loads that complete on an mbarrier, stores in bulk groups, waiting for groups.

Loads complete with their full byte count, out-of-bounds parts included; stores and reductions belong to the
issuing thread's bulk groups and have two steps, reading the source and writing the target.

cp.async: 4, 8 or 16 bytes a thread, its groups, and its arrivals on mbarriers.
"""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tilejit.emulator.decode import External
from tilejit.emulator.machine import AsyncOp, Cluster, Site, Waiter, executes, lanes_of
from tilejit.emulator.mbarrier import arrive, barrier_at, complete_tx
from tilejit.emulator.tiles import write_shared


def targets(c: Cluster, s: Site, cta: int, mask: int | None) -> list[int]:
    """CTAs of the cluster that receive a copy."""
    if mask is None:
        return [cta]
    if mask >> len(c.ctas):
        raise c.stop("multicast", f"the mask {mask:#x} names CTAs outside the cluster of {len(c.ctas)}", s.pc, s.warp)
    return [i for i in range(len(c.ctas)) if mask >> i & 1]


def load_op(c: Cluster, s: Site, lane: int, kind: str, place: tuple[int, int], barrier: tuple[int, int],
            ctas: list[int], count: int, fetch: Any, source: tuple[np.ndarray, int], swizzle: int = 0,
            inner: int = 16, multicast: bool = False, source_cta: int | None = None, reduces: bool = False) -> None:
    """Start a copy into shared memory that completes on an mbarrier (at the same offset in every target).

    `source` is (starts, bytes of each) for listeners, in shared memory of the cluster's CTA `source_cta` or global.
    """
    op = AsyncOp(c.launch.next_op(), kind, [], [])

    def perform() -> None:
        data = fetch()
        done = []
        if c.listener is not None and len(source[0]):
            space, owner = ("global", -1) if source_cta is None else ("shared", c.ctas[source_cta])
            c.listener.async_access(op.number, "read", space, owner, source[0], source[1])
        for cta in ctas:
            chunks = write_shared(c, cta, place[1], data, swizzle, inner)
            if c.listener is not None:
                # A copy of less than 16 bytes (st.async) has one chunk, which starts at its own address.
                starts, size = (chunks, 16) if count >= 16 else (np.array([place[1]]), count)
                c.listener.async_access(op.number, "atomic" if reduces else "write", "shared", c.ctas[cta], starts,
                                        size)
            done.append((cta if multicast else barrier[0], barrier[1], count))
        if c.listener is not None:
            c.listener.complete(op.number, [(c.ctas[i], o, n) for i, o, n in done])
        for cta, offset, n in done:
            complete_tx(c, op.number, cta, offset, n, s.pc, s.warp)

    op.steps.append(perform)
    op.describe = f"{kind} of {count} bytes to shared {place[1]:#x}"
    if c.listener is not None:
        c.listener.issue(op.number, kind, c.agent(s.warp), s.pc, lane, "async", (c.ctas[barrier[0]], barrier[1]), count)
    c.start(op)


def store_op(c: Cluster, s: Site, lane: int, kind: str, read: Any, write: Any) -> None:
    """Start a store: read the source, then write; it joins the lane's open bulk group."""
    op = AsyncOp(c.launch.next_op(), kind, [], [("bulk", s.warp)])
    held: list[np.ndarray] = []

    def first() -> None:
        held.append(read(op.number))
        if c.listener is not None:
            c.listener.source_read(op.number)

    def second() -> None:
        write(op.number, held[0])
        if c.listener is not None:
            c.listener.complete(op.number, [])

    op.steps += [first, second]
    op.describe = kind
    if c.listener is not None:
        c.listener.issue(op.number, kind, c.agent(s.warp), s.pc, lane, "async", None, 0)
    c.warp_states[s.warp].bulk_open.setdefault(lane, []).append(op)
    c.start(op)


@executes("cp.async.bulk.commit_group")
def _bulk_commit(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    for lane in lanes_of(s.mask):
        ops = state.bulk_open.pop(lane, [])
        state.bulk_groups.setdefault(lane, []).append(ops)
        if c.listener is not None:
            c.listener.group_commit(c.agent(s.warp), s.pc, "bulk", lane, [o.number for o in ops])


@executes("cp.async.bulk.wait_group")
def _bulk_wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    keep, read_only = e.operands[0], "read" in e.mods
    state = c.warp_states[s.warp]
    waits: dict[int, list[AsyncOp]] = {}
    for lane in lanes_of(s.mask):
        groups = state.bulk_groups.get(lane)
        if groups:
            waits[lane] = [o for g in groups[:max(0, len(groups) - keep)] for o in g]

    def ready() -> bool:
        return all(o.read_done if read_only else o.done for ops in waits.values() for o in ops)

    def resume() -> None:
        for lane, ops in waits.items():
            if not read_only:
                groups = state.bulk_groups[lane]
                state.bulk_groups[lane] = groups[max(0, len(groups) - keep):]
            if c.listener is not None:
                c.listener.group_wait(c.agent(s.warp), s.pc, "bulk", lane, [o.number for o in ops], read_only)

    if ready():
        resume()
        return None
    return ("bulk", s.warp), Waiter(s.warp, s.split, s.pc, ready, resume, lambda: "waits for bulk stores")


# -- cp.async ---------------------------------------------------------------------------------------------
def left(c: Cluster, s: Site, e: External, size: int, lane: int) -> int:
    """Bytes that are read: the operand src-size, or none if the predicate ignore-src holds."""
    operand = e.operands[3]
    negated = isinstance(operand, tuple)
    value = c.value(s.warp, operand[1] if negated else operand, lane, 32)
    if "ignore-src" in e.mods:
        return 0 if bool(value & 1) != negated else size
    return min(size, value)


@executes("cp.async.global")
def _cp_async(c: Cluster, s: Site, e: External) -> None:
    """Each lane copies 4, 8 or 16 bytes; a smaller source size leaves zeros."""
    dst, src, size = e.operands[:3]
    moves = []
    for lane in lanes_of(s.mask):
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, size, size, s.pc)
        address = c.value(s.warp, src.base, lane) + src.offset
        take = size
        if len(e.operands) > (4 if "hint" in e.mods else 3):
            take = left(c, s, e, size, lane)
        if address % size:
            raise c.stop("misaligned", f"global address {address:#x} is not a multiple of {size}", s.pc, s.warp)
        data = c.global_bytes(address, take, s.pc, s.warp) if take else np.zeros(0, np.uint8)
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

    if ready():
        resume()
        return None
    return ("cp.async", s.warp), Waiter(s.warp, s.split, s.pc, ready, resume, lambda: "waits for cp.async copies")


@executes("cp.async.mbarrier.arrive.b64")
def _cp_arrive(c: Cluster, s: Site, e: External) -> None:
    """Arrive when all earlier cp.async of the executing threads have landed; without .noinc the pending count
    rises first, so that the net change is zero."""
    state = c.warp_states[s.warp]
    earlier = [o for lanes, o in state.copies_open if lanes & s.mask and not o.done]
    earlier += [o for lanes, g in state.copy_groups if lanes & s.mask for o in g if not o.done]
    groups: dict[int, int] = {}
    for _, address in c.addresses(s.warp, e.operands[0], s.mask):
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
