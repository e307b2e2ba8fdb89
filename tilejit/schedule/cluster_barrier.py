"""Atomics of one number, and what they order: writes of the async proxy, and the other CTAs of a cluster."""
from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilejit.ir import Block, Builder, Function, Op, Value, beside, erase, listed, replace, uses
from tilejit.ir.types import Barrier, Buffer, Tile, int32, uint8
from tilejit.records import dataclass, field
from tilejit.schedule.buffers import alloc, barriers, renewed, top_of
from tilejit.schedule.exchange import write_fold, write_sum
from tilejit.schedule.loads import groups_of
from tilejit.schedule.thread import thread

#: Bytes in which a number is told.
TOLD = 16


def of_one_number(op: Op) -> bool:
    """Whether an op is an atomic of one number, which a program does once."""
    return "atomic" in op.define.traits and not isinstance(op.result.type, Tile)


def orders(op: Op, how: str) -> bool:
    """Whether an atomic tells what was before it ("release"), or learns what others released to it ("acquire")."""
    return (op.attrs.get("sem") or "acq_rel") in (how, "acq_rel")


@dataclass
class _Meeting:
    """What `meet` makes: by `top`, at the function's beginning; `renamed`: what stands for results."""

    fn: Function
    ctas: int
    top: Builder
    uses: Collection[Value]
    made: dict[str, Value] = field(default_factory=dict)
    renamed: dict[Value, Value] = field(default_factory=dict)

    def barrier(self, name: str, arrivals: int) -> Value:
        if name not in self.made:
            self.made[name] = barriers(self.top, name, groups_of(self.fn), arrivals)
        return self.made[name]


def meet(fn: Function) -> Function:
    ops = listed(fn.body)
    atomics, ctas = [op for op in ops if "atomic" in op.define.traits], fn.attrs.get("num_ctas", 1)
    stores = [op for op in ops if op.name == "tma_store"]
    for op in ops:
        if op.attrs.get("copies"):
            if stores:
                beside(op).op("store_wait")
            beside(op).op("fence_async", space="global")
    if not atomics and ctas == 1:
        return fn
    m = _Meeting(fn, ctas, top_of(fn), uses(fn.body))
    if any("role" in op.attrs for op in stores) and any(orders(op, "release") for op in atomics):
        m.barrier("stores.asked", fn.attrs["num_warps"])
        m.barrier("stores.drained", stores[0].attrs["stripes"])
    for op in ops:
        if "atomic" in op.define.traits:
            _atomic(op, bool(stores), m)
        elif op.name == "debug_barrier" and ctas > 1 and "producers" in fn.attrs:
            _barrier_of_all(op, m, release="cluster", acquire="cluster")
            erase({op}, fn.body)
        elif op.name == "cluster_sum":
            m.renamed.update(write_sum(op, fn, m.top))
        elif op.name == "reduce" and ctas > 1:
            m.renamed.update(write_fold(op, fn, m.top))
    replace(fn.body, m.renamed)
    return fn


def _atomic(op: Op, stores: bool, m: _Meeting) -> None:
    """An atomic behind the writes of the async proxy that it releases, and ahead of those that it acquires for."""
    acquires, releases = orders(op, "acquire"), orders(op, "release")
    if stores and acquires:
        beside(op, behind=True).op("fence_async", space="global")
    if stores and releases:
        beside(op).op("store_wait")
    if of_one_number(op) and m.ctas > 1:
        _once(op, acquires, releases, m)
    elif of_one_number(op) and not releases and op.result not in m.uses:
        op.attrs["alone"] = True


def _once(op: Op, acquires: bool, releases: bool, m: _Meeting) -> None:
    """An atomic of one number in a cluster, whose result all are told where something needs it."""
    scope, told = op.attrs.get("scope") or "gpu", acquires or op.result in m.uses
    scope = "cluster" if scope == "cta" else scope
    if told or releases:
        _barrier_of_all(op, m, **{"release": scope} if releases else {})
    op.attrs["alone"] = True
    if not told:
        return
    if "area" not in m.made:
        m.made["area"] = alloc(m.top, "told", Buffer((TOLD,), uint8, 1, 0, (0,)), private=True)
    (old,), barrier, b = renewed(op), m.barrier("told", 1), beside(op, behind=True)
    scopes = {"acquire": scope} if acquires else {}
    value = b("cluster_broadcast", op.result, m.made["area"], barrier, b.const(0, int32), **scopes)
    value.name = old.name
    m.renamed[old] = value


def _barrier_of_all(op: Op, m: _Meeting, **scopes: Any) -> None:
    barrier = m.barrier("all_ctas", m.ctas)  # (first: it stands before the op)
    b = beside(op)
    b.op("cluster_barrier", barrier, b.const(0, int32), **scopes)


def write_parities(block: Block, first: Value) -> None:
    """Carry the parities of barriers where CTAs come together from op to op, in place; `first`: the constant 0."""
    found: dict[Value, list[Op]] = {}
    for op in listed(block):
        if "cluster_phase" in op.define.traits and isinstance(op.operands[-2].type, Barrier):
            found.setdefault(next(v for v in op.operands if isinstance(v.type, Barrier)), []).append(op)
    for barrier, ops in found.items():
        thread(block, [first], dict.fromkeys(ops, _next_phase), [f"{barrier.name.removesuffix('_full')}_parity"])


def _next_phase(op: Op, values: list[Value]) -> list[Value]:
    """Give an op its parity; the next one's, which is the same behind an even number of rounds."""
    op.operands[-1] = parity = values[0]
    areas = [v.type.slots for v in op.operands if isinstance(v.type, Buffer)]
    if op.attrs.get("rounds", 1) // (areas[0] if areas else 1) % 2 == 0:
        return values
    b = beside(op, behind=True)
    return [b("sub", b.const(1, int32), parity)]
