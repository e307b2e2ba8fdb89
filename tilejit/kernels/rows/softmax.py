from __future__ import annotations

from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import Matrix, launch_of, matrix, number, result, same
from tilejit.kernels.rows.tiles import put, row_max, row_sum, row_tile, wide, wide_type


@tilejit.kernel
def scores(x, mask, scale, at, mask_at, inside):
    v = wide(tl.load(x + at, inside, other=-float("inf")))
    if scale is not None:
        v = tl.where(inside, v * scale, -float("inf"))
    if mask is not None:
        if mask.dtype.element_ty == tl.int1:
            v = tl.where(tl.load(mask + mask_at, inside, other=False), v, -float("inf"))
        else:
            v += tl.load(mask + mask_at, inside, other=0.0).to(v.dtype)
    return v


@tilejit.kernel
def softmax_kernel(x, out, columns, x_pitch, out_pitch, BLOCK: tl.constexpr, n=0, ROWS: tl.constexpr = 1, mask=None,
                   mask_rows=1, mask_pitch=0, scale=None, LOG: tl.constexpr = False):
    """One row a program, or ROWS of the n rows, whole rows in one tile. Row i has row i % mask_rows of the mask."""
    row, cols, inside = row_tile(n, columns, BLOCK, ROWS)
    v = scores(x, mask, scale, row * x_pitch + cols, row % mask_rows * mask_pitch + cols, inside)
    v = v - row_max(v, ROWS)
    e = tl.exp(v)
    if LOG:
        y = v - tl.log(row_sum(e, ROWS))
    else:
        y = e / row_sum(e, ROWS)
    put(out + row * out_pitch + cols, y, inside)


@tilejit.kernel
def long_softmax_kernel(x, out, columns, x_pitch, out_pitch, BLOCK: tl.constexpr, mask=None, mask_rows=1, mask_pitch=0,
                        scale=None, LOG: tl.constexpr = False):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x += row * x_pitch
    out += row * out_pitch
    if mask is not None:
        mask += row % mask_rows * mask_pitch
    top = tl.full((BLOCK,), -float("inf"), wide_type(x))
    total = tl.zeros((BLOCK,), wide_type(x))
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = scores(x, mask, scale, at, at, at < columns)
        new = tl.maximum(top, v)
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.exp(v - safe)
        top = new
    m = tl.max(top, 0)
    s = tl.sum(total * tl.exp(top - m), 0)
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = scores(x, mask, scale, at, at, at < columns) - m
        put(out + at, v - tl.log(s) if LOG else tl.exp(v) / s, at < columns)


@tilejit.kernel
def where_true(mask, at, inside, d):
    return d if mask is None else tl.where(tl.load(mask + at, inside, other=False), d, 0.0)


@tilejit.kernel
def softmax_gradient_kernel(y, grad, out, columns, y_pitch, grad_pitch, out_pitch, scale, BLOCK: tl.constexpr,
                            LOG: tl.constexpr, WHOLE: tl.constexpr, n=0, ROWS: tl.constexpr = 1, mask=None,
                            mask_rows=1, mask_pitch=0):
    if WHOLE:
        row, cols, inside = row_tile(n, columns, BLOCK, ROWS)
        v = wide(tl.load(y + row * y_pitch + cols, inside, other=0.0))
        g = wide(tl.load(grad + row * grad_pitch + cols, inside, other=0.0))
        d = g - tl.exp(v) * row_sum(g, ROWS) if LOG else v * (g - row_sum(v * g, ROWS))
        d = where_true(mask, row % mask_rows * mask_pitch + cols, inside, d)
        put(out + row * out_pitch + cols, d if scale is None else d * scale, inside)
    else:
        row = tl.program_id(0).to(tl.int64)
        cols = tl.arange(0, BLOCK)
        y += row * y_pitch
        grad += row * grad_pitch
        total = tl.zeros((BLOCK,), wide_type(y))
        for start in range(0, columns, BLOCK):
            at = start + cols
            g = wide(tl.load(grad + at, at < columns, other=0.0))
            total += g if LOG else g * wide(tl.load(y + at, at < columns, other=0.0))
        s = tl.sum(total, 0)
        for start in range(0, columns, BLOCK):
            at = start + cols
            v = wide(tl.load(y + at, at < columns, other=0.0))
            g = wide(tl.load(grad + at, at < columns, other=0.0))
            d = g - tl.exp(v) * s if LOG else v * (g - s)
            d = where_true(mask, row % mask_rows * mask_pitch + at, at < columns, d)
            put(out + row * out_pitch + at, d if scale is None else d * scale, at < columns)


@operator(out=lambda x: x)
def softmax(out, x: Array, mask: Array | None = None, scale: float = 1.0) -> None:
    """softmax(scale * x + mask) along the last dimension of x [.., columns]; fp64, fp32, fp16 or bf16.

    mask: added (any float dtype), or of bools, false where an element takes no part; of x's shape or of its last
    dimensions, which it repeats. A row without elements that take part becomes NaN, as does one with an infinity.
    """
    _softmax("softmax", out, x, mask, scale, False)


@operator(out=lambda x: x)
def log_softmax(out, x: Array, mask: Array | None = None, scale: float = 1.0) -> None:
    """The logarithm of `softmax(x, mask, scale)`."""
    _softmax("log_softmax", out, x, mask, scale, True)


@gradient(softmax, "x")
@operator(dx=lambda out: out)
def softmax_gradient(dx, grad: Array, out: Array, scale: float = 1.0) -> None:
    """Of x, where out is softmax(x, .., scale)."""
    _gradient("softmax_gradient", dx, grad, out, scale, False)


@gradient(log_softmax, "x")
@operator(dx=lambda out: out)
def log_softmax_gradient(dx, grad: Array, out: Array, scale: float = 1.0, mask: Array | None = None) -> None:
    """mask: of bools, where it is false there is none; others change nothing."""
    _gradient("log_softmax_gradient", dx, grad, out, scale, True, mask)


def _softmax(what: str, out: Array, x: Array, mask: Array | None, scale: float, log: bool) -> None:
    m, o = matrix(what, x), result(what, out)
    if not m.n * m.columns:
        return
    r = Matrix(None, 1, 0, 0) if mask is None else repeated(what, mask, x)
    launch = launch_of(m) if mask is None else launch_of(m, r)
    args = m.array, o.array, m.columns, m.pitch, o.pitch
    given = dict(mask=r.array, mask_rows=r.n, mask_pitch=r.pitch, scale=number(scale, x, 1.0), LOG=log)
    if launch.whole:
        softmax_kernel[launch.grid](*args, n=m.n, ROWS=launch.rows, **given, **launch.options)
    else:
        long_softmax_kernel[launch.grid](*args, **given, **launch.options)


def _gradient(what: str, dx: Array, grad: Array, y: Array, scale: float, log: bool, mask: Any = None) -> None:
    same(what, y, grad, "grad", "out")
    m, g, o = matrix(what, y), matrix(what, grad), result(what, dx)
    bools = mask is not None and tilejit.array_info(mask).dtype == tl.int1
    r = repeated(what, mask, y) if bools else Matrix(None, 1, 0, 0)
    if m.n * m.columns:
        launch = launch_of(m, g)
        softmax_gradient_kernel[launch.grid](
            m.array, g.array, o.array, m.columns, m.pitch, g.pitch, o.pitch, number(scale, y, 1.0),
            LOG=log, WHOLE=launch.whole, n=m.n, ROWS=launch.rows, mask=r.array, mask_rows=r.n, mask_pitch=r.pitch,
            **launch.options)


def repeated(what: str, mask: Array, x: Array) -> Matrix:
    """A mask as a matrix whose rows are those of x, again and again. Raises LaunchError for a shape that is none of x's
    last dimensions."""
    shape, full = list(mask.shape), list(x.shape)
    while shape and shape[0] == 1 and len(shape) > 1:
        shape.pop(0)
    if not shape or shape != full[len(full) - len(shape):]:
        raise tilejit.LaunchError(f"{what}: the mask must have the shape {full}, or that of its last dimensions, found "
                                  f"{list(mask.shape)}: expand it")
    m = matrix(what, mask, "mask")
    return m._replace(n=max(1, prod(shape[:-1])))
