from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from tilejit.errors import LaunchError
from tilejit.runtime import driver
from tilejit.runtime.arrays import DeviceArray, array_info, is_torch, numpy_dtype
from tilejit.runtime.compile import changed_by
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.driver import STICKY, DriverError
from tilejit.runtime.emulated import emulated
from tilejit.runtime.jit import Kernel
from tilejit.runtime.launch import host_arrays
from tilejit.runtime.signature import device_of
from tilejit.runtime.target import default_target
from tilejit.runtime.tuples import leaves

#: (kernel, grid, positional arguments, keyword arguments)
Run = Callable[[Kernel, Any, tuple, dict[str, Any]], Any]
#: CTAs whose clocks are followed in the emulator, and the multiprocessors that a launch would run on.
FOLLOWED, MULTIPROCESSORS = 4, 132


def launch(kernel: Kernel, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    kernel._launch(grid, *args, **kwargs)


def cost(call: Callable[..., Any], spend: tuple[float, float] = (25.0, 100.0)) -> float:
    """What `call`, which launches (by another way if given one), costs."""
    target = default_target()
    if target == "emulator":
        return float(call(clocks))
    if target == "evaluator":
        call()
        return 0.0
    if importlib.util.find_spec("torch") is None:
        raise LaunchError("autotune: timing on a GPU needs torch; without it give a do_bench")
    from tilejit.testing import do_bench

    return float(do_bench(call, *spend, quantiles=(0.5, 0.2, 0.8))[0])


def unit() -> str:
    return {"emulator": "clocks of a model", "evaluator": "not timed"}.get(default_target(), "milliseconds")


def clocks(kernel: Kernel, grid: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    """By the timeline's model: the longest of the first CTAs, times the waves on an H200. Arrays stay. Raises
    EmulatorError."""
    from tilejit.emulator.replay import Rates, Replay
    from tilejit.emulator.timeline import Recorder

    bound = emulated("autotune", kernel, grid, args, kwargs)
    saved = Saved()
    arrays = {name: x.base if isinstance(x, TensorDescriptor) else x for name, x in bound.arguments.items()}
    saved.keep({name: x for name, x in arrays.items() if is_torch(x) or isinstance(x, (np.ndarray, DeviceArray))})
    recorder = Recorder(FOLLOWED)
    try:
        bound.entry.run(bound.grid, bound.flat, listener=recorder).check()
    finally:
        saved.restore()
    ctas = prod(bound.grid) * prod(bound.entry.compiled.metadata.cluster)
    return max((s.end for s in Replay(recorder, Rates()).run()), default=0) * -(-ctas // MULTIPROCESSORS)


def out_of_resources(error: Exception) -> bool:
    """Whether a driver's error concerns one configuration, and the GPU goes on working after it."""
    return isinstance(error, DriverError) and error.code not in STICKY


def zero(x: Any) -> None:
    if is_torch(x):
        x.zero_()
    elif isinstance(x, np.ndarray):
        x[...] = np.zeros((), x.dtype)
    elif isinstance(x, DeviceArray):
        x.copy_from(np.zeros(x.shape, numpy_dtype(x.dtype)))
    elif x is not None:
        raise LaunchError(f"autotune: cannot set a {type(x).__name__} to zero; give a pre_hook that does")


def written_arrays(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arrays that a launch may write, by name (all, where addresses come from memory): those of descriptors are
    their bases."""
    plan, flat = kernel._bound(args, {k: v for k, v in kwargs.items() if k != "stream" or k in kernel.keys})
    named = leaves({n: flat[i] for n, i in plan.at.items() if n not in kernel.constexprs})
    found = changed_by(kernel.source, kernel.describe(plan, flat), kernel.options(plan, flat))
    bases = {n: x.base if isinstance(x, TensorDescriptor) else x for n, x in named.items() if device_of(x) is not None}
    return {n: x for n, x in bases.items() if found is None or n.replace("[", "_").replace("]", "") in found}


def host_copies(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    infos = {name: array_info(x) for name, x in arrays.items()}
    here = host_arrays({name: x for name, x in arrays.items() if not infos[name].on_gpu})
    found = {name: view.copy() for name, view in here.items()}
    for name, info in infos.items():
        if info.on_gpu:
            low, high = info.span()
            raw, device = np.empty(high - low, np.uint8), driver.device(info.device)
            device.synchronize()
            device.to_host(raw.ctypes.data, low, high - low)
            strides = tuple(s * info.dtype.bytes for s in info.strides)
            found[name] = np.ndarray(info.shape, numpy_dtype(info.dtype), raw, info.address - low, strides)
    return found


class Saved:
    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def keep(self, arrays: Mapping[str, Any]) -> None:
        self.kept = [(x, _copy(name, x)) for name, x in arrays.items() if x is not None]

    def restore(self, forget: bool = True) -> None:
        for x, old in self.kept:
            if is_torch(x):
                x.copy_(old)
            elif isinstance(x, DeviceArray):
                x.copy_from(old)
            else:
                x[...] = old
        if forget:
            self.kept = []


def _copy(name: str, x: Any) -> Any:
    if is_torch(x):
        return x.clone()
    if isinstance(x, DeviceArray):
        return x.numpy()
    if isinstance(x, np.ndarray):
        return x.copy()
    raise LaunchError(f"autotune: cannot restore argument {name!r}, a {type(x).__name__}; give hooks that do")
