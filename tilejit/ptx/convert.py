"""Layout conversions: carries out the plan of `layout/convert.py`."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.scratch import conversion
from tilejit.ir.types import Buffer, DType, Ptr, Tile, int32, int64, uint8
from tilejit.layout.clusters import within
from tilejit.layout.convert import Halves, Registers, Shuffles, Swaps, ThroughShared
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.ldmatrix import load_tile, store_tile
from tilejit.ptx.pack import unpack, words


@emits("convert")
def _convert(e: Emitter, op: Op) -> None:
    src, dst = op.operands[0].type, op.result.type
    assert isinstance(src, Tile) and isinstance(dst, Tile) and src.layout is not None
    e.set(op.result, _moved(e, conversion(op), op, e.get(op.operands[0]), src.layout, dst))


def _moved(e: Emitter, found: object, op: Op, regs: list[str], src: LinearLayout, t: Tile) -> list[str]:
    if isinstance(found, Registers):
        return [regs[i] for i in found.source]
    if isinstance(found, Swaps):
        return _swapped(e, found, regs, t)
    if isinstance(found, Shuffles):
        return _shuffled(e, found, regs, t)
    if isinstance(found, ThroughShared):
        return _through(e, found, op, regs, src, t)
    assert isinstance(found, Halves)
    out = [""] * e.count(t)
    for before, after in zip(found.before, found.after):
        half = _moved(e, found.plan, op, [regs[r] for r in before], found.src, Tile(found.dst.shape, t.elem, found.dst))
        for r, register in zip(after, half):
            out[r] = register
    return out


def shuffle(e: Emitter, elem: DType | Ptr, reg: str, lane: str | int, mode: str = "idx") -> str:
    """`reg` of another lane; elements that are not 32 bits wide travel in words."""
    p, cls = e.p, reg_class(elem)

    def word(r: str) -> str:
        return p.new("b32", f"shfl.sync.{mode}.b32", r, lane, 31, -1)

    if cls in ("b32", "f32"):
        return p.new(cls, f"shfl.sync.{mode}.b32", reg, lane, 31, -1)
    if cls == "pred":
        return p.new("pred", "setp.ne.b32", word(p.new("b32", "selp.b32", 1, 0, reg)), 0)
    if cls == "b16":
        return p.new("b16", "cvt.u16.u32", word(p.new("b32", "cvt.u32.u16", reg)))
    lo, hi = p.regs("b32", 2)
    p("mov.b64", f"{{{lo}, {hi}}}", reg)
    return p.new(cls, "mov.b64", f"{{{word(lo)}, {word(hi)}}}")


def _swapped(e: Emitter, s: Swaps, regs: list[str], t: Tile) -> list[str]:
    """For every two registers that change places: choose, one shuffle, choose."""
    elem = t.elem
    pack = s.words(max(1, elem.bits // 8))
    held, cls = (words(e, elem, regs), "b32") if pack > 1 else (list(regs), reg_class(elem))
    travels = int32 if pack > 1 else elem
    for i, j in s.steps:
        bit = 1 << j - (pack.bit_length() - 1)
        upper = _lane_bit(e, i)
        for r in range(len(held)):
            if not r & bit:
                first, second = held[r], held[r | bit]
                given = shuffle(e, travels, choose(e, cls, upper, first, second), 1 << i, "bfly")
                held[r], held[r | bit] = choose(e, cls, upper, given, first), choose(e, cls, upper, second, given)
    if pack == 1:
        return [held[r] for r in s.source]
    out = e.fresh(t)
    packed = [held[s.source[r] // pack] for r in range(0, len(out), pack)]
    unpack(e, elem, packed, out)
    e.packed.update((tuple(out[k * pack:(k + 1) * pack]), word) for k, word in enumerate(packed))
    return out


def _lane_bit(e: Emitter, bit: int) -> str:
    return e.p.new("pred", "setp.ne.u32", e.p.new("b32", "and.b32", e.role.lane, 1 << bit), 0)


def _shuffled(e: Emitter, s: Shuffles, regs: list[str], t: Tile) -> list[str]:
    p, out = e.p, []
    lane = e.bit_sum([(e.role.lane, list(s.lane_bases))])
    lanes: dict[int, str] = {0: lane}
    bits = []
    for b in s.select:
        bit = p.new("b32", "bfe.u32", e.role.lane, b, 1)
        bits.append(p.new("pred", "setp.ne.u32", bit, 0))
    cls = reg_class(t.elem)
    for constant, options in zip(s.constant, s.registers):
        if constant not in lanes:
            lanes[constant] = p.new("b32", "xor.b32", lane, constant)
        done: dict[int, str] = {}
        values = []
        for o in options:
            if o not in done:
                done[o] = shuffle(e, t.elem, regs[o], lanes[constant])
            values.append(done[o])
        for bit in bits:
            values = [lo if lo == hi else choose(e, cls, bit, hi, lo)
                      for lo, hi in zip(values[::2], values[1::2])]
        out.append(values[0])
    return out


def choose(e: Emitter, cls: str, cond: str, yes: str, no: str) -> str:
    p = e.p
    if cls != "pred":
        return p.new(cls, f"selp.{cls}", yes, no, cond)
    a = p.new("pred", "and.pred", cond, yes)
    b = p.new("pred", "and.pred", p.new("pred", "not.pred", cond), no)
    return p.new("pred", "or.pred", a, b)


def _through(e: Emitter, s: ThroughShared, op: Op, regs: list[str], src: LinearLayout, t: Tile) -> list[str]:
    """Meet, write, meet (only the warp, if it reads its own), read."""
    assert t.layout is not None
    elem = int64 if isinstance(t.elem, Ptr) else uint8 if t.elem.bits == 1 else t.elem  # predicates take bytes there
    assert isinstance(elem, DType)
    buffer = Buffer(s.shape, elem, 1, s.swizzle, s.order)
    base = e.p.new("b32", "add.u32", e.private, op.attrs["scratch"])
    owner = e.owner(within(src, e.fn.attrs.get("num_ctas", 1)))
    e.sync()
    store_tile(e, Tile(s.shape, t.elem, src.reshape(s.shape)), regs, buffer, base, owner)
    if s.within_warp:
        e.p("bar.warp.sync", -1)
    else:
        e.sync()
    return load_tile(e, Tile(s.shape, t.elem, t.layout.reshape(s.shape)), buffer, base)
