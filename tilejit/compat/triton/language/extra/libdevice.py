from __future__ import annotations

from typing import Any

from tilejit.compat.triton import _names


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name, *_names.LIBDEVICE)
