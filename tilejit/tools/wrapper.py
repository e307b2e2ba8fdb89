"""Kernels whose launches are given arguments by something else: `autotune`, `heuristics`."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tilejit.errors import LaunchError
from tilejit.runtime import arrays, traced
from tilejit.runtime.arrays import StandIn
from tilejit.runtime.compile import CompiledKernel
from tilejit.runtime.jit import OPTIONS, Kernel
from tilejit.runtime.signature import ArgumentError

#: kernel, positional arguments, keyword arguments
Call = tuple[Kernel, tuple, dict[str, Any]]


class Wrapper:
    def __init__(self, fn: Any):
        if not isinstance(fn, (Kernel, Wrapper)):
            raise ArgumentError(f"{type(self).__name__.lower()} goes above @tilejit.kernel, found {fn!r} below it")
        self.fn = fn
        self.kernel: Kernel = fn if isinstance(fn, Kernel) else fn.kernel
        self.__name__: str = fn.__name__
        self.__doc__, self.__module__ = fn.__doc__, fn.__module__
        self.names = self.arg_names = self.kernel.names
        parameters = self.kernel.source.signature.parameters.values()
        self.defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def choose(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(f"{self.__name__} is a kernel: launch it with {self.__name__}[grid](...)")

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        return partial(self._launch, grid)

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel | None:
        if arrays.tracing():
            self.traced(grid, args, kwargs)
            return None
        try:
            kernel, args, kwargs = self.choose(grid, args, kwargs)
        except StandIn:
            self.traced(grid, args, kwargs)
            return None
        return kernel._launch(grid, *args, **kwargs)

    def traced(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        raise NotImplementedError

    def meta(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        return self.warmup(*args, grid=grid, **kwargs) if warmup else self._launch(grid, *args, **kwargs)

    def bind(self, grid: Any, /, *args: Any, **kwargs: Any) -> Callable[[], None]:
        kernel, args, kwargs = self.choose(grid, args, kwargs)
        return kernel.bind(grid, *args, **kwargs)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        kernel, args, kwargs = self.choose(grid, args, kwargs)
        return kernel.warmup(*args, grid=grid, **kwargs)

    def named(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**self.defaults, **dict(zip(self.names, args)), **kwargs}


class Choices:
    """Kernels with several configurations under torch's compiler (`runtime/traced.py`): the configuration is chosen
    when the program runs, so the operator is given the grid of each."""

    fn: Any
    configs: Sequence[Any]

    def given_by(self, config: Any) -> dict[str, Any]:
        raise NotImplementedError

    def launch_for(self, grid: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        raise NotImplementedError

    def traced(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        grids: list[Any] = []
        for c in self.configs:
            grids += traced.flat_grid(grid, self.meta(args, {**kwargs, **self.given_by(c)}))
        traced.launch(self, grids, args, kwargs)

    def meta(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.fn.meta(args, kwargs)
        return found

    def launch_traced(self, grids: list[int], args: list[Any], kwargs: dict[str, Any]) -> None:
        def grid(meta: dict[str, Any]) -> tuple[int, ...]:
            number = next(i for i, c in enumerate(self.configs)
                          if all(meta.get(k) == v for k, v in self.given_by(c).items()))
            return tuple(grids[3 * number:3 * number + 3])

        self.launch_for(grid, args, kwargs)


class Heuristics(Wrapper):
    def __init__(self, fn: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]):
        super().__init__(fn)
        self.values = dict(values)
        check_names("heuristics", self.values, {*self.names, *OPTIONS})

    def choose(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
        return call_of(self.fn, grid, args, self._with(args, kwargs))

    def traced(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.fn.traced(grid, args, self._with(args, kwargs))

    def meta(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.fn.meta(args, self._with(args, kwargs))
        return found

    def _with(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        kwargs = dict(kwargs)
        for name, value in self.values.items():
            kwargs[name] = value(self.named(args, kwargs))
        return kwargs


def call_of(fn: Kernel | Wrapper, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
    return fn.choose(grid, args, kwargs) if isinstance(fn, Wrapper) else (fn, args, kwargs)


def check_names(what: str, names: Iterable[str], known: set[str]) -> None:
    wrong = [n for n in names if n not in known]
    if wrong:
        raise ArgumentError(f"{what}: {', '.join(map(repr, wrong))} is none of {', '.join(sorted(known))}")


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Compute arguments of a kernel from the others: name -> function of all arguments by name, at each launch.

    Raises ArgumentError for names that the kernel does not have.
    """
    return lambda fn: Heuristics(fn, values)
