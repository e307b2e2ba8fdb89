"""Runs of rows of one tensor as tensors of their own, whose ends TMA respects."""
from __future__ import annotations

from typing import Any

from tilejit.compat.triton import language as tl
from tilejit.compat.triton.runtime.jit import jit
from tilejit.language import constexpr
from tilejit.tools.tensor_descriptor import TensorDescriptor

ROWS = constexpr(1 << 30)


def create_ragged_descriptor(T: Any, block_shape: list[int], ragged_dim: int = 0) -> TensorDescriptor:
    """For runs along `ragged_dim`, not the last of two or three dimensions. Raises ValueError for others."""
    rank, shape = T.dim(), list(T.shape)
    at = ragged_dim % rank if -rank <= ragged_dim < rank else rank
    if not 2 <= rank <= 3 or at >= rank - 1 or len(block_shape) != rank or shape[at] > ROWS.value:
        raise ValueError(f"ragged descriptor: expected 2 or 3 dimensions, runs along another one than the last, of at "
                         f"most 2**30 rows, found {shape}, ragged_dim={ragged_dim}, block_shape={block_shape}")
    shape[at], row, most = ROWS.value, T.stride(at), 0x7fff0000
    return TensorDescriptor(T, [most, most, *shape], [2 ** 34 - row, row, *map(T.stride, range(rank))],
                            [1, 1, *block_shape])


@jit
def to_ragged_indices(slice_off, slice_size, row):
    """Where a row of a run lies, in the two dimensions ahead and along the rows."""
    return ROWS, slice_off + slice_size, ROWS - slice_size + row


@jit
def _places(slice_off, slice_size, coords, ragged_dim: tl.constexpr):
    ahead, end, row = to_ragged_indices(slice_off, slice_size, coords[ragged_dim])
    return [ahead, end] + coords[:ragged_dim] + [row] + coords[ragged_dim + 1:]


@jit
def load_ragged(TMA, slice_off, slice_size, coords, ragged_dim: tl.constexpr = 0):
    data = TMA.load(_places(slice_off, slice_size, coords, ragged_dim))
    return tl.reshape(data, data.shape[2:])


@jit
def store_ragged(TMA, slice_off, slice_size, coords, data, ragged_dim: tl.constexpr = 0):
    TMA.store(_places(slice_off, slice_size, coords, ragged_dim), tl.reshape(data, (1, 1) + data.shape))


@jit
def atomic_add_ragged(TMA, slice_off, slice_size, coords, data, ragged_dim: tl.constexpr = 0):
    TMA.atomic_add(_places(slice_off, slice_size, coords, ragged_dim), tl.reshape(data, (1, 1) + data.shape))


__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged", "to_ragged_indices"]
