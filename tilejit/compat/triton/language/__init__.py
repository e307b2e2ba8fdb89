from __future__ import annotations

from types import ModuleType
from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_") and not isinstance(v, ModuleType)})


class range(_language.range):
    """Triton's default `warp_specialize=False` asks for nothing: the scheduler decides."""

    def __init__(self, *args: Any, warp_specialize: Any = None, **options: Any):
        asked = getattr(warp_specialize, "value", warp_specialize)
        super().__init__(*args, **{**options, "warp_specialize": True if asked else None})


from tilejit.compat.triton.language import (  # noqa: E402  (these names last)
    core,
    extra,
    math,
    standard,
    target_info,
)
from tilejit.compat.triton.language.extra import libdevice  # noqa: E402

random = semantic = standard
str_to_ty = core.str_to_ty


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)


__all__ = [*getattr(_language, "__all__", ()), "core", "extra", "libdevice", "math", "random", "semantic", "standard",
           "target_info"]
