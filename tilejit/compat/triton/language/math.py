from __future__ import annotations

from typing import Any

from tilejit.compat.triton import _names
from tilejit.language import math as _math

globals().update({k: v for k, v in vars(_math).items() if not k.startswith("_")})


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name, *_names.LIBDEVICE)
