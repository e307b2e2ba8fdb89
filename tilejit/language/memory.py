"""Loads and stores through pointers.

Atomics through pointers: read-modify-write, compare and swap, loads, stores and waiting.
"""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, Ptr, int1, uint64
from tilejit.language import semantics
from tilejit.language import semantics as sem
from tilejit.language.block_pointers import BlockPointer, load_block, store_block
from tilejit.language.semantics import constant, to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor, tensor_descriptor


def mask_to(b: KernelBuilder, mask: Any, shape: tuple[int, ...], what: str) -> tensor:
    """A boolean mask at `shape`; raises CompilationError for another type."""
    m = to_tensor(b, mask)
    if m.elem != int1:
        raise CompilationError(f"{what}: the mask must be a boolean tile, found {m.elem}: write mask != 0")
    return sem.broadcast_to(b, m, shape)


def pointer_elem(x: Any, what: str) -> Ptr:
    """The type of a pointer or tile of pointers; raises CompilationError for anything else."""
    if not isinstance(x, tensor) or not isinstance(x.elem, Ptr):
        found = x.elem if isinstance(x, tensor) else type(x).__name__
        raise CompilationError(f"{what}: expected a pointer, found {found}")
    return x.elem


def written_elem(x: Any, what: str) -> Ptr:
    """`pointer_elem` of a pointer that is written through; raises CompilationError for one of a tl.const parameter."""
    t = pointer_elem(x, what)
    if t.const:
        raise CompilationError(f"{what}: Cannot store to a constant pointer: its parameter is marked tl.const")
    return t


def _no_checks(what: str, boundary_check: Any, padding_option: Any) -> None:
    if unwrap(boundary_check) or unwrap(padding_option):
        raise CompilationError(f"{what}: `padding_option` or `boundary_check` argument is not supported for loading a "
                               "tensor of pointers or loading a scalar: use mask and other")


@builtin
def load(pointer: tensor, mask: Any = None, other: Any = None, boundary_check: Any = (),
         padding_option: str = "", cache_modifier: str = "", eviction_policy: str = "",
         volatile: bool = False, *, _b: KernelBuilder) -> tensor:
    """Elements at `pointer` (a scalar or tile of pointers); where `mask` is false: `other`, or zero.

    Tiles of pointers, mask and other have one shape after broadcasting."""
    if isinstance(pointer, tensor_descriptor):
        raise CompilationError("load of a descriptor: write desc.load(offsets)")
    cache, evict = sem.constant(cache_modifier, "cache_modifier"), sem.constant(eviction_policy, "eviction_policy")
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None or unwrap(other) is not None:
            raise CompilationError("load: `mask` and `other` arguments cannot be specified for loading block pointers; "
                                   "use boundary_check and padding_option")
        return load_block(_b, pointer, boundary_check, padding_option, cache=cache, evict=evict,
                          volatile=bool(unwrap(volatile)))
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
    return tensor(_b("load", *operands, cache=cache, evict=evict, volatile=bool(unwrap(volatile))))


@builtin(method=True)
def store(pointer: tensor, value: Any, mask: Any = None, boundary_check: Any = (),
          cache_modifier: str = "", eviction_policy: str = "", *, _b: KernelBuilder) -> None:
    """Write `value` (cast to the element type) at `pointer` where `mask` is true."""
    cache, evict = sem.constant(cache_modifier, "cache_modifier"), sem.constant(eviction_policy, "eviction_policy")
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None:
            raise CompilationError("store: `mask` argument cannot be specified for storing to a block pointer; use "
                                   "boundary_check")
        store_block(_b, pointer, value, boundary_check, cache=cache, evict=evict)
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
    _b.op("store", *operands, cache=cache, evict=evict)


_SCOPES = ("cta", "gpu", "sys")


def _order(what: str, sem: Any, scope: Any, legal: tuple[str, ...], default: str = "acq_rel") -> dict[str, Any]:
    """The attributes of an atomic: memory order and scope; raises CompilationError for what it cannot have."""
    order, reach = constant(sem, f"{what}'s sem") or default, constant(scope, f"{what}'s scope") or "gpu"
    if order not in legal:
        raise CompilationError(f"{what} only supports {' and '.join(legal)} semantics: Memory semantic {order} not "
                               "supported")
    if reach not in _SCOPES:
        raise CompilationError(f"{what}: scope is one of {', '.join(_SCOPES)}: Memory semantic {reach} not supported")
    return {"sem": order, "scope": reach}


_ALL = ("relaxed", "acquire", "release", "acq_rel")


def _together(b: KernelBuilder, what: str, pointer: tensor, values: list[Any],
              mask: Any) -> tuple[tensor, list[tensor]]:
    """Pointer, values in its element type and the mask, at one shape."""
    elem = pointer_elem(pointer, what).elem
    made = [semantics.cast(b, to_tensor(b, v), elem) for v in values]
    shape = pointer.shape
    for name, x in (("Value", made), ("Mask", [mask] if isinstance(mask, tensor) else [])):
        if not shape and any(t.shape for t in x):
            raise CompilationError(f"{what}: {name} argument cannot be block type if pointer argument is not a block")
    for t in (*made, *([mask] if isinstance(mask, tensor) else [])):
        shape = semantics.broadcast_shape(shape, t.shape)
    made = [semantics.broadcast_to(b, t, shape) for t in (pointer, *made)]
    if unwrap(mask) is not None:
        made.append(mask_to(b, mask, shape, what))
    return made[0], made[1:]


def _atomic(kind: str):
    what = f"atomic_{kind}"

    def rmw(pointer: tensor, val: Any, mask: Any = None, sem: Any = None, scope: Any = None, *,
            _b: KernelBuilder) -> tensor:
        elem = written_elem(pointer, what).elem
        if isinstance(elem, Ptr):
            raise CompilationError(f"{what} does not support {elem}: cast the pointer to one of integers")
        if elem.bits < 16 or elem.bits == 16 and (elem.is_int() or kind != "add"):
            raise CompilationError(f"{what} does not support {elem}: use 32 or 64 bits"
                                   f"{', or fp16 and bf16' if kind == 'add' else ''}")
        if elem.is_float and kind in ("and", "or", "xor"):
            raise CompilationError(f"{what} does not support {elem}: it takes integers")
        ptr, operands = _together(_b, what, pointer, [val], mask)
        return tensor(_b("atomic_rmw", ptr.value, *(t.value for t in operands), kind=kind,
                         **_order(what, sem, scope, _ALL)))
    rmw.__name__ = what
    rmw.__doc__ = f"Atomic {kind} at `pointer` where `mask` is true; returns the old values."
    return builtin(rmw, method=True)


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg = (
    _atomic(k) for k in ("add", "max", "min", "and", "or", "xor", "xchg"))


@builtin(method=True)
def atomic_cas(pointer: tensor, cmp: Any, val: Any, sem: Any = None, scope: Any = None, *, _b: KernelBuilder) -> tensor:
    """Atomic compare and swap; returns the old values."""
    elem = written_elem(pointer, "atomic_cas").elem
    if elem.bits not in (16, 32, 64) or isinstance(elem, Ptr):
        raise CompilationError(f"atomic_cas only supports elements with width {{16, 32, 64}}, found {elem}")
    ptr, operands = _together(_b, "atomic_cas", pointer, [cmp, val], None)
    return tensor(_b("atomic_cas", ptr.value, *(t.value for t in operands), **_order("atomic_cas", sem, scope, _ALL)))


@builtin(method=True)
def atomic_load(pointer: tensor, mask: Any = None, sem: Any = None, scope: Any = None, *, _b: KernelBuilder) -> tensor:
    """Elements at `pointer`, loaded atomically where `mask` is true; sem is acquire (default) or relaxed."""
    ptr, rest = _together(_b, "atomic_load", pointer, [], mask)
    order = _order("atomic_load", sem, scope, ("acquire", "relaxed"), "acquire")
    elem = pointer_elem(pointer, "atomic_load").elem
    nothing = semantics.splat_const(_b, 0, ptr.shape, elem)
    return tensor(_b("atomic_rmw", ptr.value, nothing.value, *(t.value for t in rest), kind="load", **order))


@builtin(method=True)
def atomic_store(pointer: tensor, val: Any, mask: Any = None, sem: Any = None, scope: Any = None, *,
                 _b: KernelBuilder) -> None:
    """Write `val` at `pointer` atomically where `mask` is true; sem is release (default) or relaxed."""
    written_elem(pointer, "atomic_store")
    ptr, operands = _together(_b, "atomic_store", pointer, [val], mask)
    order = _order("atomic_store", sem, scope, ("release", "relaxed"), "release")
    _b.op("atomic_rmw", ptr.value, *(t.value for t in operands), kind="store", **order)


@builtin(method=True)
def atomic_poll(pointer: tensor, expected_value: Any, sem: Any = None, scope: Any = None, timeout_ns: Any = None, *,
                _b: KernelBuilder) -> tensor:
    """Wait until the integer at `pointer` equals `expected_value`; true if it did, false if `timeout_ns` nanoseconds
    (None: no limit) went by first. sem is acquire (default) or relaxed."""
    elem = pointer_elem(pointer, "atomic_poll").elem
    if pointer.shape:
        raise CompilationError(f"atomic_poll only supports a pointer to a scalar, found {pointer!r}")
    if not (isinstance(elem, DType) and elem.is_int() and elem.bits in (16, 32, 64)):
        raise CompilationError(f"atomic_poll only supports integer elements with width {{16, 32, 64}}, found {elem}")
    ptr, operands = _together(_b, "atomic_poll", pointer, [expected_value], None)
    limit = unwrap(timeout_ns)
    if isinstance(limit, int) and limit < 0:
        raise CompilationError(f"atomic_poll timeout_ns must be non-negative, found {limit}")
    if limit is not None:
        t = to_tensor(_b, limit)
        if t.shape or not (isinstance(t.elem, DType) and t.elem.is_int()):
            raise CompilationError(f"atomic_poll timeout_ns must be a scalar integer, found {t!r}")
        operands.append(semantics.cast(_b, t, uint64))
    found = tensor(_b("atomic_poll", ptr.value, *(t.value for t in operands),
                      **_order("atomic_poll", sem, scope, ("acquire", "relaxed"), "acquire")))
    return found if limit is not None else to_tensor(_b, True)


__all__ = ["atomic_add", "atomic_and", "atomic_cas", "atomic_load", "atomic_max", "atomic_min", "atomic_or",
           "atomic_poll", "atomic_store", "atomic_xchg", "atomic_xor", "load", "store"]
