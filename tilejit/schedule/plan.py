"""The schedule of a function as data: rings, depths, accumulator chains, roles; and what is asked of tile IR for it.

A `Ring` groups the loads of one kind with the same producer point (block), the same consumers and the same depth: they
share one pair of `full`/`empty` barriers. Kinds of loads, by what copies: "tensor" (TMA, through a descriptor),
"row" (1-D bulk copies of contiguous rows) and "async" (cp.async, through pointers, or of blocks where there is no TMA).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilejit.errors import CompilationError
from tilejit.ir import Block, Function, Op, Value, controls, edge_of, enclosing, listed, reached
from tilejit.ir.ahead import argument_of
from tilejit.ir.report import Record
from tilejit.ir.types import Buffer, Desc, DType, Tile
from tilejit.layout.clusters import strip_size
from tilejit.schedule.registers import MOST, Shares
from tilejit.schedule.stores import STORE_STAGES, Staging

if TYPE_CHECKING:
    from tilejit.schedule.pieces import Pieces


#: For every value its uses: (op, operand index).
Uses = dict[Value, list[tuple[Op, int]]]


@dataclass(eq=False)
class Ring:
    """A channel: `slots` buffers per load, filled by copies of one kind; see design.md on the protocol."""

    name: str
    loads: list[Op]
    slots: int
    loop: Op | None                       # the innermost loop around the loads
    views: bool                           # all loads are read by products only, straight from the slot
    ahead: int = 0                        # inline form: issued so many iterations ahead
    prompt: bool = False                  # inline form: a slot is filled again in the trip that reads it
    tight: bool = False                   # a prompt ring with a slot less than asked for, and as many iterations ahead
    open: bool = False                    # the author does not say how deep it is
    ctas: int = 1                         # of the cluster that fills and empties it together
    slices: dict[Op, int] = field(default_factory=dict)    # loads of which each CTA has a slice: along what
    kind: str = "tensor"
    local: bool = False                   # the threads that read the slots fill them too, where there are roles
    groups: int = 1                       # of consumers, each of which fills slots of its own
    by_warps: bool = False                # mma.sync reads the slots: every warp for itself
    before: Ring | None = None            # the ring of a loop before, in whose slots and barriers this one goes on

    @property
    def text(self) -> tuple[str, ...]:
        """The rings of its loads that the text names (`ring=`)."""
        return tuple(op.attrs["ring"] for op in self.loads if "ring" in op.attrs)

    @property
    def channel(self) -> Ring:
        """The ring that has the slots, barriers and tickets: itself, or the one before."""
        return self.before or self

    @property
    def peers(self) -> int:
        """CTAs whose consumers empty a slot: all of the cluster if any of them writes to it, else this one."""
        return self.ctas if any(load not in self.slices for load in self.loads) else 1

    @property
    def by_group(self) -> bool:
        """Whether only wgmma reads its slots: a thread of each warpgroup gives them back, else a lane of each warp."""
        return self.views and not self.by_warps

    @property
    def bytes(self) -> int:
        """Bytes that complete on `full` per ticket."""
        return sum(self.buffer(op).slot_bytes for op in self.loads)

    def buffer(self, load: Op) -> Buffer:
        """The ring buffer of one load, in each CTA: memory order is the tensor's."""
        t = load.result.type
        assert isinstance(t, Tile)
        shape = tuple(n // self.ctas if d == self.slices.get(load) else n for d, n in enumerate(t.shape))
        if load.attrs.get("unaligned"):      # 16 bytes more for each strip, or the row
            assert isinstance(t.elem, DType) and t.layout is not None
            strip = strip_size(t.layout, self.ctas) if load in self.slices else None
            shape = (shape[0] + (shape[0] // strip if strip else 1) * 16 // t.elem.bytes,)
        return Buffer.of(Tile(shape, t.elem), self.slots * self.groups, memory_order(load))

    @property
    def side(self) -> bool:
        """Whether its tiles are read into registers beside those that products read: fewer slots will do."""
        return self.kind != "tensor" and not self.views


@dataclass(eq=False)
class StoreRing:
    """A ring in the other direction: consumers fill its slots with pieces of tiles, the store role empties them.

    There is one for each of `streams` in a CTA, a consumer warpgroup or group of them each, with its own warp that
    stores. Every store goes through all slots a whole number of times, so all that runs on is the parity."""

    name: str
    streams: int
    stores: dict[Op, Staging] = field(default_factory=dict)


@dataclass
class Plan:
    """What is decided; `planned.py` writes it down in the function's text."""

    rings: list[Ring] = field(default_factory=list)
    chains: dict[Op, dict[Op, int]] = field(default_factory=dict)    # loop -> its dots, in order: carried index
    pieces: dict[Op, Pieces] = field(default_factory=dict)           # dots whose first operand is made in pieces
    fragments: set[Op] = field(default_factory=set)                  # conversions whose results mma.sync reads in place
    specialised: bool = False
    ping_pong: Op | None = None               # the loop whose iterations groups of consumers take by turns
    groups: int = 1                       # groups of num_warps consumer warps
    store_rings: list[StoreRing] = field(default_factory=list)    # rings of the store role; none: consumers store
    drain: list[Op] = field(default_factory=list)    # atomics that the store role's stores are written before
    producers: int = 4                    # warps of the producer role
    registers: Shares = Shares(MOST, 0, 0)
    keep_operands: bool = True            # operands that a loop does not change may stay in shared memory
    staging: int = STORE_STAGES           # staging tiles of a store whose number the author leaves open
    report: list[Record] = field(default_factory=list)

    def ring_of(self, load: Op | None) -> Ring | None:
        """The ring that a load goes through."""
        return next((r for r in self.rings if load in r.loads), None)

    @property
    def produced(self) -> list[Ring]:
        """The rings that a producer role fills. Consumers fill the others themselves."""
        return [r for r in self.rings if not r.local]

    @property
    def threads_produce(self) -> bool:
        """Whether all threads of the producer role copy, not just one."""
        return any(r.kind == "async" for r in self.produced)


def groups_of(fn: Function) -> int:
    """Groups of `num_warps` consumer warps of a function for which that is decided."""
    return int(fn.attrs.get("groups", 1))


def loop_around(op: Op) -> Op | None:
    """The innermost loop around an op."""
    return next((x for x in enclosing(op) if "loop" in x.define.traits), None)


def top_of(op: Op) -> Block:
    """The body of the function that an op is in."""
    outer = [op, *enclosing(op)][-1]
    assert outer.parent is not None
    return outer.parent


def kind_of(op: Op) -> str:
    """The kind of copy that a load may be; empty for what is no such load."""
    if op.name == "desc_load":
        return "tensor"
    if op.name == "row_load":
        return "row"
    return "async" if "copy" in op.attrs or op.name == "block_load" else ""


def memory_order(load: Op) -> tuple[int, ...]:
    """The dimensions of a load's tile from fastest to slowest in memory; a descriptor's last one is the fastest."""
    return load.attrs.get("copy") or tuple(reversed(range(len(load.result.type.shape))))  # type: ignore[union-attr]


def shared_operand(v: Value) -> tuple[Op, bool] | None:
    """(load, transposed) if a dot operand is a tile that is copied to shared memory, or its transpose."""
    op = v.op
    if isinstance(op, Op) and kind_of(op) and len(op.results[0].type.shape) == 2:  # type: ignore
        return op, False
    if isinstance(op, Op) and op.name == "convert":       # to the layout that mma.sync takes: it reads the slot in any
        return shared_operand(op.operands[0])
    if isinstance(op, Op) and op.name == "trans" and tuple(op.attrs["order"]) == (1, 0):
        inner = shared_operand(op.operands[0])
        return (inner[0], not inner[1]) if inner else None
    return None


def reads_slot(dot: Op, index: int) -> Op | None:
    """The load whose slot a dot operand can be read from in place, by wgmma or by ldmatrix, or None.

    8- and 32-bit operands must be K-major (PTX ISA, wgmma and ldmatrix: transposes exist for 16-bit types only)."""
    found = shared_operand(dot.operands[index])
    if found is None:
        return None
    load, transposed = found
    k_fastest = memory_order(load)[0] == (index == 0) ^ transposed      # K is dimension 1 of A, dimension 0 of B
    elem = load.result.type.elem  # type: ignore[union-attr]
    return load if k_fastest or elem.bits == 16 else None


def behind(value: Value) -> set[Op]:
    """The copied loads and products that a value is computed from, through loops and branches."""
    def sources(v: Value) -> list[Value]:
        edge, op = edge_of(v), v.op
        if edge is not None:
            return [*edge[1].sources, *controls(edge[0])]
        return [*op.operands, *(x for r in op.regions for x in r.terminator.operands)] if isinstance(op, Op) else []

    return {v.op for v in reached([value], sources) if isinstance(v.op, Op) and (kind_of(v.op) or v.op.name == "dot")}


def readers(v: Value, table: Uses) -> tuple[list[Op], bool]:
    """The products that read a loaded tile (or a transpose of it) in its slot, and whether nothing else reads it."""
    dots, only = [], True
    for op, index in table.get(v, ()):
        if op.name == "dot" and index < 2 and reads_slot(op, index):
            dots.append(op)
        elif op.name in ("trans", "convert"):
            found, alone = readers(op.result, table)
            dots, only = dots + found if alone else dots, only and alone
        elif op.name != "promote_reuse" or table.get(op.result):
            only = False
    return dots, only and bool(dots)


def in_place(v: Value, table: Uses) -> bool:
    """Whether nothing but products reads a loaded tile (or a transpose of it), and they read its slot."""
    return readers(v, table)[1]


def place(op: Op | None) -> str:
    """Where an op comes from, for reports."""
    return op.loc.short() if op is not None and op.loc else "?"


def needed_by_producer(plan: Plan) -> set[Value]:
    """The backward slice of all loads' addresses: values that the producer role must compute."""
    return backward_slice({load: load.operands for ring in plan.produced for load in ring.loads})


def needed_by_stores(plan: Plan) -> set[Value]:
    """The backward slice of all stores' addresses, and of whether it is time to be done with them: values that the
    store role must compute."""
    return backward_slice({op: [op.operands[0], *op.operands[2:]] for ring in plan.store_rings for op in ring.stores}
                          | {op: [] for op in plan.drain})


def backward_slice(wanted: Mapping[Op, Sequence[Value]]) -> set[Value]:
    """What is needed to compute these operands of ops and to know whether and how often the ops run."""
    known: dict[Block | None, list[Value]] = {}

    def around(op: Op) -> list[Value]:
        if op.parent not in known:
            known[op.parent] = [v for outer in enclosing(op) for v in controls(outer)]
        return known[op.parent]

    def sources(v: Value) -> list[Value]:
        edge = edge_of(v)
        found = around(v.op) if isinstance(v.op, Op) else []
        if edge is not None:
            return [*found, *edge[1].sources, *controls(edge[0])]
        if isinstance(v.op, Op):
            return [*found, *v.op.operands, *(x for r in v.op.regions for op in listed(r) for x in op.operands)]
        return controls(v.op.parent) if v.op is not None and v.op.parent is not None else []     # an induction variable

    return reached([v for at, operands in wanted.items() for v in (*operands, *around(at))], sources)


def slice_problem(fn: Function, plan: Plan, needed: set[Value], what: str, tiles: bool = False) -> str:
    """Why another role cannot compute these values, which decide `what`; empty if it can. tiles: it may hold those."""
    for v in needed:
        if isinstance(v.op, Op) and v.op.define.effects & {"read", "write"} and not _both_may_read(v.op, fn, plan):
            line = f" ({v.op.loc.short()})" if v.op.loc else ""
            return f"{what} depends on {v.op.name}{line}"
        if isinstance(v.type, Tile) and not tiles:
            return f"{what} depends on a tile"
    return ""


def _both_may_read(op: Op, fn: Function, plan: Plan) -> bool:
    """Whether producer and consumers may each do a load: of one number (or a tile, where as many threads produce),
    from an argument that the kernel does not write."""
    source = argument_of(op.operands[0])
    one = not isinstance(op.result.type, Tile) or plan.threads_produce
    return (op.name == "load" and one and source is not None
            and not any(argument_of(x.operands[0]) is source for x in listed(fn.body)
                        if "write" in x.define.effects and x.operands))


def written_by(desc: Value) -> set[Op]:
    """The ops that may have written a descriptor, through loops and branches."""
    found = reached([desc], lambda v: edge[1].sources if (edge := edge_of(v)) is not None else ())
    return {v.op for v in found if isinstance(v.op, Op) and v.op.name == "write_desc"}


def check_descriptor(load: Op) -> None:
    """A block must be at least 16 bytes wide for TMA."""
    t = load.operands[0].type
    if isinstance(t, Desc) and isinstance(t.elem, DType) and t.block_shape[-1] * t.elem.bytes < 16:
        raise CompilationError(
            f"the last block dimension must be at least 16 bytes, found {t.block_shape[-1]} x {t.elem}",
            load.loc)
