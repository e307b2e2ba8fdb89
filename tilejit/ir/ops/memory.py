"""Global memory: loads and stores by pointers, atomics, tensor descriptors; and memory of each thread (`stack`)."""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Op
from tilejit.ir.scratch import of_atomic
from tilejit.ir.table import op
from tilejit.ir.types import (
    Desc,
    DType,
    Ptr,
    Tile,
    Type,
    elem_of,
    int1,
    int32,
    int64,
    shape_of,
    tf32,
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


@op("load", "ptr mask? other?", "cache? evict? volatile? copy? ahead? leave?", effects="read", traits="elementwise",
    layout="access")
def load(o: Op) -> list[Type]:
    """Elements at ptr; where mask is false, `other` (or zero). int1 is stored as a byte.

    `copy`: it may be an asynchronous copy; the dimensions from fastest to slowest in memory. `ahead`: the last
    iteration's result is used before, this one's by nothing. `leave`: threads that store nothing are done ahead of it.
    """
    _shapes_agree(o)
    return [_pointee(o)]


@load.meaning
def _load(m: Any, o: Op, ptr: np.ndarray, mask: Any = None, other: Any = None) -> np.ndarray:
    return m.load(o, ptr, elem_of(o.results[0].type), mask, other)


@op("row_load", "base limit?", "size fill? unaligned? evict?", effects="read", layout="block")
def row_load(o: Op) -> list[Type]:
    """The `size` contiguous elements at base, 16-byte aligned; from element `limit` on `fill`, or zeros.

    limit, 0 to size, is a multiple of 16 bytes. `unaligned`: any base and limit.
    """
    e = o.operands[0].type
    if not isinstance(e, Ptr) or not isinstance(e.elem, DType):
        raise CompilationError(f"row_load: expected a pointer, found {e}", o.loc)
    return [Tile((o.attrs["size"],), e.elem)]


@row_load.meaning
def _row_load(m: Any, o: Op, base: np.ndarray, limit: Any = None) -> np.ndarray:
    t = o.results[0].type
    assert isinstance(t, Tile) and isinstance(t.elem, DType)
    at = np.arange(t.shape[0])
    address = base + (at * t.elem.bytes).astype(base.dtype)
    inside = None if limit is None else at < limit
    other = np.broadcast_to(num.constant(o.attrs["fill"], t.elem), at.shape) if "fill" in o.attrs else None
    return m.load(o, address, t.elem, inside, other)


def _row_of(o: Op, size: int) -> None:
    e = o.operands[0].type
    if not isinstance(e, Ptr) or not isinstance(e.elem, DType):
        raise CompilationError(f"{o.name}: expected a pointer, found {e}", o.loc)
    if any(v.type not in (int32, int1) for v in o.operands[-2:]) or size < o.attrs["whole"]:
        raise CompilationError(f"{o.name}: a row of {size} has no ends of {o.operands[-1].type}", o.loc)


def _in_row(o: Op, size: int, first: Any, last: Any) -> np.ndarray:
    at = np.arange(size)
    unit = o.attrs.get("vectors", 1)
    return (at // unit * unit >= first) & (at // unit * unit + unit <= last)


@op("row_inside", "first last", "size whole vectors?", traits="cheap registers", layout="free")
def row_inside(o: Op) -> list[Type]:
    """Which of `size` elements a row has, from `first`, below 16, to before `last`, with all below `whole`. `vectors`:
    those, of so many elements, that it has as a whole."""
    return [Tile((o.attrs["size"],), int1)]


@row_inside.meaning
def _row_inside(m: Any, o: Op, first: Any, last: Any) -> np.ndarray:
    return _in_row(o, o.attrs["size"], first, last)


@op("row_read", "base first last live?", "size whole fill? aligned? begins? vectors? cache? evict?", effects="read",
    layout="block")
def row_read(o: Op) -> list[Type]:
    """`size` elements from base; those outside the row (`row_inside`) are `fill`, or zeros, and not read. `aligned`:
    base is a multiple of 16 bytes; `begins`: the row's first element is. Of a row that is not `live` nothing is read,
    and elements are anything."""
    _row_of(o, o.attrs["size"])
    return [Tile((o.attrs["size"],), o.operands[0].type.elem)]  # type: ignore[union-attr]


@row_read.meaning
def _row_read(m: Any, o: Op, base: np.ndarray, first: Any, last: Any, live: Any = True) -> np.ndarray:
    t = o.results[0].type
    assert isinstance(t, Tile) and isinstance(t.elem, DType)
    address = base + (np.arange(t.shape[0]) * t.elem.bytes).astype(base.dtype)
    other = np.broadcast_to(num.constant(o.attrs["fill"], t.elem), t.shape) if "fill" in o.attrs else None
    return m.load(o, address, t.elem, _in_row(o, t.shape[0], first, last) & live, other)


@op("row_write", "base value first last", "whole vectors? cache? evict?", effects="write", layout="block")
def row_write(o: Op) -> None:
    """Write the elements that a row has, from base on (see `row_read`)."""
    t = o.operands[1].type
    assert isinstance(t, Tile)
    _row_of(o, t.shape[0])
    if t.elem != elem_of(o.operands[0].type).elem:  # type: ignore[union-attr]
        raise CompilationError(f"row_write: value {t} into {o.operands[0].type}", o.loc)


@row_write.meaning
def _row_write(m: Any, o: Op, base: np.ndarray, value: np.ndarray, first: Any, last: Any) -> None:
    size = value.dtype.itemsize
    address = base + (np.arange(value.shape[0]) * size).astype(base.dtype)
    m.store(o, address, value, _in_row(o, value.shape[0], first, last))


@op("store", "ptr value mask?", "cache? evict? seldom?", effects="write", traits="elementwise", layout="access")
def store(o: Op) -> None:
    """Write value at ptr where mask is true. `seldom`: that is in few elements, so the value stays in its layout."""
    _shapes_agree(o)
    if elem_of(o.operands[1].type) != elem_of(_pointee(o)):
        raise CompilationError(f"store: value {o.operands[1].type} into {o.operands[0].type}", o.loc)


@store.meaning
def _store(m: Any, o: Op, ptr: np.ndarray, value: np.ndarray, mask: Any = None) -> None:
    m.store(o, ptr, value, mask)


#: kind of an atomic -> the new value from (old, operand)
COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "max": lambda a, b: num.extremum(a, b, True, False), "min": lambda a, b: num.extremum(a, b, False, False),
    "xchg": lambda a, b: b, "store": lambda a, b: b, "load": lambda a, b: a}


@op("atomic_rmw", "ptr value mask?", "kind sem scope alone? seldom? unread? vec?", effects="read write",
    traits="elementwise atomic",
    layout="access", scratch=of_atomic)
def atomic_rmw(o: Op) -> list[Type]:
    """Atomic read-modify-write, returning the old value; kind is add max min and or xor xchg."""
    _shapes_agree(o)
    return [_pointee(o)]


@atomic_rmw.meaning
def _atomic_rmw(m: Any, o: Op, ptr: np.ndarray, value: np.ndarray, mask: Any = None) -> np.ndarray:
    return m.read_modify_write(o, elem_of(o.results[0].type), ptr, mask, COMBINE[o.attrs["kind"]], value)


@op("atomic_cas", "ptr cmp value", "sem scope alone?", effects="read write", traits="elementwise atomic",
    layout="access", scratch=of_atomic)
def atomic_cas(o: Op) -> list[Type]:
    """Atomic compare and swap, returning the old value. `alone`: see `atomic_rmw`."""
    _shapes_agree(o)
    return [_pointee(o)]


@atomic_cas.meaning
def _atomic_cas(m: Any, o: Op, ptr: np.ndarray, expected: np.ndarray, value: np.ndarray) -> np.ndarray:
    def swap(old: np.ndarray, expected: np.ndarray, value: np.ndarray) -> np.ndarray:
        bits = f"u{old.dtype.itemsize}"
        return np.where(old.view(bits) == expected.view(bits), value, old)

    return m.read_modify_write(o, elem_of(o.results[0].type), ptr, None, swap, expected, value)


@op("atomic_poll", "ptr expected timeout?", "sem scope alone?", effects="read write", traits="atomic",
    layout="access", scratch=of_atomic)
def atomic_poll(o: Op) -> list[Type]:
    """Wait until what is at the scalar ptr equals expected (int1: true), at most `timeout` nanoseconds (then false), if
    given.
    """
    return [with_elem(o.operands[0].type, int1)]


@atomic_poll.meaning
def _atomic_poll(m: Any, o: Op, ptr: np.ndarray, expected: np.ndarray, timeout: Any = None) -> np.ndarray:
    found = m.load(o, ptr, elem_of(o.operands[1].type)) == expected
    if timeout is None and not found.all():
        raise m.error(o, "waits for ever: programs run one after the other here")
    return found


@op("make_desc", "base dims*", "block_shape padding anywhere? elem?", traits="same_memory", layout="none")
def make_desc(o: Op) -> list[Type]:
    """A descriptor from a base pointer, rank sizes, rank strides (elements; the last is 1)."""
    e = o.operands[0].type
    block = tuple(o.attrs["block_shape"])
    if not isinstance(e, Ptr) or not isinstance(e.elem, DType) or len(o.operands) != 1 + 2 * len(block):
        raise CompilationError(f"make_desc: {len(o.operands) - 1} sizes and strides for a block of "
                               f"rank {len(block)} at {e}", o.loc)
    return [Desc(o.attrs.get("elem", e.elem), block)]


@make_desc.meaning
def _make_desc(m: Any, o: Op, base: np.ndarray, *dims: np.ndarray) -> Any:
    rank = len(dims) // 2
    sizes = tuple(int(d) for d in dims)
    return m.descriptor(int(base), sizes[:rank], sizes[rank:], tuple(o.attrs["block_shape"]),
                        o.attrs["padding"])


@op("write_desc", "base dims*", "block_shape padding elem?", effects="sync", traits="same_memory optional",
    layout="none")
def write_desc(o: Op) -> list[Type] | None:
    """`make_desc` of numbers unknown to the host: each CTA writes the tensor maps that its copies use.

    Copies through this op's earlier descriptor are done first: the maps have one place in memory.
    """
    return make_desc.infer(o)


@write_desc.meaning
def _write_desc(m: Any, o: Op, base: np.ndarray, *dims: np.ndarray) -> Any:
    return _make_desc(m, o, base, *dims)


def _desc(o: Op) -> Desc:
    d = o.operands[0].type
    assert isinstance(d, Desc), d
    return d


def block_addresses(d: Any, elem: Any, offsets: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    address, inside = np.array(d.base, np.int64), np.array(True)
    for axis, off in enumerate(offsets):
        shape = [1] * len(offsets)
        shape[axis] = -1
        index = int(off) + np.arange(d.block_shape[axis], dtype=np.int64).reshape(shape)
        address = address + index * (d.strides[axis] * elem.bytes)
        inside = inside & (index >= 0) & (index < d.shape[axis])
    return address, inside


def _fits(d: Desc, shape: tuple[int, ...], o: Op) -> None:
    """`shape` must be the block's, or have its first dimensions merged (or, of size 1, left out)."""
    block, tail = d.block_shape, len(shape) - 1
    if shape != block and (tail < 0 or block[len(block) - tail:] != shape[1:] or shape[-1] != block[-1]
                           or prod(block) != prod(shape)):
        raise CompilationError(f"{o.name}: a tile of shape {list(shape)} through {d}", o.loc)


@op("desc_load", "desc offsets*", "shape? evict?", effects="read", traits="tma", layout="block")
def desc_load(o: Op) -> list[Type]:
    """The block at `offsets` (elements, int32, outermost first); outside the tensor: the padding.

    `shape`: the block's with its first dimensions merged into one. `evict`: a hint to L2.
    """
    d = _desc(o)
    if len(o.operands) - 1 != len(d.block_shape):
        raise CompilationError(f"descriptor of rank {len(d.block_shape)} needs as many offsets, "
                               f"found {len(o.operands) - 1}", o.loc)
    shape = tuple(o.attrs.get("shape") or d.block_shape)
    _fits(d, shape, o)
    return [Tile(shape, d.held)]


@desc_load.meaning
def _desc_load(m: Any, o: Op, desc: Any, *offsets: np.ndarray) -> np.ndarray:
    elem = _desc(o).elem
    return read_block(m, o, desc, elem, offsets).reshape(shape_of(o.results[0].type))


def read_block(m: Any, o: Op, desc: Any, elem: DType, offsets: tuple[np.ndarray, ...]) -> np.ndarray:
    address, inside = block_addresses(desc, elem, offsets)
    fill = num.constant(float("nan") if desc.padding == "nan" else 0, elem)
    found = m.load(o, address, elem, inside, fill)
    return num.tf32_even(found) if elem is tf32 else found


def _written(o: Op) -> None:
    d, t = _desc(o), o.operands[1].type
    if elem_of(t) != d.held:
        raise CompilationError(f"{o.name} of {t} through {d}", o.loc)
    _fits(d, shape_of(t), o)


@op("desc_store", "desc value offsets*", effects="write", traits="tma", layout="block")
def desc_store(o: Op) -> None:
    """Write a block (perhaps with its first dimensions merged) at `offsets`; elements outside the tensor are dropped.
    """
    _written(o)


@desc_store.meaning
def _desc_store(m: Any, o: Op, desc: Any, value: np.ndarray, *offsets: np.ndarray) -> None:
    address, inside = block_addresses(desc, _desc(o).elem, offsets)
    m.store(o, address, value.reshape(address.shape), inside)


#: kind of a descriptor's atomic -> element types that TMA reduces (driver API, CUtensorMapDataType; PTX ISA,
#: cp.reduce.async.bulk.tensor).
DESC_ATOMICS = {
    "add": ("fp32", "fp16", "bf16", "int32", "uint32", "uint64"),
    **dict.fromkeys(("min", "max"), ("fp16", "bf16", "int32", "uint32", "int64", "uint64")),
    **dict.fromkeys(("and", "or", "xor"), ("int32", "uint32", "int64", "uint64")),
}


@op("desc_atomic", "desc value offsets*", "kind", effects="read write", traits="tma", layout="block")
def desc_atomic(o: Op) -> None:
    """Combine a block at `offsets` with memory, each element atomically; elements outside are dropped.

    kind: add min max and or xor. Sums of fp32 flush subnormals; their order is not fixed.
    """
    _written(o)
    if str(_desc(o).held) not in DESC_ATOMICS[o.attrs["kind"]]:
        legal = ", ".join(DESC_ATOMICS[o.attrs["kind"]])
        raise CompilationError(f"desc.atomic_{o.attrs['kind']} takes {legal}; found {_desc(o).elem}", o.loc)


@desc_atomic.meaning
def _desc_atomic(m: Any, o: Op, desc: Any, value: np.ndarray, *offsets: np.ndarray) -> None:
    elem = _desc(o).elem
    address, inside = block_addresses(desc, elem, offsets)
    m.read_modify_write(o, elem, address, inside, COMBINE[o.attrs["kind"]], value.reshape(address.shape))


@op("desc_base", "desc", traits="query", layout="none")
def desc_base(o: Op) -> list[Type]:
    """The base pointer of a descriptor."""
    return [Ptr(_desc(o).held)]


@desc_base.meaning
def _desc_base(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.base, np.int64)


@op("desc_shape", "desc", "dim", traits="query", layout="none", host="shape")
def desc_shape(o: Op) -> list[Type]:
    """The size of the tensor along `dim`, int32."""
    _desc(o)
    return [int32]


@desc_shape.meaning
def _desc_shape(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.shape[o.attrs["dim"]], np.int32)


@op("desc_stride", "desc", "dim", traits="query", layout="none", host="stride")
def desc_stride(o: Op) -> list[Type]:
    """The stride along `dim` in elements, int64."""
    _desc(o)
    return [int64]


@desc_stride.meaning
def _desc_stride(m: Any, o: Op, desc: Any) -> np.ndarray:
    return np.array(desc.strides[o.attrs["dim"]], np.int64)


@op("stack", attrs="slots type threads? offset?", effects="control", traits="optional", layout="same")
def stack(o: Op) -> list[Type]:
    """Memory for so many tiles of a type. The result stands for it: it says the layout that all of them have.
    `threads`: those of a CTA have it in shared memory, each its own elements."""
    return [o.attrs["type"]]


@stack.meaning
def _stack(m: Any, o: Op) -> np.ndarray:
    t = o.result.tile
    return np.zeros((o.attrs["slots"], *t.shape), num.np_dtype(elem_of(t)))


@op("keep", "stack at x", effects="control", layout="follows")
def keep(o: Op) -> None:
    """x becomes tile `at` of the stack."""
    if o.operands[0].type != o.operands[2].type:
        raise CompilationError(f"keep: {o.operands[2].type} in a stack of {o.operands[0].type}", o.loc)


@keep.meaning
def _keep(m: Any, o: Op, stack: np.ndarray, at: np.ndarray, x: np.ndarray) -> None:
    stack[int(at)] = x


@op("kept", "stack at", effects="control", layout="same")
def kept(o: Op) -> list[Type]:
    """Tile `at` of the stack."""
    return [o.operands[0].type]


@kept.meaning
def _kept(m: Any, o: Op, stack: np.ndarray, at: np.ndarray) -> np.ndarray:
    return stack[int(at)].copy()


@op("stacked", "stack", "slots", layout="free")
def stacked(o: Op) -> list[Type]:
    """All tiles of the stack one after another; chunks of it are `kept`."""
    first, *rest = shape_of(o.operands[0].type)
    return [Tile((o.attrs["slots"] * first, *rest), elem_of(o.operands[0].type))]


@stacked.meaning
def _stacked(m: Any, o: Op, stack: np.ndarray) -> np.ndarray:
    return stack.reshape(prod(stack.shape[:2]), *stack.shape[2:]).copy()


@op("steps", attrs="offset?", effects="control", layout="none")
def steps(o: Op) -> list[Type]:
    """Where a program notes its steps."""
    return [int32]


@steps.meaning
def _steps(m: Any, o: Op) -> np.ndarray:
    return np.zeros((), np.int32)


@op("in_step", "steps at step end programs", "every ahead looks pause", effects="control", layout="none")
def in_step(o: Op) -> None:
    """Behind a step of a walk over numbers below `end`, `step` apart: after each `every` of them a program that is
    `ahead` of the average of all waits, but no longer than for so many `looks`, a `pause` of nanoseconds apart.
    """


@in_step.meaning
def _in_step(m: Any, o: Op, *operands: np.ndarray) -> None:
    pass
