"""Global memory: pointer loads and stores, atomics, and tensor descriptors."""
from __future__ import annotations

from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Op
from tilejit.ir.table import op
from tilejit.ir.types import (
    Desc,
    Ptr,
    Tile,
    Type,
    elem_of,
    int32,
    int64,
    shape_of,
    with_elem,
)


def _pointee(o: Op) -> Type:
    e = elem_of(o.operands[0].type)
    if not isinstance(e, Ptr):
        raise CompilationError(f"{o.name}: expected a pointer, found {o.operands[0].type}", o.loc)
    return with_elem(o.operands[0].type, e.elem)


def _shapes_agree(o: Op) -> None:
    shapes = {shape_of(v.type) for v in o.operands}
    if len(shapes) > 1:
        found = ", ".join(str(v.type) for v in o.operands)
        raise CompilationError(f"{o.name}: shapes differ: {found}", o.loc)


@op("load", "ptr mask? other?", "cache? evict? volatile?", effects="read", traits="elementwise")
def load(o: Op) -> list[Type]:
    """Elements at ptr; where mask is false, `other` (zero without one). int1 is stored as a byte."""
    _shapes_agree(o)
    return [_pointee(o)]


@load.meaning
def _load(m: Any, o: Op, ptr: np.ndarray, mask: Any = None, other: Any = None) -> np.ndarray:
    return m.load(o, ptr, elem_of(o.results[0].type), mask, other)


@op("store", "ptr value mask?", "cache? evict?", effects="write", traits="elementwise")
def store(o: Op) -> list[Type]:
    """Write value at ptr where mask is true."""
    _shapes_agree(o)
    if elem_of(o.operands[1].type) != elem_of(_pointee(o)):
        raise CompilationError(f"store: value {o.operands[1].type} into {o.operands[0].type}", o.loc)
    return []


@store.meaning
def _store(m: Any, o: Op, ptr: np.ndarray, value: np.ndarray, mask: Any = None) -> list[Any]:
    m.store(o, ptr, value, mask)
    return []


@op("atomic_rmw", "ptr value mask?", "kind sem scope", effects="read write", traits="elementwise")
def atomic_rmw(o: Op) -> list[Type]:
    """Atomic read-modify-write, returning the old value; kind is add max min and or xor xchg."""
    _shapes_agree(o)
    return [_pointee(o)]


@atomic_rmw.meaning
def _atomic_rmw(m: Any, o: Op, ptr: np.ndarray, value: np.ndarray, mask: Any = None) -> np.ndarray:
    combine = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
               "max": lambda a, b: num.extremum(a, b, True, False),
               "min": lambda a, b: num.extremum(a, b, False, False),
               "xchg": lambda a, b: b}[o.attrs["kind"]]
    return m.read_modify_write(o, ptr, mask, combine, value)


@op("atomic_cas", "ptr cmp value", "sem scope", effects="read write", traits="elementwise")
def atomic_cas(o: Op) -> list[Type]:
    """Atomic compare and swap, returning the old value."""
    _shapes_agree(o)
    return [_pointee(o)]


@atomic_cas.meaning
def _atomic_cas(m: Any, o: Op, ptr: np.ndarray, expected: np.ndarray, value: np.ndarray) -> np.ndarray:
    def swap(old: np.ndarray, expected: np.ndarray, value: np.ndarray) -> np.ndarray:
        bits = f"u{old.dtype.itemsize}"
        return np.where(old.view(bits) == expected.view(bits), value, old)

    return m.read_modify_write(o, ptr, None, swap, expected, value)


@op("make_desc", "base dims*", "block_shape padding")
def make_desc(o: Op) -> list[Type]:
    """A descriptor from a base pointer, then rank sizes, then rank strides (elements; the last is 1)."""
    e = o.operands[0].type
    block = tuple(o.attrs["block_shape"])
    if not isinstance(e, Ptr) or len(o.operands) != 1 + 2 * len(block):
        raise CompilationError(f"make_desc: {len(o.operands) - 1} sizes and strides for a block of "
                               f"rank {len(block)} at {e}", o.loc)
    return [Desc(e.elem, block)]


@make_desc.meaning
def _make_desc(m: Any, o: Op, base: np.ndarray, *dims: np.ndarray) -> Any:
    rank = len(dims) // 2
    sizes = tuple(int(d) for d in dims)
    return m.descriptor(int(base), sizes[:rank], sizes[rank:], tuple(o.attrs["block_shape"]),
                        o.attrs["padding"])


def _desc(o: Op) -> Desc:
    d = o.operands[0].type
    assert isinstance(d, Desc), d
    return d


def _block(d: Any, elem: Any, offsets: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of a descriptor's block at `offsets`, and which of them are inside the tensor."""
    address, inside = np.array(d.base, np.int64), np.array(True)
    for axis, off in enumerate(offsets):
        shape = [1] * len(offsets)
        shape[axis] = -1
        index = int(off) + np.arange(d.block_shape[axis], dtype=np.int64).reshape(shape)
        address = address + index * (d.strides[axis] * elem.bytes)
        inside = inside & (index >= 0) & (index < d.shape[axis])
    return address, inside


@op("desc_load", "desc offsets*", effects="read")
def desc_load(o: Op) -> list[Type]:
    """The block at `offsets` (elements, int32, outermost first); outside the tensor: the padding."""
    d = _desc(o)
    if len(o.operands) - 1 != len(d.block_shape):
        raise CompilationError(f"descriptor of rank {len(d.block_shape)} needs as many offsets, "
                               f"found {len(o.operands) - 1}", o.loc)
    return [Tile(d.block_shape, d.elem)]


@desc_load.meaning
def _desc_load(m: Any, o: Op, desc: Any, *offsets: np.ndarray) -> np.ndarray:
    elem = _desc(o).elem
    address, inside = _block(desc, elem, offsets)
    fill = num.constant(float("nan") if desc.padding == "nan" else 0, elem)
    return m.load(o, address, elem, inside, fill)


@op("desc_store", "desc value offsets*", effects="write")
def desc_store(o: Op) -> list[Type]:
    """Write a block at `offsets`; elements outside the tensor are dropped."""
    d, t = _desc(o), o.operands[1].type
    if shape_of(t) != d.block_shape or elem_of(t) != d.elem:
        raise CompilationError(f"store of {t} through {d}", o.loc)
    return []


@desc_store.meaning
def _desc_store(m: Any, o: Op, desc: Any, value: np.ndarray, *offsets: np.ndarray) -> list[Any]:
    address, inside = _block(desc, _desc(o).elem, offsets)
    m.store(o, address, value, inside)
    return []


@op("desc_base", "desc")
def desc_base(o: Op) -> list[Type]:
    """The base pointer of a descriptor."""
    return [Ptr(_desc(o).elem)]


@desc_base.meaning
def _desc_base(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.base, np.int64)


@op("desc_shape", "desc", "dim")
def desc_shape(o: Op) -> list[Type]:
    """The size of the tensor along `dim`, int32."""
    _desc(o)
    return [int32]


@desc_shape.meaning
def _desc_shape(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.shape[o.attrs["dim"]], np.int32)


@op("desc_stride", "desc", "dim")
def desc_stride(o: Op) -> list[Type]:
    """The stride along `dim` in elements, int64."""
    _desc(o)
    return [int64]


@desc_stride.meaning
def _desc_stride(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.strides[o.attrs["dim"]], np.int64)
