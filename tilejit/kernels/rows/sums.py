from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import Matrix, elements, matrix, result, row_unit, share, vector
from tilejit.kernels.rows.tiles import element_tile, place, put, row_ends, whole_units, wide, wide_type

#: (elements, warps) of a program's blocks: a single warp where programs fill a GPU; of fewer programs more each.
ALONE, TOGETHER, PROGRAMS = (1024, 1), (4096, 8), 4096
#: Of running sums, whose blocks wait for one another.
RUNNING = (4096, 4)


@tilejit.kernel
def summed(x):
    return wide(x) if x.dtype.is_floating() else x.to(tl.int64)


@tilejit.kernel
def zeros_for(pointer, SHAPE: tl.constexpr):
    return tl.zeros(SHAPE, wide_type(pointer) if pointer.dtype.element_ty.is_floating() else tl.int64)


@tilejit.kernel
def row_sum_kernel(x, out, n, columns, pitch, MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                   UNIT: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    begin, whole = whole_units(row, pitch, columns, UNIT)
    total = zeros_for(x, (ROWS, BLOCK))
    for start in range(0, columns, BLOCK):
        at = place(row, pitch, begin + start + cols, UNIT)
        total += summed(tl.load(x + at, (row < n) & (start + cols < whole), other=0))
    s = tl.sum(total, 1)[:, None]
    if UNIT > 1:
        ends, apart = row_ends(begin, whole, columns, UNIT)
        s += tl.sum(summed(tl.load(x + row * pitch + ends, (row < n) & apart, other=0)), 1)[:, None]
    put(out + row, s / columns if MEAN else s, row < n)


@tilejit.kernel
def spread_kernel(x, out, n, columns, pitch, over, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    put(out + row * pitch + cols, wide(tl.load(x + row, row < n, other=0.0)) / over + tl.zeros_like(cols), inside)


@tilejit.kernel
def running_sum_kernel(x, out, n, columns, x_pitch, out_pitch, REVERSE: tl.constexpr, ROWS: tl.constexpr,
                       BLOCK: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    before = zeros_for(x, (ROWS, 1))
    blocks = tl.cdiv(columns, BLOCK)
    for i in range(0, blocks):
        at = (blocks - 1 - i if REVERSE else i) * BLOCK + cols
        inside = (row < n) & (at < columns)
        v = summed(tl.load(x + row * x_pitch + at, inside, other=0))
        put(out + row * out_pitch + at, tl.cumsum(v, 1, reverse=REVERSE) + before, inside)
        before += tl.sum(v, 1)[:, None]


@tilejit.kernel
def lowest(pointer):
    t = pointer.dtype.element_ty
    if t.is_floating():
        return -float("inf")
    return 0 if t.is_int_unsigned() else -(1 << (t.primitive_bitwidth - 1))


@tilejit.kernel
def greater(v, w):
    return tl.maximum(v, w, propagate_nan=tl.PropagateNan.ALL)


@tilejit.kernel
def argmax_kernel(x, values, indices, n, columns, pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The greatest of all at the same place in blocks, then the least column of these."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    rows_in = row < n
    v = compared(tl.load(x + row * pitch + cols, rows_in & (cols < columns), other=lowest(x)))
    block = tl.zeros((ROWS, BLOCK), tl.int32)
    for start in range(BLOCK, columns, BLOCK):
        w = compared(tl.load(x + row * pitch + start + cols, rows_in & (start + cols < columns), other=lowest(x)))
        more = better(w, v, True)
        v, block = tl.where(more, w, v), tl.where(more, start, block)
    best = tl.reduce(v, 1, greater)[:, None]
    same = v == best
    if v.dtype.is_floating():
        same = same | (v != v)
    put(values + row, best, rows_in)
    put(indices + row, tl.min(tl.where(same, block + cols, 2147483647), 1)[:, None], rows_in)


@tilejit.kernel
def better(w, v, LARGEST: tl.constexpr):
    """Whether w is greater than v, or less; NaN is greater than all numbers."""
    if not w.dtype.is_floating():
        return w > v if LARGEST else w < v
    return ~(w <= v) & (v == v) if LARGEST else ~(v <= w) & (w == w)


@tilejit.kernel
def compared(x):
    if x.dtype.is_floating():
        return wide(x)
    return x if x.dtype.primitive_bitwidth >= 32 else x.to(tl.int32)


def _summed(x: Any) -> Any:
    dtype = tilejit.array_info(x).dtype
    return x, x.shape[:-1], dtype if dtype.is_floating() else tl.int64


def _blocks(m: Matrix, sizes: tuple[int, int] | None = None, unit: int = 1) -> tuple[tuple[int], dict[str, int]]:
    wide = max(16, tilejit.next_power_of_2(m.columns // unit * unit))
    elements, warps = sizes or (ALONE if wide <= ALONE[0] or m.n >= PROGRAMS else TOGETHER)
    block = min(most := elements // share(m.array), wide)
    rows = max(1, min(most // block, tilejit.next_power_of_2(m.n)))
    return (tilejit.cdiv(m.n, rows),), {"ROWS": rows, "BLOCK": block, "num_warps": warps}


@operator(out=_summed)
def sum(out, x: Array) -> None:
    """The sums along the last dimension of x [.., columns]: in fp32 (fp64 of fp64), rounded to x's dtype; in int64 of
    integers."""
    m = matrix("sum", x)
    _fold(m, out, False)


@operator(out=lambda x: (x, x.shape[:-1], None))
def mean(out, x: Array) -> None:
    """The means along the last dimension of x [.., columns] of floats; of no columns they are NaN."""
    m = matrix("mean", x)
    if not tilejit.array_info(x).dtype.is_floating():
        raise tilejit.LaunchError(f"mean: x must be of floats, found {tilejit.array_info(x).dtype}")
    _fold(m, out, True)


def _fold(m: Matrix, out: Any, mean: bool) -> None:
    unit = row_unit(m)
    grid, sizes = _blocks(m, unit=unit)
    row_sum_kernel[grid](m.array, out, m.n, m.columns, m.pitch, MEAN=mean, UNIT=unit, **sizes)


@gradient(sum, "x")
@operator(dx=lambda x: x)
def sum_gradient(dx, grad: Array, x: Array) -> None:
    _spread("sum_gradient", dx, grad, 1)


@gradient(mean, "x")
@operator(dx=lambda x: x)
def mean_gradient(dx, grad: Array, x: Array) -> None:
    _spread("mean_gradient", dx, grad, x.shape[-1])


def _spread(what: str, dx: Any, grad: Any, over: int) -> None:
    o = result(what, dx, "dx")
    _, grid, sizes = elements(o, flat=False)
    spread_kernel[grid](vector(what, grad, o.n, "grad"), o.array, o.n, o.columns, o.pitch, over, **sizes)


@operator(out=lambda x: x)
def cumsum(out, x: Array, reverse: bool = False) -> None:
    """Running sums along the last dimension of x [.., columns], from its end if `reverse`; in fp32, rounded to x's
    dtype."""
    m, o = matrix("cumsum", x), result("cumsum", out)
    grid, sizes = _blocks(m, RUNNING)
    running_sum_kernel[grid](m.array, o.array, m.n, m.columns, m.pitch, o.pitch, REVERSE=reverse, **sizes)


@gradient(cumsum, "x")
@operator(dx=lambda grad: grad)
def cumsum_gradient(dx, grad: Array, reverse: bool) -> None:
    m, o = matrix("cumsum_gradient", grad), result("cumsum_gradient", dx, "dx")
    grid, sizes = _blocks(m, RUNNING)
    running_sum_kernel[grid](m.array, o.array, m.n, m.columns, m.pitch, o.pitch, REVERSE=not reverse, **sizes)


@operator(values=lambda x: (x, x.shape[:-1], None), indices=lambda x: (x, x.shape[:-1], tl.int64))
def argmax(values, indices, x: Array) -> None:
    """(the greatest element, its int64 index) along the last dimension of x [.., columns], the first of equals; NaN is
    greater than all numbers, as in torch."""
    m = matrix("argmax", x)
    if not m.columns and m.n:
        raise tilejit.LaunchError("argmax: x has no columns")
    wide = min(TOGETHER[0], max(ALONE[0], tilejit.next_power_of_2(m.columns)))
    whole = m.pitch * tilejit.array_info(m.array).dtype.bytes % 16 == 0
    warps = wide // ALONE[0] if m.columns <= wide else TOGETHER[1]
    grid, sizes = _blocks(m, (wide, warps) if whole else None)
    argmax_kernel[grid](m.array, values, indices, m.n, m.columns, m.pitch, **sizes)
