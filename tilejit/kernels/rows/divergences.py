from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import elements, matrix, number, result, row_unit, same, vector
from tilejit.kernels.rows.sums import PROGRAMS
from tilejit.kernels.rows.tiles import element_tile, place, put, row_ends, whole_units, wide, wide_type

COLUMNS, ELEMENTS = 2048, 2048


@tilejit.kernel
def terms(x, y, KIND: tl.constexpr, beta):
    """(an element's part of the divergence, its derivative by x): x the logarithm of q; y that of p, or p ("kl")."""
    if KIND == "kl":
        value = tl.where(y > 0.0, y * (tl.log(tl.where(y > 0.0, y, 1.0)) - x), 0.0)
        slope = -y
    elif KIND == "kl_log":
        value = tl.exp(y) * (y - x)
        slope = -tl.exp(y)
    else:
        # of p = exp(y) and q = exp(x): beta KL(p, m) + (1 - beta) KL(q, m), m = beta p + (1 - beta) q
        most = tl.maximum(x, y)
        safe = tl.where(most == -float("inf"), 0.0, most)
        p, q = tl.exp(y - safe), tl.exp(x - safe)
        m = safe + tl.log(tl.maximum(beta * p + (1.0 - beta) * q, 1e-38))
        p, q = tl.exp(y), tl.exp(x)
        value = tl.where(p > 0.0, beta * p * (y - m), 0.0) + tl.where(q > 0.0, (1.0 - beta) * q * (x - m), 0.0)
        slope = tl.where(q > 0.0, (1.0 - beta) * q * (x - m), 0.0)
    return value, slope


@tilejit.kernel
def divergence_kernel(x, y, out, n, columns, x_pitch, y_pitch, beta, KIND: tl.constexpr, ROWS: tl.constexpr,
                      BLOCK: tl.constexpr, UNIT: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    begin, whole = whole_units(row, x_pitch, columns, UNIT)
    total = tl.zeros((ROWS, BLOCK), wide_type(x))
    for start in range(0, columns, BLOCK):
        at = begin + start + cols
        total += values_of(x + place(row, x_pitch, at, UNIT), y + place(row, y_pitch, at, UNIT),
                           (row < n) & (start + cols < whole), KIND, beta)
    s = tl.sum(total, 1)[:, None]
    if UNIT > 1:
        ends, apart = row_ends(begin, whole, columns, UNIT)
        s += tl.sum(values_of(x + row * x_pitch + ends, y + row * y_pitch + ends, (row < n) & apart, KIND, beta),
                    1)[:, None]
    put(out + row, s, row < n)


@tilejit.kernel
def values_of(x, y, inside, KIND: tl.constexpr, beta):
    v = wide(tl.load(x, inside, other=0.0))
    value, slope = terms(v, tl.load(y, inside, other=0.0).to(v.dtype), KIND, beta)
    return tl.where(inside, value, 0.0)


@tilejit.kernel
def divergence_gradient_kernel(grad, x, y, out, n, columns, x_pitch, y_pitch, out_pitch, beta, KIND: tl.constexpr,
                               BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    v = wide(tl.load(x + row * x_pitch + cols, inside, other=0.0))
    value, slope = terms(v, tl.load(y + row * y_pitch + cols, inside, other=0.0).to(v.dtype), KIND, beta)
    put(out + row * out_pitch + cols, slope * tl.load(grad + row, row < n, other=0.0), inside)


def _each(x: Any) -> Any:
    return x, x.shape[:-1], tl.float64 if tilejit.array_info(x).dtype == tl.float64 else tl.float32


@operator(out=_each)
def kl_divergence(out, x: Array, target: Array, log_target: bool = False) -> None:
    """The sums along the last dimension of p (log p - x): the Kullback-Leibler divergence of distributions p from those
    whose logarithms are x [.., columns]. target: p, or their logarithms if `log_target`. (torch's kl_div with
    "batchmean" is their mean.) There is a gradient of x."""
    _launch("kl_divergence", out, x, target, "kl_log" if log_target else "kl", 0.5)


@operator(out=_each)
def js_divergence(out, x: Array, target: Array, beta: float = 0.5) -> None:
    """The sums along the last dimension of the generalised Jensen-Shannon divergence, beta KL(p, m) + (1 - beta) KL(q,
    m) with m = beta p + (1 - beta) q, 0 < beta < 1, of log q = x and log p = target [.., columns]. There is a gradient
    of x."""
    if not 0.0 < beta < 1.0:
        raise tilejit.LaunchError(f"js_divergence: beta must lie between 0 and 1, found {beta} (see kl_divergence)")
    _launch("js_divergence", out, x, target, "js", beta)


@gradient(kl_divergence, "x")
@operator(dx=lambda x: x)
def kl_divergence_gradient(dx, grad: Array, x: Array, target: Array, log_target: bool) -> None:
    _gradient("kl_divergence_gradient", dx, grad, x, target, "kl_log" if log_target else "kl", 0.5)


@gradient(js_divergence, "x")
@operator(dx=lambda x: x)
def js_divergence_gradient(dx, grad: Array, x: Array, target: Array, beta: float) -> None:
    _gradient("js_divergence_gradient", dx, grad, x, target, "js", beta)


def _launch(what: str, out: Any, x: Any, target: Any, kind: str, beta: float) -> None:
    same(what, x, target, "target")
    m, t = matrix(what, x), matrix(what, target, "target")
    if not m.n:
        return
    unit = row_unit(m, t) if m.n >= PROGRAMS else 1
    block = min(COLUMNS, max(16, tilejit.next_power_of_2(m.columns // unit * unit)))
    rows = max(1, min(ELEMENTS // block, tilejit.next_power_of_2(m.n)))
    divergence_kernel[(tilejit.cdiv(m.n, rows),)](m.array, t.array, out, m.n, m.columns, m.pitch, t.pitch,
                                                  number(beta, x), KIND=kind, ROWS=rows, BLOCK=block, UNIT=unit)


def _gradient(what: str, dx: Any, grad: Any, x: Any, target: Any, kind: str, beta: float) -> None:
    m, t, o = matrix(what, x), matrix(what, target, "target"), result(what, dx, "dx")
    _, grid, sizes = elements(m, t, o, flat=False)
    divergence_gradient_kernel[grid](vector(what, grad, m.n, "grad"), m.array, t.array, o.array, m.n, m.columns,
                                     m.pitch, t.pitch, o.pitch, number(beta, x), KIND=kind, **sizes)
