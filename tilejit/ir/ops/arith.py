"""Elementwise ops on scalars and tiles. Operands have equal types: the frontend casts and broadcasts."""
from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Op
from tilejit.ir.table import OPS, op
from tilejit.ir.types import DType, Ptr, Type, elem_of, int1, shape_of, with_elem


def same(o: Op) -> list[Type]:
    """The common type of all operands; layouts are left to the verifier."""
    first = o.operands[0].type
    for v in o.operands[1:]:
        if v.type is not first and (shape_of(v.type) != shape_of(first) or elem_of(v.type) != elem_of(first)):
            raise CompilationError(f"{o.name}: operands differ, {first} and {v.type}", o.loc)
    return [first]


def _floats(o: Op) -> list[Type]:
    (t,) = same(o)
    e = elem_of(t)
    if not (isinstance(e, DType) and e.is_float):
        raise CompilationError(f"{o.name}: expected a floating-point operand, found {t}", o.loc)
    return [t]


def _ints(o: Op) -> list[Type]:
    (t,) = same(o)
    e = elem_of(t)
    if not (isinstance(e, DType) and e.is_int()):
        raise CompilationError(f"{o.name}: expected integer operands, found {t}", o.loc)
    return [t]


def _numbers(o: Op) -> list[Type]:
    (t,) = same(o)
    if not isinstance(elem_of(t), DType):
        raise CompilationError(f"{o.name}: expected numbers, found {t}", o.loc)
    return [t]


def _declare(names: str, operands: str, rule, docs: dict[str, str], traits: str = "elementwise",
             attrs: str = "", host: str = "") -> None:
    for name, before_launch in zip_longest(names.split(), host.split(), fillvalue=""):
        def infer(o: Op, rule=rule) -> list[Type]:
            return rule(o)
        infer.__doc__ = docs[name]
        infer.__module__ = __name__
        more = [trait for trait, those in (("commutative", "add mul and or xor"),
                                           ("as_asked", "add sub mul"),
                                           ("idempotent", "minimum maximum and or"),
                                           ("keeps_sign", "add mul idiv irem minimum or shr shl"))
                if name in those.split()]
        op(name, operands, attrs, traits=" ".join([traits, *more]), host=before_launch)(infer)


@op("const", attrs="value type", traits="elementwise cheap registers", host="const")
def const(o: Op) -> list[Type]:
    """A scalar, or a tile with `value` in every element."""
    return [o.attrs["type"]]


_declare("add sub mul", "lhs rhs", _numbers, {
    "add": "Sum; integers wrap. fp8 is not computed in: cast first.",
    "sub": "Difference; integers wrap.",
    "mul": "Product; integers wrap, keeping the low half."}, "elementwise cheap", host="add sub mul")
_declare("div", "lhs rhs", _floats, {
    "div": "True division. fp32: correctly rounded when attr `ieee` is set, else within 2 ulp."}, attrs="ieee?")
_declare("idiv irem", "lhs rhs", _ints, {
    "idiv": "Integer quotient, truncating toward zero (C).",
    "irem": "Integer remainder with the sign of the dividend (C)."}, host="div")
_declare("fmod", "lhs rhs", _floats, {"fmod": "Floating remainder with the sign of the dividend (C fmod)."})
_declare("and or xor shl shr", "lhs rhs", _ints, {
    "and": "Bitwise and.", "or": "Bitwise or.", "xor": "Bitwise exclusive or.",
    "shl": "Left shift.", "shr": "Right shift: arithmetic for signed types, logical for unsigned."},
    "elementwise cheap")
_declare("mulhi", "lhs rhs", _ints, {"mulhi": "High half of the double-width product."})
_declare("minimum maximum", "lhs rhs", _numbers, {
    "minimum": "Smaller operand; a NaN loses unless attr `nan` is true (then it propagates).",
    "maximum": "Larger operand; a NaN loses unless attr `nan` is true (then it propagates)."},
    attrs="nan?", host="min max")
_declare("neg", "x", _numbers, {"neg": "Arithmetic negation (flips the sign bit of floats)."})
_declare("not", "x", _ints, {"not": "Bitwise complement (logical for int1)."}, "elementwise cheap")
_declare("abs", "x", _numbers, {"abs": "Absolute value."})
_declare("exp exp2 log log2 sqrt rsqrt sin cos tanh sigmoid erf floor ceil", "x", _floats, {
    "exp": "e**x, through ex2.approx in fp32.", "exp2": "2**x (ex2.approx in fp32).",
    "log": "Natural logarithm, through lg2.approx in fp32.", "log2": "Base-2 logarithm (lg2.approx in fp32).",
    "sqrt": "Square root (sqrt.approx unless attr `ieee`).", "rsqrt": "1/sqrt(x) (rsqrt.approx in fp32).",
    "sin": "Sine (sin.approx after range reduction).", "cos": "Cosine (cos.approx after range reduction).",
    "tanh": "Hyperbolic tangent.", "sigmoid": "1 / (1 + e**-x).", "erf": "Error function.",
    "floor": "Round toward minus infinity.", "ceil": "Round toward plus infinity."}, attrs="ieee?")
_declare("fma", "a b c", _floats, {"fma": "a*b + c with one rounding."})


@op("cmp", "lhs rhs", "pred runs?", traits="elementwise cheap")
def cmp(o: Op) -> list[Type]:
    """Comparison to int1; `pred` is eq ne lt le gt ge. On floats `ne` is unordered, the rest ordered. `runs`: so many
    neighbouring registers of a thread have one result.
    """
    return [with_elem(same(o)[0], int1)]


@op("select", "cond on_true on_false", traits="elementwise cheap keeps_sign")
def select(o: Op) -> list[Type]:
    """on_true where cond else on_false, element by element; a scalar cond with tiles is splat first."""
    cond, a, b = (v.type for v in o.operands)
    if elem_of(cond) != int1 or shape_of(cond) != shape_of(a) or shape_of(a) != shape_of(b) \
            or elem_of(a) != elem_of(b):
        raise CompilationError(f"select: found {cond}, {a} and {b}", o.loc)
    return [a]


@op("cast", "x", "dtype rounding?", traits="elementwise cheap keeps_sign as_asked", host="cast")
def cast(o: Op) -> list[Type]:
    """Conversion to `dtype`: floats round to nearest even (rtz if `rounding` says so), fp to int truncates, to int1 is
    `!= 0`, int narrowing wraps; fp to fp8 saturates to the largest finite value (fp8e5 by rtz keeps infinities).
    """
    return [with_elem(o.operands[0].type, o.attrs["dtype"])]


@op("bitcast", "x", "dtype", traits="elementwise cheap")
def bitcast(o: Op) -> list[Type]:
    """The same bits as another type of equal width."""
    src, dst = elem_of(o.operands[0].type), o.attrs["dtype"]
    if src.bits != dst.bits:
        raise CompilationError(f"bitcast: {src} has {src.bits} bits, {dst} has {dst.bits}", o.loc)
    return [with_elem(o.operands[0].type, dst)]


@op("ptr_add", "ptr offset", traits="elementwise cheap same_memory as_asked")
def ptr_add(o: Op) -> list[Type]:
    """Pointer plus `offset` elements, sign- or zero-extended to 64 bits by its type."""
    p, off = (v.type for v in o.operands)
    e = elem_of(off)
    if not isinstance(elem_of(p), Ptr) or not (isinstance(e, DType) and e.is_int()) \
            or shape_of(p) != shape_of(off):
        raise CompilationError(f"ptr_add: found {p} and {off}", o.loc)
    return [p]


@op("hint", "x", "divisible? contiguous? constant?",
    traits="elementwise cheap identity keeps_sign registers same_memory")
def hint(o: Op) -> list[Type]:
    """x, with the author's promise: per dimension divisibility, contiguity, constancy."""
    return [o.operands[0].type]


@op("checked", "x", "divisible? nonnegative?", traits="elementwise identity")
def checked(o: Op) -> list[Type]:
    """x, an integer scalar or pointer; traps where it is negative, if attr `nonnegative` is set, or no multiple of
    `divisible`.
    """
    return [o.operands[0].type]


# -- numpy meanings: (machine, op, *arrays) -> array; see ir/evaluate.py --


def _elem(o: Op) -> DType:
    e = elem_of(o.operands[0].type)
    assert isinstance(e, DType)
    return e


def _wrapping(name: str, fn, boolean) -> None:
    """A sum or product; int1 is arithmetic modulo 2."""
    @OPS[name].meaning
    def _(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return boolean(a, b) if a.dtype == bool else fn(a, b)


_wrapping("add", np.add, np.logical_xor)
_wrapping("sub", np.subtract, np.logical_xor)
_wrapping("mul", np.multiply, np.logical_and)


def _binary(name: str, fn) -> None:
    @OPS[name].meaning
    def _(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return fn(a, b)


for _name, _fn in {"div": np.divide, "idiv": num.idiv, "irem": num.irem, "fmod": np.fmod,
                   "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
                   "shl": lambda a, b: num.shift(a, b, True), "shr": lambda a, b: num.shift(a, b, False),
                   "mulhi": num.mulhi}.items():
    _binary(_name, _fn)


def _unary(name: str, fn) -> None:
    @OPS[name].meaning
    def _(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
        return num.round_to(fn(x.astype(np.float64)), _elem(o))


for _name, _fn in {"exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
                   "rsqrt": lambda x: 1.0 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
                   "sigmoid": num.sigmoid, "erf": num.erf, "floor": np.floor, "ceil": np.ceil}.items():
    _unary(_name, _fn)


@OPS["minimum"].meaning
def _minimum(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return num.extremum(a, b, False, bool(o.attrs.get("nan")))


@OPS["maximum"].meaning
def _maximum(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return num.extremum(a, b, True, bool(o.attrs.get("nan")))


@OPS["neg"].meaning
def _neg(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return x if x.dtype == bool else np.negative(x)


@OPS["not"].meaning
def _not(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return np.invert(x)


@OPS["abs"].meaning
def _abs(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return np.abs(x)


@OPS["fma"].meaning
def _fma(m: Any, o: Op, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return num.fma(a, b, c, _elem(o))


@const.meaning
def _const(m: Any, o: Op) -> np.ndarray:
    t = o.attrs["type"]
    return np.broadcast_to(num.constant(o.attrs["value"], elem_of(t)), shape_of(t))


@cmp.meaning
def _cmp(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
            "gt": np.greater, "ge": np.greater_equal}[o.attrs["pred"]](a, b)


@select.meaning
def _select(m: Any, o: Op, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(c, a, b)


@cast.meaning
def _cast(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return num.cast(x, elem_of(o.operands[0].type), o.attrs["dtype"], o.attrs.get("rounding") or "rne")


@bitcast.meaning
def _bitcast(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return x.view(num.np_dtype(o.attrs["dtype"]))


@ptr_add.meaning
def _ptr_add(m: Any, o: Op, p: np.ndarray, off: np.ndarray) -> np.ndarray:
    e = elem_of(o.operands[0].type)
    assert isinstance(e, Ptr)
    return p + off.astype(np.int64) * e.elem.bytes


@checked.meaning
def _checked(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    if o.attrs.get("nonnegative") and x < 0:
        raise m.error(o, f"{o.result.name or 'a number'} is {int(x)}; the kernel was compiled for numbers that are not "
                         "negative (check_signs=False compiles it for all)")
    if int(x) % o.attrs.get("divisible", 1):
        raise m.error(o, f"{o.result.name or 'a number'} is {int(x)}, no multiple of {o.attrs['divisible']}")
    return x


@hint.meaning
def _hint(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return x
