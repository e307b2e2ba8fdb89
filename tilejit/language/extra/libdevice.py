"""Functions of CUDA's math library by its names, in fp32 and fp64, and single instructions on integers and bits."""
from __future__ import annotations

import math as host
from collections.abc import Callable
from functools import reduce
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, Ptr, fp32, fp64, int32, int64, uint32, uint64
from tilejit.language import elementary as el
from tilejit.language import math
from tilejit.language import semantics as sem
from tilejit.language.extra import bessel
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, builtin, tensor
from tilejit.language.terms import Term

_PUBLIC: dict[str, Any] = {}
_CLASS = {32: "r", 64: "l", 16: "h"}


def _public(name: str, doc: str) -> Callable[[Callable[..., Any]], Any]:
    def register(fn: Callable[..., Term]) -> Any:
        def call(*args: Any, _b: KernelBuilder) -> tensor:
            return fn(*(Term(_b, a) for a in args)).tensor
        call.__name__, call.__qualname__, call.__doc__, call.__module__ = name, name, doc, __name__
        _PUBLIC[name] = made = builtin(call)
        return made
    return register


def _constraint(t: DType) -> str:
    return {fp32: "f", fp64: "d"}.get(t) or _CLASS[t.bits]


def _instruction(name: str, text: str, types: dict[DType, str], out: DType | None = None, count: int = 1) -> None:
    def call(*args: Any, _b: KernelBuilder) -> tensor:
        if len(args) != count:
            raise CompilationError(f"{name} takes {count} arguments, found {len(args)}")
        xs = _as_one_of(_b, name, args, tuple(types))
        t = xs[0].elem
        assert isinstance(t, DType)
        result = out or t
        given = ", ".join(f"${i}" for i in range(count + 1))
        places = ",".join(["=" + _constraint(result), *[_constraint(t)] * count])
        return tensor(_b("inline_asm", *(x.value for x in xs), asm=f"{text.format(types[t])} {given};", pack=1,
                         constraints=places, dtypes=(result,)))
    call.__name__, call.__qualname__, call.__module__ = name, name, __name__
    call.__doc__ = f"One instruction: {text.format('/'.join(types.values()))}."
    _PUBLIC[name] = builtin(call)


def _as_one_of(b: KernelBuilder, name: str, args: tuple, legal: tuple[DType, ...]) -> list[tensor]:
    typed = [to_tensor(b, a) for a in args if isinstance(sem.unwrap(a), tensor)]
    like = _promoted([t.elem for t in typed] or [legal[0]])
    if like not in legal:
        raise CompilationError(f"{name}: expected arguments of one of {', '.join(map(str, legal))}, found "
                               f"{', '.join(str(to_tensor(b, a).elem) for a in args)}")
    made = [sem.cast(b, to_tensor(b, a), like) if isinstance(sem.unwrap(a), tensor) else to_tensor(b, a, like)
            for a in args]
    return sem.broadcast(b, *made)


def _promoted(types: list[Any]) -> Any:
    """The type that arguments of different types are brought to; of pointers among them none."""
    return reduce(lambda a, c: a if a == c or isinstance(a, Ptr) else c if isinstance(c, Ptr) else
                  sem.promote(a, False, c, False), types)


_FLOATS = {fp32: "f32", fp64: "f64"}
_ROUNDINGS = ("rn", "rz", "rd", "ru")
_PTX = {"rn": "rn", "rz": "rz", "rd": "rm", "ru": "rp"}

for _r in _ROUNDINGS:
    _p = _PTX[_r]
    for _name in ("add", "sub", "mul", "div"):
        _instruction(f"{_name}_{_r}", f"{_name}.{_p}.{{}}", _FLOATS, count=2)
    _instruction(f"fma_{_r}", f"fma.{_p}.{{}}", _FLOATS, count=3)
    _instruction(f"rcp_{_r}", f"rcp.{_p}.{{}}", _FLOATS)
    _instruction(f"sqrt_{_r}", f"sqrt.{_p}.{{}}", _FLOATS)
    _instruction(f"double2float_{_r}", f"cvt.{_p}.f32.{{}}", {fp64: "f64"}, fp32)
    for _f, _t, _short in ((fp64, "f64", "double"), (fp32, "f32", "float")):
        for _to, _o, _x in ((int32, "s32", "int"), (uint32, "u32", "uint"), (int64, "s64", "ll"),
                            (uint64, "u64", "ull")):
            _instruction(f"{_short}2{_x}_{_r}", f"cvt.{_p}i.{_o}.{{}}", {_f: _t}, _to)
            if _short == "float" or _to.bits == 64 or _r == "rn":
                _exact = _short == "double" and _to.bits == 32
                _instruction(f"{_x}2{_short}_{_r}", f"cvt.{'rn' if _exact else _p}.{_t}.{{}}", {_to: _o}, _f)

_instruction("popc", "popc.{}", {int32: "b32", uint32: "b32", int64: "b64", uint64: "b64"}, int32)
_instruction("clz", "clz.{}", {int32: "b32", uint32: "b32", int64: "b64", uint64: "b64"}, int32)
_instruction("brev", "brev.{}", {int32: "b32", uint32: "b32", int64: "b64", uint64: "b64"})
_instruction("byte_perm", "prmt.{}", {int32: "b32", uint32: "b32"}, count=3)
_instruction("sad", "sad.{}", {int32: "s32", uint32: "u32"}, count=3)
_instruction("saturatef", "cvt.sat.{0}.{0}", {fp32: "f32"})
_instruction("fast_dividef", "div.approx.{}", {fp32: "f32"}, count=2)
_instruction("fast_sinf", "sin.approx.{}", {fp32: "f32"})
_instruction("fast_cosf", "cos.approx.{}", {fp32: "f32"})
_instruction("fast_log2f", "lg2.approx.{}", {fp32: "f32"})
for _name, _mode in (("trunc", "rzi"), ("rint", "rni"), ("nearbyint", "rni"), ("floor", "rmi"), ("ceil", "rpi")):
    _instruction(_name, f"cvt.{_mode}.{{0}}.{{0}}", _FLOATS)
_instruction("llrint", "cvt.rni.s64.{}", _FLOATS, int64)
for _name, _from, _to in (("int_as_float", int32, fp32), ("float_as_int", fp32, int32), ("uint_as_float", uint32, fp32),
                          ("float_as_uint", fp32, uint32), ("longlong_as_double", int64, fp64),
                          ("double_as_longlong", fp64, int64)):
    _public(_name, f"The bits of {_from} as {_to}.")(lambda x, to=_to, of=_from: x.cast(of).bits(to))


# -- functions of floats: on fp64 as they are, on fp32 by way of fp64 --
def _float(name: str, *xs: Term) -> list[Term]:
    t = _promoted([x.elem for x in xs])
    if t not in (fp32, fp64):
        raise CompilationError(f"{name}: expected fp32 or fp64, found {t}: write x.to(tl.float32)")
    made = sem.broadcast(xs[0].b, *(x.cast(t).tensor for x in xs))
    return [Term(xs[0].b, m) for m in made]


def _double(name: str, fn: Callable[..., Term], doc: str) -> None:
    def run(*args: Term) -> Term:
        xs = _float(name, *args)
        return fn(*(x.cast(fp64) for x in xs)).cast(xs[0].elem)

    _public(name, doc)(run)


for _name in ("expm1", "log1p", "log10", "exp10", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh",
              "acosh", "atanh", "erfc", "erfcx", "erfcinv", "sinpi", "cospi"):
    _fn = getattr(el, _name)
    _double(_name, _fn, _fn.__doc__ or "")
for _name in ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "abs", "div_rn"):
    _PUBLIC[_name] = getattr(math, _name)
del _PUBLIC["div_rn"]
_instruction("div_rn", "div.rn.{}", _FLOATS, count=2)
_double("rsqrt_rn", lambda x: 1.0 / x.op("sqrt"), "1 / sqrt(x), correctly rounded in fp32.")
_double("cbrt", lambda x: _cbrt(x), "Cube root.")
_double("rcbrt", lambda x: 1.0 / _cbrt(x), "1 / cube root.")
_double("erfinv", lambda x: _erfinv(x), "The inverse of erf.")
_double("normcdf", lambda x: el.erfc(x * -host.sqrt(0.5)) * 0.5, "Distribution function of the standard normal.")
_double("normcdfinv", lambda p: el.erfcinv(p * 2.0) * -host.sqrt(2), "Quantiles of the standard normal distribution.")


def _cbrt(x: Term) -> Term:
    a = x.abs()
    y = el.exp2(el.log2(a) * (1 / 3))
    y = y - (y * y * y - a) / (y * y * 3.0)
    odd = x.eq(0.0) | (a.eq(float("inf"))) | el.is_nan(x)
    return odd.where(x, el.copysign(y, x))


def _erfinv(x: Term) -> Term:
    a = x.abs()
    y = el.erfcinv(1.0 - a)
    # near 0, where 1 - a loses what a has: the series' first terms, then a step of Newton's method on erf
    root = host.sqrt(host.pi) / 2
    near = a * root * (1.0 + (a * a) * (root * root / 3))
    for _ in range(3):
        near = near - (el.erf(near) - a) * root * el.exp(near * near)
    return el.copysign((a < 0.5).where(near, y), x)


def _length(*xs: Term) -> Term:
    most = xs[0].abs()
    for x in xs[1:]:
        most = most.op("maximum", x.abs())
    scale = (most.eq(0.0) | most.eq(float("inf"))).where(1.0, most)
    parts = [x / scale for x in xs]
    total = parts[0] * parts[0]
    for p in parts[1:]:
        total = p.fma(p, total)
    value = total.op("sqrt") * scale
    return most.eq(float("inf")).where(most, value)


for _name in ("hypot", "norm3d", "norm4d"):
    _double(_name, _length, "The length of a vector: the square root of the sum of the squares.")
    _double("r" + _name, lambda *xs: 1.0 / _length(*xs), "1 / the length of a vector.")


def _pow(x: Term, y: Term) -> Term:
    """e^(y ln |x|), so within (4 + 2 |y ln x|) ulp."""
    whole, odd = el.is_whole(y), el.is_whole(y) & ~el.is_whole(y * 0.5)
    size = el.exp(y * el.log(x.abs()))
    value = ((x.bits(int64) < 0) & odd).where(-size, size)
    finite = x.abs() < float("inf")
    value = ((x < 0.0) & finite & ~whole).where(float("nan"), value)
    both = x.abs().eq(1.0) & y.abs().eq(float("inf"))
    value = (el.is_nan(x) | el.is_nan(y)).where(float("nan"), value)
    return (y.eq(0.0) | x.eq(1.0) | both).where(1.0, value)


_double("pow", _pow, _pow.__doc__ or "")
_double("fast_powf", _pow, "As pow.")
_double("fast_tanf", el.tan, "As tan.")
_double("fast_exp10f", el.exp10, "As exp10.")
_double("fast_log10f", el.log10, "As log10.")
_PUBLIC["fast_tanhf"] = math.tanh
_PUBLIC["fast_expf"], _PUBLIC["fast_logf"] = math.exp, math.log

#: Lanczos' approximation with g = 7 and nine terms (Godfrey's coefficients).
_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
            12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)


def _lanczos(z: Term) -> Term:
    total = z.const(_LANCZOS[0])
    for i, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (z + float(i))
    return total


def _gamma_right(x: Term) -> Term:
    z = x - 1.0
    t = z + 7.5
    half = el.exp(el.log(t) * ((z + 0.5) * 0.5))
    return _lanczos(z) * host.sqrt(2 * host.pi) * half * el.exp(-t) * half


def _tgamma(x: Term) -> Term:
    """Relative error below 1e-13."""
    left = x < 0.5
    right = _gamma_right(left.where(1.0 - x, x))
    value = left.where(host.pi / (el.sinpi(x) * right), right)
    value = ((x < 0.0) & el.is_whole(x)).where(float("nan"), value)
    value = x.eq(0.0).where(el.copysign(x.const(float("inf")), x), value)
    return (x > 171.7).where(float("inf"), value)


def _lgamma(x: Term) -> Term:
    """ln |gamma(x)|: error below 1e-14 of the larger of 1 and the result."""
    left = x < 0.5
    r = left.where(1.0 - x, x)
    z = r - 1.0
    t = z + 7.5
    right = el.log(t) * (z + 0.5) - t + el.log(_lanczos(z) * host.sqrt(2 * host.pi))
    value = left.where(el.log((host.pi / el.sinpi(x)).abs()) - right, right)
    value = (x.abs() > 1e300).where(float("inf"), value)
    return ((x <= 0.0) & el.is_whole(x)).where(float("inf"), value)


for _name in ("j0", "j1", "y0", "y1"):
    _fn = getattr(bessel, _name)
    _double(_name, _fn, _fn.__doc__ or "")
for _name in ("i0", "i1"):
    _fn = getattr(bessel, _name)
    _double(f"cyl_bessel_{_name}", _fn, _fn.__doc__ or "")


def _of_order(name: str) -> None:
    fn = getattr(bessel, name)

    def call(n: Any, x: Any, *, _b: KernelBuilder) -> tensor:
        order = sem.constant(n, f"{name}'s order")
        if not isinstance(order, int) or not -40 <= order <= 40:
            raise CompilationError(f"{name}: the order must be a whole number up to 40, found {order!r}")
        (t,) = _float(name, Term(_b, x))
        return fn(order, t.cast(fp64)).cast(t.elem).tensor
    call.__name__, call.__qualname__, call.__module__, call.__doc__ = name, name, __name__, fn.__doc__
    _PUBLIC[name] = builtin(call)


_of_order("jn")
_of_order("yn")
_double("tgamma", _tgamma, _tgamma.__doc__ or "")
_double("lgamma", _lgamma, _lgamma.__doc__ or "")
_double("fdim", lambda x, y: (x <= y).where(0.0, x - y), "The larger of x - y and 0.")
_double("round", lambda x: _round(x), "The nearest whole number, halves away from zero.")


def _round(x: Term) -> Term:
    a = x.abs()
    whole = a.op("floor")
    return el.copysign(((a - whole) >= 0.5).where(whole + 1.0, whole), x)


_public("llround", "The nearest whole number as int64, halves away from zero.")(
    lambda x: _round(_float("llround", x)[0].cast(fp64)).cast(int64))
_double("remainder", lambda x, y: (-el.rint(x / y)).fma(y, x),
        "x - n y with n = x / y rounded to even; exact while n is below 2^53.")


@_public("fmod", "The remainder of x / y with the sign of x.")
def _fmod(x: Term, y: Term) -> Term:
    a, b = _float("fmod", x, y)
    return a.op("fmod", b)


@_public("fma", "x y + z, rounded once.")
def _fma(x: Term, y: Term, z: Term) -> Term:
    a, b, c = _float("fma", x, y, z)
    return a.fma(b, c)


# -- bits of floats --
def _bits(name: str, x: Term) -> tuple[Term, DType, int, int]:
    (x,) = _float(name, x)
    wide = x.elem == fp64
    t = int64 if wide else int32
    return x.bits(t), t, 52 if wide else 23, 1023 if wide else 127


def _finite(x: Term) -> Term:
    return x.abs() < float("inf")


for _name in ("isinf", "isnan", "finitef", "isfinited", "signbit"):
    _test = {"isinf": lambda x: x.abs().eq(float("inf")), "isnan": el.is_nan, "signbit":
             lambda x: _bits("signbit", x)[0] < 0}.get(_name, _finite)
    _what = {"isinf": "infinite", "isnan": "no number", "signbit": "negative, -0 included"}.get(_name, "finite")
    _public(_name, f"Whether x is {_what} (int32).")(
        lambda x, test=_test, name=_name: test(*_float(name, x)).cast(int32))


@_public("copysign", "x with the sign of y.")
def _copysign(x: Term, y: Term) -> Term:
    a, b = _float("copysign", x, y)
    bits, t, _, _ = _bits("copysign", a)
    top = -(1 << (t.bits - 1))
    return ((bits & ~top) | (b.bits(t) & top)).bits(a.elem)


@_public("nextafter", "The next number after x on the way to y.")
def _nextafter(x: Term, y: Term) -> Term:
    a, b = _float("nextafter", x, y)
    bits, t, _, _ = _bits("nextafter", a)
    up = (b > a).where(1, bits.const(-1))
    step = (bits < 0).where(-up, up)
    tiny = ((b.bits(t) & (-(1 << (t.bits - 1)))) | 1).bits(a.elem)
    value = a.eq(0.0).where(tiny, (bits + step).bits(a.elem))
    return a.eq(b).where(b, (el.is_nan(a) | el.is_nan(b)).where(a + b, value))


@_public("ldexp", "x 2^n for an integer n.")
def _ldexp(x: Term, n: Term) -> Term:
    (a,) = _float("ldexp", x)
    k = n.cast(int32).cast(int64).op("minimum", 4000).op("maximum", -4000)
    a64, quarter = a.cast(fp64), k >> 2
    value = el.times_power(el.times_power(a64, quarter * 2), k - quarter * 2)
    return value.cast(a.elem)


_PUBLIC["scalbn"] = _PUBLIC["ldexp"]


def _exponent(name: str, x: Term) -> Term:
    """floor(log2 |x|) as fp64."""
    (a,) = _float(name, x)
    wide = a.cast(fp64).abs()
    small = wide < 2.0 ** -1022
    bits = small.where(wide * 2.0 ** 54, wide).bits(int64)
    return ((bits >> 52) - 1023).cast(fp64) - small.where(wide.const(54.0), wide.const(0.0))


@_public("ilogb", "floor(log2 |x|) as int32; INT_MIN for 0 and NaN, INT_MAX for infinities.")
def _ilogb(x: Term) -> Term:
    e = _exponent("ilogb", x).cast(int32)
    e = x.abs().eq(float("inf")).where(2 ** 31 - 1, e)
    return (x.eq(0.0) | el.is_nan(x)).where(-2 ** 31, e)


@_public("logb", "floor(log2 |x|) in the type of x.")
def _logb(x: Term) -> Term:
    e = _exponent("logb", x).cast(x.elem)
    e = x.eq(0.0).where(float("-inf"), x.abs().eq(float("inf")).where(float("inf"), e))
    return el.is_nan(x).where(x, e)


_public("double2hiint", "The upper 32 bits of a double.")(lambda x: (x.cast(fp64).bits(int64) >> 32).cast(int32))
_public("double2loint", "The lower 32 bits of a double.")(lambda x: x.cast(fp64).bits(int64).cast(int32))
_public("hiloint2double", "The double with these upper and lower 32 bits.")(
    lambda hi, lo: ((hi.cast(int64) << 32) | lo.cast(int32).bits(uint32).cast(int64)).bits(fp64))
_public("rcp64h", "1 / x of a double, of which the upper 32 bits count.")(
    lambda x: ((1.0 / x.cast(fp64)).bits(int64) & -(1 << 32)).bits(fp64))


# -- integers --
_PUBLIC["mulhi"] = math.umulhi
_public("ffs", "The place of the lowest set bit, from 1 on; 0 for 0.")(
    lambda x: x.eq(0).where(0, (32 if x.elem.bits == 32 else 64) - _clz(x & -x)))
_public("mul24", "The product of the lower 24 bits of each, 32 bits of it.")(
    lambda x, y: ((x << 8) >> 8) * ((y << 8) >> 8))
_public("hadd", "(x + y) / 2, rounded down, without overflow.")(lambda x, y: (x & y) + ((x ^ y) >> 1))
_public("rhadd", "(x + y + 1) / 2, rounded down, without overflow.")(lambda x, y: (x | y) - ((x ^ y) >> 1))


def _clz(x: Term) -> Term:
    return Term(x.b, _PUBLIC["clz"](x.tensor, _b=x.b))


globals().update(_PUBLIC)
__all__ = sorted(_PUBLIC)
