"""Copies of matrices into rows that TMA can read or write, for operands whose own rows it cannot."""
from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

import tilejit
import tilejit.language as tl
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
    (*stack, m, n), size = x.shape, x.dtype.bytes
    lines, length = (m, n) if rows_first else (n, m)
    pitch = tilejit.cdiv(length * size, LINE) * LINE // size
    strides = *[lines * pitch for _ in stack], *((pitch, 1) if rows_first else (1, pitch))
    return Matrix(tilejit.ArrayInfo(0, x.dtype, x.shape, strides, x.info.device, spare), rows_first, NEW)


def made(work: Work, x: Matrix) -> Matrix:
    """A pitched matrix, with its memory."""
    return replace(x, at=work.new((prod(x.shape[:-2]) * x.lines[0], max(x.strides[-2:])), x.dtype))


def brought(work: Work, *operands: tuple[Matrix, bool | None]) -> list[Matrix]:
    """Those that TMA reads, with rows first, columns (False), or either (None) as asked; copies of the others."""
    found, pairs = [], []
    for x, rows_first in operands:
        if 0 not in x.shape and not (x.in_reach and rows_first in (None, x.rows_first)):
            y = made(work, pitched(x, x.rows_first if rows_first is None else rows_first))
            pairs.append((x, y))
            x = y
        found.append(x)
    if pairs:
        work.launches.append(copy(*pairs))
    return found


def k_first(x: Matrix, order: bool) -> bool | None:
    """The order that the tensor cores ask of an operand whose lines are along K in this one: they turn 16 bits only."""
    return None if x.dtype.bytes == 2 else order


def at_once(x: Matrix, y: Matrix) -> int:
    """Elements of a line that a thread copies at once; turned blocks are read along other lines than written."""
    return gcd(x.unit, y.unit, x.lines[1]) if x.rows_first == y.rows_first and x.step == y.step == 1 else 1


def time(x: Matrix, y: Matrix, chip: Chip) -> float:
    """In nanoseconds, without the launch."""
    elements = prod(x.shape)
    size = elements * x.dtype.bytes
    least = size / chip.copy, (2 * size - chip.resident) / chip.stream, elements / at_once(x, y) / chip.scattered
    return max(least) / chip.multiprocessors


def copy(*pairs: tuple[Matrix, Matrix]) -> Launch:
    """Of one or two (stacks of) matrices: what is copied, its copy."""
    found, grid = [], []
    for x, y in pairs:
        (*stack, m, n), pair = x.shape, (x, y)
        r, c = (64, 64) if x.rows_first != y.rows_first else (16, 128) if x.rows_first else (128, 16)
        places = [(v.strides[0] if stack else None, v.strides[-2 if v.rows_first else -1],
                   tl.constexpr(1) if v.step == 1 else v.step) for v in pair]
        constants = map(tl.constexpr, (x.rows_first, y.rows_first, r, c, at_once(x, y)))
        found.append((At(x.at), At(y.at), m, n, *places[0], *places[1], *constants))
        grid.append(prod(stack) * tilejit.cdiv(m, r) * tilejit.cdiv(n, c))
    return Launch(copy_kernel.partial(launch_pdl=True), (sum(grid),), (grid[0], *found, *[None] * (2 - len(pairs))))
