"""Hooks: functions called before and after every launch with what is known of it, and NVTX ranges."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tilejit.errors import LaunchError
from tilejit.records import dataclass


@dataclass(frozen=True)
class Launch:
    """One launch: grid in programs, arguments by name, and the given stream."""

    name: str
    grid: tuple[int, int, int]
    compiled: Any
    arguments: dict[str, Any]
    stream: Any = None
    make_metadata: Callable[..., Any] | None = None

    @cached_property
    def bytes(self) -> int:
        from tilejit.runtime.arrays import describe
        from tilejit.runtime.descriptor import TensorDescriptor

        found: dict[int, int] = {}
        for x in self.arguments.values():
            base = x.base if isinstance(x, TensorDescriptor) else x
            if base is None or isinstance(base, (bool, int, float, str, tuple)):
                continue
            info = describe(base)
            if info is not None:
                low, high = info.span()
                found[low] = max(found.get(low, 0), high - low)
        return sum(found.values())

    @property
    def flops(self) -> int | None:
        """Where the kernel's `launch_metadata` has `flops`, or `flops16`, ..."""
        return next((v for k, v in self.metadata.items() if k.startswith("flops")), None)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the kernel's own `launch_metadata(grid, kernel, arguments)` returns."""
        make = self.make_metadata
        return dict(make(self.grid, self.compiled.metadata, self.arguments)) if make else {}


Hook = Callable[[Launch], Any]


class Hooks:
    """The functions that launches call, and recorders. `active` is an empty list while there are none."""

    def __init__(self) -> None:
        self.entering: list[Hook] = []
        self.leaving: list[Hook] = []
        self.recorders: list[Any] = []
        self.active: list[Any] = []

    def enter(self, hook: Hook) -> Hook:
        """Call `hook(launch)` before each launch."""
        return self._add(self.entering, hook)

    def exit(self, hook: Hook) -> Hook:
        """Call `hook(launch)` after each launch was made (it may not have run)."""
        return self._add(self.leaving, hook)

    def recorder(self) -> Any:
        thread = threading.get_ident()
        return next((r for r in self.recorders if r.thread == thread), None)

    def refuse(self, why: str) -> None:
        recorder = self.recorder() if self.recorders else None
        if recorder is not None:
            recorder.refuse(why)

    def _add(self, to: list[Hook], hook: Hook) -> Hook:
        if not callable(hook):
            raise LaunchError(f"hooks: expected a function, found {hook!r}")
        to.append(hook)
        self.active.append(hook)
        return hook

    def remove(self, hook: Hook) -> None:
        """Raises LaunchError for no hook."""
        for hooks in (self.entering, self.leaving):
            if hook in hooks:
                hooks.remove(hook)
                self.active.remove(hook)
                return
        raise LaunchError(f"hooks: {hook!r} is none")


#: The hooks of this process.
HOOKS = Hooks()


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A named range in the timelines of Nsight, by torch if that is loaded, else by the package `nvtx`.

    Raises LaunchError where neither is there.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    else:
        try:
            import nvtx
        except ImportError:
            raise LaunchError("TILEJIT_NVTX needs torch with CUDA, or the package nvtx") from None
        push, pop = nvtx.push_range, nvtx.pop_range
    push(name)
    try:
        yield
    finally:
        pop()
