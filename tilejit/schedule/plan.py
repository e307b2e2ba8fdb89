"""The schedule of a function as data: rings, depths, accumulator chains, roles; and what is asked of tile IR for it.

A `Ring` groups the descriptor loads with the same producer point (block), the
same consumers and the same depth: they share one pair of `full`/`empty` barriers and one expect_tx.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tilejit.errors import CompilationError
from tilejit.ir import Block, Op, Value, enclosing, walk
from tilejit.ir.types import Buffer, Desc, DType, Tile
from tilejit.ptx.smem import tile_buffer
from tilejit.schedule.stores import Staging


@dataclass(eq=False)
class Ring:
    """A channel: `slots` buffers per load, filled by TMA; see design.md on the protocol."""

    name: str
    loads: list[Op]
    slots: int
    loop: Op | None                       # the innermost loop around the loads
    views: bool                           # all loads are read by wgmma only, straight from the slot
    deferred: bool = False                # slot released one iteration late, behind `wait_group 1`
    ahead: bool = False                   # inline form: issued slots-1 iterations ahead
    open: bool = False                    # the author does not say how deep it is
    ctas: int = 1                         # of the cluster that fills and empties it together
    rows: dict[Op, int] = field(default_factory=dict)    # loads of which each CTA has a slice -> along which dimension

    @property
    def ops(self) -> list[Op]:
        """What takes its tickets."""
        return self.loads

    @property
    def bytes(self) -> int:
        """Bytes that complete on `full` per ticket."""
        return sum(self.buffer(op).slot_bytes for op in self.loads)

    @property
    def ticket_bytes(self) -> int:
        """Bytes of shared memory that one more slot takes, its two mbarriers included."""
        return sum(self.buffer(op).slot_stride for op in self.loads) + 16

    def buffer(self, load: Op) -> Buffer:
        """The ring buffer of one load, in each CTA: memory order is the tensor's, last dimension fastest."""
        t = load.result.type
        assert isinstance(t, Tile)
        shape = tuple(n // self.ctas if d == self.rows.get(load) else n for d, n in enumerate(t.shape))
        return tile_buffer(Tile(shape, t.elem), self.slots, tuple(reversed(range(len(shape)))))

    @property
    def release(self) -> str:
        """Who arrives on `empty`: one thread per warpgroup after wgmma, one lane per warp after reads."""
        return "warpgroup" if self.views else "warp"


@dataclass(eq=False)
class Outlet:
    """A ring in the other direction: consumers fill its slots with pieces of tiles, the store role empties them.

    There is one for each of `streams` in a CTA, a consumer warpgroup or group of them each, with its own warp that
    stores. Every store goes through all slots a whole number of times, so all that runs on is the parity."""

    name: str
    streams: int
    stores: dict[Op, Staging] = field(default_factory=dict)

    @property
    def ops(self) -> list[Op]:
        """What takes its tickets."""
        return list(self.stores)

    @property
    def staging(self) -> Staging:
        """What its stores have in common: all but the number of pieces."""
        return next(iter(self.stores.values()))

    @property
    def flips(self) -> bool:
        """Whether a store may change the parity."""
        return any(s.rounds % 2 for s in self.stores.values())


@dataclass
class Plan:
    """Everything that the rewrite carries out."""

    rings: list[Ring] = field(default_factory=list)
    chains: dict[Op, dict[Op, int]] = field(default_factory=dict)    # loop -> its dots, in order: carried index
    specialised: bool = False
    turns: Op | None = None               # the loop whose iterations the consumers' groups take in turn
    groups: int = 1                       # groups of num_warps consumer warps
    ctas: int = 1                         # CTAs of a program
    outlets: list[Outlet] = field(default_factory=list)              # rings of the store role; none: consumers store
    report: list[str] = field(default_factory=list)
    map: list[tuple[str, int, int]] = field(default_factory=list)    # of shared memory: name, first byte, bytes

    def outlet_of(self, op: Op) -> Outlet:
        """The ring that a store goes through; there is a store role."""
        return next(r for r in self.outlets if op in r.stores)

    def ring_of(self, op: Op) -> Ring | None:
        """The ring that a descriptor load goes through."""
        return next((r for r in self.rings if op in r.loads), None)


def shared_operand(v: Value) -> tuple[Op, bool] | None:
    """(descriptor load, transposed) if a dot operand is a loaded block or its transpose."""
    op = v.op
    if isinstance(op, Op) and op.name == "desc_load" and len(op.results[0].type.shape) == 2:  # type: ignore
        return op, False
    if isinstance(op, Op) and op.name == "trans" and tuple(op.attrs["order"]) == (1, 0):
        inner = shared_operand(op.operands[0])
        return (inner[0], not inner[1]) if inner else None
    return None


def wgmma_reads(dot: Op, index: int) -> Op | None:
    """The descriptor load that a dot operand can be read from in place, or None.

    8- and 32-bit operands must be K-major (PTX ISA, wgmma: transposes exist for 16-bit types only)."""
    found = shared_operand(dot.operands[index])
    if found is None:
        return None
    load, transposed = found
    k_fastest = transposed if index == 1 else not transposed
    elem = load.result.type.elem  # type: ignore[union-attr]
    return load if k_fastest or elem.bits == 16 else None


def place(op: Op | None) -> str:
    """Where an op comes from, for reports."""
    return op.loc.short() if op is not None and op.loc else "?"


def needed_by_producer(plan: Plan) -> set[Value]:
    """The backward slice of all loads' addresses: values that the producer role must compute."""
    return backward_slice({load: load.operands for ring in plan.rings for load in ring.loads})


def needed_by_stores(plan: Plan) -> set[Value]:
    """The backward slice of all stores' addresses: values that the store role must compute."""
    return backward_slice({op: [op.operands[0], *op.operands[2:]] for ring in plan.outlets for op in ring.stores})


def backward_slice(wanted: Mapping[Op, Sequence[Value]]) -> set[Value]:
    """What is needed to compute these operands of ops and to know whether and how often the ops run."""
    needed: set[Value] = set()
    work: list[Value] = []

    def control(op: Op) -> None:
        for outer in enclosing(op):
            if outer.name == "for":
                work.extend(outer.operands[:3])
            elif outer.name == "if":
                work.append(outer.operands[0])
            elif outer.name == "while":
                work.append(outer.regions[0].terminator.operands[0])

    for at, operands in wanted.items():
        work.extend(operands)
        control(at)
    while work:
        v = work.pop()
        if v in needed:
            continue
        needed.add(v)
        if isinstance(v.op, Block):
            owner = v.op.parent
            if owner is None:
                continue
            if owner.name == "for":
                if v.index == 0:
                    work.extend(owner.operands[:3])
                else:
                    work.append(owner.operands[v.index + 2])
                    work.append(v.op.terminator.operands[v.index - 1])
            elif owner.name == "while":
                work.append(owner.operands[v.index])
                work.append(owner.regions[0].terminator.operands[v.index + 1])
                work.append(owner.regions[1].terminator.operands[v.index])
            continue
        op = v.op
        assert isinstance(op, Op)
        control(op)
        if op.name == "for":
            work.append(op.operands[v.index + 3])
            work.append(op.regions[0].terminator.operands[v.index])
        elif op.name == "while":
            work.append(op.operands[v.index])
            work.append(op.regions[0].terminator.operands[v.index + 1])
            work.append(op.regions[1].terminator.operands[v.index])
        elif op.name == "if":
            work.append(op.operands[0])
            work.extend(r.terminator.operands[v.index] for r in op.regions)
        else:
            work.extend(op.operands)
            for region in op.regions:
                for inner in walk(region):
                    work.extend(inner.operands)
    return needed


def ahead_slice(ring: Ring) -> list[Op] | None:
    """The pure ops of the loop body that the loads' operands need, in order; None if that is not enough."""
    assert ring.loop is not None
    body = ring.loop.regions[0]
    return pure_slice(body, [v for op in ring.loads for v in op.operands], set(body.args[1:]))


def pure_slice(block: Block, values: Iterable[Value], forbidden: Set[Value] = frozenset()) -> list[Op] | None:
    """The ops of a block that these values need, in order; None if one is not pure, or needs a forbidden value."""
    wanted: set[Op] = set()
    work = list(values)
    while work:
        v = work.pop()
        if v in forbidden:
            return None
        if isinstance(v.op, Op) and v.op.parent is block and v.op not in wanted:
            if not v.op.define.pure or v.op.regions:
                return None
            wanted.add(v.op)
            work.extend(v.op.operands)
    return [op for op in block.ops if op in wanted]


def check_descriptor(load: Op) -> None:
    """A block must be at least 16 bytes wide for TMA."""
    t = load.operands[0].type
    assert isinstance(t, Desc) and isinstance(t.elem, DType)
    if t.block_shape[-1] * t.elem.bytes < 16:
        raise CompilationError(
            f"the last block dimension must be at least 16 bytes, found {t.block_shape[-1]} x {t.elem}",
            load.loc)
