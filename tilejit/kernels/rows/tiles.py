"""What kernels of rows share."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def row_tile(n, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(row, column, mask) of a program's elements."""
    cols = tl.arange(0, BLOCK)
    if ROWS == 1:
        row = tl.program_id(0).to(tl.int64)
        mask = cols < columns
    else:
        row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        cols = cols[None, :]
        mask = (row < n) & (cols < columns)
    return row, cols, mask


@tilejit.kernel
def element_tile(n, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr, pitch=0, UNIT: tl.constexpr = 1):
    """The same for elementwise kernels, row by row; UNIT > 1: see `row_ends`."""
    across = tl.cdiv(columns // UNIT * UNIT, BLOCK)
    pid = tl.program_id(0)
    cols = pid % across * BLOCK + tl.arange(0, BLOCK)
    if ROWS == 1:
        row = (pid // across).to(tl.int64)
        if UNIT > 1:
            begin, whole = whole_units(row, pitch, columns, UNIT)
            mask = cols < whole
            cols += begin
        else:
            mask = cols < columns
    else:
        row = ((pid // across).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        cols = cols[None, :]
        mask = (row < n) & (cols < columns)
    return row, cols, mask


@tilejit.kernel
def whole_units(row, pitch, columns, UNIT: tl.constexpr):
    if UNIT == 1:
        return 0, columns
    begin = (-(row.to(tl.int64) * pitch) & UNIT - 1).to(tl.int32)
    return begin, (columns - begin) // UNIT * UNIT


@tilejit.kernel
def row_ends(begin, whole, columns, UNIT: tl.constexpr):
    lane = tl.arange(0, 2 * UNIT)
    cols = begin + lane + tl.where(lane < UNIT, -UNIT, whole - UNIT)
    return cols, (cols >= 0) & (cols < tl.where(lane < UNIT, begin, columns))


@tilejit.kernel
def place(row, pitch, cols, UNIT: tl.constexpr = 1):
    at = row * pitch + cols
    return at if UNIT == 1 else tl.multiple_of(at, UNIT if len(at.shape) == 1 else (1, UNIT))


@tilejit.kernel
def wide(x):
    """As it is computed with: in fp32, but fp64 as it is."""
    return x if x.dtype == tl.float64 else x.to(tl.float32)


@tilejit.kernel
def wide_type(pointer):
    return tl.float64 if pointer.dtype.element_ty == tl.float64 else tl.float32


@tilejit.kernel
def put(pointer, x, mask):
    tl.store(pointer, x.to(pointer.dtype.element_ty), mask)


@tilejit.kernel
def scale_kernel(x, factor, out, n, columns, x_pitch, out_pitch, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """x times a number in memory, or as it is (None), in out's type."""
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    v = wide(tl.load(x + row * x_pitch + cols, inside, other=0.0))
    put(out + row * out_pitch + cols, v if factor is None else v * tl.load(factor), inside)


@tilejit.kernel
def row_sum(x, ROWS: tl.constexpr):
    if ROWS == 1:
        return tl.sum(x, 0)
    return tl.sum(x, 1)[:, None]


@tilejit.kernel
def row_max(x, ROWS: tl.constexpr):
    if ROWS == 1:
        return tl.max(x, 0)
    return tl.max(x, 1)[:, None]


@tilejit.kernel
def put_rows(pointer, x, row, n, ROWS: tl.constexpr):
    if ROWS == 1:
        tl.store(pointer + row, x.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + row, x.to(pointer.dtype.element_ty), row < n)
