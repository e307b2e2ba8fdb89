"""Kept, not called: descriptors made on the device need no memory from the host."""
from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class NullAllocator:
    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        raise RuntimeError("no allocator was set: call triton.set_allocator")


_NONE = NullAllocator()
_allocator: ContextVar[Callable[..., Any]] = ContextVar("_allocator", default=_NONE)
set_allocator = _allocator.set
