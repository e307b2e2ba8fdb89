"""Every name of the language is found here."""
from __future__ import annotations

from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names
from tilejit.compat.triton.language._extern import extern, extern_elementwise
from tilejit.frontend.functions import constexpr_function
from tilejit.ir.types import DTYPES, DType
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import Compound as base_value

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_")})


@constexpr_function
def get_int_dtype(bitwidth: int, signed: bool) -> DType:
    name = "int1" if bitwidth == 1 else f"{'' if signed else 'u'}int{bitwidth}"
    if name not in DTYPES:
        raise ValueError(f"Unsupported bitwidth {bitwidth} and signedness {signed}")
    return DTYPES[name]


def is_builtin(fn: Any) -> bool:
    return bool(getattr(fn, "is_builtin", False))


def _unwrap_if_constexpr(o: Any, *, _b: Any = None) -> Any:
    if isinstance(o, (list, tuple)):
        items = [_unwrap_if_constexpr(x) for x in o]
        return items if isinstance(o, list) else tuple(items) if type(o) is tuple else type(o)(*items)
    return unwrap(o)


_unwrap_if_constexpr.is_builtin = True  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)


__all__ = ["base_value", "extern", "extern_elementwise", "get_int_dtype", "is_builtin"]
