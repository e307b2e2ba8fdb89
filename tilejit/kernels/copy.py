"""Copies of matrices into rows that TMA can read or write, for operands whose own rows it cannot."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl

#: Bytes of a line of L2; bytes between rows of a copy are a multiple of this.
LINE = 128


@tilejit.kernel(do_not_specialize=("rows", "columns", "x_pitch", "y_pitch"))
def copy_kernel(x, y, rows, columns, x_pitch, y_pitch, X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr, R: tl.constexpr,
                C: tl.constexpr):
    """y [rows, columns] = x. Pitches: elements between rows (X_ROWS, Y_ROWS), or between columns without."""
    r = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = (tl.program_id(1) * C + tl.arange(0, C)).to(tl.int64)[None, :]
    inside = (r < rows) & (c < columns)
    source = x + (r * x_pitch + c if X_ROWS else r + c * x_pitch)
    target = y + (r * y_pitch + c if Y_ROWS else r + c * y_pitch)
    tl.store(target, tl.load(source, inside), inside)


def pitched(like: Any, info: tilejit.ArrayInfo, rows_first: bool) -> tuple[Any, tilejit.ArrayInfo]:
    """New memory of the kind of `like` for a matrix as `info` says, row-major or column-major, with lines that TMA
    reads; and the facts of the matrix in it."""
    m, n = info.shape
    lines, length = (m, n) if rows_first else (n, m)
    pitch = tilejit.cdiv(length * info.dtype.bytes, LINE) * LINE // info.dtype.bytes
    base = tilejit.empty_like(like, (lines, pitch), info.dtype)
    at = tilejit.array_info(base)
    return base, tilejit.ArrayInfo(at.address, info.dtype, (m, n), (pitch, 1) if rows_first else (1, pitch), at.device)


def copy_matrix(x: Any, seen: tilejit.ArrayInfo, y: Any, into: tilejit.ArrayInfo) -> None:
    """Copy the matrix [m, n] that `seen` describes in x to the one that `into` describes in y; one stride each is 1."""
    (m, n), x_rows, y_rows = seen.shape, seen.strides[1] == 1, into.strides[1] == 1
    r, c = (16, 128) if x_rows and y_rows else (128, 16) if not x_rows and not y_rows else (64, 64)
    copy_kernel[(tilejit.cdiv(m, r), tilejit.cdiv(n, c))](
        x, y, m, n, seen.strides[0 if x_rows else 1], into.strides[0 if y_rows else 1], X_ROWS=x_rows, Y_ROWS=y_rows,
        R=r, C=c)
