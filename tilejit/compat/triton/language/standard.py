"""Also `.random` and `.semantic`: every name is found here."""
from __future__ import annotations

from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names
from tilejit.frontend.functions import ConstexprFunction

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_")})


@ConstexprFunction
def _log2(i: int) -> int:
    return i.bit_length() - 1


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)
