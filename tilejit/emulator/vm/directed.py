"""f64 arithmetic rounded towards zero, up or down on one lane (PTX ISA, Rounding Modifiers)."""
from __future__ import annotations

import math

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f64, f64_of, fma64, njit

_LARGEST = 1.7976931348623157e308


@njit
def step(s: float, toward: float) -> float:
    if s == 0.0:
        return 5e-324 if toward > 0 else -5e-324
    b = bits_of_f64(s)
    return f64_of(b + 1 if (toward > 0) == (s > 0) else b - 1)


@njit
def to_odd(s: float, err: float) -> float:
    """s + err rounded to odd, where s is s + err to nearest."""
    if err == 0.0 or err != err or math.isinf(s) or bits_of_f64(s) & 1:
        return s
    return step(s, err)


@njit
def directed(s: float, err: float, rnd: int) -> float:
    if err == 0.0 or err != err or math.isinf(s) or rnd == k.RN:
        return s
    if (rnd == k.RM and err < 0) or (rnd == k.RP and err > 0) or (rnd == k.RZ and (err < 0) == (s > 0)):
        return step(s, err)
    return s


@njit
def error_of_sum(x: float, y: float, s: float) -> float:
    b = s - x
    return (x - (s - b)) + (y - b)


@njit
def overflowed(s: float, rnd: int) -> float:
    inward = rnd == k.RZ or (rnd == k.RM and s > 0) or (rnd == k.RP and s < 0)
    return math.copysign(_LARGEST, s) if inward else math.copysign(np.inf, s)


@njit
def finish(s: float, err: float, e: int, rnd: int) -> float:
    """(s + err) * 2^e rounded, where s is not zero and about 1."""
    odd = to_odd(s, err)
    exponent = math.frexp(odd)[1] + e
    if exponent >= -1021:
        r = directed(s, err, rnd)
        return overflowed(s, rnd) if math.frexp(r)[1] + e > 1024 else math.ldexp(r, e)
    n = math.ldexp(odd, e + 1074) if exponent > -1084 else math.copysign(0.25, s)
    whole = np.floor(n) if rnd == k.RM else (np.ceil(n) if rnd == k.RP else np.trunc(n))
    return math.copysign(math.ldexp(whole, -1074), s)


@njit
def zero_sum(x: float, y: float, rnd: int) -> float:
    s = x + y
    if rnd == k.RM and (math.copysign(1.0, x) < 0.0 or math.copysign(1.0, y) < 0.0):
        return -0.0
    return s


@njit
def fused(x: float, y: float, z: float, rnd: int) -> float:
    (mx, ex), (my, ey), (mz, ez) = math.frexp(x), math.frexp(y), math.frexp(z)
    p, e = mx * my, ex + ey
    rest = fma64(mx, my, -p)
    d = ez - e
    if d > 120:  # the product only says on which side of z the sum lies
        return finish(mz, math.copysign(2.0**-100, p), ez, rnd)
    if d < -120:
        return finish(p, rest if rest != 0.0 else math.copysign(2.0**-110, z), e, rnd)
    c = math.ldexp(mz, d)
    s = fma64(mx, my, c)
    if s == 0.0:  # scaled, nothing underflows: the sum is zero
        return zero_sum(p, c, rnd)
    u = p + c
    left, right = u - s, error_of_sum(p, c, u)
    small = right + rest
    total = left + small
    return finish(s, total if total != 0.0 else error_of_sum(right, rest, small), e, rnd)


@njit
def directed64(sub: int, x: float, y: float, z: float, rnd: int) -> float:
    if sub == k.FADD or sub == k.FSUB:
        if sub == k.FSUB:
            y = -y
        s = x + y
        if s == 0.0:
            return zero_sum(x, y, rnd)
        return overflowed(s, rnd) if math.isinf(s) else directed(s, error_of_sum(x, y, s), rnd)
    if sub == k.FFMA:
        if x == 0.0 or y == 0.0:
            return z if z != 0.0 else zero_sum(x * y, z, rnd)
        if z != 0.0:
            return fused(x, y, z, rnd)
    if sub == k.FMUL or sub == k.FFMA:
        if x == 0.0 or y == 0.0:
            return x * y
        (mx, ex), (my, ey) = math.frexp(x), math.frexp(y)
        s = mx * my
        return finish(s, fma64(mx, my, -s), ex + ey, rnd)
    if sub == k.FSQRT:
        mx, ex = math.frexp(x)
        if ex & 1:
            mx, ex = 2.0 * mx, ex - 1
        s = math.sqrt(mx)
        return finish(s, fma64(-s, s, mx), ex // 2, rnd)
    (mx, ex), (my, ey) = math.frexp(x), math.frexp(y)
    s = mx / my
    return finish(s, fma64(-s, my, mx) * math.copysign(1.0, y), ex - ey, rnd)
