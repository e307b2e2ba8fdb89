from __future__ import annotations

import re
from typing import Any

from tilejit.errors import CompilationError
from tilejit.language import semantics as sem
from tilejit.language.extra import libdevice
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, builtin, tensor

extern = builtin


@builtin
def extern_elementwise(lib_name: str, lib_path: str, args: Any, arg_type_symbol_dict: Any, is_pure: bool = True, *,
                       _b: KernelBuilder) -> tensor:
    """The function whose symbol the table has for the arguments' types, to one of which others are promoted."""
    xs = sem.broadcast(_b, *(to_tensor(_b, a) for a in args))
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
    """Of libdevice, behind `__nv_powf` and the like: names end with f for fp32, begin with ll for int64."""
    name = symbol.removeprefix("__nv_")
    for text in (name, re.sub("f$", "", name), re.sub("^(f|ll|u|ul)", "", name), re.sub("^f|f$", "", name)):
        if symbol.startswith("__nv_") and hasattr(libdevice, text):
            return getattr(libdevice, text)
    raise CompilationError(f"extern_elementwise: {symbol}: bitcode cannot be linked to what tilejit compiles; of "
                           "libdevice (__nv_...) it has the functions of tl.extra.libdevice")


__all__ = ["extern", "extern_elementwise"]
