"""Floating instructions on one lane (PTX ISA, floating point and half precision), and the number formats."""
from __future__ import annotations

import math

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f32, bits_of_f64, f32_of, f64_of, fma32, fma64, low, njit
from tilejit.emulator.vm.directed import directed64, error_of_sum, to_odd, zero_sum


@njit
def geometry(fmt: int) -> tuple[int, int, int]:
    if fmt == k.F16:
        return 10, -14, 0x7BFF
    if fmt == k.BF16:
        return 7, -126, 0x7F7F
    if fmt == k.E4M3:
        return 3, -6, 0x7E
    if fmt == k.E5M2:
        return 2, -14, 0x7B
    if fmt == k.TF32:
        return 10, -126, 0x3FBFF
    return 23, -126, 0x7F7FFFFF


@njit
def nan_of(fmt: int) -> int:
    if fmt == k.F64:
        return 0x7FF8000000000000
    if fmt == k.F32:
        return 0x7FFFFFFF
    if fmt == k.TF32:
        return 0x7FFFE000
    if fmt == k.E4M3 or fmt == k.E5M2:
        return 0x7F
    return 0x7FFF


@njit
def decode(bits: int, fmt: int) -> float:
    if fmt == k.F32 or fmt == k.TF32:
        return np.float64(f32_of(bits))
    if fmt == k.F64:
        return f64_of(bits)
    if fmt == k.BF16:
        return np.float64(f32_of((bits & 0xFFFF) << 16))
    m, emin, largest = geometry(fmt)
    width = 15 if fmt == k.F16 else 7
    sign = -1.0 if (bits >> width) & 1 else 1.0
    code = bits & ((1 << width) - 1)
    if code > largest:
        if fmt == k.E4M3 or code & ((1 << m) - 1):
            return np.nan
        return sign * np.inf
    field = code >> m
    if field == 0:
        return sign * math.ldexp(np.float64(code), emin - m)
    return sign * math.ldexp(np.float64((code & ((1 << m) - 1)) | (1 << m)), emin - m + field - 1)


@njit
def encode(x: float, fmt: int, rnd: int, satfinite: bool) -> int:
    """f64 rounded into a smaller format; overflow by the rounding mode, or to the largest if satfinite."""
    if fmt == k.F64:
        return bits_of_f64(x)
    if x != x:
        return nan_of(fmt)
    if fmt == k.F32 and rnd == k.RN and not satfinite:
        return bits_of_f32(np.float32(x))
    m, emin, largest = geometry(fmt)
    negative = bits_of_f64(x) < 0
    a = abs(x)
    if math.isinf(a):
        code = largest if satfinite or fmt == k.E4M3 else largest + 1
    elif a == 0.0:
        code = 0
    else:
        exponent = max(((bits_of_f64(a) >> 52) & 2047) - 1023, emin)
        n = math.ldexp(a, m - exponent)
        whole = np.floor(n)
        if rnd == k.RN:
            whole = np.rint(n)
        elif rnd == k.RNA:
            whole = np.floor(n + 0.5)
        elif (rnd == k.RP and not negative) or (rnd == k.RM and negative):
            whole = np.ceil(n)
        code = ((exponent - emin + 1) << m) + np.int64(whole) - (1 << m)
        if code > largest:
            inward = rnd == k.RZ or (rnd == k.RP and negative) or (rnd == k.RM and not negative)
            code = largest if satfinite or inward or fmt == k.E4M3 else largest + 1
    if fmt == k.TF32:
        return (code << 13) | ((1 << 31) if negative else 0)
    width = 31 if fmt == k.F32 else (15 if fmt == k.F16 or fmt == k.BF16 else 7)
    return code | ((1 << width) if negative else 0)


@njit
def wide(sub: int, x: float, y: float, z: float) -> tuple[float, float]:
    if sub == k.FADD:
        s = x + y
        return s, error_of_sum(x, y, s)
    if sub == k.FSUB:
        s = x - y
        return s, error_of_sum(x, -y, s)
    if sub == k.FMUL:
        s = x * y
        return s, fma64(x, y, -s)
    if sub == k.FFMA:
        s = fma64(x, y, z)
        p = x * y
        low_p = fma64(x, y, -p)
        u = p + z
        return s, (u - s) + (error_of_sum(p, z, u) + low_p)
    if sub == k.FDIV or sub == k.FRCP:
        if sub == k.FRCP:
            x, y = 1.0, x
        if y == 0.0:
            if x == 0.0 or x != x:
                return np.nan, 0.0
            return math.copysign(np.inf, x) * math.copysign(1.0, y), 0.0
        s = x / y
        return s, fma64(-s, y, x) * math.copysign(1.0, y)
    if x < 0.0:
        return np.nan, 0.0
    s = math.sqrt(x)
    return s, fma64(-s, s, x)


@njit
def smooth(sub: int, x: float) -> float:
    """The approximate functions."""
    if x != x:
        return np.nan
    if sub == k.FEX2:
        return np.exp2(x)
    if sub == k.FLG2:
        if x == 0.0:
            return -np.inf
        return np.nan if x < 0.0 else np.log2(x)
    if sub == k.FRSQRT:
        if x == 0.0:
            return math.copysign(np.inf, x)
        return np.nan if x < 0.0 else 1.0 / math.sqrt(x)
    if sub == k.FTANH:
        return math.tanh(x)
    if math.isinf(x):
        return np.nan
    if sub == k.FSIN:
        return math.sin(x)
    return math.cos(x)


@njit
def min_max(sub: int, a: int, b: int, fmt: int, flags: int) -> int:
    """A NaN loses unless .NaN; -0 is below +0; .xorsign.abs works on magnitudes."""
    x, y = decode(a, fmt), decode(b, fmt)
    width = 63 if fmt == k.F64 else (31 if fmt == k.F32 else 15)
    if x != x or y != y:
        if flags & k.NAN or (x != x and y != y):
            return nan_of(fmt)
        kept = b if x != x else a
        return low(kept, width) | ((a ^ b) & (1 << width)) if flags & k.XORSIGN else kept
    sign = (a ^ b) >> width & 1
    if flags & k.XORSIGN:
        x, y = abs(x), abs(y)
    if x == y:
        less = math.copysign(1.0, x) < math.copysign(1.0, y)
    else:
        less = x < y
    out = a if less == (sub == k.FMIN) else b
    if flags & k.XORSIGN:
        out = low(out, width) | (sign << width)
    return out


@njit
def flush(bits: int, fmt: int) -> int:
    if fmt == k.F32:
        return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits
    if fmt == k.F16:
        return bits & 0x8000 if bits & 0x7C00 == 0 else bits
    return bits


@njit
def saturate(x: float) -> float:
    if x != x or x <= 0.0:
        return 0.0
    return min(x, 1.0)


@njit
def classify(a: int, fmt: int, test: int) -> int:
    """testp: 0 finite, 1 infinite, 2 normal (as is zero), 3 subnormal; 1 if it holds."""
    x = abs(decode(a, fmt))
    least = 2.0**-126 if fmt == k.F32 else 2.0**-1022
    if test == 0:
        return 1 if x < np.inf else 0
    if test == 1:
        return 1 if x == np.inf else 0
    if test == 2:
        return 1 if least <= x < np.inf or x == 0.0 else 0
    return 1 if 0.0 < x < least else 0


@njit
def rounded64(sub: int, x: float, y: float, z: float, rnd: int, nearest: float) -> float:
    """A directed operation whose result to nearest is not a NaN: infinite operands and x / 0 need no rounding."""
    if sub == k.FRCP:
        x, y = 1.0, x
    divides = sub == k.FDIV or sub == k.FRCP
    if math.isinf(x) or math.isinf(y) or (sub == k.FFMA and math.isinf(z)) or (sub >= k.FDIV and x == 0.0) or (
            divides and y == 0.0):
        return nearest
    return directed64(sub, x, y, z, rnd)


@njit
def general(sub: int, a: int, b: int, c: int, fmt: int, rnd: int, flags: int) -> int:
    if flags & k.FTZ:
        a, b, c = flush(a, fmt), flush(b, fmt), flush(c, fmt)
    width = 63 if fmt == k.F64 else (31 if fmt == k.F32 else 15)
    sign = 1 << width
    if sub == k.FTESTP:
        return classify(a, fmt, rnd)
    if sub == k.FABS or sub == k.FNEG:
        if np.isnan(decode(a, fmt)):
            return nan_of(fmt)
        return low(a, width) if sub == k.FABS else low(a ^ sign, width + 1)
    if sub == k.FCOPYSIGN:
        return low(b, width) | (a & sign)
    if sub == k.FMIN or sub == k.FMAX:
        return min_max(sub, a, b, fmt, flags)
    x, y, z = decode(a, fmt), decode(b, fmt), decode(c, fmt)
    if sub <= k.FSQRT:
        s, err = wide(sub, x, y, z)
        if rnd == k.APPROX and 2.0**126 < abs(y) < np.inf and s == s:
            s, err = np.nan if math.isinf(x) else math.copysign(0.0, s), 0.0  # PTX ISA, div.approx
        if rnd >= k.APPROX:
            rnd = k.RN
        if s != s:
            return 0 if flags & k.SAT else nan_of(fmt)
        if fmt != k.F64:
            s = to_odd(s, err)
            if s == 0.0 and rnd == k.RM and (sub <= k.FSUB or sub == k.FFMA):
                s = zero_sum(x * y if sub == k.FFMA else x, z if sub == k.FFMA else (-y if sub == k.FSUB else y), rnd)
        elif rnd != k.RN:
            s = rounded64(sub, x, y, z, rnd, s)
    else:
        s = smooth(sub, x)
        rnd = k.RZ if sub == k.FTANH and fmt == k.BF16 else k.RN
    if flags & k.SAT:
        s = saturate(s)
    if flags & k.RELU and s <= 0.0:
        s = 0.0
    r = encode(s, fmt, rnd, np.bool_(False))
    return flush(r, fmt) if flags & k.FTZ else r


@njit
def float_op(sub: int, a: int, b: int, c: int, fmt: int, rnd: int, flags: int) -> int:
    if fmt == k.F32 and rnd == k.RN and flags == 0 and sub <= k.FFMA:
        x, y = f32_of(a), f32_of(b)
        if sub == k.FADD:
            r = x + y
        elif sub == k.FSUB:
            r = x - y
        elif sub == k.FMUL:
            r = x * y
        else:
            r = fma32(x, y, f32_of(c))
        return bits_of_f32(r) if r == r else 0x7FFFFFFF
    if fmt == k.F16X2 or fmt == k.BF16X2:
        half = k.F16 if fmt == k.F16X2 else k.BF16
        lo = general(sub, a & 0xFFFF, b & 0xFFFF, c & 0xFFFF, half, rnd, flags)
        hi = general(sub, (a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF, (c >> 16) & 0xFFFF, half, rnd, flags)
        return (hi << 16) | lo
    return general(sub, a, b, c, fmt, rnd, flags)


@njit
def compare_float(cmp: int, a: int, b: int, fmt: int, flags: int) -> bool:
    """setp: the plain comparisons are false with a NaN, the ...u ones true."""
    if flags & k.FTZ:
        a, b = flush(a, fmt), flush(b, fmt)
    x, y = decode(a, fmt), decode(b, fmt)
    unordered = x != x or y != y
    if cmp == k.NUM:
        return not unordered
    if cmp == k.ISNAN:
        return unordered
    if unordered:
        return cmp >= k.EQU
    if cmp >= k.EQU:
        cmp -= k.EQU
    if cmp == k.EQ:
        return x == y
    if cmp == k.NE:
        return x != y
    if cmp == k.LT:
        return x < y
    if cmp == k.LE:
        return x <= y
    if cmp == k.GT:
        return x > y
    return x >= y
