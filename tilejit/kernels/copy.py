"""Copies of matrices into rows that TMA can read or write, for operands whose own rows it cannot."""
from __future__ import annotations

from dataclasses import replace
from math import gcd

import tilejit
from tilejit.kernels._calls import At, Launch, Work
from tilejit.kernels._operands import Matrix
from tilejit.kernels.chip import Chip
from tilejit.kernels.product.copies import copy_kernel

#: Bytes of a line of L2, of which rows of a copy are a multiple.
LINE = 128
#: The place of a matrix that has none yet.
NEW = -1


def pitched(x: Matrix, rows_first: bool, spare: bool = False) -> Matrix:
    """In lines that TMA reads, row-major or column-major, in `NEW` memory. spare: the ends of lines may be written."""
    (m, n), size = x.shape, x.dtype.bytes
    pitch = tilejit.cdiv((n if rows_first else m) * size, LINE) * LINE // size
    strides = (pitch, 1) if rows_first else (1, pitch)
    return Matrix(tilejit.ArrayInfo(0, x.dtype, (m, n), strides, x.info.device, spare), rows_first, NEW)


def made(work: Work, x: Matrix) -> Matrix:
    """A pitched matrix, with its memory."""
    return replace(x, at=work.new((x.lines[0], max(x.strides)), x.dtype))


def at_once(x: Matrix, y: Matrix) -> int:
    """Elements of a line that a thread copies at once; turned blocks are read along other lines than written."""
    return gcd(x.unit, y.unit, x.lines[1]) if x.rows_first == y.rows_first else 1


def time(x: Matrix, y: Matrix, chip: Chip) -> float:
    """In nanoseconds, without the launch."""
    elements = x.shape[0] * x.shape[1]
    size = elements * x.dtype.bytes
    least = size / chip.copy, (2 * size - chip.resident) / chip.stream, elements / at_once(x, y) / chip.scattered
    return max(least) / chip.multiprocessors


def copy(*pairs: tuple[Matrix, Matrix]) -> Launch:
    """Of one or two matrices (what is copied, its copy), of which one stride each is 1."""
    found, grid = [], []
    for x, y in pairs:
        (m, n), x_rows, y_rows = x.shape, x.strides[1] == 1, y.strides[1] == 1
        r, c = (16, 128) if x_rows and y_rows else (128, 16) if not x_rows and not y_rows else (64, 64)
        constants = map(tilejit.language.constexpr, (x_rows, y_rows, r, c, at_once(x, y)))
        found.append((At(x.at), At(y.at), m, n, x.strides[0 if x_rows else 1],
                      y.strides[0 if y_rows else 1], *constants))
        grid.append(tilejit.cdiv(m, r) * tilejit.cdiv(n, c))
    return Launch(copy_kernel.partial(launch_pdl=True), (sum(grid),), (grid[0], *found, *[None] * (2 - len(pairs))))
