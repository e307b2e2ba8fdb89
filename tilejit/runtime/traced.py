"""Launches while torch traces (torch.compile, torch.export): each becomes a call of a custom operator."""
from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from tilejit.errors import LaunchError
from tilejit.ir.types import DType
from tilejit.language.tensor import constexpr
from tilejit.runtime.descriptor import TensorDescriptor

_numbers = itertools.count()
#: kernels and tuners by number
targets: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_of(target: Any) -> int:
    number = next(_numbers)
    targets[number] = target
    return number


def launch(target: Any, grids: Any, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Put a launch of a kernel (or of what tunes one) into torch's graph; `grids` is flat, three numbers a grid."""
    torch = sys.modules["torch"]
    kernel = target.kernel
    kinds: list[Any] = []
    dtypes: list[Any] = []
    values: list[Any] = []
    for n, v in (*zip(kernel.names, args), *kwargs.items()):
        kinds.append(_take(n, v, n in kernel.constexprs or n in kernel.defaults, dtypes, values))
    if len(args) > len(kernel.names):
        raise LaunchError(f"{kernel.__name__}() takes {len(kernel.names)} arguments, {len(args)} were given")
    name = _operator(target.number, len(args), tuple(kwargs), tuple(kinds), tuple(dtypes))
    getattr(torch.ops.tilejit, name)(*values, grids)


def flat_grid(grid: Any, meta: Mapping[str, Any]) -> list[Any]:
    """A grid (one to three numbers, or a function of the arguments by name) as three numbers."""
    if callable(grid):
        grid = grid({**meta})
    dims = list(grid) if isinstance(grid, (tuple, list)) else [grid]
    return [*dims, *[1] * (3 - len(dims))]


def _take(n: str, v: Any, constant: bool, dtypes: list[Any], values: list[Any]) -> Any:
    """What kind of argument v is; what the graph passes of it goes to `values`, dtypes of tensors to `dtypes`."""
    torch = sys.modules["torch"]
    if isinstance(v, torch.Tensor):
        dtypes.append(str(v.dtype))
        values.append(v)
        return ("tensor",)
    if isinstance(v, TensorDescriptor):
        dtypes.append(str(v.base.dtype))
        values.append(v.base)
        values.append(list(v.shape))
        values.append(list(v.strides))
        return ("descriptor", tuple(v.block_shape), v.padding, v.round_f32_to_tf32)
    if isinstance(v, constexpr):
        v, constant = v.value, True
    if v is None or isinstance(v, (bool, str)):
        return ("constant", v)
    if isinstance(v, (int, torch.SymInt)):
        if constant:
            return ("constant", int(v))
        values.append(v)
        return ("int",)
    if isinstance(v, (float, torch.SymFloat)):
        if constant:
            return ("constant", float(v))
        values.append(v)
        return ("float",)
    if isinstance(v, DType):
        return ("dtype", v.name)
    if isinstance(v, torch.dtype):
        return ("torch", str(v))
    if hasattr(v, "number") and hasattr(v, "kernel"):
        return ("kernel", v.number)
    if isinstance(v, (tuple, list)):
        return ("tuple", tuple([_take(n, e, constant, dtypes, values) for e in v]))
    raise LaunchError(f"argument {n!r}: a {type(v).__name__} cannot be an argument of a kernel in compiled code")


def _operator(number: int, count: int, keywords: tuple, kinds: tuple, dtypes: tuple) -> str:
    from tilejit.runtime.torch_ops import kernel_operator

    return kernel_operator(number, count, keywords, kinds, dtypes)


# What torch._dynamo.assume_constant_result sets: the tracer calls the function and takes its result for a constant.
_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]
