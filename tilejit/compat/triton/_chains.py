from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.runtime.hooks import HOOKS, Launch


def _runtime() -> Any:
    from tilejit.compat.triton import knobs

    return knobs.runtime


class HookChain:
    """Functions called one after another (or, `reversed`, the last first); `changed` hears of changes."""

    def __init__(self, reversed: bool = False):
        self.calls: list[Callable[..., Any]] = []
        self.reversed = reversed
        self.changed: Callable[[], None] | None = None

    def add(self, func: Callable[..., Any]) -> None:
        if func not in self.calls:
            self.calls.append(func)
        if self.changed is not None:
            self.changed()

    def remove(self, func: Callable[..., Any]) -> None:
        if func in self.calls:
            self.calls.remove(func)
        if self.changed is not None:
            self.changed()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for call in self.calls[::-1] if self.reversed else list(self.calls):
            call(*args, **kwargs)


class LazyDict:
    """What a launch hook gets: `get()` is a dictionary, whose expensive part is made when asked for."""

    def __init__(self, data: dict[str, Any]):
        self.data, self.extras = data, list[tuple[Callable[..., dict[str, Any]], tuple]]()

    def add(self, func: Callable[..., dict[str, Any]], args: tuple) -> None:
        self.extras.append((func, args))

    def get(self) -> dict[str, Any]:
        for func, args in self.extras:
            self.data = {**self.data, **func(*args)}
        self.extras.clear()
        return self.data


class LaunchHook:
    """`launch_enter_hook` or `launch_exit_hook`."""

    def __init__(self, add: Callable[[Callable[..., Any]], Any], reversed: bool = False):
        self.add, self.chain, self.following = add, HookChain(reversed), False
        self.chain.changed = self.follow

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, group: Any, owner: type | None = None) -> Any:
        return self if group is None else group.__dict__.get(self.name, self.chain)

    def __set__(self, group: Any, value: Any) -> None:
        group.__dict__[self.name] = value
        if isinstance(value, HookChain):
            value.changed = self.follow
        self.follow()

    def follow(self) -> None:
        now = _runtime().__dict__.get(self.name, self.chain)
        wanted = now is not None and bool(getattr(now, "calls", True))
        if wanted and not self.following:
            self.add(self.tell)
        elif self.following and not wanted:
            HOOKS.remove(self.tell)
        self.following = wanted

    def tell(self, launch: Launch) -> None:
        """With the kernel's name and stream, and what its `launch_metadata` says."""
        from tilejit.compat.triton.runtime.driver import driver

        stream = driver.active.get_current_stream() if launch.stream is None else launch.stream
        data = LazyDict({"name": launch.compiled.name, "function": launch.compiled, "stream": stream})
        data.add(lambda: launch.metadata, ())
        _runtime().__dict__.get(self.name, self.chain)(data)
