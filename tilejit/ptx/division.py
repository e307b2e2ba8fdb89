"""Integer division by constants, by multiplications and shifts."""
from __future__ import annotations

from tilejit.ptx.build import Ptx


def multiplier(d: int, bits: int, signed: bool) -> tuple[int, int]:
    """(m, s) for a divisor of 2 or more; m has up to bits + 1 bits if unsigned, else `bits`."""
    for s in range(bits + 1):
        whole = 1 << bits + s
        m = -(-whole // d) if not signed else whole // d + 1
        if m * d - whole <= 1 << s + signed:
            return m, s
    raise AssertionError("a shift of the divisor's width serves every divisor")


def divided(p: Ptx, n: str, d: int, bits: int, signed: bool) -> str:
    """n / d towards zero; `n` has 32 or 64 bits, d is none of 0, 1 and -1."""
    quotient = _signed(p, n, abs(d), bits) if signed else _unsigned(p, n, d, bits)
    return p.new(f"b{bits}", f"neg.s{bits}", quotient) if d < 0 else quotient


def _signed(p: Ptx, n: str, d: int, bits: int) -> str:
    cls, k = f"b{bits}", d.bit_length() - 1
    if d == 1 << k:
        sign = n if k == 1 else p.new(cls, f"shr.s{bits}", n, bits - 1)
        return p.new(cls, f"shr.s{bits}", p.new(cls, f"add.s{bits}", n, p.new(cls, f"shr.u{bits}", sign, bits - k)), k)
    m, s = multiplier(d, bits, True)
    q = p.new(cls, f"mul.hi.s{bits}", n, m - (m >> bits - 1 << bits))
    if m >> bits - 1:  # the multiplier is 2^bits less than it should be
        q = p.new(cls, f"add.s{bits}", q, n)
    if s:
        q = p.new(cls, f"shr.s{bits}", q, s)
    return p.new(cls, f"add.s{bits}", q, p.new(cls, f"shr.u{bits}", n, bits - 1))


def _unsigned(p: Ptx, n: str, d: int, bits: int) -> str:
    cls = f"b{bits}"
    if d & d - 1 == 0:
        return p.new(cls, f"shr.u{bits}", n, d.bit_length() - 1)
    m, s = multiplier(d, bits, False)
    q = p.new(cls, f"mul.hi.u{bits}", n, m & (1 << bits) - 1)
    if m >> bits:  # n + q may need a bit more
        half = p.new(cls, f"shr.u{bits}", p.new(cls, f"sub.s{bits}", n, q), 1)
        q, s = p.new(cls, f"add.s{bits}", half, q), s - 1
    return p.new(cls, f"shr.u{bits}", q, s) if s else q


def rest(p: Ptx, n: str, d: int, bits: int, signed: bool) -> str:
    q = divided(p, n, d, bits, signed)
    return p.new(f"b{bits}", f"sub.s{bits}", n, p.new(f"b{bits}", f"mul.lo.s{bits}", q, d))
