"""Elementary functions in double precision, in the language's own operations."""
from __future__ import annotations

import math as host
from collections.abc import Sequence

from tilejit.ir.types import fp64, int32, int64
from tilejit.language.terms import Term

#: ln 2 in two parts: the first ends in 20 zero bits, so that its products with exponents are exact.
_LN2_HI, _LN2_LO = 0.6931471803691238, 1.9082149292705877e-10
#: pi / 2 in three parts.
_PIO2 = (1.5707963267948966, 6.123233995736766e-17, -1.497384905065873e-33)
#: Added and taken away, it rounds to a whole number; below 2^51.
_ROUND = 6755399441055744.0
#: erfcx(x) (1 + 2x) in t = (x - 4) / (x + 4), x from 0 to infinity: a Chebyshev expansion, highest power first.
_ERFCX = (-2.659599690242689e-10, 9.311744978232572e-10, 3.1695881915648173e-09, -1.234686604382353e-08,
          -2.05606492756992e-08, 1.0633855618594884e-07, 7.746992727017941e-08, -8.210939042560568e-07,
          2.919733377963012e-07, 5.706604414895734e-06, -1.1221287012353486e-05, -2.4397746422436416e-05,
          0.0001506214900124047, -0.00019925714661091188, -0.0007577732613730956, 0.005031970067657489,
          -0.016197734059799265, 0.03716751552655567, -0.06633036581218697, 0.0937328349990944, -0.10103906603630056,
          0.06809705425466908, 0.015379652102619604, -0.1396211168405623, 1.2329951186255526)


def horner(x: Term, coefficients: Sequence[float]) -> Term:
    total = x.const(coefficients[0])
    for c in coefficients[1:]:
        total = total.fma(x, c)
    return total


def rint(x: Term) -> Term:
    """Ties to even."""
    near = x.op("add", _ROUND).op("sub", _ROUND)
    return copysign((x.abs() < 2.0 ** 51).where(near, x), x)


def trunc(x: Term) -> Term:
    return copysign(x.abs().op("floor"), x)


def copysign(x: Term, sign: Term) -> Term:
    top = -(1 << 63)
    return ((x.bits(int64) & ~top) | (sign.bits(int64) & top)).bits(x.elem)


def is_nan(x: Term) -> Term:
    return x.ne(x)


def is_whole(x: Term) -> Term:
    return x.op("floor").eq(x)


def times_power(x: Term, k: Term) -> Term:
    """x * 2^k for an int64 k between -2000 and 2000, in two steps that do not overflow before the product."""
    half = k >> 1
    return x.op("mul", _power(half)).op("mul", _power(k - half))


def _power(k: Term) -> Term:
    return ((k + 1023) << 52).bits(fp64)


def exp(x: Term) -> Term:
    """e^x."""
    inside = x.op("minimum", 720.0).op("maximum", -760.0)
    k = inside.fma(1 / host.log(2), _ROUND).op("sub", _ROUND)
    r = (-k).fma(_LN2_LO, (-k).fma(_LN2_HI, inside))
    p = horner(r, [1 / host.factorial(n) for n in range(14, -1, -1)])
    return is_nan(x).where(x, times_power(p, k.cast(int64)))


def exp2(x: Term) -> Term:
    """2^x."""
    inside = x.op("minimum", 1040.0).op("maximum", -1100.0)
    k = inside.op("add", _ROUND).op("sub", _ROUND)
    r = (inside - k) * host.log(2)
    p = horner(r, [1 / host.factorial(n) for n in range(14, -1, -1)])
    return is_nan(x).where(x, times_power(p, k.cast(int64)))


def exp10(x: Term) -> Term:
    """10^x."""
    inside = x.op("minimum", 320.0).op("maximum", -340.0)
    k = inside.fma(host.log2(10), _ROUND).op("sub", _ROUND)
    # log10(2) in two parts, as ln 2 above
    r = (-k).fma(5.630334806675098e-11, (-k).fma(0.30102999560767785, inside)) * host.log(10)
    p = horner(r, [1 / host.factorial(n) for n in range(14, -1, -1)])
    return is_nan(x).where(x, times_power(p, k.cast(int64)))


def expm1(x: Term) -> Term:
    """e^x - 1, also near 0."""
    near = x * horner(x, [1 / host.factorial(n) for n in range(18, 0, -1)])
    return (x.abs() < 0.7).where(near, exp(x) - 1.0)


def split(x: Term) -> tuple[Term, Term]:
    small = x < 2.0 ** -1022
    bits = small.where(x * 2.0 ** 54, x).bits(int64)
    scaled = bits + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
    e = (scaled >> 52) - 1023
    m = (bits - (e << 52)).bits(x.elem)
    return e.cast(x.elem) - small.where(x.const(54.0), x.const(0.0)), m


def _log_of_mantissa(m: Term) -> Term:
    f = m - 1.0
    s = f / (m + 1.0)
    z = s * s
    tail = z * horner(z, [2 / n for n in range(25, 1, -2)])
    # 2 s = f - f s, so that f, which is exact, leads
    return f - s * (f - tail)


def _logarithm(x: Term, value: Term) -> Term:
    value = x.eq(0.0).where(float("-inf"), value)
    value = x.eq(float("inf")).where(x, value)
    return ((x < 0.0) | is_nan(x)).where(float("nan"), value)


def log(x: Term) -> Term:
    e, m = split(x)
    return _logarithm(x, e.fma(_LN2_HI, e.fma(_LN2_LO, _log_of_mantissa(m))))


def log2(x: Term) -> Term:
    e, m = split(x)
    return _logarithm(x, _log_of_mantissa(m).fma(1 / host.log(2), e))


def log10(x: Term) -> Term:
    e, m = split(x)
    return _logarithm(x, e.fma(host.log10(2), _log_of_mantissa(m) * (1 / host.log(10))))


def log1p(x: Term) -> Term:
    """Also near 0 (Goldberg, 'What every computer scientist should know about floating-point arithmetic', 1991, theorem
    4)."""
    u = x + 1.0
    value = log(u) * (x / (u - 1.0))
    value = u.eq(1.0).where(x, value)
    return (u.eq(0.0) | u.eq(float("inf"))).where(log(u), value)


def _reduced(x: Term) -> tuple[Term, Term]:
    """x less k times pi / 2, from -pi / 4 to pi / 4, and k mod 4; accurate up to |x| = 2^30."""
    k = (x * (2 / host.pi)).op("add", _ROUND).op("sub", _ROUND)
    r = x
    for part in _PIO2:
        r = (-k).fma(part, r)
    return r, k.cast(int64).cast(int32) & 3


def _sine(r: Term) -> Term:
    z = r * r
    return (r * z).fma(horner(z, [(-1) ** n / host.factorial(2 * n + 1) for n in range(9, 0, -1)]), r)


def _cosine(r: Term) -> Term:
    z = r * r
    return horner(z, [(-1) ** n / host.factorial(2 * n) for n in range(9, -1, -1)])


def _quadrant(r: Term, k: Term) -> Term:
    value = (k & 1).ne(0).where(_cosine(r), _sine(r))
    return (k & 2).ne(0).where(-value, value)


def sin(x: Term) -> Term:
    """Accurate up to |x| = 2^30."""
    return _quadrant(*_reduced(x))


def cos(x: Term) -> Term:
    """Accurate up to |x| = 2^30."""
    r, k = _reduced(x)
    return _quadrant(r, k + 1)


def tan(x: Term) -> Term:
    """Accurate up to |x| = 2^30."""
    r, k = _reduced(x)
    s, c = _sine(r), _cosine(r)
    odd = (k & 1).ne(0)
    return odd.where(-c, s) / odd.where(s, c)


def _of_pi(x: Term, quarter: int) -> Term:
    k = (x * 2.0).op("add", _ROUND).op("sub", _ROUND)
    r = (-k).fma(0.5, x) * host.pi
    big = x.abs() >= 2.0 ** 50
    even = (x * 0.5).op("floor").eq(x * 0.5)
    value = _quadrant(r, (k.cast(int64).cast(int32) + quarter) & 3)
    far = even.where(1.0, x.const(-1.0)) if quarter else x * 0.0
    return big.where(far, value)


def sinpi(x: Term) -> Term:
    return _of_pi(x, 0)


def cospi(x: Term) -> Term:
    return _of_pi(x, 1)


def _atan_below_one(t: Term) -> Term:
    far = t > 0.41421356237309503
    u = far.where((t - 1.0) / (t + 1.0), t)
    z = u * u
    value = (u * z).fma(horner(z, [(-1) ** n / (2 * n + 1) for n in range(21, 0, -1)]), u)
    return far.where(value + host.pi / 4, value)


def atan(x: Term) -> Term:
    a = x.abs()
    beyond = a > 1.0
    value = _atan_below_one(beyond.where(1.0 / a, a))
    return copysign(beyond.where(host.pi / 2 - value, value), x)


def atan2(y: Term, x: Term) -> Term:
    a, b = y.abs(), x.abs()
    steep = a > b
    low, high = steep.where(b, a), steep.where(a, b)
    t = (high.eq(low) & high.ne(0.0)).where(1.0, low / high.eq(0.0).where(1.0, high))
    value = _atan_below_one(t)
    value = steep.where(host.pi / 2 - value, value)
    value = (x.bits(int64) < 0).where(host.pi - value, value)
    return (is_nan(x) | is_nan(y)).where(float("nan"), copysign(value, y))


def asin(x: Term) -> Term:
    return atan2(x, ((1.0 - x) * (x + 1.0)).op("sqrt"))


def acos(x: Term) -> Term:
    return atan2(((1.0 - x) * (x + 1.0)).op("sqrt"), x)


def sinh(x: Term) -> Term:
    a = x.abs()
    em, half = expm1(a), exp(a * 0.5)
    value = (em + em / (em + 1.0)) * 0.5
    return copysign((a > 700.0).where(half * 0.5 * half, value), x)


def cosh(x: Term) -> Term:
    a = x.abs()
    e, half = exp(a), exp(a * 0.5)
    return (a > 700.0).where(half * 0.5 * half, (e + 1.0 / e) * 0.5)


def tanh(x: Term) -> Term:
    em = expm1(x.abs().op("minimum", 25.0) * 2.0)
    return is_nan(x).where(x, copysign(em / (em + 2.0), x))


def sigmoid(x: Term) -> Term:
    return 1.0 / (exp(-x) + 1.0)


def asinh(x: Term) -> Term:
    a = x.abs()
    value = log1p(a + a * a / ((a.fma(a, 1.0)).op("sqrt") + 1.0))
    return copysign((a > 1e150).where(log(a) + host.log(2), value), x)


def acosh(x: Term) -> Term:
    t = x - 1.0
    value = log1p(t + (t.fma(t, t * 2.0)).op("sqrt"))
    return (x > 1e150).where(log(x) + host.log(2), (x < 1.0).where(float("nan"), value))


def atanh(x: Term) -> Term:
    a = x.abs()
    return copysign(log1p(a * 2.0 / (1.0 - a)) * 0.5, x)


def erfcx(x: Term) -> Term:
    """e^(x^2) erfc(x); a Chebyshev expansion for x >= 0 as in Shepherd and Laframboise (Math. Comp. 36, 1981)."""
    a = x.abs()
    t = (a - 4.0) / (a + 4.0)
    t = a.eq(float("inf")).where(1.0, t)
    value = horner(t, _ERFCX) / (a * 2.0 + 1.0)
    square = a * a
    low = a.fma(a, -square)
    both = exp(square) * (low + 1.0)
    return (x < 0.0).where(both * 2.0 - value, value)


def _erfc_of(a: Term) -> Term:
    t = (a - 4.0) / (a + 4.0)
    square = a * a
    low = a.fma(a, -square)
    value = horner(t, _ERFCX) / (a * 2.0 + 1.0) * exp(-square) * (1.0 - low)
    return (a > 28.0).where(0.0, value)


def _erf_below_one(x: Term) -> Term:
    z = x * x
    root = 2 / host.sqrt(host.pi)
    return x * horner(z, [root * (-1) ** n / (host.factorial(n) * (2 * n + 1)) for n in range(19, -1, -1)])


def erf(x: Term) -> Term:
    a = x.abs()
    far = copysign(1.0 - _erfc_of(a), x)
    return is_nan(x).where(x, (a < 1.0).where(_erf_below_one(x), far))


def erfc(x: Term) -> Term:
    """Also where that is small; within 16 ulp."""
    a = x.abs()
    value = _erfc_of(a)
    value = (x < 0.0).where(2.0 - value, value)
    return is_nan(x).where(x, (a < 0.5).where(1.0 - _erf_below_one(x), value))


def erfcinv(x: Term) -> Term:
    """Giles, 'Approximating the erfinv function' (2011), and three steps of Halley's method."""
    w = -log(x * (2.0 - x))
    near = horner(w - 2.5, (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                            -0.00125372503, -0.00417768164, 0.246640727, 1.50140941))
    far = horner(w.op("maximum", 0.0).op("sqrt") - 3.0,
                 (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                  0.00943887047, 1.00167406, 2.83297682))
    # where the fit ends: erfc(y) is near e^(-y^2) / (y sqrt(pi))
    most = (w + host.log(2)).op("maximum", 1.0)
    tiny = (most - log(most * host.pi) * 0.5).op("sqrt")
    y = (w < 5.0).where(near * (1.0 - x), copysign((w > 25.0).where(tiny, far * (1.0 - x).abs()), 1.0 - x))
    for _ in range(3):
        err = (erfc(y) - x) / (exp(-(y * y)) * (2 / host.sqrt(host.pi)))
        y = y + err / (y * err + 1.0)
    y = x.eq(0.0).where(float("inf"), x.eq(2.0).where(float("-inf"), y))
    return ((x < 0.0) | (x > 2.0) | is_nan(x)).where(float("nan"), y)
