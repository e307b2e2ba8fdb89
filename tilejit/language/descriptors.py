"""Tensor descriptors: making them, and loads, stores and atomics of blocks through them."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import Desc, int32, int64
from tilejit.language import semantics as sem
from tilejit.language.memory import pointer_elem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor, tensor_descriptor


@builtin
def make_tensor_descriptor(base: tensor, shape: Any, strides: Any, block_shape: Any,
                           padding_option: str = "zero", *, _b: KernelBuilder) -> tensor_descriptor:
    """A descriptor of the tensor at `base`; sizes and strides in elements, the last stride is 1."""
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
    """Write a block at `offsets`; elements outside the tensor are dropped."""
    _b.op("desc_store", desc.value, _block_value(_b, desc, value, "store").value, *_offsets(_b, desc, offsets))


def _block_value(b: KernelBuilder, desc: tensor_descriptor, value: Any, what: str) -> tensor:
    """A value in the descriptor's element type and block shape."""
    t: Desc = desc.type
    v = sem.cast(b, to_tensor(b, value), t.elem)
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


#: What a descriptor can do, by name: `desc.load(offsets)`, `desc.atomic_add(offsets, value)`, ...
DESCRIPTOR_METHODS = {"load": load_tensor_descriptor, "store": store_tensor_descriptor,
                      **{f"atomic_{k}": _desc_atomic(k) for k in ("add", "min", "max", "and", "or", "xor")}}


__all__ = ["load_tensor_descriptor", "make_tensor_descriptor", "store_tensor_descriptor"]
