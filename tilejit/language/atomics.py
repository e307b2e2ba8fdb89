"""Atomic read-modify-write through pointers."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.language import semantics as sem
from tilejit.language.memory import mask_to, pointer_elem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


def _atomic(kind: str):
    def rmw(pointer: tensor, val: Any, mask: Any = None, sem_: Any = None, scope: Any = None, *,
            _b: KernelBuilder, **kw: Any) -> tensor:
        elem = pointer_elem(pointer, f"atomic_{kind}").elem
        if elem.bits < 16 or (elem.bits == 16 and not elem.is_float):
            raise CompilationError(f"atomic_{kind}: {elem} is not supported; use 32 or 64 bits")
        v = sem.broadcast_to(_b, sem.cast(_b, to_tensor(_b, val), elem), pointer.shape)
        operands = [pointer.value, v.value]
        if unwrap(mask) is not None:
            operands.append(mask_to(_b, mask, pointer.shape, f"atomic_{kind}").value)
        return tensor(_b("atomic_rmw", *operands, kind=kind, sem=unwrap(kw.get("sem", sem_)) or "acq_rel",
                         scope=unwrap(scope) or "gpu"))
    rmw.__name__ = f"atomic_{kind}"
    rmw.__doc__ = f"Atomic {kind} at `pointer`; returns the old values."
    return builtin(rmw, method=True)


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg = (
    _atomic(k) for k in ("add", "max", "min", "and", "or", "xor", "xchg"))


@builtin(method=True)
def atomic_cas(pointer: tensor, cmp: Any, val: Any, sem_: Any = None, scope: Any = None, *,
               _b: KernelBuilder, **kw: Any) -> tensor:
    """Atomic compare and swap; returns the old values."""
    elem = pointer_elem(pointer, "atomic_cas").elem
    c, v = (sem.broadcast_to(_b, sem.cast(_b, to_tensor(_b, x), elem), pointer.shape) for x in (cmp, val))
    return tensor(_b("atomic_cas", pointer.value, c.value, v.value,
                     sem=unwrap(kw.get("sem", sem_)) or "acq_rel", scope=unwrap(scope) or "gpu"))


__all__ = ["atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg",
           "atomic_xor"]
