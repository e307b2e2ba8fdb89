"""The store role: consumers fill the slots of a staging ring, warps of their own store and release them.

The protocol is that of loads in the other direction; each consumer warpgroup has its own slots, barriers and storing
warp. Consumer, per piece of a tile: wait `empty[slot]` at parity^1; write; fence for the async proxy; arrive on
`full[slot]`. Store role, per ticket: wait `full[slot]` at parity; one thread stores, waits until that has been read
from shared memory, and arrives on `empty[slot]`. Tickets run on from tile to tile.

Before an atomic that releases, stores must be written, not only read: the consumers of a group arrive on `asked`, the
group's store warps, which come to the same place in the program, wait for that, then for all that they have stored, and
arrive on `drained`, where the consumers wait. (Two barriers: neither side may be two phases ahead of the other.)
"""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value
from tilejit.ir.types import Barrier, int32
from tilejit.schedule.plan import Drain, Plan, Ring, StoreRing
from tilejit.schedule.role import RoleState, Shared
from tilejit.schedule.stores import describe


def allocate_store_rings(b: Builder, fn: Function, plan: Plan) -> dict[Ring | StoreRing | Drain, Shared]:
    """Slots (private to groups that take turns) and barriers, of all streams in turn, of the store role's rings."""
    found: dict[Ring | StoreRing | Drain, Shared] = {}
    for ring in plan.store_rings:
        name, count = ring.name, ring.staging.slots * ring.streams
        full = b("barriers", name=f"{name}.full", type=Barrier(count, fn.attrs["num_warps"] // ring.staging.stripes))
        empty = b("barriers", name=f"{name}.empty", type=Barrier(count, 1))
        buffer = b("alloc", name=name, type=ring.staging.buffer, private=True)
        full.name, empty.name, buffer.name = f"{name}_full", f"{name}_empty", name
        plan.report += [describe(op, staging) for op, staging in ring.stores.items()]
        found[ring] = Shared(full, empty, dict.fromkeys(ring.stores, buffer))
    if plan.drain:
        groups, streams = plan.groups, plan.store_rings[0].streams
        asked = b("barriers", name="stores.asked", type=Barrier(groups, fn.attrs["num_warps"]))
        drained = b("barriers", name="stores.drained", type=Barrier(groups, streams // groups))
        asked.name, drained.name = "stores_asked", "stores_drained"
        found[plan.drain] = Shared(asked, drained, {})
    return found


class StoreRole(RoleState):
    """The part of a role's writer that deals with stores that have a role of their own."""

    def first_parities(self, b: Builder) -> None:
        """The parities that the first stores start with; those of rings that never change them need no state."""
        for ring in self.plan.store_rings if self.role != "producer" else ():
            # A fresh barrier passes a wait for parity 1: the consumers' first round never blocks.
            self.parity[ring] = b.const(int(self.role == "consumer"), int32)
            if ring.flips:
                self.state[ring, "parity"] = (self.parity[ring],)
        if self.plan.drain and self.role != "producer":
            self.state[self.plan.drain, "parity"] = (b.const(0, int32),)

    def _stream(self, ring: StoreRing, b: Builder) -> Value:
        """Which of the ring's streams is this warpgroup's. Found out each time: a register less from store to store."""
        if ring.streams == 1:
            return b.const(0, int32)
        return b("group_index" if self.role == "store" or self.plan.groups > 1 else "warpgroup_index")

    def _parities(self, ring: StoreRing, op: Op, b: Builder) -> tuple[Value, Value]:
        """The parities of a store's even rounds through the slots and of its odd ones; and the next store's."""
        even = self.state[ring, "parity"][0] if ring.flips else self.parity[ring]
        odd = self.other.get(even)
        if odd is None:
            odd = b("sub", b.const(1, int32), even)
            self.other[odd] = even
        if ring.stores[op].rounds % 2:
            self.state[ring, "parity"] = (odd,)
        return even, odd

    def fill_pieces(self, op: Op, b: Builder) -> None:
        """A consumer's part of a store."""
        ring = self.plan.store_ring_of(op)
        s, staging = self.shared[ring], ring.stores[op]
        even, _ = self._parities(ring, op, b)
        b.op("stage", s.buffers[op], self.env[op.operands[1]], s.full, s.empty, self._stream(ring, b), even,
             size=staging.size, axis=staging.axis, stripes=staging.stripes)

    def put_pieces(self, op: Op, b: Builder) -> None:
        """The store role's part."""
        ring = self.plan.store_ring_of(op)
        s, staging = self.shared[ring], ring.stores[op]
        desc, *offsets = (self.env[v] for v in (op.operands[0], *op.operands[2:]))
        first = b("mul", self._stream(ring, b), b.const(staging.slots, int32))
        parities = self._parities(ring, op, b)
        for piece in range(staging.pieces):
            slot = b.const(piece % staging.slots, int32)
            index = b("add", first, slot)
            b.op("mbar_wait", s.full, index, parities[piece // staging.slots % 2])
            b.op("tma_put", desc, s.buffers[op], index if staging.stripes > 1 else slot, *offsets,
                 piece=piece, **staging.attrs, **op.attrs)
            b.op("bulk_wait", read=True)
            b.op("mbar_arrive", s.empty, index, per="thread", ctas=1)

    def await_drain(self, b: Builder) -> None:
        """A consumer's part of a drain: ask for it, and wait until it is done."""
        s, group, parity = self._drain(b)
        b.op("mbar_arrive", s.full, group, per="warp", ctas=1)
        b.op("mbar_wait", s.empty, group, parity)

    def drain(self, b: Builder) -> None:
        """The store role's part."""
        s, group, parity = self._drain(b)
        b.op("mbar_wait", s.full, group, parity)
        b.op("bulk_wait")
        b.op("mbar_arrive", s.empty, group, per="thread", ctas=1)

    def _drain(self, b: Builder) -> tuple[Shared, Value, Value]:
        """Barriers of a drain, the group of consumers that it is for, and its parity, which then is the next one's."""
        drain = self.plan.drain
        assert drain is not None
        (parity,) = self.state[drain, "parity"]
        self.state[drain, "parity"] = (b("sub", b.const(1, int32), parity),)
        return self.shared[drain], b("group_index") if self.plan.groups > 1 else b.const(0, int32), parity

    def my_turns(self, op: Op, b: Builder) -> list[Value]:
        """First, last and step of a loop whose iterations groups take in turn, for one group."""
        lo, hi, step = (self.env[v] for v in op.operands[:3])
        group = b("group_index")
        if step.type != group.type:
            group = b("cast", group, type=step.type)
        return [b("add", lo, b("mul", group, step)), hi, b("mul", step, b.const(self.plan.groups, step.type))]
