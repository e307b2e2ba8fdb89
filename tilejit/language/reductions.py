"""Reductions of tiles along an axis."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir import Block
from tilejit.ir.types import DType, fp32, int1, int32
from tilejit.language import semantics as sem
from tilejit.language.creation import arange
from tilejit.language.elementwise import where
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.shape import expand_dims, reshape
from tilejit.language.tensor import KernelBuilder, builtin, tensor


def _axis(axis: Any, rank: int, what: str) -> int:
    axis = sem.constant(axis, f"{what}'s axis")
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise CompilationError(f"{what}: axis {axis} is out of range for a tile of rank {rank}")
    return axis % rank


def fold(b: KernelBuilder, xs: list[tensor], axis: Any, combine, keep_dims: bool, what: str) -> list[tensor]:
    """Reduce tensors of one shape along an axis (None: all elements) with combine(b, left, right)."""
    keep_dims = bool(unwrap(keep_dims))
    shape = xs[0].shape
    if not shape:
        raise CompilationError(f"{what}: expected a tile, found a scalar")
    if unwrap(axis) is None:
        xs = [reshape(x, (x.numel,), _b=b) for x in xs]
        axis = 0
        final = (1,) * len(shape)
    else:
        axis = _axis(axis, len(shape), what)
        final = (*shape[:axis], 1, *shape[axis + 1:])
    region = Block(tuple(x.elem for x in xs) * 2)
    outer, b.block, at, b.at = b.block, region, b.at, None
    n = len(xs)
    try:
        args = [tensor(v) for v in region.args]
        results = combine(args[:n], args[n:])
        results = [sem.cast(b, to_tensor(b, r), x.elem) for r, x in zip(results, xs)]
        b.op("yield", *(r.value for r in results))
    finally:
        b.block, b.at = outer, at
    sem.whole_powers(xs[0], what)
    op = b.op("reduce", *(x.value for x in xs), regions=[region], axis=axis)
    out = [tensor(r) for r in op.results]
    if keep_dims:
        out = [sem.broadcast_to(b, t, final) if not t.shape else reshape(t, final, _b=b) for t in out]
    return out


@builtin(method=True)
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Reduce a tensor, or a tuple of tensors, with a kernel function combine_fn(left.., right..)."""
    many = isinstance(input, (tuple, list))
    xs = list(input) if many else [input]

    def combine(left: list[tensor], right: list[tensor]) -> list:
        r = _b.call(combine_fn, [*left, *right], {})
        return list(r) if isinstance(r, tuple) else [r]

    out = fold(_b, xs, axis, combine, keep_dims, "reduce")
    return tuple(out) if many else out[0]


@builtin(method=True)
def sum(input: tensor, axis: Any = None, keep_dims: bool = False, dtype: Any = None, *,
        _b: KernelBuilder) -> tensor:
    """Sum; integers below 32 bits are summed in 32 bits, floats in their own type (or in `dtype`)."""
    x = to_tensor(_b, input)
    if unwrap(dtype) is not None:
        x = sem.cast(_b, x, sem.as_dtype(dtype))
    elif isinstance(x.elem, DType) and x.elem.is_int and x.elem.bits < 32:
        x = sem.cast(_b, x, int32 if x.elem.is_signed or x.elem == int1 else sem.uint32)
    return fold(_b, [x], axis, lambda a, c: [sem.binary(_b, "+", a[0], c[0])], keep_dims, "sum")[0]


@builtin(method=True)
def xor_sum(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Exclusive or of all elements along an axis."""
    return fold(_b, [input], axis, lambda a, c: [sem.binary(_b, "^", a[0], c[0])], keep_dims, "xor_sum")[0]


@builtin(method=True)
def reduce_or(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Bitwise or of all elements along an axis."""
    return fold(_b, [input], axis, lambda a, c: [sem.binary(_b, "|", a[0], c[0])], keep_dims, "reduce_or")[0]


def _extreme(name: str, symbol: str, input: tensor, axis: Any, return_indices: Any, left: Any,
             keep_dims: Any, b: KernelBuilder) -> Any:
    x = to_tensor(b, input)
    if unwrap(return_indices):
        return _arg(name, symbol, x, axis, left, keep_dims, b)
    if isinstance(x.elem, DType) and x.elem.bits < 32:
        x = sem.cast(b, x, fp32 if x.elem.is_float else int32 if x.elem.is_signed else sem.uint32)
    return fold(b, [x], axis, lambda a, c: [tensor(b(name, a[0].value, c[0].value, nan=False))],
                keep_dims, name)[0]


def _arg(name: str, symbol: str, x: tensor, axis: Any, left: Any, keep_dims: Any, b: KernelBuilder) -> tuple:
    """Value and int32 index of the extreme; ties go to the lowest index if `left`."""
    if unwrap(axis) is None:
        raise CompilationError(f"{name} with indices needs an axis")
    at = _axis(axis, len(x.shape), name)
    index: Any = arange(0, x.shape[at], _b=b)
    for d in range(len(x.shape)):
        if d != at:
            index = expand_dims(index, d, _b=b)
    index = sem.broadcast_to(b, index, x.shape)

    def combine(a: list[tensor], c: list[tensor]) -> list:
        better = sem.binary(b, symbol, a[0], c[0])
        if unwrap(left):
            tie = sem.binary(b, "&", sem.binary(b, "==", a[0], c[0]), sem.binary(b, "<", a[1], c[1]))
            better = sem.binary(b, "|", better, tie)
        return [where(better, p, q, _b=b) for p, q in zip(a, c)]

    return tuple(fold(b, [x, index], at, combine, keep_dims, name))


@builtin(method=True)
def max(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Largest element along an axis (with its index if asked); NaN loses."""
    return _extreme("maximum", ">", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def min(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Smallest element along an axis (with its index if asked); NaN loses."""
    return _extreme("minimum", "<", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def argmax(input: tensor, axis: Any, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the largest element along an axis."""
    return _arg("maximum", ">", input, axis, tie_break_left, keep_dims, _b)[1]


@builtin(method=True)
def argmin(input: tensor, axis: Any, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the smallest element along an axis."""
    return _arg("minimum", "<", input, axis, tie_break_left, keep_dims, _b)[1]


__all__ = ["argmax", "argmin", "max", "min", "reduce", "reduce_or", "sum", "xor_sum"]
