"""Kept, not called: descriptors made on the device need no memory from the host."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NullAllocator:
    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        raise RuntimeError("no allocator was set: call triton.set_allocator")


_set: list[Callable[..., Any]] = [NullAllocator()]


def set_allocator(allocator: Callable[..., Any]) -> None:
    _set[0] = allocator


def get_allocator() -> Callable[..., Any]:
    return _set[0]
