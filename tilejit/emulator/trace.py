from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilejit.emulator.events import Listener, WarpId
from tilejit.emulator.vm import codes as k

if TYPE_CHECKING:
    from tilejit.emulator.machine import Cluster

_SHARED_MARK = 1 << 62
_LANES = np.arange(32)
_FULL = 0xFFFFFFFF
_KINDS = {k.EV_READ: "read", k.EV_WRITE: "write", k.EV_ATOMIC: "atomic"}


def deliver(c: Cluster, records: np.ndarray) -> None:
    out = c.listener
    assert out is not None
    agent = c.agent(int(records[0, k.EV_WARP]))
    active = (records[:, k.EV_MASK, None] >> _LANES) & 1 != 0
    addresses = np.where(active, records[:, k.EV_ADDRESS:k.EV_ADDRESS + 32], -1)
    repeats = repeated(records, addresses)
    heads = records[:, :k.EV_ADDRESS].tolist()
    # -1 counts as the highest address.
    low, high = addresses.view(np.uint64).min(1).tolist(), addresses.max(1).tolist()
    for i, (kind, _, pc, space, size, mask) in enumerate(heads):
        if kind == k.EV_REGISTER:
            out.register_touch(agent, pc, space, bool(size), mask)
        elif kind == k.EV_UNINIT:
            out.uninitialised(agent, pc, space)
        elif kind == k.EV_DIVERGED:
            out.diverged(agent, pc, mask, space)
        elif not repeats[i]:
            lanes = addresses[i] if mask == _FULL else addresses[i, active[i]]
            _access(c, out, agent, pc, _KINDS[kind], mask, lanes, size, low[i], high[i])


def _access(c: Cluster, out: Listener, agent: WarpId, pc: int, kind: str, mask: int, addresses: np.ndarray, size: int,
            low: int, high: int) -> None:
    if high < _SHARED_MARK and low <= high:
        out.access(agent, pc, kind, "global", mask, addresses, size, -1)
        return
    if _SHARED_MARK <= low <= high and (low ^ high) >> 32 == 0:
        cta = c.ctas[(low ^ _SHARED_MARK) >> 32]
        out.access(agent, pc, kind, "shared", mask, addresses & 0xFFFFFFFF, size, cta)
        return
    lanes = np.flatnonzero((mask >> _LANES) & 1)
    shared = addresses >= _SHARED_MARK
    chosen = ~shared & (addresses >= 0)
    if chosen.any():
        out.access(agent, pc, kind, "global", _mask(lanes[chosen]), addresses[chosen], size, -1)
    owner = (addresses ^ _SHARED_MARK) >> 32
    for cta in np.unique(owner[shared]).tolist():
        chosen = shared & (owner == cta)
        out.access(agent, pc, kind, "shared", _mask(lanes[chosen]), addresses[chosen] & 0xFFFFFFFF, size, c.ctas[cta])


def repeated(records: np.ndarray, addresses: np.ndarray) -> list[bool]:
    """Reads equal to the record before them in everything (a warp that polls)."""
    same = (records[1:, :k.EV_ADDRESS] == records[:-1, :k.EV_ADDRESS]).all(1) & (addresses[1:] == addresses[:-1]).all(1)
    return [False, *(same & (records[1:, k.EV_KIND] == k.EV_READ)).tolist()]


def _mask(lanes: np.ndarray) -> int:
    return int((1 << lanes).sum())
