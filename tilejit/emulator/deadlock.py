"""The report of a deadlock: who waits for what, and what is missing."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilejit.emulator.report import Finding

if TYPE_CHECKING:
    from tilejit.emulator.machine import Cluster, Waiter


def deadlock(c: Cluster) -> Finding:
    """No warp can run and nothing is in flight: one line a waiting warp."""
    waiting: list[Waiter] = []
    seen = set()
    for items in c.waiters.values():
        for w in items:
            if (w.warp, w.split) not in seen:
                seen.add((w.warp, w.split))
                waiting.append(w)
    waiting.sort(key=lambda w: w.warp)
    lines = []
    for w in waiting:
        loc = c.program.loc(w.pc)
        where = f"PTX line {c.program.line(w.pc)}" + (f", {loc[0]}:{loc[1]}" if loc else "")
        lines.append(f"  {c.warp_name(w.warp)} at {where} {w.describe()}")
    exited = [c.warp_name(i) for i, s in enumerate(c.warp_states) if s.exited]
    if exited:
        lines.append("  exited: " + ", ".join(exited))
    first = waiting[0].pc if waiting else -1
    return c.finding("deadlock", "every warp waits and nothing is in flight\n" + "\n".join(lines), first,
                     tuple(w.warp for w in waiting))
