from __future__ import annotations

import builtins
from typing import Any

from tilejit.errors import CompilationError
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin
def multiple_of(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that the first element of each run is a multiple of `values` (per dimension)."""
    return _hint(_b, input, "divisible", values)


@builtin
def max_contiguous(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that runs of `values` elements are consecutive (per dimension)."""
    return _hint(_b, input, "contiguous", values)


@builtin
def max_constancy(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that runs of `values` elements are equal (per dimension)."""
    return _hint(_b, input, "constant", values)


def _hint(b: KernelBuilder, x: Any, what: str, values: Any) -> tensor:
    vals = tuple(unwrap(v) for v in (values if isinstance(values, (tuple, list)) else (values,)))
    t = to_tensor(b, x)
    if len(vals) != builtins.max(1, len(t.shape)):
        raise CompilationError(f"{what}: one value per dimension of {list(t.shape)} expected, found {list(vals)}")
    return tensor(b("hint", t.value, **{what: vals}))


@builtin
def promote_reuse(input: tensor, *, _b: KernelBuilder) -> tensor:
    """Promise that the shared memory behind a tile (blocks that TMA loaded for it, operands of products in it) is not
    needed from here on, and ask for its bytes to be used again, behind a barrier if nothing else separates. Returns the
    tile."""
    return tensor(_b("promote_reuse", to_tensor(_b, input).value))


@builtin
def assume(cond: Any, *, _b: KernelBuilder) -> None:
    """Promise that a scalar condition holds."""
    if isinstance(unwrap(cond), tensor):
        _b.op("assume", sem.to_bool(_b, cond).value)


@builtin
def expect_zero(x: Any, mask: Any, *, _b: KernelBuilder) -> tensor:
    """x, expected to be zero where `mask` is true; kernels compiled with debug=True check it."""
    t = to_tensor(_b, x)
    if _b.debug:  # type: ignore[attr-defined]
        clear = sem.unary(_b, "~", sem.to_bool(_b, mask))
        held = sem.binary(_b, "|", sem.binary(_b, "==", t, 0), clear)
        _b.op("device_assert", held.value, message="expect_zero: x is zero where mask is true")
    return t


@builtin
def condition(arg1: Any, disable_licm: bool = False, *, _b: KernelBuilder) -> Any:
    """`disable_licm` changes nothing."""
    return arg1


__all__ = ["assume", "condition", "expect_zero", "max_constancy", "max_contiguous", "multiple_of", "promote_reuse"]
