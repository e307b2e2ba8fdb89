"""LOAD: block k of K of an operand's rows from `first` on, as [SIZE, BK]; the second operand's are those of B^T."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of a matrix [rows, K]. args: its descriptor, how L2 keeps it."""
    return args[0].load([first, k * BK], args[1])


@tilejit.kernel
def columns(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of the transpose of a matrix [K, rows]. args: its descriptor, how L2 keeps it."""
    return args[0].load([k * BK, first], args[1]).T


@tilejit.kernel
def pieces(base, pitch, row, column, rows, columns, R: tl.constexpr, C: tl.constexpr, UNIT: tl.constexpr):
    """The block [R, C] at (row, column) of a matrix [rows, columns], UNIT elements at a time: what everything here but
    rows is a multiple of."""
    BYTES: tl.constexpr = UNIT * base.dtype.element_ty.primitive_bitwidth // 8
    pitch = tl.multiple_of(pitch, UNIT)
    start = tl.multiple_of(base + (row.to(tl.int64) * pitch + column), BYTES)
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    inside = (r < rows - row) & (c < tl.multiple_of(columns - column, UNIT))
    return tl.load(start + (r * pitch + c), inside, other=0.0)


@tilejit.kernel
def pointer_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of a matrix [rows, K] that TMA cannot read. args: it, elements from row to row, its rows, its K, UNIT."""
    base, pitch, count, length, UNIT = args
    return pieces(base, pitch, first, k * BK, count, length, SIZE, BK, UNIT)


@tilejit.kernel
def pointer_columns(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """The same of the transpose of a matrix [K, rows]. args: it, elements from line to line, its K, its rows, UNIT."""
    base, pitch, count, length, UNIT = args
    return pieces(base, pitch, k * BK, first, count, length, BK, SIZE, UNIT).T


@tilejit.kernel
def stack_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of the place's matrix of a stack [batches, rows, K], whose last one serves all others. args: its descriptor."""
    batch = tl.minimum(at.batch, args[0].shape[0] - 1)
    return args[0].load([batch, first, k * BK]).reshape(SIZE, BK)


@tilejit.kernel
def stack_columns(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """The same of a stack [batches, K, rows]."""
    batch = tl.minimum(at.batch, args[0].shape[0] - 1)
    return args[0].load([batch, k * BK, first]).reshape(BK, SIZE).T


@tilejit.kernel
def group_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of the place's group of rows of a matrix. args: its descriptor."""
    return args[0].load([at.start + first, k * BK])


@tilejit.kernel
def pair_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of two matrices, SIDE rows of one beside as many of the other, so that whoever has columns of a product has what
    goes together. args: a descriptor that sees both as [rows / SIDE, 2, SIDE, K], SIDE."""
    return args[0].load([first // (2 * args[1]), 0, 0, k * BK]).reshape(SIZE, BK)


@tilejit.kernel
def packed_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Bytes of numbers of BITS bits. args: a descriptor of them, BITS."""
    return args[0].load([first, k * (BK * args[1] // 8)])
