"""Programs that mark what they measure run; measuring is left to other tools."""
from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def start(name: str | None = None, **options: Any) -> int:
    warnings.warn("tilejit does not write Proton's profiles: use nsys or ncu (TILEJIT_NVTX=1 names launches), or "
                  "tilejit's own `benchmark`", stacklevel=2)
    return 0


def activate(session: int | None = None) -> None:
    """Nothing is measured."""


def deactivate(session: int | None = None) -> None:
    """Nothing is measured."""


def finalize(session: int | None = None, output_format: str = "hatchet") -> None:
    """Nothing was measured."""


@contextmanager
def scope(name: str = "", metrics: dict[str, Any] | None = None) -> Iterator[None]:
    yield


cpu_timed_scope = state = scope
