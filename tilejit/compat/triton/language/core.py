"""`triton.language.core`, `.standard`, `.random` and `.semantic`, which are one here: every name is found in it.

Functions of authors that call bitcode by symbol (`extern_elementwise`): those of CUDA's math library are found by their
names, others cannot be linked."""
from __future__ import annotations

import re
from typing import Any

from tilejit import language as _language
from tilejit.compat.triton import _names
from tilejit.errors import CompilationError
from tilejit.frontend.functions import constexpr_function
from tilejit.ir.types import DTYPES, DType
from tilejit.language import semantics as sem
from tilejit.language.extra import libdevice
from tilejit.language.tensor import Compound as base_value
from tilejit.language.tensor import KernelBuilder, builtin, tensor

globals().update({k: v for k, v in vars(_language).items() if not k.startswith("_")})


@constexpr_function
def get_int_dtype(bitwidth: int, signed: bool) -> DType:
    """The integer type of 1, 8, 16, 32 or 64 bits. Raises ValueError for other widths."""
    name = "int1" if bitwidth == 1 else f"{'' if signed else 'u'}int{bitwidth}"
    if name not in DTYPES:
        raise ValueError(f"Unsupported bitwidth {bitwidth} and signedness {signed}")
    return DTYPES[name]


def is_builtin(fn: Any) -> bool:
    """Whether a function belongs to the language."""
    return bool(getattr(fn, "is_builtin", False))


#: marks such a function
extern = builtin


@builtin
def extern_elementwise(lib_name: str, lib_path: str, args: Any, arg_type_symbol_dict: Any, is_pure: bool = True, *,
                       _b: KernelBuilder) -> tensor:
    """The function whose symbol the table has for the arguments' types, element by element; arguments of other types
    are promoted to one that it has."""
    xs = sem.broadcast(_b, *(sem.to_tensor(_b, a) for a in args))
    found = arg_type_symbol_dict.get(tuple(x.elem for x in xs))
    if found is None and xs:
        common = xs[0].elem
        for x in xs[1:]:
            common = sem.promote(common, False, x.elem, False)  # type: ignore[arg-type]
        xs = [sem.cast(_b, x, common) for x in xs]
        found = arg_type_symbol_dict.get((common,) * len(xs))
    if found is None:
        types = ", ".join(str(x.elem) for x in xs)
        known = "; ".join(", ".join(map(str, k)) for k in arg_type_symbol_dict)
        raise CompilationError(f"input arg type does not match: found ({types}), the function takes ({known})")
    symbol, result = found
    return sem.cast(_b, _function(symbol)(*xs, _b=_b), sem.as_dtype(result))


def _function(symbol: str) -> Any:
    """The function of libdevice behind `__nv_powf` and the like: names end with f for fp32, begin with ll for int64."""
    name = symbol.removeprefix("__nv_")
    for text in (name, re.sub("f$", "", name), re.sub("^(f|ll|u|ul)", "", name), re.sub("^f|f$", "", name)):
        if symbol.startswith("__nv_") and hasattr(libdevice, text):
            return getattr(libdevice, text)
    raise CompilationError(f"extern_elementwise: {symbol}: bitcode cannot be linked to what tilejit compiles; of "
                           "libdevice (__nv_...) it has the functions of tl.extra.libdevice")


@constexpr_function
def _log2(i: int) -> int:
    """The logarithm of a power of two; packages write their own sorts with it."""
    return i.bit_length() - 1


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)


__all__ = ["base_value", "extern", "extern_elementwise", "get_int_dtype", "is_builtin"]
