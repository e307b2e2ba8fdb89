"""The store role: consumers fill the slots of a staging ring, warps of their own store and release them.

The protocol is that of loads in the other direction; each consumer warpgroup has its own slots, barriers and storing
warp. Consumer, per piece of a tile: wait `empty[slot]` at parity^1; write; fence for the async proxy; arrive on
`full[slot]`. Store role, per ticket: wait `full[slot]` at parity; one thread stores, waits until that has been read
from shared memory, and arrives on `empty[slot]`. Every store goes through all slots a whole number of times, so all
that runs on from tile to tile is the parity.

Before an atomic that releases, stores must be written, not only read: the consumers of a group arrive on `asked`, the
group's store warps, which come to the same place in the program, wait for that, then for all that they have stored, and
arrive on `drained`, where the consumers wait. (Two barriers: neither side may be two phases ahead of the other.)
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilejit.ir import Block, Builder, Op, Value, listed
from tilejit.ir.types import Buffer, int32, shape_of
from tilejit.schedule.thread import thread


@dataclass(frozen=True)
class Side:
    """One of both roles: whether it stores, how many groups of consumers there are, and CTAs."""

    stores: bool
    groups: int
    ctas: int


def write_stores(block: Block, side: Side, barriers: dict[str, Value], b: Builder) -> None:
    """Put one side of the protocol in the place of stores, in place; `b` puts in what the role begins with."""
    rings: dict[str, list[Op]] = {}
    for op in listed(block):
        if op.attrs.get("role") == "store":
            rings.setdefault(op.operands[2].op.attrs["name"], []).append(op)      # type: ignore[union-attr]
    for name, stores in rings.items():
        full, empty = barriers[f"{name}.full"], barriers[f"{name}.empty"]
        # A fresh barrier passes a wait for parity 1: the consumers' first round never blocks.
        first = b.const(int(not side.stores), int32)
        ring = _Ring(side, full, empty)
        flips = any(ring.rounds(op) % 2 for op in stores)
        steps = {op: ring.put if side.stores else ring.stage for op in stores}
        if flips:
            thread(block, [first], steps, [f"{name}_parity"])
        for op in stores if not flips else ():
            steps[op](op, [first])
    drains = [op for op in listed(block) if op.name == "store_wait"]
    if drains:
        thread(block, [b.const(0, int32)], dict.fromkeys(drains, _drain(side, barriers)), ["drain_parity"])


def _slots(store: Op) -> int:
    """Slots of a store's staging, of one stripe."""
    buffer = store.operands[2].type
    assert isinstance(buffer, Buffer)
    return buffer.slots // int(store.attrs["stripes"])


@dataclass
class _Ring:
    side: Side
    full: Value
    empty: Value
    opposite: dict[tuple[Value, Block | None], Value] = field(default_factory=dict)    # a parity, where it is known

    def pieces(self, store: Op) -> int:
        """Pieces of a store in one CTA."""
        axis = store.attrs["axis"]
        mine = shape_of(store.operands[1].type)[axis] // (self.side.ctas if store.attrs.get("slice") == axis else 1)
        return int(mine // store.attrs["size"])

    def rounds(self, store: Op) -> int:
        """How often a store goes through all slots."""
        return self.pieces(store) // _slots(store)

    def parities(self, op: Op, even: Value, b: Builder) -> tuple[Value, Value, Value]:
        """The parities of a store's even rounds through the slots, and of its odd ones; the next store's."""
        odd = self.opposite.get((even, None)) or self.opposite.get((even, b.block))
        if odd is None:
            odd = self.opposite[even, b.block] = b("sub", b.const(1, int32), even)
            self.opposite[odd, None] = even              # known wherever the one is that was made from it
        return even, odd, odd if self.rounds(op) % 2 else even

    def stream(self, op: Op, b: Builder) -> Value:
        """Which of the ring's streams is this warpgroup's. Found out each time: a register less from store to store."""
        if self.side.groups * op.attrs["stripes"] == 1:
            return b.const(0, int32)
        return b("group_index" if self.side.stores or self.side.groups > 1 else "warpgroup_index")

    def stage(self, op: Op, parity: list[Value]) -> list[Value]:
        """A consumer's part of a store."""
        b = _take(op)
        even, _, after = self.parities(op, parity[0], b)
        b.op("stage", op.operands[2], op.operands[1], self.full, self.empty, self.stream(op, b), even,
             size=op.attrs["size"], axis=op.attrs["axis"], stripes=op.attrs["stripes"])
        return [after]

    def put(self, op: Op, parity: list[Value]) -> list[Value]:
        """The store role's part."""
        b, slots = _take(op), _slots(op)
        desc, _, buffer, *offsets = op.operands
        first = b("mul", self.stream(op, b), b.const(slots, int32))
        even, odd, after = self.parities(op, parity[0], b)
        attrs = {k: v for k, v in op.attrs.items() if k != "role"}
        for piece in range(self.pieces(op)):
            slot = b.const(piece % slots, int32)
            index = b("add", first, slot)
            b.op("mbar_wait", self.full, index, (even, odd)[piece // slots % 2])
            b.op("tma_put", desc, buffer, index if op.attrs["stripes"] > 1 else slot, *offsets, piece=piece, **attrs)
            b.op("bulk_wait", read=True)
            b.op("mbar_arrive", self.empty, index, per="thread", ctas=1)
        return [after]


def _take(op: Op) -> Builder:
    """Remove an op; returns what builds in its place."""
    assert op.parent is not None
    at = op.parent.ops.index(op)
    op.parent.ops.pop(at)
    return Builder(op.parent, at, op.loc)


def _drain(side: Side, barriers: dict[str, Value]) -> Callable[[Op, list[Value]], list[Value]]:
    """One side of waiting until all stores are written: consumers ask for it, and the store role says when."""
    asked, drained = barriers["stores.asked"], barriers["stores.drained"]

    def drain(op: Op, values: list[Value]) -> list[Value]:
        b = _take(op)
        (parity,) = values
        after = b("sub", b.const(1, int32), parity)
        group = b("group_index") if side.groups > 1 else b.const(0, int32)
        if side.stores:
            b.op("mbar_wait", asked, group, parity)
            b.op("bulk_wait")
            b.op("mbar_arrive", drained, group, per="thread", ctas=1)
        else:
            b.op("mbar_arrive", asked, group, per="warp", ctas=1)
            b.op("mbar_wait", drained, group, parity)
        return [after]

    return drain
