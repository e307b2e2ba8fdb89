"""Every name of the language is found here."""
from __future__ import annotations

from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names
from tilejit.compat.triton.language._extern import extern, extern_elementwise
from tilejit.frontend.functions import constexpr_function
from tilejit.ir.types import DTYPES, DType, Ptr
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import Compound as base_value
from tilejit.language.tensor import block_type, constexpr_type, tensor_descriptor_type, tuple_type

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_")})


@constexpr_function
def get_int_dtype(bitwidth: int, signed: bool) -> DType:
    name = "int1" if bitwidth == 1 else f"{'' if signed else 'u'}int{bitwidth}"
    if name not in DTYPES:
        raise ValueError(f"Unsupported bitwidth {bitwidth} and signedness {signed}")
    return DTYPES[name]


#: scalars by Triton's short names
_SCALARS = {t.name if t.is_floating() else t.mangle(): t for t in (
    *DTYPES.values(), _language.float8e4b8, _language.float8e5b16)} | {"u1": DTYPES["int1"], "i1": DTYPES["int1"]}


def str_to_ty(name: Any, c: Any) -> Any:
    """The type of a text of Triton's signatures: "*kfp16", "i1", "tensordesc<fp32[16, 32]>", "constexpr" (of c)."""
    if isinstance(name, tuple):
        return tuple_type([str_to_ty(x, c) for x in name], getattr(name, "_fields", None))
    if name[0] == "*":
        const = name[1] == "k"
        return Ptr(str_to_ty(name[1 + const:], c), const=const)
    if name.startswith("tensordesc"):
        elem, _, shape = name[11:-2].partition("[")
        block = block_type(str_to_ty(elem, None), tuple(map(int, shape.split(","))))
        return tensor_descriptor_type(block, *(tuple_type([DTYPES[t]] * len(block.shape)) for t in ("int32", "int64")))
    return constexpr_type(c) if name.startswith("constexpr") else _SCALARS[name]


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


__all__ = ["base_value", "extern", "extern_elementwise", "get_int_dtype", "is_builtin", "str_to_ty"]
