from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import Matrix, contiguous, elements, matrix, result
from tilejit.kernels.rows.tiles import element_tile, put, scale_kernel, wide, wide_type


@tilejit.kernel
def embedding_kernel(weight, indices, out, n, columns, count, weight_pitch, out_pitch, BLOCK: tl.constexpr,
                     ROWS: tl.constexpr):
    """Row i of the result is row indices[i] of the table; NaN where that is none of its `count`."""
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    i = tl.load(indices + row, row < n, other=0).to(tl.int64)
    there = (i >= 0) & (i < count)
    v = tl.load(weight + i * weight_pitch + cols, inside & there, other=float("nan"))
    put(out + row * out_pitch + cols, v, inside)


@tilejit.kernel
def add_rows_kernel(grad, indices, sums, n, columns, count, ignore, grad_pitch, BLOCK: tl.constexpr,
                    ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    i = tl.load(indices + row, row < n, other=0).to(tl.int64)
    there = (i >= 0) & (i < count) & (i != ignore)
    g = wide(tl.load(grad + row * grad_pitch + cols, inside, other=0.0))
    tl.atomic_add(sums + i * columns + cols, g, inside & there, sem="relaxed")


@tilejit.kernel
def sum_runs_kernel(grad, indices, order, out, n, columns, count, ignore, grad_pitch, BLOCK: tl.constexpr):
    across = tl.cdiv(columns, BLOCK)
    place = tl.program_id(0) // across
    cols = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(indices + tl.load(order + place)).to(tl.int64)
    before = tl.load(indices + tl.load(order + place - 1, place > 0, other=0)).to(tl.int64)
    if (place == 0) | (before != i):
        if (i >= 0) & (i < count) & (i != ignore):
            total = tl.zeros((BLOCK,), wide_type(grad))
            same = i
            while (place < n) & (same == i):
                row = tl.load(order + place).to(tl.int64)
                total += wide(tl.load(grad + row * grad_pitch + cols, cols < columns, other=0.0))
                place += 1
                same = tl.load(indices + tl.load(order + place, place < n, other=0)).to(tl.int64)
            put(out + i * columns + cols, total, cols < columns)


@operator(out=lambda weight, indices: (weight, (*indices.shape, weight.shape[1]), None))
def embedding(out, weight: Array, indices: Array, padding_index: int | None = None,
              deterministic: bool = False) -> None:
    """weight[indices] for a table [count, columns] and integers of any shape: [.., columns]. Rows of indices that the
    table has not are NaN.

    The gradient of the table leaves `padding_index` out. It is summed in fp32 by atomic additions, whose order may
    differ from call to call, or, if `deterministic`, index by index in the order of the rows, after sorting.
    """
    w, o = matrix("embedding", weight, "weight"), result("embedding", out)
    _indices("embedding", weight, indices)
    _, grid, sizes = elements(o, flat=False)
    embedding_kernel[grid](w.array, contiguous(indices), o.array, o.n, o.columns, w.n, w.pitch, o.pitch, **sizes)


@gradient(embedding, "weight")
@operator(dw=lambda weight: (weight, None, None, True), sums=lambda weight, deterministic: None if deterministic else (
    weight, None, tl.float64 if tilejit.array_info(weight).dtype == tl.float64 else tl.float32, True))
def embedding_gradient(dw, sums, grad: Array, weight: Array, indices: Array, padding_index: int | None,
                       deterministic: bool) -> None:
    """(the gradient of the table, what it was summed in)."""
    what = "embedding_gradient"
    g, o = matrix(what, grad), result(what, dw, "dw")
    indices = contiguous(indices)
    ignore = -1 if padding_index is None else padding_index
    if not g.n * g.columns:
        return
    if deterministic:
        order = _order(indices)
        block = min(1024, max(16, tilejit.next_power_of_2(g.columns)))
        sum_runs_kernel[(g.n * tilejit.cdiv(g.columns, block),)](g.array, indices, order, o.array, g.n, g.columns, o.n,
                                                                 ignore, g.pitch, BLOCK=block)
        return
    _, grid, sizes = elements(g, flat=False)
    add_rows_kernel[grid](g.array, indices, sums, g.n, g.columns, o.n, ignore, g.pitch, **sizes)
    (s, o), grid, sizes = elements(Matrix(sums, o.n, o.columns, o.columns), o)
    scale_kernel[grid](s.array, None, o.array, s.n, s.columns, s.pitch, o.pitch, **sizes)


def _order(indices: Any) -> Any:
    if hasattr(indices, "argsort") and hasattr(indices, "flatten"):
        flat = indices.flatten()
        return flat.argsort(stable=True)
    raise tilejit.LaunchError("embedding: a deterministic gradient needs indices of torch or numpy")


def _indices(what: str, weight: Any, indices: Any) -> None:
    if len(weight.shape) != 2 or not tilejit.array_info(indices).dtype.is_int():
        raise tilejit.LaunchError(f"{what}: expected a table [count, columns] and integers, found {list(weight.shape)} "
                                  f"and {tilejit.array_info(indices).dtype}")
