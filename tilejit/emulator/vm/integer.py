"""Integer, logic and selection instructions on one lane."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import (
    f32_of,
    leading_zeros,
    low,
    multiply_high_signed,
    multiply_high_unsigned,
    njit,
    popcount,
    signed,
)


@njit
def reverse(value: int, width: int) -> int:
    out = 0
    for i in range(width):
        out = (out << 1) | ((value >> i) & 1)
    return out


@njit
def divide(a: int, b: int, w: int, is_signed: bool, remainder: bool) -> int:
    """Truncating; by zero gives all ones (the remainder: the dividend), as the hardware does."""
    if is_signed:
        x, y = signed(a, w), signed(b, w)
        if y == 0:
            return x if remainder else -1
        if y == -1:
            return 0 if remainder else -x
        magnitude = np.uint64(-x if x < 0 else x) // np.uint64(-y if y < 0 else y)
        q = np.int64(magnitude)
        if (x < 0) != (y < 0):
            q = -q
        return x - q * y if remainder else q
    ux, uy = np.uint64(low(a, w)), np.uint64(low(b, w))
    if uy == np.uint64(0):
        return np.int64(ux) if remainder else np.int64(-1)
    return np.int64(ux % uy) if remainder else np.int64(ux // uy)


@njit
def permute(a: int, b: int, c: int, mode: int) -> int:
    """prmt: pick four bytes of {b, a}; a selector with bit 3 set copies the byte's sign."""
    pool = (low(b, 32) << 32) | low(a, 32)
    out = 0
    for i in range(4):
        n = c & 3
        if mode == 0:
            s = (c >> (4 * i)) & 15
        elif mode == 1:  # f4e
            s = n + i
        elif mode == 2:  # b4e
            s = (n - i) & 7
        elif mode == 3:  # rc8
            s = n
        elif mode == 4:  # ecl
            s = max(n, i)
        elif mode == 5:  # ecr
            s = min(n, i)
        else:  # rc16
            s = (2 * (n & 1)) + (i & 1)
        byte = (pool >> (8 * (s & 7))) & 255
        if mode == 0 and s & 8:
            byte = 255 if byte & 128 else 0
        out |= byte << (8 * i)
    return out


@njit
def shift(sub: int, a: int, b: int, w: int, is_signed: bool) -> int:
    n = low(b, 32)
    if sub == k.SHL:
        return low(a << n, w) if n < w else 0
    if is_signed:
        return low(signed(a, w) >> min(n, w - 1 if w < 64 else 63), w)
    if n >= w:
        return 0
    return np.int64(np.uint64(low(a, w)) >> np.uint64(n))


@njit
def bit_field(sub: int, a: int, b: int, c: int, e: int, w: int, is_signed: bool) -> int:
    """bfe and bfi."""
    mask = 255 if w == 32 else 0xFFFFFFFF
    if sub == k.BFE:
        pos, length, top = b & mask, c & mask, w - 1
        sign = 0
        if is_signed and length:
            sign = (a >> min(pos + length - 1, top)) & 1
        out = 0
        for i in range(w):
            bit = sign
            if i < length and pos + i <= top:
                bit = (a >> (pos + i)) & 1
            out |= bit << i
        return out
    pos, length = c & mask, e & mask
    out = b
    for i in range(min(length, w)):
        if pos + i < w:
            bit = (a >> i) & 1
            out = (out & ~(1 << (pos + i))) | (bit << (pos + i))
    return out


@njit
def saturating(x: int) -> int:
    return min(max(x, -(1 << 31)), (1 << 31) - 1)


@njit
def rare(sub: int, a: int, b: int, c: int, e: int, w: int, flags: int, imm: int) -> int:
    s = flags & k.SIGNED != 0
    if sub == k.MULHI or sub == k.MADHI:
        if w == 64:
            r = multiply_high_signed(a, b) if s else multiply_high_unsigned(a, b)
        elif s:
            r = (signed(a, w) * signed(b, w)) >> w
        else:
            r = np.int64(np.uint64(low(a, w) * low(b, w)) >> np.uint64(w))
        if sub == k.MADHI:
            r += c
            if flags & k.SAT:
                r = saturating(signed(r - c, 32) + signed(c, 32))
        return low(r, w)
    if sub == k.POPC:
        return popcount(low(a, w))
    if sub == k.CLZ:
        return leading_zeros(low(a, w)) - (64 - w)
    if sub == k.BFIND:
        x = low(a, w)
        if s and signed(a, w) < 0:
            x = low(~a, w)
        if x == 0:
            return 0xFFFFFFFF
        top = 63 - leading_zeros(x)
        return w - 1 - top if flags & k.CLAMP else top
    if sub == k.BREV:
        return reverse(a, w)
    if sub == k.BFE or sub == k.BFI:
        return low(bit_field(sub, a, b, c, e, w, s), w)
    if sub == k.PRMT:
        return permute(a, b, c, imm)
    if sub == k.SHF:
        n = low(c, 32)
        n = min(n, 32) if flags & k.CLAMP else n & 31
        both = (low(b, 32) << 32) | low(a, 32)
        if flags & k.RIGHT:
            return low(np.int64(np.uint64(both) >> np.uint64(n)), 32)
        return low(np.int64(np.uint64(both << n) >> np.uint64(32)), 32) if n < 32 else low(a, 32)
    if sub == k.SAD:
        if s:
            d = abs(signed(a, w) - signed(b, w))
        else:
            ua, ub = np.uint64(low(a, w)), np.uint64(low(b, w))
            d = np.int64(ua - ub) if ua > ub else np.int64(ub - ua)
        return low(c + d, w)
    if sub == k.SLCT:
        if flags & k.SIGNED:
            return low(a if signed(c, 32) >= 0 else b, w)
        return low(a if f32_of(c) >= np.float32(0) else b, w)
    if sub == k.DP4A:
        total = c
        for i in range(4):
            x, y = (a >> (8 * i)) & 255, (b >> (8 * i)) & 255
            x = signed(x, 8) if imm & 1 else x
            y = signed(y, 8) if imm & 2 else y
            total += x * y
        return low(total, 32)
    if sub == k.SZEXT:
        n = min(low(b, 32), 32) if flags & k.CLAMP else b & 31
        if n == 0:
            return 0
        return low(signed(a, n) if s else low(a, n), 32)
    if sub == k.BMSK:
        pos, n = low(a, 32), low(b, 32)
        if not flags & k.CLAMP:
            pos, n = pos & 31, n & 31
        pos, n = min(pos, 32), min(n, 32)
        return low(((1 << n) - 1) << pos, 32)
    if sub == k.CVTPACK:
        lo = -32768 if s else 0
        hi = 32767 if s else 65535
        x = min(max(signed(a, 32), lo), hi) & 0xFFFF
        y = min(max(signed(b, 32), lo), hi) & 0xFFFF
        return (x << 16) | y
    return 0


@njit
def extreme(sub: int, a: int, b: int, w: int, flags: int) -> int:
    if flags & k.SIGNED:
        x, y = signed(a, w), signed(b, w)
        r = x if (x < y) == (sub == k.MIN) else y
        return 0 if flags & k.RELU and r < 0 else low(r, w)
    less = np.uint64(low(a, w)) < np.uint64(low(b, w))
    return low(a if less == (sub == k.MIN) else b, w)


@njit
def pair_op(sub: int, a: int, b: int, flags: int) -> int:
    if sub == k.ADD:
        return low((a >> 16) + (b >> 16), 16) << 16 | low(a + b, 16)
    return extreme(sub, a >> 16, b >> 16, 16, flags) << 16 | extreme(sub, a, b, 16, flags)


@njit
def int_op(sub: int, a: int, b: int, c: int, e: int, w: int, flags: int, imm: int) -> int:
    s = flags & k.SIGNED != 0
    if flags & k.PACKED:
        return pair_op(sub, a, b, flags)
    if sub == k.ADD:
        if flags & k.SAT:
            return low(saturating(signed(a, 32) + signed(b, 32)), 32)
        return low(a + b, w)
    if sub == k.SUB_:
        if flags & k.SAT:
            return low(saturating(signed(a, 32) - signed(b, 32)), 32)
        return low(a - b, w)
    if sub == k.MUL:
        return low(a * b, w)
    if sub == k.MAD:
        return low(a * b + c, w)
    if sub == k.MULWIDE:
        if s:
            return low(signed(a, w) * signed(b, w), 2 * w)
        return low(low(a, w) * low(b, w), 2 * w)
    if sub == k.MADWIDE:
        if s:
            return low(signed(a, w) * signed(b, w) + c, 2 * w)
        return low(low(a, w) * low(b, w) + c, 2 * w)
    if sub == k.AND:
        return low(a & b, w)
    if sub == k.OR:
        return low(a | b, w)
    if sub == k.XOR:
        return low(a ^ b, w)
    if sub == k.NOT:
        return low(~a, w)
    if sub == k.CNOT:
        return 1 if low(a, w) == 0 else 0
    if sub == k.SHL or sub == k.SHR:
        return shift(sub, a, b, w, s)
    if sub == k.LOP3:
        out = 0
        if imm & 1:
            out |= ~a & ~b & ~c
        if imm & 2:
            out |= ~a & ~b & c
        if imm & 4:
            out |= ~a & b & ~c
        if imm & 8:
            out |= ~a & b & c
        if imm & 16:
            out |= a & ~b & ~c
        if imm & 32:
            out |= a & ~b & c
        if imm & 64:
            out |= a & b & ~c
        if imm & 128:
            out |= a & b & c
        return low(out, 32)
    if sub == k.SELP:
        return low(a if c else b, w)
    if sub == k.MIN or sub == k.MAX:
        return extreme(sub, a, b, w, flags)
    if sub == k.ABS:
        return low(abs(signed(a, w)), w)
    if sub == k.NEGATE:
        return low(-a, w)
    if sub == k.DIV or sub == k.REM:
        return low(divide(a, b, w, s, sub == k.REM), w)
    return rare(sub, a, b, c, e, w, flags, imm)


@njit
def compare_int(cmp: int, a: int, b: int, w: int, is_signed: bool) -> bool:
    if cmp == k.EQ:
        return low(a, w) == low(b, w)
    if cmp == k.NE:
        return low(a, w) != low(b, w)
    if is_signed:
        x, y = signed(a, w), signed(b, w)
        if cmp == k.LT:
            return x < y
        if cmp == k.LE:
            return x <= y
        if cmp == k.GT:
            return x > y
        return x >= y
    u, v = np.uint64(low(a, w)), np.uint64(low(b, w))
    if cmp == k.LT:
        return u < v
    if cmp == k.LE:
        return u <= v
    if cmp == k.GT:
        return u > v
    return u >= v
