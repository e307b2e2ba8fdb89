"""Copies of matrices into rows that TMA can read or write, for operands whose own rows it cannot."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl

#: Bytes of a line of L2; bytes between rows of a copy are a multiple of this.
LINE = 128


@tilejit.kernel
def copy_block(x, y, tile, rows, columns, x_pitch, y_pitch, X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr,
               R: tl.constexpr, C: tl.constexpr):
    """Block `tile`, of R x C, of y [rows, columns] = x. Pitches: elements between rows (X_ROWS, Y_ROWS), or between
    columns without."""
    across = tl.cdiv(columns, C)
    r = ((tile // across) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = ((tile % across) * C + tl.arange(0, C)).to(tl.int64)[None, :]
    inside = (r < rows) & (c < columns)
    source = x + (r * x_pitch + c if X_ROWS else r + c * x_pitch)
    target = y + (r * y_pitch + c if Y_ROWS else r + c * y_pitch)
    tl.store(target, tl.load(source, inside), inside)


@tilejit.kernel(do_not_specialize=("first", "rows", "columns", "x_pitch", "y_pitch", "rows2", "columns2", "x2_pitch",
                                   "y2_pitch"))
def copy_kernel(x, y, rows, columns, x_pitch, y_pitch, x2, y2, first, rows2, columns2, x2_pitch, y2_pitch,
                X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, X2_ROWS: tl.constexpr,
                Y2_ROWS: tl.constexpr, R2: tl.constexpr, C2: tl.constexpr):
    """A block a program of y = x, or behind the `first` programs of y2 = x2 (None: there is one matrix only)."""
    pid = tl.program_id(0)
    if x2 is None:
        copy_block(x, y, pid, rows, columns, x_pitch, y_pitch, X_ROWS, Y_ROWS, R, C)
    else:
        if pid < first:
            copy_block(x, y, pid, rows, columns, x_pitch, y_pitch, X_ROWS, Y_ROWS, R, C)
        else:
            copy_block(x2, y2, pid - first, rows2, columns2, x2_pitch, y2_pitch, X2_ROWS, Y2_ROWS, R2, C2)


def pitched_facts(info: tilejit.ArrayInfo, rows_first: bool) -> tilejit.ArrayInfo:
    """What a copy of a matrix is in lines that TMA reads, row-major or column-major, wherever it lies."""
    m, n = info.shape
    pitch = tilejit.cdiv((n if rows_first else m) * info.dtype.bytes, LINE) * LINE // info.dtype.bytes
    return tilejit.ArrayInfo(0, info.dtype, (m, n), (pitch, 1) if rows_first else (1, pitch), info.device)


def pitched(like: Any, info: tilejit.ArrayInfo, rows_first: bool) -> tuple[Any, tilejit.ArrayInfo]:
    """New memory of the kind of `like` for a matrix as `pitched_facts` says; and its facts."""
    made = pitched_facts(info, rows_first)
    base = tilejit.empty_like(like, (info.shape[0 if rows_first else 1], max(made.strides)), info.dtype)
    at = tilejit.array_info(base)
    return base, made._replace(address=at.address, device=at.device)


#: A copy: a matrix and what it is, and the same of where it goes.
Copy = tuple[Any, tilejit.ArrayInfo, Any, tilejit.ArrayInfo]


def copy_matrices(*copies: Copy) -> None:
    """Copy one or two matrices [m, n], of which one stride each is 1, in one launch."""
    sizes, orders, grid = [], [], []
    for _, seen, _, into in copies:
        (m, n), x_rows, y_rows = seen.shape, seen.strides[1] == 1, into.strides[1] == 1
        r, c = (16, 128) if x_rows and y_rows else (128, 16) if not x_rows and not y_rows else (64, 64)
        sizes.append((m, n, seen.strides[0 if x_rows else 1], into.strides[0 if y_rows else 1]))
        orders.append((x_rows, y_rows, r, c))
        grid.append(tilejit.cdiv(m, r) * tilejit.cdiv(n, c))
    (x, _, y, _), (x2, _, y2, _) = copies[0], copies[1] if len(copies) > 1 else (None,) * 4
    others = (sizes[1], orders[1]) if len(copies) > 1 else ((0, 0, 0, 0), (False, False, 1, 1))
    names = ("X_ROWS", "Y_ROWS", "R", "C"), ("X2_ROWS", "Y2_ROWS", "R2", "C2")
    copy_kernel[(sum(grid),)](x, y, *sizes[0], x2, y2, grid[0], *others[0], **dict(zip(names[0], orders[0])),
                              **dict(zip(names[1], others[1])), launch_pdl=True)
