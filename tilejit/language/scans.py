from __future__ import annotations

from typing import Any

from tilejit.language import semantics as sem
from tilejit.language.reductions import axis_of, region_of, user_combine, widened
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


def scan(b: KernelBuilder, xs: list[tensor], axis: Any, combine: Any, reverse: Any, what: str) -> list[tensor]:
    sem.whole_powers(xs[0], what)
    at = axis_of(axis, len(xs[0].shape), what)
    op = b.op("scan", *(x.value for x in xs), regions=[region_of(b, xs, combine)], axis=at,
              reverse=bool(sem.constant(reverse, f"{what}'s reverse")))
    return [tensor(r) for r in op.results]


@builtin(method=True)
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: bool = False, *, _b: KernelBuilder) -> Any:
    """Inclusive, along `axis` of a tensor, or a tuple of tensors of one shape, with an associative kernel function
    combine_fn(left.., right..); from the end if `reverse`."""
    many = isinstance(unwrap(input), (tuple, list))
    xs = sem.broadcast(_b, *(to_tensor(_b, x) for x in (unwrap(input) if many else (input,))))
    out = scan(_b, xs, axis, user_combine(_b, combine_fn), reverse, "associative_scan")
    return tuple(out) if many else out[0]


@builtin(method=True)
def cumsum(input: Any, axis: Any = 0, reverse: bool = False, dtype: Any = None, *, _b: KernelBuilder) -> tensor:
    """Integers below 32 bits are summed in 32 bits and bf16 in fp32, or in `dtype`."""
    x = widened(_b, sem.from_bf16(_b, to_tensor(_b, input)), dtype)
    return scan(_b, [x], axis, lambda a, c: [sem.binary(_b, "+", a[0], c[0])], reverse, "cumsum")[0]


@builtin(method=True)
def cumprod(input: Any, axis: Any = 0, reverse: bool = False, dtype: Any = None, *, _b: KernelBuilder) -> tensor:
    """Types as in `cumsum`."""
    x = widened(_b, sem.from_bf16(_b, to_tensor(_b, input)), dtype)
    return scan(_b, [x], axis, lambda a, c: [sem.binary(_b, "*", a[0], c[0])], reverse, "cumprod")[0]


__all__ = ["associative_scan", "cumprod", "cumsum"]
