from __future__ import annotations

from math import isqrt
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import Matrix, elements, matrix, result, same
from tilejit.kernels.rows.sums import better, compared
from tilejit.kernels.rows.tiles import element_tile, put

WIDEST = 8192
#: For the greatest: columns of a block, warps, each with a row of its own, and the most elements; the most groups.
COLUMNS, ROW_WARPS, MOST_K, MOST_GROUPS = 256, 4, 1024, 2048
#: Elements of a program; of wider rows, those that are sorted at once, and those that are merged.
ELEMENTS, RUN, MERGED = 2048, 4096, 1024
#: The most columns that keys of 64 bits know.
MOST_COLUMNS = 1 << 24


@tilejit.kernel
def key_of(v, at, there, DESCENDING: tl.constexpr, NARROW: tl.constexpr):
    """Of 32 bits if NARROW or 64, to be sorted from the greatest on; elements that are not there come last."""
    if v.dtype.is_floating():
        x = v.to(tl.float32)
        if NARROW:
            bits = (v if v.dtype == tl.float16 else x.to(tl.bfloat16)).to(tl.int16, bitcast=True).to(tl.int32)
        else:
            bits = x.to(tl.int32, bitcast=True)
        bits = tl.where(x != x, 0x7FFF if NARROW else 0x7FFFFFFF, tl.where(x == 0.0, 0, bits))
        order = tl.where(bits < 0, bits ^ (0x7FFF if NARROW else 0x7FFFFFFF), bits)
    elif NARROW:
        order = v.to(tl.int32) - (32768 if v.dtype == tl.uint16 else 0)
    else:
        order = v.to(tl.int64)
    if not NARROW:
        order = order.to(tl.int64)
    if not DESCENDING:
        order = -1 - order
    if NARROW:  # behind elements of that order by their columns
        return tl.where(there, order, -32768) * 65536 + (65535 - at)
    # 2^33 below all keys that there are
    return tl.where(there, order, -(1 << 30) * 8) * (1 << 24) + ((1 << 24) - 1 - at)


@tilejit.kernel
def column_of(key):
    if key.dtype == tl.int32:
        return 65535 - (key & 65535)
    return (1 << 24) - 1 - (key & ((1 << 24) - 1))


@tilejit.kernel
def sort_kernel(x, values, indices, n, columns, pitch, values_pitch, DESCENDING: tl.constexpr, NARROW: tl.constexpr,
                ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row < n) & (cols < columns)
    key = key_of(tl.load(x + row * pitch + cols, inside, other=0), cols, cols < columns, DESCENDING, NARROW)
    at = column_of(tl.sort(key, 1, descending=True))
    put(values + row * values_pitch + cols, tl.load(x + row * pitch + at, inside, other=0), inside)
    put(indices + row * columns + cols, at, inside)


@tilejit.kernel
def sort_run_kernel(x, keys, columns, pitch, DESCENDING: tl.constexpr, BLOCK: tl.constexpr):
    runs = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // runs).to(tl.int64)
    at = tl.program_id(0) % runs * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x + row * pitch + at, at < columns, other=0), at, at < columns, DESCENDING, False)
    tl.store(keys + row * columns + at, tl.sort(key, 0, descending=True), at < columns)


@tilejit.kernel
def from_first(first, second, first_size, second_size, place):
    """How many of the first `place` of two merged runs are the first's (merge path: Odeh, Green, Mwassi, Shmueli,
    Birk, 2012)."""
    low, high = tl.maximum(place - second_size, 0), tl.minimum(place, first_size)
    while low < high:
        middle = (low + high) // 2
        if tl.load(first + middle) > tl.load(second + (place - 1 - middle)):
            low = middle + 1
        else:
            high = middle
    return low


@tilejit.kernel
def merge_kernel(keys, out, columns, run, BLOCK: tl.constexpr):
    """BLOCK elements of two merged runs: the first's, falling, then the second's, rising, are bitonic."""
    blocks = tl.cdiv(columns, BLOCK)
    row, start = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * BLOCK
    begin = start // (2 * run) * (2 * run)
    first = keys + row * columns + begin
    first_size = tl.minimum(run, columns - begin)
    second_size = tl.minimum(tl.maximum(columns - begin - run, 0), run)
    place = start - begin
    end = tl.minimum(place + BLOCK, first_size + second_size)
    a = from_first(first, first + run, first_size, second_size, place)
    taken = from_first(first, first + run, first_size, second_size, end) - a
    i = tl.arange(0, BLOCK)
    back = BLOCK - 1 - i
    mine, theirs = i < taken, back < end - place - taken
    at = tl.where(mine, a + i, run + place - a + back)
    lowest = -(1 << 62) * 2
    key = tl.load(first + at, mine | theirs, other=lowest)
    tl.store(out + row * columns + start + i, tl.bitonic_merge(key, 0, descending=True), place + i < end)


@tilejit.kernel
def sorted_kernel(x, keys, values, indices, n, columns, pitch, values_pitch, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    at = column_of(tl.load(keys + row * columns + cols, inside, other=0))
    put(values + row * values_pitch + cols, tl.load(x + row * pitch + at, inside, other=0), inside)
    put(indices + row * columns + cols, at, inside)


@tilejit.kernel
def topk_kernel(x, values, indices, n, columns, pitch, k, LARGEST: tl.constexpr, NARROW: tl.constexpr, K: tl.constexpr,
                ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    if WHOLE:
        v = tl.load(x + row * pitch + cols, (row < n) & (cols < columns), other=0)
        best = key_of(v, cols, cols < columns, LARGEST, NARROW)
    else:
        none = -(1 << 31) if NARROW else -(1 << 62) * 2
        best = tl.full((ROWS, BLOCK // K, K), none, tl.int32 if NARROW else tl.int64)
        for start in tl.range(0, columns, BLOCK, num_stages=4):
            at = start + cols
            v = tl.load(x + row * pitch + at, (row < n) & (at < columns), other=0)
            key = tl.reshape(key_of(v, at, at < columns, LARGEST, NARROW), (ROWS, BLOCK // K, K))
            best = tl.bitonic_merge(tl.maximum(best, tl.sort(key, 2)), 2, descending=True)
        best = tl.reshape(best, (ROWS, BLOCK))
    put_best(x, values, indices, tl.topk(best, K), row, n, pitch, k, K)


@tilejit.kernel
def topk_groups_kernel(x, values, indices, n, columns, pitch, k, LARGEST: tl.constexpr, NARROW: tl.constexpr,
                       K: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Elements at the same place in blocks are a group. The K best are of the K groups whose best are the best."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    best = compared(tl.load(x + row * pitch + cols, row < n, other=0))
    block = tl.zeros((ROWS, BLOCK), tl.int32)
    for start in tl.range(BLOCK, columns, BLOCK, num_stages=4):
        inside = (row < n) & (start + cols < columns)
        v = compared(tl.load(x + row * pitch + start + cols, inside, other=0))
        more = inside & better(v, best, LARGEST)
        best, block = tl.where(more, v, best), tl.where(more, start, block)
    key = key_of(best.to(x.dtype.element_ty), block + cols, row < n, LARGEST, NARROW)
    group = column_of(tl.topk(key, K)) % BLOCK
    at = tl.reshape(group[:, :, None] + (tl.arange(0, EACH) * BLOCK)[None, None, :], (ROWS, K * EACH))
    inside = (row < n) & (at < columns)
    key = key_of(tl.load(x + row * pitch + at, inside, other=0), at, inside, LARGEST, NARROW)
    put_best(x, values, indices, tl.topk(key, K), row, n, pitch, k, K)


@tilejit.kernel
def put_best(x, values, indices, best, row, n, pitch, k, K: tl.constexpr):
    i = tl.arange(0, K)[None, :]
    kept = (row < n) & (i < k)
    at = column_of(best)
    put(values + row * k + i, tl.load(x + row * pitch + at, kept, other=0), kept)
    put(indices + row * k + i, at, kept)


@tilejit.kernel
def place_kernel(grad, indices, out, n, k, grad_pitch, out_pitch, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, k, BLOCK, ROWS)
    at = tl.load(indices + row * k + cols, inside, other=0)
    put(out + row * out_pitch + at, tl.load(grad + row * grad_pitch + cols, inside, other=0.0), inside)


@operator(values=lambda x: x, indices=lambda x: (x, None, tl.int64))
def sort(values, indices, x: Array, descending: bool = False) -> None:
    """(values, int64 indices) of the elements of x [.., columns], sorted along the last dimension; equal elements keep
    their order. Floats of at most 32 bits or integers of at most 32; at most 2^24 columns."""
    m, o = _checked("sort", x), result("sort", values, "values")
    if m.columns > MOST_COLUMNS:
        raise tilejit.LaunchError(f"sort: rows of at most {MOST_COLUMNS} columns, found {m.columns}")
    if m.columns > WIDEST:
        _sort_wide(m, o, indices, descending)
        return
    grid, sizes = _rows(m.n, m.columns)
    sort_kernel[grid](m.array, o.array, indices, m.n, m.columns, m.pitch, o.pitch, DESCENDING=descending,
                      NARROW=_narrow(m), **sizes)


def _sort_wide(m: Matrix, o: Matrix, indices: Any, descending: bool) -> None:
    keys, other = (tilejit.empty_like(m.array, (m.n, m.columns), tl.int64) for _ in "12")
    sort_run_kernel[(m.n * tilejit.cdiv(m.columns, RUN),)](m.array, keys, m.columns, m.pitch, DESCENDING=descending,
                                                           BLOCK=RUN, num_warps=8)
    run = RUN
    while run < m.columns:
        merge_kernel[(m.n * tilejit.cdiv(m.columns, MERGED),)](keys, other, m.columns, run, BLOCK=MERGED)
        keys, other, run = other, keys, 2 * run
    _, grid, sizes = elements(o, flat=False)
    sorted_kernel[grid](m.array, keys, o.array, indices, m.n, m.columns, m.pitch, o.pitch, num_warps=8, **sizes)


@operator(values=lambda x, k: (x, (*x.shape[:-1], k), None), indices=lambda x, k: (x, (*x.shape[:-1], k), tl.int64))
def topk(values, indices, x: Array, k: int, largest: bool = True) -> None:
    """(values, int64 indices) of the k greatest (or least) elements along the last dimension of x [.., columns], best
    first; of equal elements the first ones. k at most 1024; dtypes as for `sort`."""
    m = _checked("topk", x)
    if not 1 <= k <= min(MOST_K, m.columns):
        raise tilejit.LaunchError(f"topk: k must be from 1 to {min(MOST_K, m.columns)}, found {k}")
    most = tilejit.next_power_of_2(k)
    block = max(min(COLUMNS, tilejit.next_power_of_2(m.columns)), 2 * most)
    groups = min(MOST_GROUPS, max(block, tilejit.next_power_of_2(isqrt(most * m.columns))))
    each = tilejit.next_power_of_2(tilejit.cdiv(m.columns, groups))
    if each >= 4 and most * each <= 2 * MOST_GROUPS:
        rows = min(ROW_WARPS if max(groups, most * each) <= 2 * COLUMNS else 1, tilejit.next_power_of_2(max(1, m.n)))
        kernel, sizes = topk_groups_kernel, {"EACH": each, "BLOCK": groups}
    else:
        rows = max(1, min(ROW_WARPS * COLUMNS // block, tilejit.next_power_of_2(m.n)))
        kernel, sizes = topk_kernel, {"BLOCK": block, "WHOLE": m.columns <= block}
    kernel[(tilejit.cdiv(m.n, rows),)](m.array, values, indices, m.n, m.columns, m.pitch, k, LARGEST=largest,
                                       NARROW=_narrow(m), K=most, ROWS=rows, num_warps=ROW_WARPS, **sizes)


@gradient(sort, "x")
@operator(dx=lambda x: x)
def sort_gradient(dx, grad_values: Array, x: Array, indices: Array) -> None:
    _place("sort_gradient", dx, grad_values, indices)


@gradient(topk, "x")
@operator(dx=lambda x: (x, None, None, True))
def topk_gradient(dx, grad_values: Array, x: Array, indices: Array) -> None:
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


def _narrow(m: Matrix) -> bool:
    return tilejit.array_info(m.array).dtype.bits <= 16 and m.columns <= 65536


def _rows(n: int, columns: int) -> tuple[tuple[int], dict[str, int]]:
    block = max(16, tilejit.next_power_of_2(columns))
    rows = max(1, min(ELEMENTS // block, tilejit.next_power_of_2(n)))
    return (tilejit.cdiv(n, rows),), {"ROWS": rows, "BLOCK": block, "num_warps": max(4, min(16, block // 512))}
