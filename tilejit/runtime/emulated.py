"""A call bound and compiled for the emulator without a launch: for `check` and `timeline`."""
from __future__ import annotations

from typing import Any

from tilejit.errors import LaunchError
from tilejit.records import dataclass
from tilejit.runtime.arrays import HOST
from tilejit.runtime.compile import compile_kernel
from tilejit.runtime.jit import Kernel
from tilejit.runtime.launch import EmulatorEntry, Grid
from tilejit.runtime.signature import common_device
from tilejit.runtime.tuples import Spread, leaves


@dataclass(frozen=True)
class Emulated:
    entry: EmulatorEntry
    grid: Grid
    flat: tuple
    arguments: dict[str, Any]


def emulated(what: str, kernel: Kernel, grid: Any, args: tuple, constants: dict[str, Any]) -> Emulated:
    """Bind `kernel[grid](*args, **constants)` for the function named `what`."""
    choose = getattr(kernel, "choose", None)  # autotuned, or with heuristics: the kernel's own call
    if choose is not None:
        kernel, args, constants = choose(grid, args, constants)
    if not isinstance(kernel, Kernel):
        raise LaunchError(f"{what} needs a kernel, found {kernel!r}")
    plan, flat = kernel._bound(args, constants)
    dims = kernel.grid(grid, plan, flat)
    arguments = leaves({n: flat[i] for n, i in plan.at.items() if n not in kernel.constexprs})
    if common_device(arguments) not in (HOST, None):
        raise LaunchError(f"{kernel.__name__}: {what} runs on the CPU and needs host arrays, these are on a GPU")
    described = kernel.describe(plan, flat)
    compiled = compile_kernel(kernel.source, described, kernel.options(plan, flat))
    spread = Spread(described, plan.at, flat)
    flat = spread(flat)
    entry = EmulatorEntry(compiled, spread.at, flat).for_grid(dims, flat, None)
    return Emulated(entry, dims, flat, arguments)
