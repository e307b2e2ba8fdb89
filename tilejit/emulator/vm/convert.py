"""cvt on one lane (PTX ISA, cvt): between integers, floats and the packed narrow formats."""
from __future__ import annotations

import math

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f64, low, njit, signed
from tilejit.emulator.vm.directed import directed, to_odd
from tilejit.emulator.vm.floating import decode, encode, flush, nan_of, saturate


@njit
def int_width(fmt: int) -> int:
    if fmt == k.U8 or fmt == k.S8:
        return 8
    if fmt == k.U16 or fmt == k.S16:
        return 16
    if fmt == k.U32 or fmt == k.S32:
        return 32
    if fmt == k.U64 or fmt == k.S64:
        return 64
    return 0


@njit
def float_to_int(x: float, src: int, dst: int, rnd: int) -> int:
    w = int_width(dst)
    s = dst >= k.S8
    if x != x:
        return 1 << (w - 1) if src == k.F64 or w == 64 else 0
    if rnd == k.RNI:
        x = np.rint(x)
    elif rnd == k.RMI:
        x = np.floor(x)
    elif rnd == k.RPI:
        x = np.ceil(x)
    else:
        x = np.trunc(x)
    if s:
        top = math.ldexp(1.0, w - 1)
        if x >= top:
            return low(np.int64((1 << (w - 1)) - 1) if w < 64 else np.int64(0x7FFFFFFFFFFFFFFF), w)
        if x < -top:
            return low(np.int64(-1) << (w - 1), w)
        return low(np.int64(x), w)
    if x <= 0.0:
        return 0
    if x >= math.ldexp(1.0, w):
        return low(np.int64(-1), w)
    if x >= 9223372036854775808.0:
        return np.int64(x - 9223372036854775808.0) | (np.int64(1) << 63)
    return np.int64(x)


@njit
def int_to_int(a: int, src: int, dst: int, sat: bool) -> int:
    """Widen by the source's sign, narrow by dropping bits or saturating; 8-bit results are extended."""
    sw, dw = int_width(src), int_width(dst)
    x = signed(a, sw) if src >= k.S8 else low(a, sw)
    if sat:
        big = src == k.U64 and x < 0
        if dst >= k.S8:
            top = np.int64((1 << (dw - 1)) - 1) if dw < 64 else np.int64(0x7FFFFFFFFFFFFFFF)
            x = top if big else min(max(x, -top - 1), top)
        elif not big:
            x = max(x, 0)
            if dw < 64:
                x = min(x, (1 << dw) - 1)
        elif dw < 64:
            x = np.int64((1 << dw) - 1)
    # A register wider than the type holds the value extended (PTX ISA, cvt).
    return signed(x, dw) if dst >= k.S8 else low(x, dw)


@njit
def int_to_float(a: int, src: int, dst: int, rnd: int, sat: bool) -> int:
    w = int_width(src)
    if src == k.U64 and a < 0:
        x = np.float64(np.uint64(a))
        rest = np.int64(0)
        if x < 18446744073709551616.0:
            rest = a - (np.int64(x - 9223372036854775808.0) | (np.int64(1) << 63))
        else:
            rest = a  # 2^64 - x is below: negative as a signed number
    else:
        v = signed(a, w) if src >= k.S8 else low(a, w)
        x = np.float64(v)
        rest = np.int64(-1) if x >= 9223372036854775808.0 else v - np.int64(x)
    err = np.float64(rest)
    if sat:
        x, err = saturate(x), 0.0
    if dst == k.F64:
        return bits_of_f64(directed(x, err, rnd))
    return encode(to_odd(x, err), dst, rnd, np.bool_(False))


@njit
def nearest_tf32(a: int, satfinite: bool) -> int:
    """cvt.rna.tf32.f32 as the hardware does it."""
    magnitude = a & 0x7FFFFFFF
    special = magnitude > 0x7F800000
    out = (magnitude if special else magnitude + 0x1000) & 0x7FFFE000
    if satfinite and out >= 0x7F800000:
        out -= 0x2000
    return out | (a & 0x80000000)


@njit
def convert(a: int, b: int, src: int, dst: int, rnd: int, flags: int) -> int:
    sat, satfinite = flags & k.SAT != 0, flags & k.SATFINITE != 0
    if dst == k.F16X2 or dst == k.BF16X2 or dst == k.E4M3X2 or dst == k.E5M2X2:
        part = k.F16 if dst == k.F16X2 else (k.BF16 if dst == k.BF16X2 else (
            k.E4M3 if dst == k.E4M3X2 else k.E5M2))
        shift = 16 if dst == k.F16X2 or dst == k.BF16X2 else 8
        if src == k.F32:
            hi, lo = decode(a, k.F32), decode(b, k.F32)
        elif src == k.F16X2:
            hi, lo = decode((a >> 16) & 0xFFFF, k.F16), decode(a & 0xFFFF, k.F16)
        else:
            narrow = k.E4M3 if src == k.E4M3X2 else k.E5M2
            hi, lo = decode((a >> 8) & 255, narrow), decode(a & 255, narrow)
        if flags & k.RELU:
            hi, lo = 0.0 if hi <= 0.0 else hi, 0.0 if lo <= 0.0 else lo
        finite = satfinite or part == k.E4M3 or part == k.E5M2
        return (encode(hi, part, rnd, finite) << shift) | encode(lo, part, rnd, finite)
    source_int, target_int = int_width(src), int_width(dst)
    if source_int and target_int:
        return int_to_int(a, src, dst, sat)
    if source_int:
        return int_to_float(a, src, dst, rnd, sat)
    if flags & k.FTZ and src == k.F32 and dst != k.F16:  # the hardware ignores .ftz towards f16
        a = flush(a, src)
    if dst == k.TF32 and rnd == k.RNA:
        return nearest_tf32(a, satfinite)
    if src == k.BF16 and dst == k.F32 and not sat:  # a shift: NaNs keep their payload
        return low(a, 16) << 16
    x = decode(a, src)
    if target_int:
        r = float_to_int(x, src, dst, rnd)
        return signed(r, target_int) if dst >= k.S8 else r
    if src == dst:
        if x != x:
            return 0 if sat else nan_of(dst)
        if rnd == k.RNI:
            x = math.copysign(np.rint(x), x)
        elif rnd == k.RZI:
            x = math.copysign(np.floor(abs(x)), x)
        elif rnd == k.RMI:
            x = math.copysign(np.floor(x), x)
        elif rnd == k.RPI:
            x = math.copysign(np.ceil(x), x)
        rnd = k.RN
    if flags & k.RELU and x <= 0.0:
        x = 0.0
    if sat:
        x = saturate(x)
    r = encode(x, dst, rnd if rnd < k.APPROX else k.RN, satfinite)
    return flush(r, dst) if flags & k.FTZ and dst == k.F32 and src != k.F16 else r
