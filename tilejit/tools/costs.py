"""What autotuning needs of the machine: the cost of a call, errors of one configuration only, contents of arrays."""
from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from tilejit.errors import LaunchError
from tilejit.runtime.arrays import DeviceArray, is_torch, numpy_dtype
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.driver import STICKY, DriverError
from tilejit.runtime.emulated import emulated
from tilejit.runtime.jit import Kernel
from tilejit.runtime.target import default_target

#: runs (kernel, grid, positional arguments, keyword arguments)
Run = Callable[[Kernel, Any, tuple, dict[str, Any]], Any]
#: CTAs of a launch whose clocks are followed in the emulator, and the multiprocessors that they would run on.
FOLLOWED, MULTIPROCESSORS = 4, 132


def launch(kernel: Kernel, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """The kernel's own launch."""
    kernel._launch(grid, *args, **kwargs)


def cost(call: Callable[..., Any]) -> float:
    """The cost here of `call`, which launches when it is called, or runs what it launches in another way if given one.

    On a GPU the median milliseconds of `tilejit.testing.do_bench`; in the emulator clocks of a model (`clocks`); in the
    evaluator 0 for everything that runs."""
    target = default_target()
    if target == "emulator":
        return float(call(clocks))
    if target == "evaluator":
        call()
        return 0.0
    if importlib.util.find_spec("torch") is None:
        raise LaunchError("autotune: timing on a GPU needs torch; without it give a do_bench")
    from tilejit.testing import do_bench

    return float(do_bench(call, quantiles=(0.5, 0.2, 0.8))[0])


def unit() -> str:
    """What `cost` counts here."""
    return {"emulator": "clocks of a model", "evaluator": "not timed"}.get(default_target(), "milliseconds")


def clocks(kernel: Kernel, grid: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    """Clocks of a launch in the emulator, by the timeline's model of a multiprocessor: the longest of the first CTAs,
    times the waves in which an H200's multiprocessors, one CTA each, would run all of them. The arrays are left as they
    were. Raises EmulatorError for a launch that breaks a rule."""
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
    """Fill an array with zeros. Raises LaunchError for what is no torch tensor, numpy array or array of tilejit."""
    if is_torch(x):
        x.zero_()
    elif isinstance(x, np.ndarray):
        x[...] = np.zeros((), x.dtype)
    elif isinstance(x, DeviceArray):
        x.copy_from(np.zeros(x.shape, numpy_dtype(x.dtype)))
    elif x is not None:
        raise LaunchError(f"autotune: cannot set a {type(x).__name__} to zero; give a pre_hook that does")


class Saved:
    """Contents of arrays, to be put back once."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def keep(self, arrays: Mapping[str, Any]) -> None:
        """Remember what the arrays hold now. Raises LaunchError for what cannot be copied."""
        self.kept = [(x, _copy(name, x)) for name, x in arrays.items() if x is not None]

    def restore(self) -> None:
        """Put back what was remembered."""
        for x, old in self.kept:
            if is_torch(x):
                x.copy_(old)
            elif isinstance(x, DeviceArray):
                x.copy_from(old)
            else:
                x[...] = old
        self.kept = []


def _copy(name: str, x: Any) -> Any:
    if is_torch(x):
        return x.clone()
    if isinstance(x, DeviceArray):
        return x.numpy()
    if isinstance(x, np.ndarray):
        return x.copy()
    raise LaunchError(f"autotune: cannot restore argument {name!r}, a {type(x).__name__}; give hooks that do")
