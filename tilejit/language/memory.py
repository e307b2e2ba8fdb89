from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import Ptr, int1
from tilejit.language import semantics as sem
from tilejit.language.block_pointers import BlockPointer, load_block, store_block
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor, tensor_descriptor


def mask_to(b: KernelBuilder, mask: Any, shape: tuple[int, ...], what: str) -> tensor:
    m = to_tensor(b, mask)
    if m.elem != int1:
        raise CompilationError(f"{what}: the mask must be a boolean tile, found {m.elem}: write mask != 0")
    return sem.broadcast_to(b, m, shape)


def pointer_elem(x: Any, what: str) -> Ptr:
    if not isinstance(x, tensor) or not isinstance(x.elem, Ptr):
        found = x.elem if isinstance(x, tensor) else type(x).__name__
        raise CompilationError(f"{what}: expected a pointer, found {found}")
    return x.elem


def written_elem(x: Any, what: str) -> Ptr:
    t = pointer_elem(x, what)
    if t.const:
        raise CompilationError(f"{what}: Cannot store to a constant pointer: its parameter is marked tl.const")
    return t


#: Cache operators of loads and of stores, and eviction priorities, as PTX has them.
_LOADS, _STORES = ("", ".ca", ".cg", ".cs", ".cv"), ("", ".wb", ".cg", ".cs", ".wt")
_PRIORITIES = ("", "evict_first", "evict_last", "evict_normal", "no_allocate")


def _hints(cache_modifier: Any, eviction_policy: Any, known: tuple[str, ...]) -> dict[str, Any]:
    cache = sem.constant(cache_modifier, "cache_modifier") or ""
    evict = sem.constant(eviction_policy, "eviction_policy") or ""
    for what, x, names in (("Cache modifier", cache, known), ("Eviction policy", evict, _PRIORITIES)):
        if x not in names and f".{x}" not in names:
            raise CompilationError(f"{what} {x} not supported: there are {', '.join(names[1:])}")
    return {"cache": cache, "evict": evict}


def _no_checks(what: str, boundary_check: Any, padding_option: Any) -> None:
    if unwrap(boundary_check) or unwrap(padding_option):
        raise CompilationError(f"{what}: `padding_option` or `boundary_check` argument is not supported for loading a "
                               "tensor of pointers or loading a scalar: use mask and other")


@builtin
def load(pointer: tensor, mask: Any = None, other: Any = None, boundary_check: Any = (),
         padding_option: str = "", cache_modifier: str = "", eviction_policy: str = "",
         volatile: bool = False, *, _b: KernelBuilder) -> tensor:
    """Where `mask` is false: `other`, or zero. Pointers, mask and other are broadcast to one shape."""
    if isinstance(pointer, tensor_descriptor):
        raise CompilationError("load of a descriptor: write desc.load(offsets)")
    hints = _hints(cache_modifier, eviction_policy, _LOADS)
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None or unwrap(other) is not None:
            raise CompilationError("load: `mask` and `other` arguments cannot be specified for loading block pointers; "
                                   "use boundary_check and padding_option")
        return load_block(_b, pointer, boundary_check, padding_option, **hints, volatile=bool(unwrap(volatile)))
    _no_checks("load", boundary_check, padding_option)
    elem = pointer_elem(pointer, "load").elem
    mask, other = unwrap(mask), unwrap(other)
    if mask is None and other is not None:
        raise CompilationError("load: `other` needs a `mask`")
    given = [x for x in (mask, other) if isinstance(x, tensor)]
    if not pointer.shape and any(x.shape for x in given):
        raise CompilationError(f"load: the mask or other has shape {[list(x.shape) for x in given if x.shape][0]}, "
                               "the pointer is a scalar")
    pointer = sem.broadcast(_b, pointer, *given)[0]
    shape = pointer.shape
    operands = [pointer.value]
    if mask is not None:
        operands.append(mask_to(_b, mask, shape, "load").value)
    if other is not None:
        o = sem.cast(_b, to_tensor(_b, other), elem)
        operands.append(sem.broadcast_to(_b, o, shape).value)
    return tensor(_b("load", *operands, **hints, volatile=bool(unwrap(volatile))))


@builtin(method=True)
def store(pointer: tensor, value: Any, mask: Any = None, boundary_check: Any = (),
          cache_modifier: str = "", eviction_policy: str = "", *, _b: KernelBuilder) -> None:
    """Cast to the element type."""
    hints = _hints(cache_modifier, eviction_policy, _STORES)
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None:
            raise CompilationError("store: `mask` argument cannot be specified for storing to a block pointer; use "
                                   "boundary_check")
        store_block(_b, pointer, value, boundary_check, **hints)
        return
    _no_checks("store", boundary_check, "")
    elem = written_elem(pointer, "store").elem
    v = sem.cast(_b, to_tensor(_b, value), elem)
    if len(v.shape) > len(pointer.shape):
        raise CompilationError(f"store: the value has shape {list(v.shape)}, the pointer "
                               f"{list(pointer.shape)}")
    operands = [pointer.value, sem.broadcast_to(_b, v, pointer.shape).value]
    if unwrap(mask) is not None:
        operands.append(mask_to(_b, mask, pointer.shape, "store").value)
    _b.op("store", *operands, **hints)


__all__ = ["load", "store"]
