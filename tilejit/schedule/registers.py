"""How many registers the threads of each role have, and what of them is for anything but tiles."""
from __future__ import annotations

from tilejit.ir import Function, walk

#: Registers of a consumer's thread beside its tiles: addresses, tickets, loop counters, masks.
BESIDE = 28
#: Registers of threads that copy by cp.async: the addresses of a tile, and what it takes to move them on.
THREAD_PRODUCER = 72


def register_split(fn: Function, num_warps: int, producers: int = 4,
                   threads_produce: bool = False) -> tuple[int, int, int]:
    """(launch, producer, consumer) registers per thread for num_warps consumer warps; 0: no setmaxnreg. Consumers get
    all that can be had where a loop has several products, whose sums and operands live at once.

    The CTA's pool is launch count x warpgroups, counts are multiples of 8 (PTX ISA, setmaxnreg)."""
    consuming, filling = num_warps // 4, producers // 4
    groups = consuming + filling
    launch = min(256, 65536 // (128 * groups) // 8 * 8)
    if launch >= 255:
        return launch, 0, 0
    several = any(sum(op.name == "dot" for op in loop.regions[0].ops) > 1
                  for loop in walk(fn.body) if loop.name == "for" and not loop.attrs.get("pairs"))
    producer = THREAD_PRODUCER if threads_produce else 40 if groups <= 3 and not several else 24
    return launch, producer, min(240, (launch * groups - producer * filling) // consuming // 8 * 8)
