"""Sorting along the last axis by bitonic networks (Batcher, 'Sorting networks and their applications', 1968)."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError, StaticAssertionError
from tilejit.language import semantics as sem
from tilejit.language.reductions import max as largest
from tilejit.language.reductions import min as smallest
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.shape import reshape
from tilejit.language.tensor import KernelBuilder, builtin, tensor

#: Elements of which the best are found at once, where there are very many.
_LINE = 2048


def _last(x: tensor, dim: Any, what: str) -> int:
    rank, at = len(x.shape), sem.constant(dim, f"{what}'s dim")
    if not rank:
        raise CompilationError(f"{what}: expected a tile, found a scalar")
    if at is not None and at not in (rank - 1, -1):
        raise CompilationError(f"{what}: only minor dimension is currently supported: dim must be {rank - 1} or None, "
                               f"found {at}")
    sem.whole_powers(x, what)
    return x.shape[-1]


def _runs(b: KernelBuilder, x: tensor, run: int, falling: bool | None, bitonic: bool = True) -> tensor:
    return tensor(b("sort_runs", x.value, axis=len(x.shape) - 1, run=run, falling=falling, bitonic=bitonic))


def _sorted(b: KernelBuilder, x: tensor, k: int, descending: bool) -> tensor:
    n = x.shape[-1]
    log_n, log_k = n.bit_length() - 1, k.bit_length() - 1
    if 2 * k <= _LINE <= n // 16:  # the best of each line first: no more than one line is held at a time
        lines = reshape(x, (*x.shape[:-1], n // _LINE, _LINE), _b=b)
        best = _sorted(b, lines, k, descending)
        return _sorted(b, reshape(best, (*x.shape[:-1], n // _LINE * k), _b=b), k, descending)
    if k == 1 and n > 1:
        return (largest if descending else smallest)(x, -1, keep_dims=True, _b=b)
    x = _runs(b, x, k, None if k < n else descending, bitonic=False)
    for stage in range(log_k + 1, log_n + 1):
        # of two runs of k, one rising and one falling, the better of each pair make a bitonic run with the k best
        pairs = reshape(x, (*x.shape[:-1], x.shape[-1] // (2 * k), 2, k), _b=b)
        better = (largest if descending else smallest)(pairs, -2, _b=b)
        x = reshape(better, (*x.shape[:-1], x.shape[-1] // 2), _b=b)
        x = _runs(b, x, k, None if stage < log_n else descending)
    return x


@builtin(method=True)
def sort(x: tensor, dim: Any = None, descending: Any = False, *, _b: KernelBuilder) -> tensor:
    """Along the last dimension (a power of two); rising, or falling if `descending`. NaNs and equal elements of
    different bits may land anywhere."""
    x = to_tensor(_b, x)
    return _sorted(_b, x, _last(x, dim, "sort"), bool(sem.constant(descending, "sort's descending")))


@builtin(method=True)
def topk(x: tensor, k: Any, dim: Any = None, descending: Any = True, *, _b: KernelBuilder) -> tensor:
    """The k (a power of two) largest along the last dimension, falling (the smallest, rising, if not `descending`).
    Elements below 32 bits are widened as by max where k is less than the size."""
    x = to_tensor(_b, x)
    n, count = _last(x, dim, "topk"), sem.constant(k, "topk's k")
    if not isinstance(count, int) or count < 1:
        raise StaticAssertionError("topk: k must be greater than 0", notes=(f"found {count!r}",))
    if count & (count - 1):
        raise StaticAssertionError("topk: k must be a power of two", notes=(f"found {count}",))
    if count > n:
        raise StaticAssertionError("topk: k must not exceed the size of the selected dimension",
                                   notes=(f"found {count} of {n}",))
    return _sorted(_b, x, count, bool(sem.constant(descending, "topk's descending")))


@builtin
def bitonic_merge(x: tensor, dim: Any = None, descending: Any = False, *, _b: KernelBuilder) -> tensor:
    """Sorted, where every line is bitonic (a rising run beside a falling one)."""
    x = to_tensor(_b, x)
    n = _last(x, dim, "bitonic_merge")
    falling = bool(sem.constant(descending, "bitonic_merge's descending"))
    return _runs(_b, x, n, falling)


@builtin(method=True)
def flip(x: tensor, dim: Any = None, *, _b: KernelBuilder) -> tensor:
    """In reverse order along `dim` (default: the last)."""
    x = to_tensor(_b, x)
    rank = len(x.shape)
    at = rank - 1 if unwrap(dim) is None else sem.constant(dim, "flip's dim")
    if not isinstance(at, int) or not -rank <= at < rank:
        raise CompilationError(f"flip: dim must be None or in [-rank, rank), found {at} for rank {rank}")
    sem.whole_powers(x, "flip")
    at %= rank
    return tensor(_b("xor_shuffle", x.value, axis=at, mask=x.shape[at] - 1)) if x.shape[at] > 1 else x


__all__ = ["bitonic_merge", "flip", "sort", "topk"]
