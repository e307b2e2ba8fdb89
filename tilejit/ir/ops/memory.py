"""Global memory: pointer loads and stores, atomics, and tensor descriptors."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.table import op
from tilejit.ir.types import Desc, Ptr, Tile, Type, elem_of, int32, int64, shape_of, with_elem


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


@op("store", "ptr value mask?", "cache? evict?", effects="write", traits="elementwise")
def store(o: Op) -> list[Type]:
    """Write value at ptr where mask is true."""
    _shapes_agree(o)
    if elem_of(o.operands[1].type) != elem_of(_pointee(o)):
        raise CompilationError(f"store: value {o.operands[1].type} into {o.operands[0].type}", o.loc)
    return []


@op("atomic_rmw", "ptr value mask?", "kind sem scope", effects="read write", traits="elementwise")
def atomic_rmw(o: Op) -> list[Type]:
    """Atomic read-modify-write, returning the old value; kind is add max min and or xor xchg."""
    _shapes_agree(o)
    return [_pointee(o)]


@op("atomic_cas", "ptr cmp value", "sem scope", effects="read write", traits="elementwise")
def atomic_cas(o: Op) -> list[Type]:
    """Atomic compare and swap, returning the old value."""
    _shapes_agree(o)
    return [_pointee(o)]


@op("make_desc", "base dims*", "block_shape padding")
def make_desc(o: Op) -> list[Type]:
    """A descriptor from a base pointer, then rank sizes, then rank strides (elements; the last is 1)."""
    e = o.operands[0].type
    block = tuple(o.attrs["block_shape"])
    if not isinstance(e, Ptr) or len(o.operands) != 1 + 2 * len(block):
        raise CompilationError(f"make_desc: {len(o.operands) - 1} sizes and strides for a block of "
                               f"rank {len(block)} at {e}", o.loc)
    return [Desc(e.elem, block)]


def _desc(o: Op) -> Desc:
    d = o.operands[0].type
    assert isinstance(d, Desc), d
    return d


@op("desc_load", "desc offsets*", effects="read")
def desc_load(o: Op) -> list[Type]:
    """The block at `offsets` (elements, int32, outermost first); outside the tensor: the padding."""
    d = _desc(o)
    if len(o.operands) - 1 != len(d.block_shape):
        raise CompilationError(f"descriptor of rank {len(d.block_shape)} needs as many offsets, "
                               f"found {len(o.operands) - 1}", o.loc)
    return [Tile(d.block_shape, d.elem)]


@op("desc_store", "desc value offsets*", effects="write")
def desc_store(o: Op) -> list[Type]:
    """Write a block at `offsets`; elements outside the tensor are dropped."""
    d, t = _desc(o), o.operands[1].type
    if shape_of(t) != d.block_shape or elem_of(t) != d.elem:
        raise CompilationError(f"store of {t} through {d}", o.loc)
    return []


@op("desc_base", "desc")
def desc_base(o: Op) -> list[Type]:
    """The base pointer of a descriptor."""
    return [Ptr(_desc(o).elem)]


@op("desc_shape", "desc", "dim")
def desc_shape(o: Op) -> list[Type]:
    """The size of the tensor along `dim`, int32."""
    _desc(o)
    return [int32]


@op("desc_stride", "desc", "dim")
def desc_stride(o: Op) -> list[Type]:
    """The stride along `dim` in elements, int64."""
    _desc(o)
    return [int64]
