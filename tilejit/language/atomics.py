from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, Ptr, uint64
from tilejit.language import semantics
from tilejit.language.memory import mask_to, pointer_elem, written_elem
from tilejit.language.semantics import constant, to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor

_SCOPES = ("cta", "gpu", "sys")


def _order(what: str, sem: Any, scope: Any, legal: tuple[str, ...], default: str = "acq_rel") -> dict[str, Any]:
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
    """sem is acquire (default) or relaxed."""
    ptr, rest = _together(_b, "atomic_load", pointer, [], mask)
    order = _order("atomic_load", sem, scope, ("acquire", "relaxed"), "acquire")
    elem = pointer_elem(pointer, "atomic_load").elem
    nothing = semantics.splat_const(_b, 0, ptr.shape, elem)
    return tensor(_b("atomic_rmw", ptr.value, nothing.value, *(t.value for t in rest), kind="load", **order))


@builtin(method=True)
def atomic_store(pointer: tensor, val: Any, mask: Any = None, sem: Any = None, scope: Any = None, *,
                 _b: KernelBuilder) -> None:
    """sem is release (default) or relaxed."""
    written_elem(pointer, "atomic_store")
    ptr, operands = _together(_b, "atomic_store", pointer, [val], mask)
    order = _order("atomic_store", sem, scope, ("release", "relaxed"), "release")
    _b.op("atomic_rmw", ptr.value, *(t.value for t in operands), kind="store", **order)


@builtin(method=True)
def atomic_poll(pointer: tensor, expected_value: Any, sem: Any = None, scope: Any = None, timeout_ns: Any = None, *,
                _b: KernelBuilder) -> tensor:
    """Wait until the integer at `pointer` equals `expected_value`; false if `timeout_ns` (None: no limit) went by
    first. sem is acquire (default) or relaxed."""
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
           "atomic_poll", "atomic_store", "atomic_xchg", "atomic_xor"]
