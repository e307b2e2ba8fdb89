"""Arithmetic of tile IR's element types on numpy arrays, bit for bit."""
from __future__ import annotations

import math
from functools import cache

import numpy as np

from tilejit.ir.types import DTYPES, DType, Scalar, fp16

Array = np.ndarray


@cache
def np_dtype(t: Scalar) -> np.dtype:
    if not isinstance(t, DType):
        return np.dtype(np.int64)
    names = {"int1": "bool", "fp8e4b15": "uint8", "fp16": "float16", "tf32": "float32", "fp32": "float32",
             "fp64": "float64"}
    small = {"bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}
    if t.name in small:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, small[t.name]))
    return np.dtype(names.get(t.name, t.name))


def constant(value: float | bool, t: Scalar) -> Array:
    dtype = np_dtype(t)
    if dtype.kind in "iu":
        bits = int(value) & (2 ** (8 * dtype.itemsize) - 1)
        return np.array(bits, np.dtype(f"u{dtype.itemsize}")).view(dtype)
    if isinstance(t, DType) and t.is_float and dtype.itemsize < 8:
        return round_to(np.array(value, np.float64), t)
    return np.array(value, dtype)


def _to_odd_fp32(x: Array) -> Array:
    """float64 to float32, rounded to odd, so that a second rounding to 16 or 8 bits is exact."""
    f = x.astype(np.float32)
    back = f.astype(np.float64)
    even = (f.view(np.uint32) & 1) == 0
    off = (back != x) & even & np.isfinite(x)
    toward = np.where(x > back, np.float32(np.inf), np.float32(-np.inf))
    return np.where(off, np.nextafter(f, toward), f)


def round_to(x: Array, t: DType, rounding: str = "rne") -> Array:
    """A float64 array rounded once to `t`."""
    x = np.asarray(x, np.float64)
    dtype = np_dtype(t)
    if t.name == "tf32":
        return _tf32_nearest(x.astype(np.float32))
    if t.name == "fp8e4b15":
        bits = round_to(x, fp16, "rtz").view(np.uint16)  # as the language converts it (custom_float8.py)
        return ((np.minimum(bits & 0x7FFF, 0x3F00) + 0x40 >> 7) | (bits & 0x8000) >> 8).astype(np.uint8)
    if t.is_fp8() and not (rounding == "rtz" and t.name == "fp8e5"):
        top = {"fp8e4nv": 448.0, "fp8e5": 57344.0}[t.name]
        x = np.clip(x, -top, top)
    if dtype.itemsize == 8:
        return x
    near = x.astype(dtype) if dtype.itemsize == 4 else _to_odd_fp32(x).astype(dtype)
    near = np.asarray(near)
    if rounding == "rtz":
        over = np.abs(near.astype(np.float64)) > np.abs(x)
        bits = near.view(f"u{dtype.itemsize}")
        near = np.asarray(np.where(over & np.isfinite(x), bits - 1, bits)).astype(bits.dtype).view(dtype)
    return near


def _tf32_nearest(x: Array) -> Array:
    """cvt.rna.tf32.f32: nearest with ties away from zero, 10 mantissa bits kept."""
    bits = x.view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def tf32_even(x: Array) -> Array:
    """As TMA rounds what it loads: nearest, ties to even; infinities and NaNs stay."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + (bits >> 13 & 1) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).view(np.float32)


def tf32_truncate(x: Array) -> Array:
    return (np.asarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def cast(x: Array, src: Scalar, dst: Scalar, rounding: str = "rne") -> Array:
    """Numeric conversion."""
    to = np_dtype(dst)
    if src == dst:
        return x
    if not isinstance(dst, DType) or not isinstance(src, DType):
        return x.astype(to)
    if dst.family == "bool":
        return x != np.zeros((), x.dtype)
    if dst.is_float:
        if src.family != "float" and dst.bits >= 32:
            return x.astype(to)
        return round_to(x.astype(np.float64), dst, rounding)
    if src.is_float:
        lo, hi = np.iinfo(to).min, np.iinfo(to).max
        v = np.trunc(x.astype(np.float64))
        out = np.asarray(np.where((v >= lo) & (v < float(hi)), v, 0.0).astype(to))
        return np.where(v >= float(hi), to.type(hi), np.where(v < lo, to.type(lo), out))
    return x.astype(to)


def erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)), np.float64)


def idiv(a: Array, b: Array) -> Array:
    """C quotient (toward zero); division by zero gives all ones, as on the GPU in 32 bits."""
    zero = b == 0
    d = np.where(zero, np.ones((), b.dtype), b)
    q = a // d
    if a.dtype.kind == "i":
        q = np.where((q * d != a) & ((a < 0) != (d < 0)), q + np.ones((), a.dtype), q)
    return np.where(zero, ~np.zeros((), a.dtype), q)


def irem(a: Array, b: Array) -> Array:
    """C remainder, with the sign of the dividend, which a zero divisor gives."""
    return a - np.where(b == 0, np.zeros((), a.dtype), idiv(a, b)) * b


def shift(a: Array, amount: Array, left: bool) -> Array:
    """Shift by an unsigned amount, clamped to the width (PTX shl, shr)."""
    bits = 8 * a.dtype.itemsize
    n = amount.view(f"u{amount.dtype.itemsize}")
    over = n >= bits
    n = np.where(over, bits - 1, n).astype(a.dtype)
    if left:
        return np.where(over, np.zeros((), a.dtype), a << n)
    if a.dtype.kind == "i":
        return a >> n
    return np.where(over, np.zeros((), a.dtype), a >> n)


def mulhi(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}8")
        return ((a.astype(wide) * b.astype(wide)) >> np.array(bits, wide)).astype(a.dtype)
    exact = (a.astype(object) * b.astype(object)) >> 64
    return np.asarray(exact).astype(a.dtype)


def extremum(a: Array, b: Array, largest: bool, propagate_nan: bool) -> Array:
    """Minimum or maximum: a NaN loses or propagates; -0 is below +0 (PTX min, max)."""
    if a.dtype.kind in "biu":
        return np.maximum(a, b) if largest else np.minimum(a, b)
    first = (a > b) if largest else (a < b)
    # of equal operands only zeros differ in sign
    first |= (a == b) & (np.signbit(a) != largest)
    first |= np.isnan(b)
    r = np.where(first, a, b)
    if propagate_nan:
        r = np.where(np.isnan(a), a, np.where(np.isnan(b), b, r))
    return r


def fma(a: Array, b: Array, c: Array, t: DType) -> Array:
    """a*b + c rounded once; in fp64 the error term of the sum is itself rounded (within one ulp)."""
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    p = x * y
    s = p + z
    v = s - p
    err = (p - (s - v)) + (z - v)
    if t.bits == 64:
        big = 134217729.0  # 2**27 + 1: Dekker's splitting constant
        xh, yh = x * big - (x * big - x), y * big - (y * big - y)
        xl, yl = x - xh, y - yh
        err = err + (((xh * yh - p) + xh * yl + xl * yh) + xl * yl)
        return np.where(np.isfinite(s) & np.isfinite(err), s + err, s)
    odd = (s.view(np.int64) & 1) == 1
    nudge = np.isfinite(s) & np.isfinite(err) & (err != 0) & ~odd
    toward = np.where(err > 0, np.inf, -np.inf)
    return round_to(np.where(nudge, np.nextafter(s, toward), s), t)


def matmul(a: Array, b: Array, acc: Array, ta: DType, t_acc: DType, precision: str | None) -> Array:
    """acc + a @ b, batched: in float64 (int64 for integers), rounded once to the accumulator."""
    if not t_acc.is_float:
        wide = np.matmul(a.astype(np.int64), b.astype(np.int64)) + acc.astype(np.int64)
        return wide.astype(acc.dtype)
    total = acc.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if ta.name in ("fp32", "tf32") and precision in PARTS:
            elem, pairs = PARTS[precision]
            xs, ys = (split_parts(x, elem, 1 + max(max(p) for p in pairs)) for x in (a, b))
            small = sum(np.matmul(xs[i], ys[j]) for i, j in pairs[:-1])
            total = total + np.where(np.isnan(small), 0.0, small)
            a, b = xs[0], ys[0]
        elif ta.name in ("fp32", "tf32") and precision != "ieee":
            a, b = tf32_truncate(a), tf32_truncate(b)
        return round_to(np.matmul(a.astype(np.float64), b.astype(np.float64)) + total, t_acc)


#: Precisions of fp32 products that multiply parts of each number: the parts' type, and which parts are multiplied, the
#: smallest products first (Ootomo and Yokota, 'Recovering single precision accuracy from Tensor Cores while surpassing
#: the FP32 theoretical peak performance', arXiv 2203.03341; Henry, Tang and Heinecke, 'Leveraging the bfloat16
#: Artificial Intelligence Datatype For Higher-Precision Computations', arXiv 1904.06376).
PARTS: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {
    "tf32x3": ("tf32", ((1, 0), (0, 1), (0, 0))),
    "bf16x3": ("bf16", ((1, 0), (0, 1), (0, 0))),
    "bf16x6": ("bf16", ((1, 1), (2, 0), (0, 2), (1, 0), (0, 1), (0, 0))),
}


def split_parts(x: Array, elem: str, count: int) -> list[Array]:
    """fp32 numbers as sums of `count` numbers of a narrower type, largest first, as float64."""
    parts = []
    for _ in range(count):
        part = tf32_truncate(x) if elem == "tf32" else x.astype(np_dtype(DTYPES[elem])).astype(np.float32)
        parts.append(part.astype(np.float64))
        x = np.asarray(x - part, np.float32)
    return parts
