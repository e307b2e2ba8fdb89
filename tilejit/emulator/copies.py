"""What all bulk copies share. Loads complete with their full byte count, parts out of bounds included."""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import AsyncOp, Cluster, Site, Waiter, lanes_of
from tilejit.emulator.mbarrier import complete_tx
from tilejit.emulator.tiles import write_shared


def targets(c: Cluster, s: Site, cta: int, mask: int | None) -> list[int]:
    if mask is None:
        return [cta]
    if mask >> len(c.ctas):
        raise c.stop("multicast", f"the mask {mask:#x} names CTAs outside the cluster of {len(c.ctas)}", s)
    return [i for i in range(len(c.ctas)) if mask >> i & 1]


def load_op(c: Cluster, s: Site, lane: int, kind: str, place: tuple[int, int], barrier: tuple[int, int],
            ctas: list[int], count: int, fetch: Any, source: tuple[np.ndarray, int], swizzle: int = 0,
            inner: int = 16, multicast: bool = False, source_cta: int | None = None, reduces: bool = False) -> None:
    """Start a copy into shared memory that completes on an mbarrier (at the same offset in every target)."""
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
                # A copy of less than 16 bytes (st.async) has one chunk, at its own address.
                starts, size = (chunks, 16) if count >= 16 else (np.array([place[1]]), count)
                c.listener.async_access(op.number, "atomic" if reduces else "write", "shared", c.ctas[cta], starts,
                                        size)
            done.append((cta if multicast else barrier[0], barrier[1], count))
        if c.listener is not None:
            c.listener.complete(op.number, [(c.ctas[i], o, n) for i, o, n in done])
        for cta, offset, n in done:
            complete_tx(c, op.number, cta, offset, n, s)

    op.steps.append(perform)
    op.describe = f"{kind} of {count} bytes to shared {place[1]:#x}"
    if c.listener is not None:
        c.listener.issue(op.number, kind, c.agent(s.warp), s.pc, lane, "async", (c.ctas[barrier[0]], barrier[1]), count)
    c.start(op)


def store_op(c: Cluster, s: Site, lane: int, kind: str, read: Any, write: Any) -> None:
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

    return c.wait(s, ("bulk", s.warp), ready, resume, lambda: "waits for bulk stores")
