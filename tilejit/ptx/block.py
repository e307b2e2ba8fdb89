"""Blocks of tensors without TMA: cp.async into a slot, vector stores from registers."""
from __future__ import annotations

from tilejit.ir import Op, Value
from tilejit.ir.types import DType, Tile
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import store
from tilejit.ptx.smem import accesses, slot_address
from tilejit.records import dataclass


@dataclass
class Block:
    """One block of a tensor as a thread sees it."""

    e: Emitter
    layout: LinearLayout  # over the block's coordinates
    size: int  # bytes of an element
    base: str
    sizes: list[str]
    strides: list[str]
    offsets: list[str]

    def __post_init__(self) -> None:
        p, rank = self.e.p, len(self.sizes)
        self.index = [p.new("b32", "add.s32", offset, self.e.thread_coord(self.layout, d))
                      for d, offset in enumerate(self.offsets)]
        self.at: dict[tuple[int, ...], str] = {}
        self.steps: dict[tuple[int, int], str] = {}
        self.rows: dict[tuple[int, ...], str | None] = {}
        start = self.base
        for d, index in enumerate(self.index):
            wide = p.new("b64", "cvt.s64.s32", index)
            if d < rank - 1:
                wide = p.new("b64", "mul.lo.s64", wide, self.strides[d])
            start = p.new("b64", "mad.lo.s64", wide, self.size, start)
        self.at[(0,) * rank] = start

    def address(self, const: tuple[int, ...]) -> tuple[str, int]:
        outer, p = (*const[:-1], 0), self.e.p
        if outer not in self.at:
            d = next(i for i, c in enumerate(outer) if c)
            low = outer[d] & -outer[d]
            before, _ = self.address((*outer[:d], outer[d] - low, *outer[d + 1:]))
            if (d, low) not in self.steps:
                self.steps[d, low] = p.new("b64", "mul.lo.s64", self.strides[d], low * self.size)
            self.at[outer] = p.new("b64", "add.s64", before, self.steps[d, low])
        return self.at[outer], const[-1] * self.size

    def row_inside(self, const: tuple[int, ...]) -> str | None:
        outer, p = const[:-1], self.e.p
        if outer not in self.rows:
            pred = None
            for d, c in enumerate(outer):
                index = p.new("b32", "add.s32", self.index[d], c) if c else self.index[d]
                one = p.new("pred", "setp.lt.u32", index, self.sizes[d])
                pred = p.new("pred", "and.pred", pred, one) if pred else one
            self.rows[outer] = pred
        return self.rows[outer]

    def column(self, const: tuple[int, ...]) -> str:
        return self.e.p.new("b32", "add.s32", self.index[-1], const[-1]) if const[-1] else self.index[-1]

    def bytes_inside(self, const: tuple[int, ...], most: int) -> str:
        """Bytes of a piece of `most` bytes that are inside; its start is negative or aligned."""
        p, column = self.e.p, self.column(const)
        left = p.new("b32", "sub.s32", self.sizes[-1], column)
        few = p.new("b32", "min.s32", left, most // self.size)
        count = p.new("b32", "mul.lo.s32", few, self.size)
        inside = p.new("pred", "setp.lt.u32", column, self.sizes[-1])
        row = self.row_inside(const)
        both = p.new("pred", "and.pred", inside, row) if row else inside
        return p.new("b32", "selp.b32", count, 0, both)


def _block(e: Emitter, layout: LinearLayout, size: int, base: Value, dims: list[Value]) -> Block:
    rank, p = len(dims) // 3, e.p
    regs = [e.scalar(v) for v in dims]

    def narrow(v: Value, reg: str) -> str:
        return reg if v.dtype.bits == 32 else p.new("b32", "cvt.u32.u64", reg)

    def wide(v: Value, reg: str) -> str:
        return reg if v.dtype.bits == 64 else p.new("b64", "cvt.s64.s32", reg)

    return Block(e, layout, size, e.scalar(base), [narrow(v, r) for v, r in zip(dims[:rank], regs)],
                 [wide(v, r) for v, r in zip(dims[rank:2 * rank], regs[rank:])],
                 [narrow(v, r) for v, r in zip(dims[2 * rank:], regs[2 * rank:])])


@emits("block_copy")
def _block_copy(e: Emitter, op: Op) -> None:
    ring, slot, base, *dims = op.operands
    buffer = ring.buffer
    size, shape = buffer.elem.bytes, tuple(op.attrs["block"])
    vec = 16 // size
    layout = blocked(buffer.shape, e.role.warps, vec)
    view = _block(e, layout.reshape(shape), size, base, dims)
    owner = e.owner(layout)
    for a in accesses(e, layout, buffer, slot_address(e, ring, e.scalar(slot)), most=16):
        const = view.layout.apply(register=a.registers[0])
        address, offset = view.address(const)
        taken = view.bytes_inside(const, 16)
        e.p("cp.async.cg.shared.global", a.address, f"[{address}+{offset}]", 16, taken, pred=owner)


@emits("block_store")
def _block_store(e: Emitter, op: Op) -> None:
    """Vectors where rows end between them, for all threads alike; else single elements."""
    base, value, *dims = op.operands
    tile, p = value.type, e.p
    assert isinstance(tile, Tile) and tile.layout is not None and isinstance(tile.elem, DType)
    size, regs = tile.elem.bytes, e.get(value)
    view = _block(e, tile.layout.reshape(tuple(op.attrs["block"])), size, base, dims)
    vec = min(tile.layout.contiguous_registers(), 16 // size)
    owner = e.owner(tile.layout)
    single, end = p.label("elements"), p.label("stored")
    if vec > 1:
        rest = p.new("b32", "and.b32", view.sizes[-1], vec - 1)
        ragged = p.new("pred", "setp.ne.u32", rest, 0)
        consts = [view.layout.apply(register=r) for r in range(0, len(regs), vec)]
        for const in consts:  # what both ways need, before they part
            view.address(const)
        p("bra", single, pred=ragged)
        for i, const in enumerate(consts):
            _store(e, tile.elem, view, const, regs[i * vec:(i + 1) * vec], owner)
        p("bra", end)
        p.place(single)
        view.rows.clear()  # made again where they are used: predicates are few
    for r, reg in enumerate(regs):
        _store(e, tile.elem, view, view.layout.apply(register=r), [reg], owner)
    p.place(end)


def _store(e: Emitter, elem: DType, view: Block, const: tuple[int, ...], regs: list[str], owner: str | None) -> None:
    p = e.p
    address, offset = view.address(const)
    pred = p.new("pred", "setp.lt.u32", view.column(const), view.sizes[-1])
    for other in (view.row_inside(const), owner):
        pred = p.new("pred", "and.pred", pred, other) if other else pred
    store(e, "st.global", elem, regs, f"[{address}+{offset}]", pred)
