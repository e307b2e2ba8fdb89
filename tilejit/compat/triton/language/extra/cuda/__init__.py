from __future__ import annotations

from typing import Any

from tilejit.compat.triton import _names
from tilejit.compat.triton.language.extra import libdevice
from tilejit.language.extra import cuda

gdc = utils = cuda


def __getattr__(name: str) -> Any:
    if name in cuda.__all__:
        return getattr(cuda, name)
    return _names.find(__name__, name)


__all__ = ["gdc", "libdevice", "utils"]
