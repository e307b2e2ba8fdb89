"""`triton.language.extra.libdevice`: functions of CUDA's math library, as far as the language has them."""
from __future__ import annotations

import importlib
from typing import Any

from tilejit.compat.triton import _names


def __getattr__(name: str) -> Any:
    for place in ("tilejit.language.extra.libdevice", "tilejit.language.math"):
        try:
            return getattr(importlib.import_module(place), name)
        except (AttributeError, ImportError):
            continue
    return _names.find(__name__, name)
