"""Tests that compare Triton's intermediate text; here their kernels are only built."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from tilejit.frontend import build


def run_parser(kernel_fn: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None, target: Any = None) -> Any:
    plan, flat = kernel_fn._bound(args, kernel_fn._options(dict(kwargs or {})))
    return build(kernel_fn.source, kernel_fn.describe(plan, flat, typed=True), kernel_fn.options(plan, flat))


def run_filecheck_test(kernel_fn: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None,
                       target: Any = None) -> None:
    run_parser(kernel_fn, args, kwargs)


def run_filecheck(name: str, module_str: str, check_template: str) -> None:
    """Nothing: the patterns are for Triton's text."""


def filecheck_test(fn: Callable[..., Any]) -> Callable[[], None]:
    @wraps(fn)
    def built() -> None:
        run_filecheck_test(fn)

    del built.__dict__["__wrapped__"]  # its arguments are no fixtures
    return built
