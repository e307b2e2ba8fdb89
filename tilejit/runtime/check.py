"""`tilejit.check`: a launch in the emulator under many schedules, with the sanitizer."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tilejit.errors import LaunchError
from tilejit.runtime.emulated import emulated
from tilejit.runtime.jit import Kernel
from tilejit.runtime.launch import host_arrays, host_memory

if TYPE_CHECKING:
    from tilejit.emulator import Exploration, Report
    from tilejit.emulator.events import Listener


def check(kernel: Kernel, grid: Any, /, *args: Any, seeds: Iterable[int] = range(5),
          policies: Iterable[str] = ("round_robin", "random", "adversarial"), sanitize: bool = True,
          tolerance: float = 0.0, **constants: Any) -> Exploration:
    """Run `kernel[grid](*args, **constants)` in the emulator for every policy and seed; report what they find.

    Findings are broken rules of the asynchronous protocol (deadlock, races, early reads, wrong byte counts, ...) and
    results that differ between runs: bit for bit, or for floating arrays by more than the relative error `tolerance`
    (float atomics add in the order of the schedule). Arrays must be in host memory (numpy, or CPU tensors); each run
    starts from what they held (but for what a kernel reaches by addresses in them), and at the end they hold the
    results of the first run that finished, if any. `sanitize=False` leaves the sanitizer out. One seed and policy
    repeat a run exactly ("round_robin" has one seed).

    The result prints; its `.check()` raises EmulatorError if there is a finding, `.groups` and `.runs` are the data.
    Raises LaunchError for arguments that do not fit, CompilationError as a launch does.
    """
    seeds, policies = list(seeds), list(policies)
    if not seeds or not policies:
        raise LaunchError(f"check needs a seed and a policy, found {seeds} and {policies}")
    call = emulated("check", kernel, grid, args, constants)

    from tilejit.emulator import Sanitizer, explore

    def launch(policy: str, seed: int, listener: Listener | None) -> Report:
        return call.entry.run(call.grid, call.flat, policy=policy, seed=seed, listener=listener)

    return explore(f"{kernel.__name__}[{', '.join(map(str, call.grid))}]", launch, host_memory(call.flat),
                   host_arrays(call.arguments), policies, seeds, Sanitizer if sanitize else None, tolerance)
