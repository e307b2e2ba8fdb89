"""What kernels of rows share: which elements a program has, and folds along its rows."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def row_tile(n, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(row, column, mask) of this program's elements of a matrix [n, columns]: of one row a tile [BLOCK], of ROWS rows
    a tile [ROWS, BLOCK]. The row is an int64 number or column of them."""
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
def row_sum(x, ROWS: tl.constexpr):
    """The sum of each row of such a tile, to be used with the tile."""
    if ROWS == 1:
        return tl.sum(x, 0)
    return tl.sum(x, 1)[:, None]


@tilejit.kernel
def row_max(x, ROWS: tl.constexpr):
    """The greatest element of each row of such a tile, to be used with the tile."""
    if ROWS == 1:
        return tl.max(x, 0)
    return tl.max(x, 1)[:, None]
