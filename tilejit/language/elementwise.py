from __future__ import annotations

import warnings
from typing import Any

from tilejit.ir.types import int1
from tilejit.language import debug
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin(method=True)
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False, *,
         _b: KernelBuilder) -> tensor:
    """With `bitcast`, reinterpret the bits."""
    x, t = to_tensor(_b, input), sem.as_dtype(dtype)
    if unwrap(bitcast):
        return x if x.elem == t else tensor(_b("bitcast", x.value, dtype=t))
    return sem.cast(_b, x, t, unwrap(fp_downcast_rounding))


@builtin(method=True)
def to(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False, *,
       _b: KernelBuilder) -> tensor:
    """As cast."""
    return cast(input, dtype, fp_downcast_rounding, bitcast, _b=_b)


@builtin
def where(condition: Any, x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """A condition that is not int1 is compared with 0, with a warning, as in Triton."""
    if isinstance(condition, tensor) and condition.elem != int1:
        warnings.warn(f"tl.where with a non-boolean condition is deprecated. Got {condition.elem}", stacklevel=2)
    c = sem.to_bool(_b, condition)
    tx, ty = sem.common(_b, x, y)
    c, tx, ty = sem.broadcast(_b, c, tx, ty)
    return tensor(_b("select", c.value, tx.value, ty.value))


@builtin(method=True)
def logical_and(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Whether both are true (not zero)."""
    return sem.binary(_b, "&", sem.to_bool(_b, x), sem.to_bool(_b, y))


@builtin(method=True)
def logical_or(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Whether one at least is true (not zero)."""
    return sem.binary(_b, "|", sem.to_bool(_b, x), sem.to_bool(_b, y))


def _arithmetic(name: str, symbol: str, method: bool = False, reflected: bool = False):
    def fn(x: Any, y: Any, sanitize_overflow: bool = True, *, _b: KernelBuilder) -> tensor:
        left, right = (y, to_tensor(_b, x)) if reflected else (to_tensor(_b, x), y)
        return (debug.checked if unwrap(sanitize_overflow) else sem.binary)(_b, symbol, left, right)
    fn.__name__, fn.__doc__ = name, f"x {symbol} y; without `sanitize_overflow` integers may wrap under debug=True too."
    return builtin(fn, method=method)


def _unary(name: str, symbol: str) -> None:
    def fn(x: Any, *, _b: KernelBuilder) -> tensor:
        return sem.unary(_b, symbol, to_tensor(_b, x))
    fn.__name__ = name
    builtin(fn, method=True)


add, sub, mul = (_arithmetic(n, s) for n, s in (("add", "+"), ("sub", "-"), ("mul", "*")))
#: operators by Python's methods, which kernels may call: `x.__lshift__(4)`
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "and": "&", "or": "|",
              "xor": "^", "lshift": "<<", "rshift": ">>"}
for _name, _symbol in _OPERATORS.items():
    _arithmetic(f"__{_name}__", _symbol, method=True)
    _arithmetic(f"__r{_name}__", _symbol, method=True, reflected=True)
for _name, _symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _arithmetic(f"__{_name}__", _symbol, method=True)
for _name, _symbol in {"neg": "-", "invert": "~", "not": "not"}.items():
    _unary(f"__{_name}__", _symbol)

__all__ = ["add", "cast", "logical_and", "logical_or", "mul", "sub", "to", "where"]
