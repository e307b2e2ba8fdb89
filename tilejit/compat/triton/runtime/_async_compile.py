from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, as_completed
from contextvars import ContextVar
from typing import Any

active_mode: ContextVar[AsyncCompileMode | None] = ContextVar("tilejit_triton_async", default=None)


class FutureKernel:
    def __init__(self, future: Future, finish: Callable[[Any], Any]):
        self.future, self.finish = future, finish
        self.made: Any = None

    def result(self) -> Any:
        if self.made is None:
            self.made = self.finish(self.future.result())
        return self.made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)


class AsyncCompileMode:
    """`with AsyncCompileMode(executor): kernel.warmup(...)`; its end waits for all, and raises what one raised."""

    def __init__(self, executor: Executor, *, ignore_errors: bool = False):
        self.executor, self.ignore_errors = executor, ignore_errors
        self.kernels: list[FutureKernel] = []

    def submit(self, work: Callable[[], Any], finish: Callable[[Any], Any]) -> FutureKernel:
        self.kernels.append(FutureKernel(self.executor.submit(work), finish))
        return self.kernels[-1]

    def __enter__(self) -> AsyncCompileMode:
        self.token = active_mode.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        active_mode.reset(self.token)
        for _ in as_completed([k.future for k in self.kernels]):
            pass
        for k in self.kernels:
            try:
                k.result()
            except Exception:
                if not self.ignore_errors:
                    raise
