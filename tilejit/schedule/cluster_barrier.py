"""Atomics of one number, and what they order: writes of the async proxy, and the other CTAs of a cluster.

A cluster is one program, so its atomic of one number happens once, in the first thread of the first CTA. Before one
that releases, or whose result is needed, all threads of the role meet, those of all CTAs; after one that acquires, or
whose result is needed, that thread tells all of them. The meeting also says that all have read what they were told
before. A `debug_barrier` is such a meeting too.
"""
from __future__ import annotations

from typing import Any

from tilejit.ir import Builder, Function, Op, Value, uses, walk
from tilejit.ir.report import Record
from tilejit.ir.types import Barrier, Buffer, Tile, int32, uint8
from tilejit.schedule.plan import Exchange, Plan
from tilejit.schedule.store_role import StoreRole

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


def plan_cluster_barriers(fn: Function, plan: Plan) -> None:
    """The meetings of all CTAs of a cluster, and what one of them tells all."""
    table = uses(fn.body)
    atomics = [op for op in walk(fn.body) if of_one_number(op)]
    told = [op for op in atomics if acquires(op) or op.result in table]
    meeting = [op for op in walk(fn.body) if op in told or op in atomics and releases(op)
               or op.name == "debug_barrier" and plan.specialised]
    if meeting:
        plan.exchanges.append(Exchange("meeting", meeting, 1, 1, 0))
    if told:
        plan.exchanges.append(Exchange("told", told, 1, 1, TOLD))
    if atomics:
        plan.report.append(Record("atomics", "atomics of one number: one CTA does them, and tells the others"))


class ClusterBarriers(StoreRole):
    """The part of a role's writer that deals with atomics and `debug_barrier`."""

    def _atomic(self, op: Op, b: Builder) -> None:
        """An atomic behind the writes of the async proxy that it releases, and ahead of those that it acquires for."""
        stores = self.stores or self.plan.store_rings
        if self.plan.drain and op in self.plan.drain.ops:
            self.await_drain(b)
        elif stores and releases(op):
            b.op("store_wait")
        if not of_one_number(op):
            self._clone(op, b)
        elif self.plan.ctas > 1:
            self._once(op, b)
        else:
            self._clone(op, b)
            if not releases(op) and op.result not in self.uses:
                b.block.ops[-1].attrs["alone"] = True
        if stores and acquires(op):
            b.op("fence_async", space="global")

    def _once(self, op: Op, b: Builder) -> None:
        """An atomic of one number in a cluster."""
        scope = op.attrs.get("scope") or "gpu"
        scope = "cluster" if scope == "cta" else scope
        meeting, told = self._gathering(op, "meeting"), self._gathering(op, "told")
        if meeting is not None:
            self._meet(meeting, b, {"release": scope} if releases(op) else {})
        self._clone(op, b)
        b.block.ops[-1].attrs["alone"] = True
        if told is None:
            return
        if "area" not in self.gathered:
            self.gathered["area"] = self.top("alloc", name="told", private=True,
                                             type=Buffer((TOLD,), uint8, 1, 0, (0,)))
        area, full = self.gathered["area"], self._barrier("told", 1)
        (parity,) = self.state[told, "parity"]
        scopes = {"acquire": scope} if acquires(op) else {}
        value = b("cluster_tell", self.env[op.result], area, full, parity, **scopes)
        value.name = op.result.name
        self.env[op.result] = value
        self._next_time(told, b)

    def _debug_barrier(self, op: Op, b: Builder) -> None:
        meeting = self._gathering(op, "meeting")
        if meeting is None:
            self._clone(op, b)
        else:
            self._meet(meeting, b, {"release": "cluster", "acquire": "cluster"})

    def _gathering(self, op: Op, name: str) -> Exchange | None:
        return next((x for x in self.plan.exchanges if x.name == name and op in x.loads), None)

    def _meet(self, meeting: Exchange, b: Builder, scopes: dict[str, Any]) -> None:
        (parity,) = self.state[meeting, "parity"]
        b.op("cluster_meet", self._barrier("meeting", self.plan.ctas), parity, **scopes)
        self._next_time(meeting, b)

    def _barrier(self, name: str, arrivals: int) -> Value:
        if name not in self.gathered:
            self.gathered[name] = self.top("barriers", name=name, type=Barrier(self.plan.groups, arrivals))
            self.gathered[name].name = name
        return self.gathered[name]

    def _next_time(self, exchange: Exchange, b: Builder) -> None:
        (parity,) = self.state[exchange, "parity"]
        self.state[exchange, "parity"] = (b("sub", b.const(1, int32), parity),)
