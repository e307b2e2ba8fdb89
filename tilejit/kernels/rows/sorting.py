"""Sorting and the k greatest elements along rows, with their indices.

Elements are sorted as 64-bit integers: above, a number that is ordered as they are (NaN above all numbers, as in
torch), below, their column, so that equal elements keep their order. Values are then read by column, with all their
bits."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import Matrix, elements, matrix, result, same
from tilejit.kernels.rows.tiles import element_tile, put

#: The widest row that is sorted, columns of a block of one whose greatest are looked for, and the most of those.
WIDEST, COLUMNS, MOST_K = 8192, 2048, 1024
#: Elements of a program.
ELEMENTS = 2048


@tilejit.kernel
def key_of(v, at, there, DESCENDING: tl.constexpr):
    """The 64-bit key of elements, to be sorted from the greatest on; elements that are not there come last."""
    if v.dtype.is_floating():
        x = v.to(tl.float32)
        bits = (x + 0.0).to(tl.int32, bitcast=True)
        bits = tl.where(x != x, 0x7FFFFFFF, tl.where(x == 0.0, 0, bits))
        order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    else:
        order = v.to(tl.int64)
    if not DESCENDING:
        order = -1 - order
    # 2^33 below all keys that there are
    order = tl.where(there, order, -(1 << 30) * 8)
    return order * (1 << 24) + ((1 << 24) - 1 - at)


@tilejit.kernel
def column_of(key):
    """The column in a key."""
    return (1 << 24) - 1 - (key & ((1 << 24) - 1))


@tilejit.kernel
def sort_kernel(x, values, indices, n, columns, pitch, values_pitch, DESCENDING: tl.constexpr, ROWS: tl.constexpr,
                BLOCK: tl.constexpr):
    """Whole rows."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row < n) & (cols < columns)
    key = key_of(tl.load(x + row * pitch + cols, inside, other=0), cols, cols < columns, DESCENDING)
    at = column_of(tl.sort(key, 1, descending=True))
    put(values + row * values_pitch + cols, tl.load(x + row * pitch + at, inside, other=0), inside)
    put(indices + row * columns + cols, at, inside)


@tilejit.kernel
def topk_kernel(x, values, indices, n, columns, pitch, k, LARGEST: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
                BLOCK: tl.constexpr):
    """A block of columns at a time: its K best join those before, of which K stay."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row < n) & (cols < columns)
    key = key_of(tl.load(x + row * pitch + cols, inside, other=0), cols, cols < columns, LARGEST)
    best = tl.topk(key, K)
    for start in range(BLOCK, columns, BLOCK):
        at = start + cols
        v = tl.load(x + row * pitch + at, (row < n) & (at < columns), other=0)
        new = tl.topk(key_of(v, at, at < columns, LARGEST), K)
        best = tl.topk(tl.reshape(tl.join(best, new), (ROWS, 2 * K)), K)
    i = tl.arange(0, K)[None, :]
    kept = (row < n) & (i < k)
    at = column_of(best)
    put(values + row * k + i, tl.load(x + row * pitch + at, kept, other=0), kept)
    put(indices + row * k + i, at, kept)


@tilejit.kernel
def place_kernel(grad, indices, out, n, k, grad_pitch, out_pitch, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Numbers to the columns that they came from."""
    row, cols, inside = element_tile(n, k, BLOCK, ROWS)
    at = tl.load(indices + row * k + cols, inside, other=0)
    put(out + row * out_pitch + at, tl.load(grad + row * grad_pitch + cols, inside, other=0.0), inside)


@operator(values=lambda x: x, indices=lambda x: (x, None, tl.int64))
def sort(values, indices, x: Array, descending: bool = False) -> None:
    """(values, int64 indices) of the elements of x [.., columns], sorted along the last dimension; equal elements keep
    their order. At most 8192 columns, of floats of at most 32 bits or integers of at most 32."""
    m, o = _checked("sort", x), result("sort", values, "values")
    if m.columns > WIDEST:
        raise tilejit.LaunchError(f"sort: rows of at most {WIDEST} columns, found {m.columns}")
    grid, sizes = _rows(m.n, m.columns)
    sort_kernel[grid](m.array, o.array, indices, m.n, m.columns, m.pitch, o.pitch, DESCENDING=descending, **sizes)


@operator(values=lambda x, k: (x, (*x.shape[:-1], k), None), indices=lambda x, k: (x, (*x.shape[:-1], k), tl.int64))
def topk(values, indices, x: Array, k: int, largest: bool = True) -> None:
    """(values, int64 indices) of the k greatest (or least) elements along the last dimension of x [.., columns], best
    first; of equal elements the first ones. k at most 1024; dtypes as for `sort`."""
    m = _checked("topk", x)
    if not 1 <= k <= min(MOST_K, m.columns):
        raise tilejit.LaunchError(f"topk: k must be from 1 to {min(MOST_K, m.columns)}, found {k}")
    most = tilejit.next_power_of_2(k)
    grid, sizes = _rows(m.n, min(m.columns, max(COLUMNS, 2 * most)))
    sizes["BLOCK"] = max(sizes["BLOCK"], most)
    topk_kernel[grid](m.array, values, indices, m.n, m.columns, m.pitch, k, LARGEST=largest, K=most, **sizes)


@gradient(sort, "x")
@operator(dx=lambda x: x)
def sort_gradient(dx, grad_values: Array, x: Array, indices: Array) -> None:
    """The gradient of x: each value's at its index."""
    _place("sort_gradient", dx, grad_values, indices)


@gradient(topk, "x")
@operator(dx=lambda x: (x, None, None, True))
def topk_gradient(dx, grad_values: Array, x: Array, indices: Array) -> None:
    """The gradient of x: each value's at its index, 0 elsewhere."""
    _place("topk_gradient", dx, grad_values, indices)


def _place(what: str, dx: Any, grad: Any, indices: Any) -> None:
    same(what, indices, grad, "grad", "indices")
    g, o = matrix(what, grad), result(what, dx, "dx")
    _, grid, sizes = elements(g, flat=False)
    place_kernel[grid](g.array, indices, o.array, g.n, g.columns, g.pitch, o.pitch, **sizes)


def _checked(what: str, x: Any) -> Matrix:
    dtype = tilejit.array_info(x).dtype
    if dtype.bits > 32:
        raise tilejit.LaunchError(f"{what}: elements of at most 32 bits, found {dtype}")
    return matrix(what, x)


def _rows(n: int, columns: int) -> tuple[tuple[int], dict[str, int]]:
    block = max(16, tilejit.next_power_of_2(columns))
    rows = max(1, min(ELEMENTS // block, tilejit.next_power_of_2(n)))
    return (tilejit.cdiv(n, rows),), {"ROWS": rows, "BLOCK": block, "num_warps": max(4, min(16, block // 512))}
