"""Emitters of the tensor cores: descriptors, `wgmma.mma_async`, and the waits."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tilejit.errors import CompilationError
from tilejit.ir.core import Block, Op, Value
from tilejit.ir.types import Buffer, DType, Pending, Tile
from tilejit.layout.clusters import counts_of, divided, own
from tilejit.layout.linear import LinearLayout
from tilejit.layout.shared import slot_rows, span_elements
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import unpack, words

_MODE = {128: 1, 64: 2, 32: 3, 0: 0}
#: Element types as the tensor cores call them.
NAMES = {"fp16": "f16", "bf16": "bf16", "fp32": "tf32", "tf32": "tf32", "fp8e4nv": "e4m3",
          "fp8e5": "e5m2", "int8": "s8", "uint8": "u8", "fp64": "f64"}
#: Bytes of K that one wgmma consumes.
K_BYTES = 32


class Operand:
    """One operand in shared memory: `mn` is its M or N dimension, `k` its K dimension."""

    def __init__(self, view: Buffer, mn: int, k: int):
        self.view, self.mn, self.k = view, mn, k
        self.k_major = view.order[0] == k
        if not self.k_major and view.elem.bytes != 2:
            raise CompilationError(f"wgmma reads {view.elem} K-major only")
        self.span = span_elements(view)
        self.subtile = slot_rows(view) * self.span * view.elem.bytes

    @property
    def high(self) -> int:
        span_bytes = self.span * self.view.elem.bytes
        if self.k_major:
            leading, stride = 16, 8 * span_bytes
        elif self.view.swizzle:
            leading, stride = self.subtile, 8 * span_bytes
        else:
            leading, stride = 8 * span_bytes, self.subtile
        return (_MODE[self.view.swizzle] << 62) | (stride >> 4) << 32 | (leading >> 4) << 16

    def offset(self, mn: int, k: int) -> int:
        size = self.view.elem.bytes
        fast, slow = (k, mn) if self.k_major else (mn, k)
        return (fast // self.span) * self.subtile + (slow * self.span + fast % self.span) * size


@emits("pend")
def _pend(e: Emitter, op: Op) -> None:
    """The accumulator's own registers, which never move; what a loop carries only for it stays."""
    t = op.operands[0].type
    assert isinstance(t, Tile) and isinstance(t.elem, DType)
    if t.elem.bits == 32 and _is_carried_for(e, op):
        e.set(op.result, e.get(op.operands[0]))
        return
    cls = "b32" if t.elem.bits == 16 else reg_class(t.elem)
    regs = e.p.regs(cls, e.count(t) * t.elem.bits // 32)
    if all(user.attrs.get("zero") for user, _ in e.uses.get(op.result, ())):
        e.set(op.result, regs)
        return
    source = e.get(op.operands[0])
    for d, s in zip(regs, words(e, t.elem, source) if t.elem.bits == 16 else source):
        e.p(f"mov.{cls}", d, s)
    e.set(op.result, regs)


def _is_carried_for(e: Emitter, pend: Op) -> bool:
    source = pend.operands[0]
    block = source.op
    return (isinstance(block, Block) and block is pend.parent and block.parent is not None
            and block.parent.name == "for" and len(e.uses.get(source, ())) == 1)


@lru_cache(maxsize=64)
def _instructions(layout: LinearLayout) -> tuple[int, tuple[tuple[int, int, tuple[int, ...]], ...]]:
    """N of the instruction; of each slice and n tile the first row and column, and registers in order."""
    place = {at: i for i, at in enumerate(layout.registers())}
    rows = sorted({row // 64 * 64 for row, _ in place})
    eights = sorted({column // 8 * 8 for _, column in place})
    n = min(256, 8 * len(eights))
    return n, tuple((row, 8 * i, tuple(place[row + 8 * (j >> 1), column + (j & 1)]
                                       for column in eights[i:i + n // 8] for j in range(4)))
                    for row in rows for i in range(0, len(eights), n // 8))


@emits("dot_async")
def _dot_async(e: Emitter, op: Op) -> None:
    p = e.p
    va, vb, acc = op.operands
    assert isinstance(va.type, (Buffer, Tile)) and isinstance(vb.type, Buffer) and isinstance(acc.type, Pending)
    elem = va.type.elem
    assert isinstance(elem, DType)
    tile: Tile = acc.type.tile
    layout, regs = tile.layout, e.get(acc)
    assert layout is not None and isinstance(tile.elem, DType)
    b, step = Operand(vb.type, 1, 0), K_BYTES // elem.bytes
    n, instructions = _instructions(layout)
    base_b = e.matrices.get((op, 1)) or _descriptor(e, op, 1, e.views[vb])
    kind = f"m64n{n}k{step}.{'s32' if tile.elem.is_int() else f'f{tile.elem.bits}'}"
    per = 32 // tile.elem.bits  # sums in a register: neighbours along N
    kind += f".{NAMES[elem.name]}.{NAMES[vb.type.elem.name]}"
    if tile.elem.is_int() and elem != vb.type.elem:
        e.version = max(e.version, (8, 4))  # products of unlike integers (PTX ISA, wgmma, notes)
    tail: list[object] = [] if tile.elem.is_int() else [1, 1]
    if isinstance(va.type, Buffer):
        a = Operand(va.type, 0, 1)
        left = _in_place(e, e.matrices.get((op, 0)) or _descriptor(e, op, 0, e.views[va]), a)
        tail += [int(not a.k_major)] if elem.bytes == 2 else []
    else:
        left = _fragments(e, va)
    tail += [int(not b.k_major)] if elem.bytes == 2 else []
    add = p.new("pred", "setp.ne.b32", 1, 0)
    first_adds = p.new("pred", "setp.ne.b32", 0, 0) if op.attrs.get("zero") else add
    p("wgmma.fence.sync.aligned")
    k0, begin, size = op.attrs.get("k", 0), op.attrs.get("begin", 0), va.type.shape[1]
    start_k = max(0, begin - k0)
    for k in range(start_k, min(size, begin + op.attrs.get("depth", k0 + size) - k0), step):
        for m0, n0, held in instructions:
            da = left(m0, k)
            db = p.new("b64", "add.u64", base_b, b.offset(n0, k0 + k) >> 4)
            acc_list = "{" + ", ".join([regs[i // per] for i in held[::per]]) + "}"
            p(f"wgmma.mma_async.sync.aligned.{kind}", acc_list, da, db, add if k > start_k else first_adds, *tail)
    p("wgmma.commit_group.sync.aligned")
    e.set(op.result, regs)


def _in_place(e: Emitter, base: str, a: Operand) -> Callable[[int, int], str]:
    return lambda m, k: e.p.new("b64", "add.u64", base, a.offset(m, k) >> 4)


def _fragments(e: Emitter, a: Value) -> Callable[[int, int], str]:
    """Register fragments of A (PTX ISA, wgmma): rows 0 and 8, then half of K further."""
    tile, p = a.type, e.p
    assert isinstance(tile, Tile) and isinstance(tile.elem, DType) and tile.layout is not None
    pack = 4 // tile.elem.bytes
    registers = dict(zip(tile.layout.registers(), e.get(a)))
    packed: dict[tuple[int, int], str] = {}
    for m, k in registers:
        if k % pack == 0:
            group = [registers[m, k + i] for i in range(pack)]
            packed[m, k] = words(e, tile.elem, group)[0] if pack > 1 else p.new("b32", "mov.b32", group[0])

    def block(m: int, k: int) -> str:
        return "{" + ", ".join(packed[m + 8 * (j & 1), k + 4 * pack * (j >> 1)] for j in range(4)) + "}"
    return block


def describe_early(e: Emitter, view: Value) -> None:
    """Descriptors of all products that read a slot, where its view stands: ahead of the wait for its bytes."""
    for user, index in e.uses.get(view, ()):
        readers = e.uses.get(user.result, ()) if user.name == "view_trans" else [(user, index)]
        for dot, i in readers:
            if dot.name == "dot_async":
                e.matrices[dot, i] = _descriptor(e, dot, i, e.views[view])


def _descriptor(e: Emitter, dot: Op, index: int, address: str) -> str:
    p, acc = e.p, dot.operands[2].type
    assert isinstance(acc, Pending) and acc.tile.layout is not None
    layout = acc.tile.layout
    operand = Operand(dot.operands[index].type, index, 1 - index)  # type: ignore[arg-type]
    size, ctas = layout.shape[index], e.fn.attrs.get("num_ctas", 1)
    starts = [basis[index] for basis in layout.bases_of("warp")[2:e.role.warp_bits]]
    start = address
    if any(starts):
        if e.rank:
            starts = [own(at, size, counts_of(2, divided(layout, ctas))[index]) for at in starts]
        offset = e.bit_sum([(e.warpgroup(), [operand.offset(at, 0) for at in starts])])
        start = p.new("b32", "add.u32", address, offset)
    # In a cluster, addresses of a CTA's own shared memory have its rank from bit 24 on, where descriptors have offsets.
    low = p.new("b32", "bfe.u32", start, 4, 14) if e.rank else p.new("b32", "shr.u32", start, 4)
    wide = p.new("b64", "cvt.u64.u32", low)
    return p.new("b64", "or.b64", wide, operand.high)


@emits("dot_wait", "dot_fence")
def _dot_wait(e: Emitter, op: Op) -> None:
    e.p("wgmma.wait_group.sync.aligned", op.attrs["pending"])
    for result, acc in zip(op.results, op.operands):
        regs = e.get(acc)
        if isinstance(result.type, Tile) and isinstance(result.type.elem, DType) and result.type.elem.bits == 16:
            packed, regs = regs, e.fresh(result.type)
            unpack(e, result.type.elem, packed, regs)
        e.set(result, regs)
