"""The store role: consumers fill the slots of a staging ring, warps of their own store and release them.

The protocol is that of loads in the other direction; each consumer warpgroup has its own slots, barriers and storing
warp. Consumer, per piece of a tile: wait `empty[slot]` at parity^1; write; fence for the async proxy; arrive on
`full[slot]`. Store role, per ticket: wait `full[slot]` at parity; one thread stores, waits until that has been read
from shared memory, and arrives on `empty[slot]`. Tickets run on from tile to tile.
"""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value
from tilejit.ir.types import Barrier, int32
from tilejit.schedule.plan import Outlet, Plan, Ring
from tilejit.schedule.role import RoleState, Shared
from tilejit.schedule.stores import describe


def allocate_outlets(b: Builder, fn: Function, plan: Plan) -> dict[Ring | Outlet, Shared]:
    """Slots (private to groups that take turns) and barriers, of all streams in turn, of the store role's rings."""
    found: dict[Ring | Outlet, Shared] = {}
    for ring in plan.outlets:
        name, count = ring.name, ring.slots * ring.streams
        full = b("barriers", name=f"{name}.full", type=Barrier(count, fn.attrs["num_warps"] // ring.staging.mine))
        empty = b("barriers", name=f"{name}.empty", type=Barrier(count, 1))
        buffer = b("alloc", name=name, type=ring.staging.buffer, private=True)
        full.name, empty.name, buffer.name = f"{name}_full", f"{name}_empty", name
        plan.report += [describe(op, ring.staging) for op in ring.stores]
        found[ring] = Shared(full, empty, dict.fromkeys(ring.stores, buffer))
    return found


class Outlets(RoleState):
    """The part of a role's writer that deals with stores that have a role of their own."""

    def start_streams(self, b: Builder) -> None:
        """Find out which stream the threads belong to, and where its slots begin; its first tickets."""
        zero, one = b.const(0, int32), b.const(1, int32)
        for ring in self.plan.outlets:
            if self.role != "producer" and ring.streams > 1:
                by_group = self.role == "store" or self.plan.groups > 1
                stream = b("group_index" if by_group else "warpgroup_index")
                self.streams[ring] = b("mul", stream, b.const(ring.slots, int32))
            # A fresh barrier passes a wait for parity 1: the consumers' first round never blocks.
            if self.role != "producer":
                self.state[ring, self.role] = (zero, one if self.role == "consumer" else zero)

    def _slot(self, ring: Outlet, b: Builder) -> tuple[Value, Value, Value]:
        """The ticket's barrier, its slot in the buffer, and its parity."""
        slot, parity = self.state[ring, self.role]
        index = b("add", self.streams[ring], slot) if ring in self.streams else slot
        return index, slot if self.plan.groups > 1 else index, parity

    def fill_pieces(self, op: Op, b: Builder) -> None:
        """A consumer's part of a store."""
        ring = self.plan.outlet_of(op)
        s, value = self.shared[ring], self.env[op.operands[1]]
        for piece in range(ring.staging.pieces):
            index, slot, parity = self._slot(ring, b)
            b.op("mbar_wait", s.empty, index, parity)
            b.op("stage", value, s.buffers[op], slot, columns=ring.staging.columns, piece=piece)
            b.op("fence_async")
            b.op("mbar_arrive", s.full, index, per="warp", ctas=1)
            self._advance(ring, self.role, b)

    def put_pieces(self, op: Op, b: Builder) -> None:
        """The store role's part."""
        ring = self.plan.outlet_of(op)
        s = self.shared[ring]
        desc, *offsets = (self.env[v] for v in (op.operands[0], *op.operands[2:]))
        for piece in range(ring.staging.pieces):
            index, slot, parity = self._slot(ring, b)
            b.op("mbar_wait", s.full, index, parity)
            b.op("tma_put", desc, s.buffers[op], slot, *offsets, columns=ring.staging.columns, piece=piece,
                 stripes=ring.staging.stripes, **op.attrs)
            b.op("bulk_wait", read=True)
            b.op("mbar_arrive", s.empty, index, per="thread", ctas=1)
            self._advance(ring, self.role, b)

    def my_turns(self, op: Op, b: Builder) -> list[Value]:
        """First, last and step of a loop whose iterations groups take in turn, for one group."""
        lo, hi, step = (self.env[v] for v in op.operands[:3])
        group = b("group_index")
        if step.type != group.type:
            group = b("cast", group, type=step.type)
        return [b("add", lo, b("mul", group, step)), hi, b("mul", step, b.const(self.plan.groups, step.type))]
