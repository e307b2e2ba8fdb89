from __future__ import annotations

import importlib
from typing import Any

from tilejit.language.tensor import constexpr

#: modules that are asked, in this order
_PLACES = ("tilejit", "tilejit.language", "tilejit.language.core", "tilejit.language.tensor")
#: modules with the names of CUDA's math library
LIBDEVICE = ("tilejit.language.extra.libdevice", "tilejit.language.math")
_RENAMED = {"dtype": "DType", "_aggregate": "aggregate"}

#: names that stand for what tilejit does not need to be told
_PLAIN: dict[str, Any] = {"CONSTEXPR_0": constexpr(0), "tuple": tuple, **dict.fromkeys(
    ("constexpr_function", "aggregate", "must_use_result"), lambda x: x)}


def find(module: str, name: str, *first: str) -> Any:
    """The modules `first` are asked before others. Raises AttributeError, as `module` would."""
    if not name.startswith("__"):
        wanted = _RENAMED.get(name, name)
        for place in (*first, *_PLACES):
            try:
                return getattr(importlib.import_module(place), wanted)
            except (AttributeError, ImportError):
                continue
        if name in _PLAIN:
            return _PLAIN[name]
    raise AttributeError(f"module {shown(module)!r} has no attribute {name!r} (tilejit's stand-in for Triton)")


def shown(module: str) -> str:
    return module.removeprefix("tilejit.compat.")
