"""LOAD: block k of K of an operand's rows from `first` on, as [SIZE, BK]; the second operand's are those of B^T."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.product.ends import WRAP

_WRAP = tl.constexpr(WRAP)


@tilejit.kernel
def block(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of a matrix [rows, K], or of the transpose of one [K, rows]; or of the place's of a stack, whose last one serves
    all others. args: its descriptor, ROWS: whether it is [rows, K], how L2 keeps it."""
    desc, ROWS, eviction = args
    m = first if ROWS else k * BK
    n = k * BK if ROWS else first
    if len(desc.block_shape) == 3:
        batch = tl.minimum(at.batch, desc.shape[0] - 1)
        x = desc.load([batch, m, n]).reshape(desc.block_shape[1], desc.block_shape[2])
    else:
        x = desc.load([m, n], eviction)
    return x if ROWS else x.T


@tilejit.kernel
def pieces(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of a matrix that TMA cannot read, or slowly, UNIT elements at a time."""
    base, apart, pitch, lines, length, ROWS, UNIT = args
    BYTES: tl.constexpr = UNIT * base.dtype.element_ty.primitive_bitwidth // 8
    R: tl.constexpr = SIZE if ROWS else BK
    C: tl.constexpr = BK if ROWS else SIZE
    m = first if ROWS else k * BK
    n = k * BK if ROWS else first
    pitch = tl.multiple_of(pitch, UNIT)
    if apart is not None:
        base += at.batch.to(tl.int64) * tl.multiple_of(apart, UNIT)
    start = tl.multiple_of(base + (m.to(tl.int64) * pitch + n), BYTES)
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    inside = (r < lines - m) & (c < tl.multiple_of(length - n, UNIT))
    x = tl.load(start + (r * pitch + c), inside, other=0.0)
    return x if ROWS else x.T


@tilejit.kernel
def group_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of the place's group of rows of a matrix. args: its descriptor."""
    return args[0].load([at.start + first, k * BK])


@tilejit.kernel
def group_columns(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of the transpose of the place's group of rows of a matrix; zeros beyond it. args: a ragged descriptor."""
    return args[0].load([_WRAP, at.start + at.count, _WRAP - at.count + k * BK, first]).reshape(BK, SIZE).T


@tilejit.kernel
def pair_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Of two matrices, SIDE rows beside as many of the other. args: a descriptor [rows / SIDE, 2, SIDE, K] of both,
    SIDE."""
    return args[0].load([first // (2 * args[1]), 0, 0, k * BK]).reshape(SIZE, BK)


@tilejit.kernel
def packed_rows(args, at, first, k, SIZE: tl.constexpr, BK: tl.constexpr):
    """Bytes of numbers of BITS bits. args: a descriptor of them, BITS, how L2 keeps them."""
    return args[0].load([first, k * (BK * args[1] // 8)], args[2])
