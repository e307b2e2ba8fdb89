"""Bessel functions of whole orders in fp64 (Abramowitz and Stegun, 9)."""
from __future__ import annotations

import math as host
from collections.abc import Sequence

from tilejit.language import elementary as el
from tilejit.language.terms import Term

_SERIES, _HANKEL = 8.0, 25.0
#: Terms of the power series at 8, Miller's first order, terms of Hankel's at 25.
_TERMS, _ORDER, _LAST = 27, 66, 18


def _sum(x: Term, coefficients: Sequence[float]) -> Term:
    return el.horner(x, coefficients[::-1])


def _harmonic(k: int) -> float:
    return sum(1.0 / i for i in range(1, k + 1))


def _series(x: Term, n: int) -> tuple[Term, Term]:
    h, q = x * 0.5, x * x * -0.25
    factors = [1.0 / (host.factorial(k) * host.factorial(k + n)) for k in range(_TERMS)]
    digammas = [_harmonic(k) + _harmonic(k + n) - 2 * 0.57721566490153286061 for k in range(_TERMS)]
    power = h if n else h * 0.0 + 1.0
    j = power * _sum(q, factors)
    rest = power * _sum(q, [f * d for f, d in zip(factors, digammas)])
    y = (el.log(h) * j * 2.0 - rest) / host.pi
    return j, y - 1.0 / (h * host.pi) if n else y


def _miller(x: Term, n: int) -> tuple[Term, Term]:
    """J_n and Y_n of 8 <= x <= 25."""
    above, here, inverse = x * 0.0, x * 0.0 + 1e-30, 2.0 / x
    total, log_sum = x * 0.0, x * 0.0
    found = {}
    for k in range(_ORDER, 0, -1):  # here is J_k but for a factor
        if n == 0 and k % 2 == 0:
            total = total + here
            log_sum = log_sum + here * ((-1.0) ** (k // 2) / (k // 2))
        elif n == 1 and k % 2 == 0:
            total = total + here
        elif n == 1 and k > 1:
            m = (k - 1) // 2
            log_sum = log_sum + here * ((-1.0) ** m * k / (m * (m + 1)))
        above, here = here, here * inverse * float(k) - above
        found[k - 1] = here
    scale = 1.0 / (total * 2.0 + found[0])
    j0, j = found[0] * scale, found[n] * scale
    log_term = (el.log(x * 0.5) + 0.57721566490153286061 - (1.0 if n else 0.0)) * j
    y = (log_term - log_sum * scale * (1.0 if n else 2.0)) * (2.0 / host.pi)
    return j, y - j0 * inverse / host.pi if n else y


def _hankel(x: Term, n: int) -> tuple[Term, Term]:
    """J_n and Y_n of x >= 25."""
    coefficients = [1.0]
    for k in range(1, _LAST):
        coefficients.append(coefficients[-1] * (4 * n * n - (2 * k - 1) ** 2) / (8 * k))
    r = 1.0 / x
    q = r * r * -1.0
    p, s = _sum(q, coefficients[0::2]), r * _sum(q, coefficients[1::2])
    at = x - (0.25 + 0.5 * n) * host.pi
    size = (r * (2.0 / host.pi)).op("sqrt")
    cos, sin = el.cos(at), el.sin(at)
    return size * (p * cos - s * sin), size * (p * sin + s * cos)


def _both(x: Term, n: int) -> tuple[Term, Term]:
    ways = _series(x, n), _miller(x, n), _hankel(x, n)
    small, large = x < _SERIES, x > _HANKEL
    j, y = (small.where(a, large.where(c, b)) for a, b, c in zip(*ways))
    return j, y


def _order(x: Term, n: int, kind: int) -> Term:
    a = x.abs()
    value = (a > 1e15).where(0.0, _both(a, n)[kind])  # the angle is lost there
    if kind == 0:
        value = a.eq(0.0).where(1.0 - n, value)
        value = (x < 0.0).where(-value, value) if n else value
    else:
        value = (x < 0.0).where(float("nan"), a.eq(0.0).where(float("-inf"), value))
    return el.is_nan(x).where(x, value)


def j0(x: Term) -> Term:
    return _order(x, 0, 0)


def j1(x: Term) -> Term:
    return _order(x, 1, 0)


def y0(x: Term) -> Term:
    """NaN below 0."""
    return _order(x, 0, 1)


def y1(x: Term) -> Term:
    """NaN below 0."""
    return _order(x, 1, 1)


def yn(n: int, x: Term) -> Term:
    """Of a constant order, by upward recurrence."""
    sign = -1.0 if n < 0 and n % 2 else 1.0
    n = abs(n)
    if n < 2:
        return (y1(x) if n else y0(x)) * sign
    below, here = y0(x), y1(x)
    for k in range(1, n):
        below, here = here, here * (2.0 * k / x) - below
    value = el.is_nan(here).where(float("-inf"), here)  # it has grown beyond all numbers
    return (x < 0.0).where(float("nan"), el.is_nan(x).where(x, value)) * sign


def jn(n: int, x: Term) -> Term:
    """Of a constant order: by upward recurrence above |x| = n, else its series, of which terms may cancel: relative to
    J_0 errors stay below 1e-12 for n up to 40."""
    sign = -1.0 if n < 0 and n % 2 else 1.0
    n = abs(n)
    if n < 2:
        return (j1(x) if n else j0(x)) * sign
    below, here = j0(x), j1(x)
    for k in range(1, n):
        below, here = here, here * (2.0 * k / x) - below
    h = x * 0.5
    power = h * 0.0 + 1.0
    for i in range(1, n + 1):
        power = power * (h / float(i))
    terms = _TERMS + n
    ratios = [host.factorial(n) / (host.factorial(k) * host.factorial(n + k)) for k in range(terms)]
    small = power * _sum(h * h * -1.0, ratios)
    return (x.abs() > float(n)).where(here, small) * sign


def _modified(x: Term, n: int) -> Term:
    a = x.abs()
    h = a * 0.5
    near = _sum(h * h, [1.0 / (host.factorial(k) * host.factorial(k + n)) for k in range(45)])
    near = near * h if n else near
    coefficients = [1.0]
    for k in range(1, 24):
        coefficients.append(coefficients[-1] * -(4 * n * n - (2 * k - 1) ** 2) / (8 * k))
    half = el.exp(h)  # e^x in two halves, of which none overflows
    far = half * (_sum(1.0 / a, coefficients) / (a * (2 * host.pi)).op("sqrt")) * half
    value = (a > 24.0).where(far, near)
    return (x < 0.0).where(-value, value) if n else value


def i0(x: Term) -> Term:
    """Relative error below 1e-13."""
    return _modified(x, 0)


def i1(x: Term) -> Term:
    """Relative error below 1e-13."""
    return _modified(x, 1)
