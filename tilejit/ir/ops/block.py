"""Blocks of tensors without TMA: what descriptor loads and stores become where the chip has none."""
from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Op, Value
from tilejit.ir.ops.memory import block_addresses
from tilejit.ir.table import op
from tilejit.ir.types import DType, Ptr, Tile, Type, shape_of


def _elem(o: Op, base: Value, dims: int, shape: tuple[int, ...]) -> DType:
    e, block = base.type, o.attrs["block"]
    if not isinstance(e, Ptr) or not isinstance(e.elem, DType) or dims != 3 * len(block) or prod(shape) != prod(block):
        raise CompilationError(f"{o.name}: {dims} sizes, strides and offsets for {list(shape)} in blocks of "
                               f"{list(block)} at {e}", o.loc)
    return e.elem


def place_block(m: Any, o: Op, elem: DType, base: np.ndarray, dims: tuple[np.ndarray, ...]) -> tuple[Any, Any]:
    """Addresses of the block, and which are inside the tensor."""
    rank = len(dims) // 3
    sizes = tuple(int(d) for d in dims)
    desc = m.descriptor(int(base), sizes[:rank], sizes[rank:2 * rank], tuple(o.attrs["block"]), "zero")
    return block_addresses(desc, elem, dims[2 * rank:])


@op("block_load", "base dims*", "block shape", effects="read", layout="block")
def block_load(o: Op) -> list[Type]:
    """The block at the offsets, zeros outside the tensor, as a tile of `shape` (the first dimensions merged)."""
    return [Tile(o.attrs["shape"], _elem(o, o.operands[0], len(o.operands) - 1, o.attrs["shape"]))]


@block_load.meaning
def _block_load(m: Any, o: Op, base: np.ndarray, *dims: np.ndarray) -> np.ndarray:
    elem = o.results[0].tile.elem
    address, inside = place_block(m, o, elem, base, dims)  # type: ignore[arg-type]
    return m.load(o, address, elem, inside, num.constant(0, elem)).reshape(
        shape_of(o.results[0].type))


@op("block_store", "base value dims*", "block", effects="write", layout="block")
def block_store(o: Op) -> None:
    """Write a block at the offsets; elements outside the tensor are dropped."""
    value = o.operands[1].tile
    if _elem(o, o.operands[0], len(o.operands) - 2, value.shape) != value.elem:
        raise CompilationError(f"block_store of {value} at {o.operands[0].type}", o.loc)


@block_store.meaning
def _block_store(m: Any, o: Op, base: np.ndarray, value: np.ndarray, *dims: np.ndarray) -> None:
    elem = o.operands[1].tile.elem
    address, inside = place_block(m, o, elem, base, dims)  # type: ignore[arg-type]
    m.store(o, address, value.reshape(address.shape), inside)


@op("block_copy", "buffer slot base dims*", "block", effects="read shared_write",
    traits="scheduled fills cp_async generic own_buffer")
def block_copy(o: Op) -> None:
    """Start copying what `block_load` loads into buffer[slot], by all threads of the role (cp.async, 16 bytes each)."""
