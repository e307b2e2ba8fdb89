"""Python functions in Triton's tile language, compiled to PTX for Hopper GPUs. Names load when they are first asked
for.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.errors import (
        AssemblyError,
        AutotuneError,
        CompilationError,
        CudaError,
        LaunchError,
        TileJitError,
    )
    from tilejit.frameworks import jax_call as jax
    from tilejit.frameworks.torch_op import torch_op
    from tilejit.frontend.functions import constexpr_function, must_use_result
    from tilejit.language.aggregates import aggregate
    from tilejit.runtime.arrays import (
        ArrayInfo,
        DeviceArray,
        array_info,
        empty,
        empty_like,
        to_device,
        zeros,
        zeros_like,
    )
    from tilejit.runtime.check import check
    from tilejit.runtime.compile import CompiledKernel
    from tilejit.runtime.descriptor import TensorDescriptor
    from tilejit.runtime.driver import clusters, device_name, multiprocessors
    from tilejit.runtime.hooks import HOOKS as hooks
    from tilejit.runtime.jit import Kernel, kernel
    from tilejit.runtime.jit import kernel as jit
    from tilejit.runtime.knobs import chip, knobs
    from tilejit.runtime.knobs import overrides as active_knobs
    from tilejit.runtime.replay import replayed
    from tilejit.runtime.timeline import timeline
    from tilejit.tools.autotune import autotune
    from tilejit.tools.config import Config
    from tilejit.tools.tuned import fastest
    from tilejit.tools.wrapper import heuristics

__version__ = "0.1.0"

#: module -> the names that it gives; `a=b`: its name a is b here
_HOMES = {
    "errors": "AssemblyError AutotuneError CompilationError CudaError LaunchError TileJitError",
    "frameworks.torch_op": "torch_op",
    "frontend.functions": "constexpr_function must_use_result",
    "language.aggregates": "aggregate",
    "runtime.arrays": "ArrayInfo DeviceArray array_info empty empty_like to_device zeros zeros_like",
    "runtime.check": "check",
    "runtime.compile": "CompiledKernel",
    "runtime.descriptor": "TensorDescriptor",
    "runtime.driver": "clusters device_name multiprocessors",
    "runtime.hooks": "HOOKS=hooks",
    "runtime.jit": "Kernel kernel kernel=jit",
    "runtime.knobs": "chip knobs overrides=active_knobs",
    "runtime.replay": "replayed",
    "runtime.timeline": "timeline",
    "tools.autotune": "autotune",
    "tools.config": "Config",
    "tools.tuned": "fastest",
    "tools.wrapper": "heuristics",
}
_WHERE = {name.split("=")[-1]: (module, name.split("=")[0]) for module, names in _HOMES.items()
          for name in names.split()}


def cdiv(x: int, y: int) -> int:
    """Ceiling division of integers."""
    return -(-x // y)


#: what it is in a kernel's body: this function of the language
cdiv.in_kernel = "cdiv"  # type: ignore[attr-defined]


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; 0 of what is not positive, as Triton has it."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


def __getattr__(name: str) -> Any:
    if name in ("frameworks", "kernels", "language", "testing", "tools"):
        return importlib.import_module(f"tilejit.{name}")
    if name == "jax":
        return importlib.import_module("tilejit.frameworks.jax_call")
    if name not in _WHERE:
        raise AttributeError(f"module 'tilejit' has no attribute {name!r}")
    module, there = _WHERE[name]
    value = globals()[name] = getattr(importlib.import_module(f"tilejit.{module}"), there)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["ArrayInfo", "AssemblyError", "AutotuneError", "CompilationError", "CompiledKernel", "Config", "CudaError",
           "DeviceArray", "Kernel", "LaunchError", "TensorDescriptor", "TileJitError", "active_knobs", "aggregate",
           "array_info", "autotune", "cdiv", "check", "chip", "clusters", "constexpr_function", "device_name", "empty",
           "empty_like", "fastest", "heuristics", "hooks", "jax", "jit", "kernel", "knobs", "multiprocessors",
           "must_use_result", "next_power_of_2", "replayed", "timeline", "to_device", "torch_op", "zeros", "zeros_like"]
