"""What every test of the library's kernels gets: choices that are made anew, as tests change what they depend on."""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

from tilejit import kernels


def forget() -> None:
    """Empty every cache of the library's modules."""
    for module in pkgutil.iter_modules(kernels.__path__):
        for value in vars(importlib.import_module(f"tilejit.kernels.{module.name}")).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture(autouse=True)
def choices() -> Iterator[None]:
    """Before and after: a test may leave its own choices behind, and must not find others'."""
    forget()
    yield
    forget()
