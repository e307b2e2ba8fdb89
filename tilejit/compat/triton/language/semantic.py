"""`triton.language.semantic`: tilejit does not divide the language so; every name is found here."""
from __future__ import annotations

from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_")})


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)
