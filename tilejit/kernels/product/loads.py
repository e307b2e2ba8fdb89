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
