from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, operator
from tilejit.kernels.rows.matrices import Matrix, matrix, share
from tilejit.kernels.rows.tiles import wide, wide_type

#: The tile of a sum over rows; elements and the most rows of one of sums of programs.
SUM_ROWS, SUM_COLUMNS = 32, 128
PART, PART_ROWS = 4096, 128


@tilejit.kernel
def column_sum_kernel(x, scaled, stats, out, row_count, columns, x_pitch, scaled_pitch, per, ROWS: tl.constexpr,
                      COLUMNS: tl.constexpr):
    """Of COLUMNS columns over `per` rows; scaled: None, or what x is multiplied by, normalised by stats."""
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * per
    last = tl.minimum(first + per, row_count)
    total = tl.zeros((COLUMNS,), wide_type(x))
    for start in range(first, last, ROWS):
        at = start + tl.arange(0, ROWS)
        mask = (at < last)[:, None] & (cols < columns)[None, :]
        at = at.to(tl.int64)
        v = wide(tl.load(x + at[:, None] * x_pitch + cols[None, :], mask, other=0.0))
        if scaled is not None:
            h = wide(tl.load(scaled + at[:, None] * scaled_pitch + cols[None, :], mask, other=0.0))
            mean = tl.load(stats + at * 2, at < last, other=0.0)
            r = tl.load(stats + at * 2 + 1, at < last, other=0.0)
            v = v * ((h - mean[:, None]) * r[:, None])
        total += tl.sum(v, 0)
    tl.store(out + tl.program_id(1).to(tl.int64) * columns + cols, total.to(out.dtype.element_ty), cols < columns)


@tilejit.kernel
def part_sum_kernel(parts, out, other_parts, other, count, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    if other is None:
        sum_part(parts, out, count, columns, ROWS, COLUMNS)
    elif tl.program_id(1) == 0:
        sum_part(parts, out, count, columns, ROWS, COLUMNS)
    else:
        sum_part(other_parts, other, count, columns, ROWS, COLUMNS)


@tilejit.kernel
def sum_part(parts, out, count, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), wide_type(parts))
    for start in range(0, count, ROWS):
        at = (start + tl.arange(0, ROWS))[:, None]
        total += tl.load(parts + at.to(tl.int64) * columns + cols[None, :], (at < count) & (cols < columns)[None, :],
                         other=0.0)
    tl.store(out + cols, tl.sum(total, 0).to(out.dtype.element_ty), cols < columns)


@operator(out=lambda like: like)
def column_sum(out, x: Array, like: Array) -> None:
    sum_columns(out, matrix("column_sum", x))


def sum_columns(out: Any, x: Matrix, scaled: Matrix | None = None, stats: Any = None) -> None:
    if not x.columns:
        return
    other, pitch = (None, 0) if scaled is None else (scaled.array, scaled.pitch)
    across = tilejit.cdiv(x.columns, SUM_COLUMNS)
    parts = max(1, min(2 * tilejit.multiprocessors(tilejit.array_info(x.array).device) // across,
                       tilejit.cdiv(x.n, 4 * SUM_ROWS)))
    sizes = dict(ROWS=SUM_ROWS // share(x.array), COLUMNS=SUM_COLUMNS)
    target = out if parts == 1 else sums_like(x.array, (parts, x.columns))
    column_sum_kernel[(across, parts)](x.array, other, stats, target, x.n, x.columns, x.pitch, pitch,
                                       tilejit.cdiv(x.n, parts), **sizes)
    if parts > 1:
        column_sum_kernel[(across, 1)](target, None, None, out, parts, x.columns, x.columns, 0, parts, **sizes)


def sum_parts(sums: Sequence[tuple[Any, Any]], count: int, columns: int) -> None:
    """For one or two pairs (parts [count, columns], which programs have summed; their sums [columns])."""
    (parts, out), (others, other) = (*sums, (None, None))[:2]
    rows = min(PART_ROWS, tilejit.next_power_of_2(count))
    part_sum_kernel[(tilejit.cdiv(columns, PART // rows), len(sums))](
        parts, out, others, other, count, columns, ROWS=rows, COLUMNS=PART // rows, num_warps=8, launch_pdl=True)


def sums_like(x: Any, shape: tuple[int, ...]) -> Any:
    double = tilejit.array_info(x).dtype == tl.float64
    return tilejit.empty_like(x, shape, tl.float64 if double else tl.float32)
