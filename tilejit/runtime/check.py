"""`tilejit.check`: a launch in the emulator under many schedules, with the sanitizer."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tilejit.errors import LaunchError
from tilejit.runtime.arrays import HOST
from tilejit.runtime.compile import compile_kernel
from tilejit.runtime.jit import Kernel
from tilejit.runtime.launch import EmulatorEntry, host_arrays, host_memory
from tilejit.runtime.signature import common_device

if TYPE_CHECKING:
    from tilejit.emulator import Exploration, Report
    from tilejit.emulator.events import Listener


def check(kernel: Kernel, grid: Any, /, *args: Any, seeds: Iterable[int] = range(5),
          policies: Iterable[str] = ("round_robin", "random", "adversarial"), sanitize: bool = True,
          tolerance: float = 0.0, **constants: Any) -> Exploration:
    """Run `kernel[grid](*args, **constants)` in the emulator once for every policy and seed; report what they find.

    Broken rules of the asynchronous protocol (deadlock, races, early reads, wrong byte counts, ...) are findings, and
    so are results that differ between runs: bit for bit, or for floating arrays by more than the relative error
    `tolerance` (float atomics add in the order of the schedule). Arrays must be in host memory (numpy, or CPU
    tensors); each run starts from what they held, and at the end they hold the results of the first run that
    finished, as after one launch, or what they held before if none did. `sanitize=False` leaves the sanitizer out.
    The same seed repeats a run exactly: `check(..., seeds=[7], policies=["random"])`.

    `print(tilejit.check(...))` is for reading, `.check()` raises EmulatorError if there is a finding, `.groups` and
    `.runs` are the data. Raises LaunchError for arguments that do not fit, CompilationError as a launch does.
    """
    if not isinstance(kernel, Kernel):
        raise LaunchError(f"check needs a kernel, found {kernel!r}")
    seeds, policies = list(seeds), list(policies)
    if not seeds or not policies:
        raise LaunchError(f"{kernel.__name__}: check needs a seed and a policy, found {seeds} and {policies}")
    _, plan, flat = kernel._bound(args, constants)
    dims = kernel.grid(grid, plan, flat)
    arguments = {n: flat[i] for n, i in plan.at.items() if n not in kernel.constexprs}
    if common_device(arguments) not in (HOST, None):
        raise LaunchError(f"{kernel.__name__}: check runs on the CPU and needs host arrays, these are on a GPU")
    compiled = compile_kernel(kernel.source, kernel.describe(plan, flat), kernel.options(plan, flat))
    entry = EmulatorEntry(compiled, plan.at, flat)

    from tilejit.emulator import Sanitizer, explore

    def launch(policy: str, seed: int, listener: Listener | None) -> Report:
        return entry.run(dims, flat, policy=policy, seed=seed, listener=listener)

    return explore(f"{compiled.name}[{', '.join(map(str, dims))}]", launch, host_memory(flat), host_arrays(arguments),
                   policies, seeds, Sanitizer if sanitize else None, tolerance)
