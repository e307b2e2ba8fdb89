from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DTYPES, DType, fp32, fp64, uint8
from tilejit.language import elementary
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor
from tilejit.language.terms import Term


def _unary(name: str, doc: str):
    def fn(x: Any, *, _b: KernelBuilder) -> tensor:
        t = to_tensor(_b, x)
        if not (isinstance(t.elem, DType) and t.elem.is_float and t.elem.bits >= 32):
            raise CompilationError(f"{name}: Expected dtype fp32 or fp64 but got {t.elem}: write "
                                   f"tl.{name}(x.to(tl.float32))")
        if t.elem == fp64 and hasattr(elementary, name):
            return getattr(elementary, name)(Term(_b, t)).tensor
        return tensor(_b(name, t.value))
    fn.__name__, fn.__qualname__, fn.__doc__ = name, name, doc
    return builtin(fn, method=True)


exp = _unary("exp", "e**x (through ex2.approx in fp32).")
exp2 = _unary("exp2", "2**x (ex2.approx in fp32).")
log = _unary("log", "Natural logarithm.")
log2 = _unary("log2", "Base-2 logarithm.")
sqrt = _unary("sqrt", "Square root (approximate; sqrt_rn rounds correctly).")
rsqrt = _unary("rsqrt", "1 / sqrt(x).")
sin = _unary("sin", "Sine.")
cos = _unary("cos", "Cosine.")
erf = _unary("erf", "Error function (absolute error below 4e-7).")
sigmoid = _unary("sigmoid", "1 / (1 + e**-x).")
floor = _unary("floor", "Round toward minus infinity.")
ceil = _unary("ceil", "Round toward plus infinity.")
tanh = _unary("tanh", "Hyperbolic tangent.")


@builtin(method=True)
def sqrt_rn(x: Any, *, _b: KernelBuilder) -> tensor:
    """Correctly rounded (fp32)."""
    return tensor(_b("sqrt", sem.cast(_b, to_tensor(_b, x), fp32).value, ieee=True))


@builtin(method=True)
def abs(x: Any, *, _b: KernelBuilder) -> tensor:
    """Absolute value."""
    t = Term(_b, x)
    if isinstance(t.elem, DType) and t.elem.is_fp8():
        return (t.bits(uint8) & 0x7F).bits(t.elem).tensor
    return t.abs().tensor


@builtin
def fma(x: Any, y: Any, z: Any, *, _b: KernelBuilder) -> tensor:
    """With one rounding."""
    a, c = sem.common(_b, x, y)
    a, d = sem.common(_b, a, z)
    a, c, d = sem.broadcast(_b, a, sem.cast(_b, c, a.elem), d)
    return tensor(_b("fma", a.value, c.value, d.value))


@builtin
def umulhi(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Of unsigned integers; the result has x's type."""
    a, c = sem.common(_b, x, y)
    of = a.elem
    if not isinstance(of, DType) or not of.is_int_signed():
        return tensor(_b("mulhi", a.value, c.value))
    bits = [_b("bitcast", v.value, dtype=DTYPES[f"u{of.name}"]) for v in (a, c)]
    return tensor(_b("bitcast", _b("mulhi", *bits), dtype=of))


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: bool = False, *, _b: KernelBuilder) -> tensor:
    """Correctly rounded if ieee_rounding."""
    a, c = sem.common(_b, x, y)
    return tensor(_b("div", a.value, c.value, ieee=bool(unwrap(ieee_rounding))))


@builtin
def div_rn(x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """Correctly rounded."""
    return fdiv(x, y, True, _b=_b)


def _is_propagating(nan: Any) -> bool:
    return unwrap(nan) in ("all", True) or getattr(unwrap(nan), "name", "") == "ALL"


@builtin
def maximum(x: Any, y: Any, propagate_nan: Any = None, *, _b: KernelBuilder) -> tensor:
    """Of bf16 in fp32 (as in Triton); a NaN loses unless propagate_nan is ALL."""
    a, c = sem.common(_b, sem.from_bf16(_b, x), sem.from_bf16(_b, y))
    return tensor(_b("maximum", a.value, c.value, nan=_is_propagating(propagate_nan)))


@builtin
def minimum(x: Any, y: Any, propagate_nan: Any = None, *, _b: KernelBuilder) -> tensor:
    """Of bf16 in fp32 (as in Triton); a NaN loses unless propagate_nan is ALL."""
    a, c = sem.common(_b, sem.from_bf16(_b, x), sem.from_bf16(_b, y))
    return tensor(_b("minimum", a.value, c.value, nan=_is_propagating(propagate_nan)))


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = None, *, _b: KernelBuilder) -> tensor:
    """x limited to [min, max], of bf16 in fp32 (as in Triton)."""
    low = maximum(x, min, propagate_nan, _b=_b)
    return minimum(low, max, propagate_nan, _b=_b)


@builtin(method=True)
def softmax(x: tensor, dim: Any = None, keep_dims: bool = False, ieee_rounding: bool = False, *,
            _b: KernelBuilder) -> tensor:
    """exp(x - max) / sum(exp(x - max)) along `dim` (default 0)."""
    from tilejit.language import reductions

    axis = 0 if unwrap(dim) is None else unwrap(dim)
    top = reductions.max(x, axis, keep_dims=True, _b=_b)
    num = exp(sem.binary(_b, "-", x, top), _b=_b)
    den = reductions.sum(num, axis, keep_dims=True, _b=_b)
    return fdiv(num, den, ieee_rounding, _b=_b)


@builtin(method=True)
def cdiv(x: Any, div: Any, *, _b: KernelBuilder) -> Any:
    """Ceiling division."""
    x, div = unwrap(x), unwrap(div)
    if isinstance(x, int) and isinstance(div, int):
        return -(-x // div)
    up = sem.binary(_b, "+", x, div - 1 if isinstance(div, int) else sem.binary(_b, "-", div, 1))
    return sem.binary(_b, "//", up, div)


@builtin
def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any, *, _b: KernelBuilder) -> tuple:
    """(i, j) of a row-major size_i x size_j grid, walked in groups of size_g rows."""
    def op(symbol: str, a: Any, c: Any) -> tensor:
        return sem.binary(_b, symbol, a, c)

    i, j = to_tensor(_b, i), to_tensor(_b, j)
    flat = op("+", op("*", i, size_j), j)
    per_group = op("*", to_tensor(_b, size_g), size_j)
    group = op("//", flat, per_group)
    first = op("*", group, size_g)
    rows = minimum(op("-", to_tensor(_b, size_i), first), size_g, _b=_b)
    rest = op("%", flat, per_group)
    return op("+", first, op("%", rest, rows)), op("//", rest, rows)


__all__ = ["abs", "cdiv", "ceil", "clamp", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma",
           "log", "log2", "maximum", "minimum", "rsqrt", "sigmoid", "sin", "softmax", "sqrt", "sqrt_rn", "swizzle2d",
           "tanh", "umulhi"]
