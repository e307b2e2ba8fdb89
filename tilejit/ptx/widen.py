"""8-bit integers as 16-bit floats, two at a time, without conversion instructions: those run at a fraction of the rate.

In the mantissa of a power of two whose last place is 1, a number is that power plus the number. bf16 has 7 bits for it:
128 plus the low seven bits, less 128 or, for negative numbers, 256. fp16 has room for all 8: 1024 plus the number plus
128, less 1152.
"""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.ptx.emit import Emitter

#: lop3 truth tables: (a & b) | c and (a & b) ^ c.
_AND_OR, _AND_XOR = 0xEA, 0x6A


def widens(src: object, dst: object) -> bool:
    """Whether pairs of src become pairs of dst here."""
    return isinstance(src, DType) and isinstance(dst, DType) and src.name == "int8" and dst.name in ("bf16", "fp16")


def only_widened(e: Emitter, op: Op) -> bool:
    """Whether every use of a loaded tile widens it: then its elements need not be taken apart."""
    t = op.result.type
    users = [user for user, _ in e.uses.get(op.result, ())]
    return (isinstance(t, Tile) and bool(users) and e.count(t) % 4 == 0
            and all(u.name == "cast" and widens(t.elem, elem_of(u.result.type)) for u in users))


def widen(e: Emitter, regs: list[str], dst: DType) -> list[str]:
    """An even number of int8 registers as dst, in fresh registers."""
    out: list[str] = []
    for lo, hi in zip(regs[::2], regs[1::2]):
        pair = e.p.regs("b16", 2)
        word = _pair(e, _halves(e, lo, hi), dst)
        e.p("mov.b32", f"{{{pair[0]}, {pair[1]}}}", word)
        e.halves.update({pair[0]: (word, 0), pair[1]: (word, 1)})
        out += pair
    return out


def _halves(e: Emitter, lo: str, hi: str) -> str:
    """Register: lo in the lowest byte of the low half, hi in that of the high half; the other bytes are anything."""
    p = e.p
    if lo not in e.bytes or hi not in e.bytes:
        return p.new("b32", "mov.b32", f"{{{lo}, {hi}}}")
    (a, i), (b, j) = e.bytes[lo], e.bytes[hi]
    return p.new("b32", "prmt.b32", a, b, f"0x{4 + j}{4 + j}{i}{i}")


def _pair(e: Emitter, halves: str, dst: DType) -> str:
    """Register: both halves' low bytes as dst."""
    p = e.p
    if dst.name == "bf16":
        low = p.new("b32", "lop3.b32", halves, "0x007F007F", "0x43004300", _AND_OR)
        sign = p.new("b32", "lop3.b32", halves, "0x00800080", "0x43004300", _AND_OR)
        return p.new("b32", "sub.rn.bf16x2", low, sign)
    shifted = p.new("b32", "lop3.b32", halves, "0x00FF00FF", "0x64806480", _AND_XOR)
    return p.new("b32", "sub.rn.f16x2", shifted, p.new("b32", "mov.b32", "0x64806480"))
