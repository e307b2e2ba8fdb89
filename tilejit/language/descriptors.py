from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.core import Value
from tilejit.ir.types import DType, int1, int16, int32, int64
from tilejit.language import semantics as sem
from tilejit.language.memory import pointer_elem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor, tensor_descriptor


@builtin
def make_tensor_descriptor(base: tensor, shape: Any, strides: Any, block_shape: Any,
                           padding_option: str = "zero", *, _b: KernelBuilder) -> tensor_descriptor:
    """Of the tensor at `base`; sizes and strides in elements, the last stride is 1."""
    elem = pointer_elem(base, "make_tensor_descriptor").elem
    block = sem.as_shape(block_shape)
    if len(shape) != len(block) or len(strides) != len(block):
        raise CompilationError(f"make_tensor_descriptor: {len(shape)} sizes, {len(strides)} strides and a "
                               f"block of rank {len(block)}: the ranks must agree")
    if isinstance(unwrap(strides[-1]), tensor) or unwrap(strides[-1]) != 1:
        raise CompilationError("make_tensor_descriptor: the last stride must be the constant 1")
    if block[-1] * elem.bytes < 16:
        raise CompilationError(f"Descriptor block shape must have at least 16 bytes in the last dimension, but "
                               f"got {block[-1]} * {elem.bytes} = {block[-1] * elem.bytes} bytes")
    dims = [sem.cast(_b, to_tensor(_b, s), int32).value for s in shape]
    dims += [sem.cast(_b, to_tensor(_b, s), int64).value for s in strides]
    padding = sem.constant(padding_option, "padding_option") or "zero"
    return tensor_descriptor(_b("make_desc", base.value, *dims, block_shape=block, padding=padding), padding)


def _offsets(b: KernelBuilder, desc: tensor_descriptor, offsets: Any) -> list:
    if not isinstance(offsets, (tuple, list)):
        offsets = (offsets,)
    if len(offsets) != len(desc.block_shape):
        raise CompilationError(f"a descriptor of rank {len(desc.block_shape)} needs as many offsets, "
                               f"found {len(offsets)}")
    return [sem.cast(b, to_tensor(b, o), int32).value for o in offsets]


@builtin
def load_tensor_descriptor(desc: tensor_descriptor, offsets: Any, eviction_policy: str = "", *,
                           _b: KernelBuilder) -> tensor:
    """The block at `offsets`; outside the tensor: the descriptor's padding. eviction_policy: "evict_first" or
    "evict_last", in L2 (where TMA loads it)."""
    evict = sem.constant(eviction_policy, "eviction_policy")
    if evict not in ("", "evict_first", "evict_last"):
        raise CompilationError(f"eviction_policy of a descriptor's load is evict_first or evict_last, found {evict!r}")
    return tensor(_b("desc_load", desc.value, *_offsets(_b, desc, offsets), **({"evict": evict} if evict else {})))


@builtin
def store_tensor_descriptor(desc: tensor_descriptor, offsets: Any, value: Any, *, _b: KernelBuilder) -> None:
    """Write a block; elements outside the tensor are dropped."""
    _b.op("desc_store", desc.value, _block_value(_b, desc, value, "store").value, *_offsets(_b, desc, offsets))


def _block_value(b: KernelBuilder, desc: tensor_descriptor, value: Any, what: str) -> tensor:
    t = desc.value.desc
    v = sem.cast(b, to_tensor(b, value), t.held)
    if v.shape != t.block_shape and v.shape:
        raise CompilationError(f"{what} through a descriptor of blocks {list(t.block_shape)}: found a value "
                               f"of shape {list(v.shape)}")
    return sem.broadcast_to(b, v, t.block_shape)


def _desc_atomic(kind: str):
    def atomic(desc: tensor_descriptor, offsets: Any, value: Any, *, _b: KernelBuilder) -> None:
        v = _block_value(_b, desc, value, f"atomic_{kind}")
        _b.op("desc_atomic", desc.value, v.value, *_offsets(_b, desc, offsets), kind=kind)
    atomic.__name__ = f"atomic_{kind}"
    atomic.__doc__ = f"Atomic {kind} of a block into the tensor at `offsets`; elements outside it are dropped."
    return builtin(atomic)


def _rows(b: KernelBuilder, desc: tensor_descriptor, x_offsets: Any, y_offset: Any,
          what: str) -> tuple[tensor, tensor]:
    """Pointers to parts of rows of a matrix, and which are inside; TMA of Hopper has no gather."""
    elem, block = desc.dtype, desc.block_shape
    if len(block) != 2:
        raise CompilationError(f"descriptor must be 2D, but got {list(block)}: {what} takes rows of a matrix")
    if block[0] != 1:
        raise CompilationError(f"descriptor block must have 1 row, but got {list(block)}: {what} takes as many rows as "
                               "x_offsets has")
    if not isinstance(x_offsets, tensor) or len(x_offsets.shape) != 1:
        found = list(x_offsets.shape) if isinstance(x_offsets, tensor) else x_offsets
        raise CompilationError(f"x offsets must be 1D, but got {found}")
    if x_offsets.elem not in (int16, int32):
        raise CompilationError(f"x offsets must have dtype int16 or int32, but got {x_offsets.elem}")
    (rows,), columns, least = x_offsets.shape, block[1], 256 // elem.bits
    if rows < 8:
        raise CompilationError(f"descriptor {what} must have at least 8 rows, but got {rows}")
    if columns < least:
        raise CompilationError(f"descriptor {what} of {elem} must have at least {least} columns, but got {columns}")

    def over(x: Value, axis: int, t: DType) -> tensor:
        x = x if x.type.elem == t else b("cast", x, dtype=t)  # type: ignore[union-attr]
        return sem.broadcast_to(b, tensor(b("expand_dims", x, axis=axis)), (rows, columns))

    row = sem.cast(b, x_offsets, int32).value
    start = sem.cast(b, to_tensor(b, y_offset), int32).value
    column = b("add", b("splat", start, shape=(columns,)), b("arange", start=0, end=columns))
    inside: list[tensor] = []
    for axis, index in enumerate((row, column)):
        size = b("splat", b("desc_shape", desc.value, dim=axis), shape=index.type.shape)  # type: ignore[union-attr]
        known = b("and", b("cmp", index, b.const(0, index.type), pred="ge"), b("cmp", index, size, pred="lt"))
        inside.append(over(known, 1 - axis, int1))
    offset = b("mul", over(row, 1, int64).value, b("splat", b("desc_stride", desc.value, dim=0), shape=(rows, columns)))
    base = b("splat", b("desc_base", desc.value), shape=(rows, columns))
    pointer = b("ptr_add", b("ptr_add", base, offset), over(column, 0, int64).value)
    return tensor(pointer), tensor(b("and", inside[0].value, inside[1].value))


def gather_rows(desc: tensor_descriptor, x_offsets: tensor, y_offset: Any, *, _b: KernelBuilder) -> tensor:
    """Columns from `y_offset` of the rows `x_offsets` (int16 or int32, at least 8) of a matrix; outside: the
    padding."""
    pointer, inside = _rows(_b, desc, x_offsets, y_offset, "gather")
    fill = sem.splat_const(_b, float("nan") if desc.padding == "nan" else 0, pointer.shape, desc.dtype)
    found = _b("load", pointer.value, inside.value, fill.value)
    return tensor(found if desc.value.desc.elem is desc.dtype else _b.tf32(found))


def scatter_rows(desc: tensor_descriptor, value: Any, x_offsets: tensor, y_offset: Any, *, _b: KernelBuilder) -> None:
    """Write to columns from `y_offset` of the rows `x_offsets` of a matrix; what is outside is dropped. Of rows that
    are named twice one stays."""
    pointer, inside = _rows(_b, desc, x_offsets, y_offset, "scatter")
    v = sem.cast(_b, to_tensor(_b, value), desc.dtype)
    if v.shape != pointer.shape:
        raise CompilationError(f"scatter of {pointer.shape[0]} rows through a descriptor of blocks "
                               f"{list(desc.block_shape)}: expected a value of shape {list(pointer.shape)}, found "
                               f"{list(v.shape)}")
    _b.op("store", pointer.value, v.value, inside.value)


DESCRIPTOR_METHODS = {"load": load_tensor_descriptor, "store": store_tensor_descriptor,
                      "gather": builtin(gather_rows), "scatter": builtin(scatter_rows),
                      **{f"atomic_{k}": _desc_atomic(k) for k in ("add", "min", "max", "and", "or", "xor")}}


__all__ = ["load_tensor_descriptor", "make_tensor_descriptor", "store_tensor_descriptor"]
