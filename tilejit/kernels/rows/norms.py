from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, operator
from tilejit.kernels.rows.matrices import Matrix, contiguous, launch_of, matrix, number, result, same
from tilejit.kernels.rows.tiles import put, row_sum, row_tile, wide, wide_type


@tilejit.kernel
def weight_at(row, cols, per, HEADS: tl.constexpr, SPAN: tl.constexpr):
    """Where the weights of a row's elements are: row i has the `per` weights of head i % HEADS, SPAN elements each."""
    at = cols if SPAN == 1 else cols // SPAN
    return at if HEADS == 1 else row % HEADS * per + at


@tilejit.kernel
def affine(y, weight, bias, offset, at, inside):
    """y * (weight + offset) + bias; each may be None."""
    if weight is not None:
        w = tl.load(weight + at, inside, other=0.0).to(y.dtype)
        y = y * (w if offset is None else w + offset)
    if bias is not None:
        y = y + tl.load(bias + at, inside, other=0.0).to(y.dtype)
    return y


@tilejit.kernel
def norm_kernel(x, weight, bias, out, columns, x_pitch, out_pitch, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr, n=0,
                ROWS: tl.constexpr = 1, offset=None, residual=None, total=None, residual_pitch=0, total_pitch=0, per=0,
                HEADS: tl.constexpr = 1, SPAN: tl.constexpr = 1):
    row, cols, inside = row_tile(n, columns, BLOCK, ROWS)
    v = wide(tl.load(x + row * x_pitch + cols, inside, other=0.0))
    if residual is not None:
        v += tl.load(residual + row * residual_pitch + cols, inside, other=0.0).to(v.dtype)
        v = v.to(total.dtype.element_ty).to(v.dtype)
        put(total + row * total_pitch + cols, v, inside)
    if CENTRED:
        mean = row_sum(v, ROWS) / columns
        v = tl.where(inside, v - mean, 0.0)
    r = tl.rsqrt(row_sum(v * v, ROWS) / columns + eps)
    y = v * r
    y = affine(y, weight, bias, offset, weight_at(row, cols, per, HEADS, SPAN), cols < columns)
    put(out + row * out_pitch + cols, y, inside)


@tilejit.kernel
def long_norm_kernel(x, weight, bias, out, columns, x_pitch, out_pitch, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
                     offset=None, residual=None, total=None, residual_pitch=0, total_pitch=0, per=0,
                     HEADS: tl.constexpr = 1, SPAN: tl.constexpr = 1):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    out += row * out_pitch
    x += row * x_pitch
    if residual is not None:
        source, residual, x = x, residual + row * residual_pitch, total + row * total_pitch
        for start in range(0, columns, BLOCK):
            at = start + cols
            v = wide(tl.load(source + at, at < columns, other=0.0))
            put(x + at, v + tl.load(residual + at, at < columns, other=0.0).to(v.dtype), at < columns)
    mean = 0.0
    if CENTRED:
        sums = tl.zeros((BLOCK,), wide_type(x))
        for start in range(0, columns, BLOCK):
            sums += wide(tl.load(x + start + cols, start + cols < columns, other=0.0))
        mean = tl.sum(sums, 0) / columns
    squares = tl.zeros((BLOCK,), wide_type(x))
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = tl.where(at < columns, wide(tl.load(x + at, at < columns, other=0.0)) - mean, 0.0)
        squares += v * v
    r = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    for start in range(0, columns, BLOCK):
        at = start + cols
        y = (wide(tl.load(x + at, at < columns, other=0.0)) - mean) * r
        put(out + at, affine(y, weight, bias, offset, weight_at(row, at, per, HEADS, SPAN), at < columns), at < columns)


@operator(out=lambda x: x)
def rmsnorm(out, x: Array, weight: Array | None = None, eps: float = 1e-6, offset: float = 0.0,
            bias: Array | None = None) -> None:
    """x / sqrt(mean(x^2) + eps) * (weight + offset) + bias along the last dimension of x [.., columns].

    weight, bias: [columns], or [heads, columns] for x [.., heads, columns]; of any float dtype. offset: 1 for weights
    that are kept as differences from 1 (Gemma's).
    """
    launch_norm("rmsnorm", x, weight, bias, out, eps, offset, False)


@operator(out=lambda x: x)
def layernorm(out, x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5,
              offset: float = 0.0) -> None:
    """(x - mean) / sqrt(var + eps) * (weight + offset) + bias along the last dimension of x [.., columns]; weight and
    bias as for `rmsnorm`."""
    launch_norm("layernorm", x, weight, bias, out, eps, offset, True)


@operator(out=lambda x: x, total=lambda residual: residual)
def add_rmsnorm(out, total, x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6,
                offset: float = 0.0, bias: Array | None = None) -> None:
    """(rmsnorm(x + residual), x + residual): a block's result joins the residual stream, whose dtype the sum has."""
    launch_norm("add_rmsnorm", x, weight, bias, out, eps, offset, False, residual, total)


@operator(out=lambda x: x, total=lambda residual: residual)
def add_layernorm(out, total, x: Array, residual: Array, weight: Array | None = None, bias: Array | None = None,
                  eps: float = 1e-5, offset: float = 0.0) -> None:
    """(layernorm(x + residual), x + residual)."""
    launch_norm("add_layernorm", x, weight, bias, out, eps, offset, True, residual, total)


def launch_norm(what: str, x: Array, weight: Array | None, bias: Array | None, out: Array, eps: float, offset: float,
                centred: bool, residual: Array | None = None, total: Array | None = None) -> None:
    m, o = matrix(what, x), result(what, out)
    weight, bias, heads = weights(what, m, x, weight, bias)
    r = t = Matrix(None, 0, 0, 0)
    if residual is not None:
        same(what, x, residual, "residual")
        r, t = matrix(what, residual, "residual"), result(what, total, "total")
    if not m.n * m.columns:
        return
    launch = launch_of(m, r) if residual is not None else launch_of(m)
    args = m.array, weight, bias, o.array, m.columns, m.pitch, o.pitch, number(eps, x)
    given = dict(CENTRED=centred, offset=number(offset, x, 0.0), residual=r.array, total=t.array, per=m.columns,
                 residual_pitch=r.pitch, total_pitch=t.pitch, HEADS=heads)
    if launch.whole:
        norm_kernel[launch.grid](*args, n=m.n, ROWS=launch.rows, **given, **launch.options)
    else:
        long_norm_kernel[launch.grid](*args, **given, **launch.options)


def weights(what: str, m: Matrix, x: Any, weight: Any, bias: Any) -> tuple[Any, Any, int]:
    """Contiguous, and how many heads' they are. Raises LaunchError for other shapes."""
    heads = 1
    given = [(n, w) for n, w in (("weight", weight), ("bias", bias)) if w is not None]
    for name, w in given:
        shape = tuple(w.shape)
        if shape not in ((m.columns,), tuple(x.shape[-2:])) or shape != tuple(given[0][1].shape):
            raise tilejit.LaunchError(f"{what}: {name} must have shape {[m.columns]}, or {list(x.shape[-2:])} for each "
                                      f"head its own, found {list(shape)}")
        heads = shape[0] if len(shape) == 2 else 1
    return (None if weight is None else contiguous(weight)), (None if bias is None else contiguous(bias)), heads
