from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.language import semantics as sem
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin
def program_id(axis: int, *, _b: KernelBuilder) -> tensor:
    """Index of this program along grid axis 0, 1 or 2 (int32)."""
    axis = sem.constant(axis, "the axis of program_id")
    if axis not in (0, 1, 2):
        raise CompilationError(f"program_id axis must be 0, 1, or 2 but got {axis}")
    return tensor(_b("program_id", axis=axis))


@builtin
def num_programs(axis: int, *, _b: KernelBuilder) -> tensor:
    """Programs along grid axis 0, 1 or 2 (int32)."""
    axis = sem.constant(axis, "the axis of num_programs")
    if axis not in (0, 1, 2):
        raise CompilationError(f"num_programs axis must be 0, 1, or 2 but got {axis}")
    return tensor(_b("num_programs", axis=axis))


@builtin
def arange(start: int, end: int, *, _b: KernelBuilder) -> tensor:
    """The int32 tile [start, end); end - start is a power of two."""
    start, end = sem.constant(start, "arange's start"), sem.constant(end, "arange's end")
    if not (isinstance(start, int) and isinstance(end, int)):
        raise CompilationError(f"arange's arguments must be of type tl.constexpr, found {start!r}, {end!r}")
    if end <= start:
        raise CompilationError(f"arange: end {end} must be above start {start}")
    sem.as_shape((end - start,), "arange's range must be a power of 2")
    return tensor(_b("arange", start=start, end=end))


@builtin
def full(shape: Any, value: Any, dtype: Any, *, _b: KernelBuilder) -> tensor:
    """A tile of `shape` filled with `value`."""
    return sem.splat_const(_b, value, sem.as_shape(shape), sem.as_dtype(dtype))


@builtin
def zeros(shape: Any, dtype: Any, *, _b: KernelBuilder) -> tensor:
    """A tile of zeros."""
    return sem.splat_const(_b, 0, sem.as_shape(shape), sem.as_dtype(dtype))


@builtin
def zeros_like(input: tensor, *, _b: KernelBuilder) -> tensor:
    """Zeros of the shape and dtype of `input`."""
    return sem.splat_const(_b, 0, input.shape, input.elem)


@builtin
def to_tensor(x: Any, *, _b: KernelBuilder) -> tensor:
    """A number as a run-time scalar of its own type; a tensor as it is."""
    return sem.to_tensor(_b, x)


__all__ = ["arange", "full", "num_programs", "program_id", "to_tensor", "zeros", "zeros_like"]
