"""Hands the virtual machine's trace records to a listener."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilejit.emulator.vm import codes as k

if TYPE_CHECKING:
    from tilejit.emulator.machine import Cluster

_SHARED_MARK = 1 << 62


def deliver(c: Cluster, records: np.ndarray) -> None:
    """Call the listener once a record, in order; a read that only repeats the one before is told once."""
    out = c.listener
    records = records[~repeated(records)]
    assert out is not None
    kinds = {k.EV_READ: "read", k.EV_WRITE: "write", k.EV_ATOMIC: "atomic"}
    for r in records:
        kind, warp, pc = int(r[k.EV_KIND]), int(r[k.EV_WARP]), int(r[k.EV_PC])
        agent = c.agent(warp)
        if kind == k.EV_REGISTER:
            out.register_touch(agent, pc, int(r[k.EV_SPACE]), bool(r[k.EV_SIZE]), int(r[k.EV_MASK]))
            continue
        if kind == k.EV_UNINIT:
            out.uninitialised(agent, pc, int(r[k.EV_SPACE]))
            continue
        if kind == k.EV_DIVERGED:
            out.diverged(agent, pc, int(r[k.EV_MASK]), int(r[k.EV_SPACE]))
            continue
        mask = int(r[k.EV_MASK])
        lanes = [lane for lane in range(32) if mask >> lane & 1]
        addresses = r[k.EV_ADDRESS:k.EV_ADDRESS + 32][lanes]
        size = int(r[k.EV_SIZE])
        shared = addresses >= _SHARED_MARK
        for flag, space in ((True, "shared"), (False, "global")):
            chosen = shared == flag
            if not flag:
                chosen &= addresses >= 0
            if not chosen.any():
                continue
            if not flag:
                out.access(agent, pc, kinds[kind], space, _lanes(lanes, chosen), addresses[chosen].copy(), size, -1)
                continue
            places = addresses[chosen] & (_SHARED_MARK - 1)
            ctas, offsets = places >> 32, places & 0xFFFFFFFF
            owned = np.flatnonzero(chosen)
            for cta in np.unique(ctas):
                mine = ctas == cta
                sub = np.zeros(len(lanes), bool)
                sub[owned[mine]] = True
                out.access(agent, pc, kinds[kind], space, _lanes(lanes, sub), offsets[mine].copy(), size,
                           c.ctas[int(cta)])


def repeated(records: np.ndarray) -> np.ndarray:
    """bool[n]: reads equal to the record before them in everything (a warp that polls)."""
    active = (records[:, k.EV_MASK, None] >> np.arange(32)) & 1
    told = records[:, :k.EV_ADDRESS + 32].copy()
    told[:, k.EV_ADDRESS:] *= active
    out = np.zeros(len(records), bool)
    out[1:] = (told[1:] == told[:-1]).all(1) & (records[1:, k.EV_KIND] == k.EV_READ)
    return out


def _lanes(lanes: list[int], chosen: np.ndarray) -> int:
    """The mask of the chosen ones of a list of lanes."""
    return sum(1 << lane for lane, take in zip(lanes, chosen) if take)
