from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir import Block
from tilejit.ir.types import DType, fp32, int1, int32, uint32
from tilejit.language import semantics as sem
from tilejit.language.creation import arange
from tilejit.language.elementwise import where
from tilejit.language.memory import mask_to
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.shape import expand_dims, reshape
from tilejit.language.tensor import KernelBuilder, builtin, tensor

#: Two lists of scalars, the running ones and the next, to one.
Combine = Callable[[list[tensor], list[tensor]], list]


def axis_of(axis: Any, rank: int, what: str) -> int:
    axis = sem.constant(axis, f"{what}'s axis")
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise CompilationError(f"{what}: axis {axis} is out of range for a tile of rank {rank}")
    return axis % rank


def region_of(b: KernelBuilder, xs: list[tensor], combine: Combine) -> Block:
    region = Block(tuple(x.elem for x in xs) * 2)
    outer, b.block, at, b.at = b.block, region, b.at, None
    try:
        args = [tensor(v) for v in region.args]
        results = combine(args[:len(xs)], args[len(xs):])
        if len(results) != len(xs):
            raise CompilationError(f"a combine function of {len(xs)} tensors must return as many values, found "
                                   f"{len(results)}")
        made = [sem.cast(b, to_tensor(b, r), x.elem) for r, x in zip(results, xs)]
        b.op("yield", *(r.value for r in made))
    finally:
        b.block, b.at = outer, at
    return region


def user_combine(b: KernelBuilder, fn: Any) -> Combine:
    def combine(left: list[tensor], right: list[tensor]) -> list:
        r = b.call(fn, [*left, *right], {})
        return list(r) if isinstance(r, (tuple, list)) else [r]

    return combine


def widened(b: KernelBuilder, x: tensor, dtype: Any) -> tensor:
    if unwrap(dtype) is not None:
        return sem.cast(b, x, sem.as_dtype(dtype))
    if isinstance(x.elem, DType) and x.elem.is_int() and x.elem.bits < 32:
        return sem.cast(b, x, int32 if x.elem.is_signed else uint32)
    return x


def fold(b: KernelBuilder, xs: list[tensor], axis: Any, combine: Combine, keep_dims: bool, what: str) -> list[tensor]:
    keep_dims = bool(unwrap(keep_dims))
    shape = xs[0].shape
    if not shape:
        raise CompilationError(f"{what}: expected a tile, found a scalar")
    if unwrap(axis) is None:
        sem.whole_powers(xs[0], what)
        xs = [reshape(x, (x.numel,), _b=b) for x in xs]
        axis = 0
        final = (1,) * len(shape)
    else:
        axis = axis_of(axis, len(shape), what)
        final = (*shape[:axis], 1, *shape[axis + 1:])
    op = b.op("reduce", *(x.value for x in xs), regions=[region_of(b, xs, combine)], axis=axis)
    out = [tensor(r) for r in op.results]
    if keep_dims:
        out = [sem.broadcast_to(b, t, final) if not t.shape else reshape(t, final, _b=b) for t in out]
    return out


@builtin(method=True)
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Reduce a tensor, or a tuple of them, with a kernel function combine_fn(left.., right..)."""
    many = isinstance(unwrap(input), (tuple, list))
    xs = [to_tensor(_b, x) for x in unwrap(input)] if many else [to_tensor(_b, input)]
    if any(x.shape != xs[0].shape for x in xs):
        raise CompilationError(f"reduce: tensors of one shape expected, found {[list(x.shape) for x in xs]}")
    out = fold(_b, xs, axis, user_combine(_b, combine_fn), keep_dims, "reduce")
    return tuple(out) if many else out[0]


@builtin(method=True)
def sum(input: tensor, axis: Any = None, keep_dims: bool = False, dtype: Any = None, *,
        _b: KernelBuilder) -> tensor:
    """Integers below 32 bits are summed in 32 bits, floats in their own type (or in `dtype`)."""
    x = widened(_b, to_tensor(_b, input), dtype)
    symbol = "^" if x.elem == int1 else "+"  # one bit, which wraps
    return fold(_b, [x], axis, lambda a, c: [sem.binary(_b, symbol, a[0], c[0])], keep_dims, "sum")[0]


@builtin(method=True)
def xor_sum(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Exclusive or along an axis."""
    x = to_tensor(_b, input)
    if not (isinstance(x.elem, DType) and x.elem.is_int()):
        raise CompilationError(f"xor_sum only supported for integers, found {x.elem}")
    return fold(_b, [x], axis, lambda a, c: [sem.binary(_b, "^", a[0], c[0])], keep_dims, "xor_sum")[0]


@builtin(method=True)
def reduce_or(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Bitwise or along an axis."""
    x = to_tensor(_b, input)
    if not (isinstance(x.elem, DType) and x.elem.is_int()):
        raise CompilationError(f"reduce_or only supported for integers, found {x.elem}")
    return fold(_b, [x], axis, lambda a, c: [sem.binary(_b, "|", a[0], c[0])], keep_dims, "reduce_or")[0]


def _extreme(name: str, symbol: str, input: tensor, axis: Any, return_indices: Any, left: Any,
             keep_dims: Any, b: KernelBuilder) -> Any:
    x = sem.from_bf16(b, to_tensor(b, input))
    if unwrap(return_indices):
        return _arg(name, symbol, x, axis, left, keep_dims, b)
    if isinstance(x.elem, DType) and x.elem.bits < 32:
        x = sem.cast(b, x, fp32 if x.elem.is_float else int32)
    return fold(b, [x], axis, lambda a, c: [tensor(b(name, a[0].value, c[0].value, nan=False))],
                keep_dims, name)[0]


def _arg(name: str, symbol: str, x: tensor, axis: Any, left: Any, keep_dims: Any, b: KernelBuilder) -> tuple:
    """Value and int32 index (in row-major order without an axis); ties go to the lowest index if `left`, a NaN loses to
    any number."""
    rank = len(x.shape)
    if unwrap(axis) is None:
        x, at = reshape(x, (x.numel,), _b=b), 0
    else:
        at = axis_of(axis, rank, name)
    index: Any = arange(0, x.shape[at], _b=b)
    for d in range(len(x.shape)):
        if d != at:
            index = expand_dims(index, d, _b=b)
    index = sem.broadcast_to(b, index, x.shape)

    def combine(a: list[tensor], c: list[tensor]) -> list:
        better = sem.binary(b, symbol, a[0], c[0])
        if isinstance(x.elem, DType) and x.elem.is_float:
            better = sem.binary(b, "|", better, sem.binary(b, "!=", c[0], c[0]))
        if unwrap(left):
            tie = sem.binary(b, "&", sem.binary(b, "==", a[0], c[0]), sem.binary(b, "<", a[1], c[1]))
            better = sem.binary(b, "|", better, tie)
        return [where(better, p, q, _b=b) for p, q in zip(a, c)]

    out = fold(b, [x, index], at, combine, keep_dims, name)
    if unwrap(axis) is None and unwrap(keep_dims):
        out = [reshape(t, (1,) * rank, _b=b) for t in out]
    return tuple(out)


@builtin(method=True)
def max(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """With its int32 index if asked; NaN loses. Elements below 32 bits are widened: floats to fp32, integers to
    int32."""
    return _extreme("maximum", ">", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def min(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Smallest element, as `max`."""
    return _extreme("minimum", "<", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def argmax(input: tensor, axis: Any = None, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the largest element along an axis."""
    return _arg("maximum", ">", input, axis, tie_break_left, keep_dims, _b)[1]


@builtin(method=True)
def argmin(input: tensor, axis: Any = None, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the smallest element along an axis."""
    return _arg("minimum", "<", input, axis, tie_break_left, keep_dims, _b)[1]


@builtin(method=True)
def histogram(input: tensor, num_bins: Any, mask: Any = None, *, _b: KernelBuilder) -> tensor:
    """int32 counts of the elements 0, 1, .. num_bins - 1 (a power of two) of an integer tile of rank 1, where `mask` is
    true; others are not counted."""
    x = to_tensor(_b, input)
    if len(x.shape) != 1:
        raise CompilationError(f"histogram only supports 1D input, found {list(x.shape)}")
    if not (isinstance(x.elem, DType) and x.elem.is_int() and x.elem.bits == 32):
        raise CompilationError(f"histogram only supports 32-bit integer input, but got {x.elem}: use .to(tl.int32)")
    (bins,) = sem.as_shape((sem.constant(num_bins, "histogram's num_bins"),))
    masks = [] if unwrap(mask) is None else [mask_to(_b, mask, x.shape, "histogram").value]
    return tensor(_b("histogram", x.value, *masks, bins=bins))


@builtin
def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1, _b: KernelBuilder) -> Any:
    """scalar_fn, a kernel function of scalars that may branch on them, applied to each element of `args`, broadcast to
    one shape; as many tensors as it returns.

    With `pack` it takes so many elements of the first argument, then of the second, .., and returns in that order.
    """
    count = sem.constant(pack, "map_elementwise's pack")
    if not args:
        raise CompilationError("map_elementwise must have at least 1 input tensor")
    if not isinstance(count, int) or count < 1 or count & (count - 1):
        raise CompilationError(f"map_elementwise: pack must be >= 1 and a power of two, found {count!r}")
    xs = sem.broadcast(_b, *(to_tensor(_b, a) for a in args))
    region = Block(tuple(x.elem for x in xs for _ in range(count)))
    outer, _b.block, at, _b.at = _b.block, region, _b.at, None
    try:
        r = _b.call(scalar_fn, [tensor(v) for v in region.args], {})
        many = isinstance(r, (tuple, list))
        made = [to_tensor(_b, v) for v in (r if many else (r,))]
        types = [t.elem for t in made[::count]]
        if any(t.shape for t in made) or [t.elem for t in made] != [t for t in types for _ in range(count)]:
            raise CompilationError(f"map_elementwise: {count} scalars of one type for each result expected, found "
                                   f"{', '.join(map(repr, made))}")
        _b.op("yield", *(t.value for t in made))
    finally:
        _b.block, _b.at = outer, at
    op = _b.op("map", *(x.value for x in xs), regions=[region], pack=count, dtypes=tuple(types))
    out = tuple(tensor(v) for v in op.results)
    return out if many else out[0]


__all__ = ["argmax", "argmin", "histogram", "map_elementwise", "max", "min", "reduce", "reduce_or", "sum", "xor_sum"]
