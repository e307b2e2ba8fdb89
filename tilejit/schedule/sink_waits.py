"""Waits for products, each as late as it can be, and how many groups may stay in flight at each."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tilejit.ir import Block, Function, Op, Value, blocks
from tilejit.ir.flight import Flights, follow, issued, needs, released, rings
from tilejit.records import dataclass, field


@dataclass
class Sinking:
    """A wait on its way down, the products of this block that it is for, and the releases behind it."""

    wait: Op
    products: tuple[Op, ...]
    releases: list[Op] = field(default_factory=list)


def sink_waits(fn: Function) -> Function:
    guarded = rings(fn)
    for block in blocks(fn.body):
        if any(op.name == "dot_wait" for op in block.ops):
            _sink(block, guarded)
    follow(fn, lambda op, state: _count(op, state, guarded))
    fn.attrs.pop("uncounted", None)
    return fn


def _sink(block: Block, guarded: dict[Value, str]) -> None:
    sinking: list[Sinking] = []
    out: list[Op] = []
    adjacent = False

    def flush(count: int, at: Op) -> None:
        ready, sinking[:] = sinking[:count], sinking[count:]
        if not ready:
            return
        wait = ready[0].wait
        for other in ready[1:]:
            wait.operands += other.wait.operands
            wait.results += other.wait.results
        for i, v in enumerate(wait.results):
            v.op, v.index = wait, i
        moved = [wait, *(op for x in ready for op in x.releases)]
        for op in moved:
            op.loc = at.loc
        out.extend(moved)

    for op in block.ops:
        sums = op.operands[0].op if op.name == "dot_wait" else None
        left = isinstance(sums, Op) and sums.regions and sums.parent is block  # by a loop: the wait stays behind it
        if op.name == "dot_wait" and not left:
            sinking.append(Sinking(op, _products(op)))
            adjacent = True
            continue
        holder = _holder(op, sinking, guarded, adjacent)
        if holder is not None:
            holder.releases.append(op)
            continue
        adjacent = False
        flush(_needed(op, sinking), op)
        out.append(op)
        if op.name == "dot_async":
            flush(_scarce(op, sinking), op)
    block.ops = out


def _scarce(op: Op, sinking: list[Sinking]) -> int:
    """How many of the first waits give back the only slot of a ring, which is filled again while `op` multiplies."""
    alone = (op not in x.products and any(r.operands[0].barrier.slots == 1 for r in x.releases) for x in sinking)
    return sum(1 for _ in takewhile(bool, alone))


def _products(wait: Op) -> tuple[Op, ...]:
    """The products behind the sums that are waited for, as far as they are in this block."""
    found, v = [], wait.operands[0]
    while isinstance(v.op, Op) and v.op.name in ("dot_async", "dot_fence"):
        if v.op.name == "dot_async":
            found.append(v.op)
        v = v.op.operands[2 if v.op.name == "dot_async" else v.index]
    return tuple(found)


def _holder(op: Op, sinking: list[Sinking], guarded: dict[Value, str], adjacent: bool) -> Sinking | None:
    """The wait that a release stays behind: of the last product that reads the slot, or right before it."""
    if op.name != "mbar_arrive":
        return None
    for x in reversed(sinking):
        if any(released(op, guarded, flight) for dot in x.products for flight in [issued(dot)]):
            return x
    return sinking[-1] if adjacent and not sinking[-1].products else None


def _needed(op: Op, sinking: list[Sinking]) -> int:
    """How many of the waits must be over before an op: those whose sums it uses, all at control flow and barriers."""
    ends = op.regions and op.name != "elect" and op.define.regions != "fold" or "terminator" in op.define.traits
    if ends or "sync" in op.define.effects and "scheduled" not in op.define.traits:
        return len(sinking)
    return max((i for i, x in enumerate(sinking, 1) if not set(x.wait.results).isdisjoint(op.operands)), default=0)


def _count(op: Op, state: Flights, guarded: dict[Value, str]) -> None:
    if op.name == "dot_wait":
        ages = [x.age for x in state.values() if not x.sums.isdisjoint(op.operands)]
        op.attrs["pending"] = min(ages, default=max((x.age + 1 for x in state.values()), default=0))
    elif op.name == "dot_fence":
        here = max((x.age + 1 for (_, trip), x in state.items() if not trip), default=0)
        op.attrs["pending"] = min((x.age for y in _behind(op) for x in needs(y, guarded, state)), default=here)
        op.attrs["pending"] = min(here, op.attrs["pending"])


def _behind(fence: Op) -> Iterator[Op]:
    """What comes between a fence and the next product or wait, round the loop that it is in."""
    block = fence.block
    at = block.ops.index(fence)
    around = block.ops[:at] if block.parent is not None and block.parent.name == "for" else []
    for op in (*block.ops[at + 1:], *around):
        if op.regions and op.name != "elect" or op.name in ("dot_async", "dot_fence", "dot_wait"):
            return
        yield op
