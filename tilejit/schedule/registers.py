"""The one budget of registers: how many the threads of each role have, and what of them is for anything but tiles."""
from __future__ import annotations

from typing import NamedTuple

from tilejit.ir import Function, Op, edges, listed, total_warps
from tilejit.ir.types import DType, Tile

#: Registers of a thread that tiles leave to everything else. "loop": addresses, tickets, counters and masks in a loop
#: of products; "epilogue": beside sums and vectors that are loaded while the last ones are computed; "tile": beside
#: the sums of a whole tile that one warpgroup multiplies and stores; "copies": beside sums, where warps copy.
BESIDE = {"loop": 28, "epilogue": 36, "tile": 104, "copies": 32}
#: Registers of threads that copy by cp.async: the addresses of a tile, and what it takes to move them on.
THREAD_PRODUCER = 72
#: The most that a thread can have.
MOST = 255


class Shares(NamedTuple):
    """Registers of a thread at the launch, of the producer, of a consumer; 0: as at the launch (no setmaxnreg)."""

    launch: int
    producer: int
    consumer: int

    @property
    def computing(self) -> int:
        return min(self.consumer or self.launch, MOST)


def room(registers: int, what: str) -> int:
    """What of a thread's registers is for tiles; `what` is a kind of `BESIDE`."""
    return registers - BESIDE[what]


def register_split(fn: Function, num_warps: int, producers: int = 4, threads_produce: bool = False) -> Shares:
    """How num_warps consumer warps share a CTA's registers with producers."""
    consuming, filling = num_warps // 4, producers // 4
    groups = consuming + filling
    launch = min(256, 65536 // (128 * groups) // 8 * 8)
    if launch >= MOST:
        return Shares(launch, 0, 0)
    several = any(sum(op.name == "dot" for op in loop.regions[0].ops) > 1
                  for loop in listed(fn.body) if loop.name == "for" and not loop.attrs.get("pairs"))
    producer = THREAD_PRODUCER if threads_produce else 40 if groups <= 3 and not several else 24
    return Shares(launch, producer, min(240, (launch * groups - producer * filling) // consuming // 8 * 8))


def accumulators(fn: Function) -> int:
    """Registers of a thread for the largest set of sums of one loop, those aside that are issued an iteration ahead."""
    most = 0
    for op in listed(fn.body):
        if "loop" in op.define.traits:
            tiles = [e.result.type for e in edges(op) if not all(isinstance(v.op, Op) and v.op.name == "dot"
                                                                 for v in e.sources)]
            most = max(most, sum(t.numel for t in tiles if isinstance(t, Tile) and isinstance(t.elem, DType))
                       // (32 * total_warps(fn)))
    return most
