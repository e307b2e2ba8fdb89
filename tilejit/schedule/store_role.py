"""The store role: consumers fill the slots of a staging ring, warps of their own store and release them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tilejit.ir import Block, Builder, Function, Op, Value, beside, listed, loop_around
from tilejit.ir.types import Buffer, Tile, int32, shape_of
from tilejit.layout.clusters import counts_of
from tilejit.records import dataclass, field
from tilejit.schedule.buffers import barriers_of
from tilejit.schedule.cluster_barrier import orders
from tilejit.schedule.loads import backward_slice, groups_of, slice_problem
from tilejit.schedule.rings import Ring
from tilejit.schedule.stores import LINE, Staging, is_store, staging_of
from tilejit.schedule.thread import thread

#: Warps of the producer's warpgroup that have nothing to do.
IDLE_WARPS = 3


def choose_store_role(fn: Function, rings: Sequence[Ring], threads: bool) -> int:
    """How many warps of their own store: where `store_role` asks for it, or it pays, and it can be; else 0."""
    asked = fn.attrs.get("store_role")
    if asked is False:
        return 0
    stores, problem = _staged(fn, threads)
    if asked is None and (problem or not _pays(fn, rings, stores)):
        return 0
    # What an atomic releases includes the stores before it: consumers wait until the role is done with them.
    drain = _releasing(fn)
    addresses = {op: [op.operands[0], *op.operands[2:]] for op in stores}
    problem = problem or slice_problem(fn, backward_slice(addresses), "a store address") or slice_problem(
        fn, backward_slice(addresses | {op: [] for op in drain}), "whether an atomic releases stores")
    if problem:
        if asked:
            fn.say("no_store_role", f"no store role: {problem}")
        return 0
    channels: dict[Buffer, str] = {}
    for op, staging in stores.items():
        base = f"{op.operands[0].name or 'store'}_stage"
        same = sum(name.partition(".")[0] == base for name in channels.values())
        name = channels.setdefault(staging.buffer, f"{base}.{same + 1}" if same else base)
        op.attrs.update(channel=name, role="store")
    streams = fn.attrs["groups"] * next(iter(stores.values())).stripes
    fn.say("store_role", f"store role: a warp for each of {streams} streams of tiles", streams=streams)
    if drain:
        places = ", ".join(op.place for op in drain)
        fn.say("drain", f"atomics at {places}: wait until the store role's are written", places)
    return int(streams)


def _pays(fn: Function, rings: Sequence[Ring], stores: Mapping[Op, Staging]) -> bool:
    """Whether one group of consumers stores tiles in a loop, in pieces of whole lines."""
    ahead = any(r.loop is not None and r.loop.attrs.get("pairs") for r in rings)
    kept = _releasing(fn) or any(op.name == "promote_reuse" for op in listed(fn.body))
    return fn.attrs["groups"] == 1 and not kept and not ahead and all(
        staging.size * staging.buffer.elem.bytes == LINE and loop_around(op) for op, staging in stores.items())


def _releasing(fn: Function) -> list[Op]:
    """Atomics that release what was stored before them."""
    return [op for op in listed(fn.body) if "atomic" in op.define.traits and orders(op, "release")]


def _staged(fn: Function, threads: bool) -> tuple[dict[Op, Staging], str]:
    stores = [op for op in listed(fn.body) if is_store(op)]
    if "producers" not in fn.attrs or not stores:
        return {}, "the kernel is not specialised" if stores else "nothing is stored through TMA"
    if threads:
        return {}, "all warps of the producer copy"
    if fn.attrs["groups"] > 1 and not any("dealt" in op.attrs for op in fn.body.ops):
        return {}, "ping-pong groups of consumers take a loop that is in another one"
    found: dict[Op, Staging] = {}
    for op in stores:
        t = op.operands[1].type
        if not isinstance(t, Tile) or t.layout is None:
            return {}, f"the store at {op.place} has no layout of its own"
        found[op] = staging_of(op, t, fn, in_rounds=True)
        streams = fn.attrs["groups"] * found[op].stripes
        if streams > IDLE_WARPS:
            return {}, f"{streams} consumer warpgroups store, {IDLE_WARPS} warps are idle"
    if len({staging.stripes for staging in found.values()}) > 1:
        return {}, "warpgroups share some stores and not others"
    return found, ""


def write_stores(fn: Function, block: Block, puts: bool, b: Builder) -> None:
    """Put one side of the protocol in the place of stores: of the role that `puts` them, or the consumers'."""
    rings: dict[str, list[Op]] = {}
    barriers = barriers_of(fn)
    for op in listed(block):
        if op.attrs.get("role") == "store":
            rings.setdefault(op.operands[2].maker.attrs["name"], []).append(op)
    for name, stores in rings.items():
        # A fresh barrier passes a wait for parity 1: the consumers' first round never blocks.
        first = b.const(int(not puts), int32)
        ring = _Ring(fn, puts, barriers[f"{name}.full"], barriers[f"{name}.empty"])
        flips = any(ring.rounds(op) % 2 for op in stores)
        steps = {op: ring.put if puts else ring.stage for op in stores}
        if flips:
            thread(block, [first], steps, [f"{name}_parity"])
        for op in stores if not flips else ():
            steps[op](op, [first])
    drains = [op for op in listed(block) if op.name == "store_wait"]
    if drains:
        drain = partial(_drain, puts=puts, groups=groups_of(fn), asked=barriers["stores.asked"],
                        drained=barriers["stores.drained"])
        thread(block, [b.const(0, int32)], dict.fromkeys(drains, drain), ["drain_parity"])


def _slots(store: Op) -> int:
    """Slots of a store's staging, of one stripe."""
    return store.operands[2].buffer.slots // int(store.attrs["stripes"])


@dataclass
class _Ring:
    fn: Function
    puts: bool
    full: Value
    empty: Value
    opposite: dict[tuple[Value, Block | None], Value] = field(default_factory=dict)  # a parity, where it is known

    def pieces(self, store: Op) -> int:
        axis, shape = store.attrs["axis"], shape_of(store.operands[1].type)
        return shape[axis] // counts_of(len(shape), store.attrs.get("slice", ()))[axis] // int(store.attrs["size"])

    def rounds(self, store: Op) -> int:
        """How often a store goes through all slots."""
        return self.pieces(store) // _slots(store)

    def parities(self, op: Op, even: Value, b: Builder) -> tuple[Value, Value, Value]:
        """The parities of a store's even rounds through the slots, and of its odd ones; the next store's."""
        odd = self.opposite.get((even, None)) or self.opposite.get((even, b.block))
        if odd is None:
            odd = self.opposite[even, b.block] = b("sub", b.const(1, int32), even)
            self.opposite[odd, None] = even  # known wherever the one is that was made from it
        return even, odd, odd if self.rounds(op) % 2 else even

    def stream(self, op: Op, b: Builder) -> Value:
        """Which of the ring's streams is this warpgroup's. Found out each time: a register less from store to store."""
        groups = groups_of(self.fn)
        if groups * op.attrs["stripes"] == 1:
            return b.const(0, int32)
        return b("group_index" if self.puts or groups > 1 else "warpgroup_index")

    def stage(self, op: Op, parity: list[Value]) -> list[Value]:
        b = _take(op)
        even, _, after = self.parities(op, parity[0], b)
        b.op("stage", op.operands[2], op.operands[1], self.full, self.empty, self.stream(op, b), even,
             size=op.attrs["size"], axis=op.attrs["axis"], stripes=op.attrs["stripes"])
        return [after]

    def put(self, op: Op, parity: list[Value]) -> list[Value]:
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
    b = beside(op)
    b.block.ops.remove(op)
    return b


def _drain(op: Op, parity: list[Value], puts: bool, groups: int, asked: Value, drained: Value) -> list[Value]:
    """One side of waiting until all stores are written: consumers ask for it, and the store role says when."""
    b = _take(op)
    after = b("sub", b.const(1, int32), *parity)
    group = b("group_index") if groups > 1 else b.const(0, int32)
    if puts:
        b.op("mbar_wait", asked, group, *parity)
        b.op("bulk_wait")
        b.op("mbar_arrive", drained, group, per="thread", ctas=1)
    else:
        b.op("mbar_arrive", asked, group, per="warp", ctas=1)
        b.op("mbar_wait", drained, group, *parity)
    return [after]
