"""What every test of the library's kernels gets: choices that are made anew, as tests change what they depend on."""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tilejit import kernels


@cache
def caches() -> list[Any]:
    """Every function with a cache in the library's modules."""
    modules = [importlib.import_module(f"tilejit.kernels.{m.name}") for m in pkgutil.iter_modules(kernels.__path__)]
    return [value for module in modules for value in vars(module).values() if hasattr(value, "cache_clear")]


def forget() -> None:
    for function in caches():
        function.cache_clear()


@pytest.fixture(autouse=True)
def choices() -> Iterator[None]:
    """Before and after: a test may leave its own choices behind, and must not find others'."""
    forget()
    yield
    forget()
