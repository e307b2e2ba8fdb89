"""`triton.language.extra.cuda.libdevice`."""
from __future__ import annotations

from typing import Any

from tilejit.compat.triton.language.extra import libdevice as _libdevice


def __getattr__(name: str) -> Any:
    return getattr(_libdevice, name)
