"""Casts and choices, element by element.

Inline PTX, element by element.
"""
from __future__ import annotations

import warnings
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, int1
from tilejit.language import debug
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin(method=True)
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False, *,
         _b: KernelBuilder) -> tensor:
    """Convert to `dtype`; with `bitcast`, reinterpret the bits."""
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
    """x where condition else y, element by element. A condition that is not int1 is compared with 0, with a warning, as
    in Triton."""
    if isinstance(condition, tensor) and condition.elem != int1:
        warnings.warn(f"tl.where with a non-boolean condition is deprecated. Got {condition.elem}", stacklevel=2)
    c = sem.to_bool(_b, condition)
    tx, ty = sem.common(_b, x, y)
    c, tx, ty = sem.broadcast(_b, c, tx, ty)
    return tensor(_b("select", c.value, tx.value, ty.value))


@builtin(method=True)
def logical_and(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Whether both are true (not zero), element by element."""
    return sem.binary(_b, "&", sem.to_bool(_b, x), sem.to_bool(_b, y))


@builtin(method=True)
def logical_or(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Whether one at least is true (not zero), element by element."""
    return sem.binary(_b, "|", sem.to_bool(_b, x), sem.to_bool(_b, y))


def _arithmetic(name: str, symbol: str):
    def fn(x: Any, y: Any, sanitize_overflow: bool = True, *, _b: KernelBuilder) -> tensor:
        return (debug.checked if unwrap(sanitize_overflow) else sem.binary)(_b, symbol, to_tensor(_b, x), y)
    fn.__name__, fn.__doc__ = name, f"x {symbol} y; without `sanitize_overflow` integers may wrap under debug=True too."
    return builtin(fn)


add, sub, mul = (_arithmetic(n, s) for n, s in (("add", "+"), ("sub", "-"), ("mul", "*")))


@builtin
def inline_asm_elementwise(asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int, *,
                           _b: KernelBuilder) -> Any:
    """PTX of the author's for every `pack` elements of `args`, which are broadcast to one shape.

    Returns a tensor of `dtype`, or one of each where that is a tuple.

    `asm` names registers $0, $1, ..: those of the results, then those of the arguments, each with a constraint (LLVM's
    for PTX: "=r,=r,r,l,f,h,d"). Elements below 32 bits share registers of 32, as many as `pack` allows. `is_pure`: it
    does nothing but compute its results, which depend on the arguments alone."""
    many = isinstance(unwrap(dtype), (tuple, list))
    types = [sem.as_dtype(t) for t in (unwrap(dtype) if many else (dtype,))]
    if not types:
        raise CompilationError("inline_asm_elementwise: at least one dtype expected: return a dummy if need be")
    for t in types:
        if not isinstance(t, DType):
            raise CompilationError(f"inline_asm_elementwise: a result of {t}: use tl.uint64 and cast")
    count = sem.constant(pack, "inline_asm_elementwise's pack")
    if not isinstance(count, int) or count < 1 or count & (count - 1):
        raise CompilationError(f"inline_asm_elementwise: pack must be a power of two, found {count!r}")
    xs = [to_tensor(_b, a) for a in unwrap(args)]
    xs = sem.broadcast(_b, *xs) if xs else []
    name = "inline_asm" if unwrap(is_pure) else "inline_asm_effect"
    op = _b.op(name, *(x.value for x in xs), asm=sem.constant(asm, "the assembly"), pack=count,
               constraints=sem.constant(constraints, "the constraints"), dtypes=tuple(types))
    out = tuple(tensor(r) for r in op.results)
    return out if many else out[0]


__all__ = ["add", "cast", "inline_asm_elementwise", "logical_and", "logical_or", "mul", "sub", "to", "where"]
