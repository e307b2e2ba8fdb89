"""Atomics of one number, and what they order: writes of the async proxy, and the other CTAs of a cluster.

A cluster is one program, so its atomic of one number happens once, in the first thread of the first CTA. Before one
that releases, or whose result is needed, there is a barrier of the role in all CTAs; after one that acquires, or whose
result is needed, that thread tells all of them. The barrier also says that all have read what they were told
before. A `debug_barrier` is such a barrier too.
"""
from __future__ import annotations

from typing import Any

from tilejit.ir import Block, Builder, Op, Value, beside, listed
from tilejit.ir.types import Barrier, Buffer, Tile, int32, uint8
from tilejit.schedule.context import Context
from tilejit.schedule.loads import groups_of
from tilejit.schedule.thread import thread

#: Bytes in which a number is told.
TOLD = 16


def of_one_number(op: Op) -> bool:
    """Whether an op is an atomic of one number, which a program does once."""
    return "atomic" in op.define.traits and not isinstance(op.result.type, Tile)


def releases(op: Op) -> bool:
    """Whether what was before an atomic is known to whom it tells."""
    return (op.attrs.get("sem") or "acq_rel") in ("release", "acq_rel")


def acquires(op: Op) -> bool:
    """Whether an atomic learns what was released to it."""
    return (op.attrs.get("sem") or "acq_rel") in ("acquire", "acq_rel")


def write_atomic(op: Op, b: Builder, c: Context) -> None:
    """An atomic behind the writes of the async proxy that it releases, and ahead of those that it acquires for."""
    stores = c.stores
    if stores and releases(op):
        b.op("store_wait")
    if not of_one_number(op):
        b.insert(op)
    elif c.ctas > 1:
        _once(op, b, c)
    else:
        b.insert(op)
        if not releases(op) and op.result not in c.uses:
            op.attrs["alone"] = True
    if stores and acquires(op):
        b.op("fence_async", space="global")


def _once(op: Op, b: Builder, c: Context) -> None:
    """An atomic of one number in a cluster."""
    scope = op.attrs.get("scope") or "gpu"
    scope = "cluster" if scope == "cta" else scope
    told = acquires(op) or op.result in c.uses
    if told or releases(op):
        _barrier_of_all(b, c, {"release": scope} if releases(op) else {})
    b.insert(op)
    op.attrs["alone"] = True
    if not told:
        return
    if "area" not in c.gathered:
        c.gathered["area"] = c.alloc("told", Buffer((TOLD,), uint8, 1, 0, (0,)), private=True)
    (old,) = c.replaced(op)
    scopes = {"acquire": scope} if acquires(op) else {}
    value = b("cluster_broadcast", op.result, c.gathered["area"], _barrier("told", 1, c), b.const(0, int32), **scopes)
    value.name = old.name
    c.renamed[old] = value


def write_barrier(op: Op, b: Builder, c: Context) -> None:
    """`debug_barrier`: a barrier of all CTAs of a cluster."""
    if c.ctas > 1 and "producers" in c.fn.attrs:
        _barrier_of_all(b, c, {"release": "cluster", "acquire": "cluster"})
    else:
        b.insert(op)


def _barrier_of_all(b: Builder, c: Context, scopes: dict[str, Any]) -> None:
    b.op("cluster_barrier", _barrier("all_ctas", c.ctas, c), b.const(0, int32), **scopes)


def _barrier(name: str, arrivals: int, c: Context) -> Value:
    if name not in c.gathered:
        c.gathered[name] = c.barriers(name, groups_of(c.fn), arrivals)
    return c.gathered[name]


def write_parities(block: Block, first: Value) -> None:
    """Carry the parities of barriers where CTAs come together from one op to the next, in place; `first`: the constant
    0, with which each begins."""
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
