"""tilejit: Python functions in Triton's tile language, compiled to PTX for Hopper GPUs."""
from typing import Any

from tilejit.errors import (
    AssemblyError,
    AutotuneError,
    CompilationError,
    CudaError,
    LaunchError,
    TileJitError,
)
from tilejit.frontend.functions import constexpr_function, must_use_result
from tilejit.language.aggregates import aggregate
from tilejit.language.math import cdiv as _cdiv
from tilejit.runtime.arrays import ArrayInfo, DeviceArray, array_info, empty, empty_like, to_device, zeros
from tilejit.runtime.compile import CompiledKernel
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.driver import multiprocessors
from tilejit.runtime.jit import Kernel, kernel
from tilejit.runtime.knobs import chip, knobs
from tilejit.runtime.knobs import overrides as active_knobs
from tilejit.tools.autotune import Config, autotune
from tilejit.tools.wrapper import heuristics

__version__ = "0.1.0"
jit = kernel


def cdiv(x: int, y: int) -> int:
    """Ceiling division of integers."""
    return -(-x // y)


cdiv.in_kernel = _cdiv  # type: ignore[attr-defined]


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, (n - 1).bit_length())


def __getattr__(name: str) -> Any:
    if name == "check":
        from tilejit.runtime.check import check

        return check
    if name in ("language", "testing", "kernels", "tools"):
        import importlib

        return importlib.import_module(f"tilejit.{name}")
    if name == "hooks":
        from tilejit.runtime.hooks import HOOKS

        return HOOKS
    if name == "torch_op":
        from tilejit.frameworks.torch_op import torch_op

        return torch_op
    if name == "timeline":
        from tilejit.runtime.timeline import timeline

        return timeline
    raise AttributeError(f"module 'tilejit' has no attribute {name!r}")


__all__ = ["ArrayInfo", "AssemblyError", "AutotuneError", "CompilationError", "CompiledKernel", "Config", "CudaError",
           "DeviceArray", "Kernel", "LaunchError", "TensorDescriptor", "TileJitError", "active_knobs",
           "aggregate", "array_info", "autotune", "cdiv", "check", "chip", "constexpr_function", "empty",
           "empty_like", "heuristics", "hooks", "jit", "kernel", "knobs", "multiprocessors", "must_use_result",
           "next_power_of_2", "timeline", "to_device", "torch_op", "zeros"]
