"""When every warp waits: waits with a time limit give up, else the report of a deadlock."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilejit.emulator.report import Finding
from tilejit.emulator.vm import codes as k

if TYPE_CHECKING:
    from tilejit.emulator.machine import Cluster, Waiter


def give_up(c: Cluster) -> bool:
    """End the waits with a time limit, each once a phase, so that a loop around one deadlocks all the same. False:
    there are none."""
    found = False
    for key, items in list(c.waiters.items()):
        for w in [w for w in items if w.limited >= 0 and (w.warp, w.pc, w.limited) not in c.timed_out]:
            c.timed_out.add((w.warp, w.pc, w.limited))
            items.remove(w)
            w.resume()
            c.splits[w.warp, w.split, k.SP_STATE] = k.READY
            if w.warp not in c.runnable:
                c.runnable.append(w.warp)
            found = True
        if not items:
            del c.waiters[key]
    return found


def deadlock(c: Cluster) -> Finding | None:
    if give_up(c):
        return None
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
