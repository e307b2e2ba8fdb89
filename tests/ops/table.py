"""What the names of the tile language compute, by numpy: one row a name, from which `test_ops.py` makes kernels.

A row has the expression as a kernel writes it, the element types it is for, the same by numpy, and how near it must
come. Expressions are of tiles a, b, c of the type `t` (and m of int1); numpy sees them in a type that holds them
exactly, and its result is rounded once.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np

from tilejit.ir import numeric
from tilejit.ir import types as T

SIGNED = (T.int8, T.int16, T.int32, T.int64)
UNSIGNED = (T.uint8, T.uint16, T.uint32, T.uint64)
INTS = (*SIGNED, *UNSIGNED)
HALVES = (T.fp16, T.bf16)
FLOATS = (*HALVES, T.fp32, T.fp64)
SINGLE = (T.fp32, T.fp64)
NUMBERS = (*INTS, *FLOATS)
FP8 = (T.fp8e4nv, T.fp8e5)
ALL = (T.int1, *NUMBERS, *FP8)
#: The error of functions, relative: a rounding to the type and what the approximations of fp32 add.
NEAR = {T.fp16: 2e-3, T.bf16: 1.6e-2, T.fp32: 2e-5, T.fp64: 1e-13}


@dataclass(frozen=True)
class Row:
    """One expression. `near`: equal to a relative error, else bit for bit. `low`, `high`: the range of inputs, where the
    function needs one. `of`: the type of the result by that of the operands."""

    text: str
    dtypes: tuple[T.DType, ...]
    numpy: Callable[..., Any]
    near: bool = False
    low: float | None = None
    high: float | None = None
    of: Callable[[T.DType], T.DType] = lambda t: t

    @property
    def operands(self) -> list[str]:
        """The tiles that the expression is of, in order."""
        return sorted(set(re.findall(r"(?<![.\w])[abcm](?!\w)", self.text)))


def _bool(t: T.DType) -> T.DType:
    return T.int1


_erf = np.vectorize(erf, otypes=[np.float64])

ELEMENTWISE = [
    Row("a + b", NUMBERS, np.add), Row("a - b", NUMBERS, np.subtract), Row("a * b", NUMBERS, np.multiply),
    Row("tl.add(a, b)", NUMBERS, np.add), Row("tl.sub(a, b)", NUMBERS, np.subtract), Row("tl.mul(a, b)", NUMBERS, np.multiply),
    Row("-a", (*SIGNED, *FLOATS), np.negative), Row("+a", NUMBERS, np.positive),
    Row("a // b", INTS, numeric.idiv, low=1), Row("a % b", INTS, numeric.irem, low=1),
    Row("a / b", SINGLE, np.divide, near=True, low=0.5, high=8),
    Row("a & b", (T.int1, *INTS), np.bitwise_and), Row("a | b", (T.int1, *INTS), np.bitwise_or),
    Row("a ^ b", (T.int1, *INTS), np.bitwise_xor), Row("~a", (T.int1, *INTS), np.invert),
    Row("a << (b % 7)", UNSIGNED, lambda a, b: numeric.shift(a, numeric.irem(b, b.dtype.type(7)), True)),
    Row("a >> (b % 7)", UNSIGNED, lambda a, b: numeric.shift(a, numeric.irem(b, b.dtype.type(7)), False)),
    *(Row(f"a {sign} b", NUMBERS, fn, of=_bool) for sign, fn in (
        ("==", np.equal), ("!=", np.not_equal), ("<", np.less), ("<=", np.less_equal), (">", np.greater),
        (">=", np.greater_equal))),
    Row("tl.where(a < b, a, c)", NUMBERS, lambda a, b, c: np.where(a < b, a, c)),
    Row("tl.where(m, a, b)", ALL, lambda a, b, m: np.where(m, a, b)),
    Row("tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)", FLOATS, np.maximum),
    Row("tl.expect_zero(a, a == 100)", NUMBERS, np.positive), Row("a + tl.to_tensor(2)", (T.int32, T.int64), lambda a: a + 2),
    Row("tl.abs(a)", NUMBERS, np.abs),
    Row("tl.minimum(a, b)", NUMBERS, np.minimum), Row("tl.maximum(a, b)", NUMBERS, np.maximum),
    Row("tl.clamp(a, tl.minimum(b, c), tl.maximum(b, c))", FLOATS,
        lambda a, b, c: np.minimum(np.maximum(a, np.minimum(b, c)), np.maximum(b, c))),
    Row("tl.floor(a)", SINGLE, np.floor), Row("tl.ceil(a)", SINGLE, np.ceil),
    Row("tl.fma(a, b, c)", HALVES, lambda a, b, c: a * b + c),
    Row("tl.umulhi(a, b)", (T.int32, T.int64, T.uint32, T.uint64), lambda a, b: _high(a, b)),
    Row("tl.cdiv(a, b)", (T.int32, T.int64), lambda a, b: -(-a // b), low=1, high=1000),
    Row("tl.div_rn(a, b)", (T.fp32,), np.divide, low=0.5, high=8),
    Row("tl.fdiv(a, b)", SINGLE, np.divide, near=True, low=0.5, high=8),
    Row("tl.sqrt_rn(a)", (T.fp32,), np.sqrt, low=0, high=1e4),
    Row("tl.exp(a)", (T.fp32,), np.exp, near=True, low=-9, high=9),
    Row("tl.exp2(a)", (T.fp32,), np.exp2, near=True, low=-9, high=9),
    Row("tl.log(a)", (T.fp32,), np.log, near=True, low=1.5, high=1e4),
    Row("tl.log2(a)", (T.fp32,), np.log2, near=True, low=1.5, high=1e4),
    Row("tl.sqrt(a)", SINGLE, np.sqrt, near=True, low=0, high=1e4),
    Row("tl.rsqrt(a)", SINGLE, lambda a: 1 / np.sqrt(a), near=True, low=1e-3, high=1e4),
    Row("tl.sin(a)", (T.fp32,), np.sin, near=True, low=0.5, high=1.5),
    Row("tl.cos(a)", (T.fp32,), np.cos, near=True, low=0.1, high=1.2),
    Row("tl.tanh(a)", (T.fp32,), np.tanh, near=True, low=0.1, high=4),
    Row("tl.erf(a)", (T.fp32,), _erf, near=True, low=0.1, high=4),
    Row("tl.sigmoid(a)", (T.fp32,), lambda a: 1 / (1 + np.exp(-a)), near=True, low=-9, high=9),
    *(Row(f"a.to(tl.{to.name if not to.is_float else name})", NUMBERS, lambda a: a, of=lambda t, to=to: to, low=0, high=100)
      for to, name in ((T.int8, ""), (T.int16, ""), (T.int32, ""), (T.int64, ""), (T.uint8, ""), (T.uint16, ""),
                       (T.uint32, ""), (T.uint64, ""), (T.fp16, "float16"), (T.bf16, "bfloat16"), (T.fp32, "float32"),
                       (T.fp64, "float64"))),
    Row("a.to(tl.float8e4nv)", (*HALVES, T.fp32), lambda a: a, of=lambda t: T.fp8e4nv),
    Row("a.to(tl.float8e5)", (*HALVES, T.fp32), lambda a: a, of=lambda t: T.fp8e5),
    Row("a.to(tl.float32)", FP8, lambda a: a, of=lambda t: T.fp32),
]


def _high(a: Any, b: Any) -> Any:
    bits = 8 * a.dtype.itemsize
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    wide = [int(x) * int(y) >> bits for x, y in zip(a.view(unsigned).ravel(), b.view(unsigned).ravel())]
    return np.array(wide, unsigned).view(a.dtype).reshape(a.shape)


#: Of a matrix [8, 16] (a and b): expressions that move elements.
MOVES = [
    Row("tl.reshape(a, (4, 32))", ALL, lambda a: a.reshape(4, 32)),
    Row("tl.max_constancy(a, (1, 1))", INTS, np.positive), Row("tl.ravel(a)", ALL, lambda a: a.ravel()),
    Row("tl.view(a, (16, 8))", ALL, lambda a: a.reshape(16, 8)),
    Row("tl.trans(a)", ALL, lambda a: a.T), Row("a.T", ALL, lambda a: a.T),
    Row("tl.permute(tl.reshape(a, (2, 4, 16)), (2, 0, 1))", ALL, lambda a: a.reshape(2, 4, 16).transpose(2, 0, 1)),
    Row("tl.expand_dims(a, 1)", ALL, lambda a: a[:, None]), Row("tl.unsqueeze(a, 0)", ALL, lambda a: a[None]),
    Row("tl.squeeze(tl.expand_dims(a, 1), 1)", ALL, lambda a: a), Row("a[:, None, :]", ALL, lambda a: a[:, None]),
    Row("tl.broadcast_to(a[:, :, None], (8, 16, 2))", ALL, lambda a: np.broadcast_to(a[:, :, None], (8, 16, 2))),
    Row("tl.join(a, b)", ALL, lambda a, b: np.stack([a, b], -1)),
    Row("tl.interleave(a, b)", ALL, lambda a, b: np.stack([a, b], -1).reshape(8, 32)),
    Row("tl.split(tl.reshape(a, (8, 8, 2)))[1]", ALL, lambda a: a.reshape(8, 8, 2)[..., 1]),
    Row("tl.cat(tl.ravel(a), tl.ravel(b), can_reorder=False)", ALL, lambda a, b: np.concatenate([a.ravel(), b.ravel()])),
    Row("tl.flip(a, 1)", ALL, lambda a: a[:, ::-1]),
    Row("tl.zeros((8, 16), a.dtype)", ALL, lambda a: np.zeros_like(a)), Row("tl.zeros_like(a)", ALL, lambda a: np.zeros_like(a)),
    Row("tl.full((4, 4), 3, a.dtype)", NUMBERS, lambda a: np.full((4, 4), 3, a.dtype)),
]

#: Of the same matrix: folds along an axis.
FOLDS = [
    *(Row(f"tl.{name}(a, {axis})", NUMBERS, lambda a, fn=fn, axis=axis: fn(a, axis)) for axis in (0, 1)
      for name, fn in (("max", np.max), ("min", np.min))),
    *(Row(f"tl.{name}(a, {axis})", INTS, lambda a, fn=fn, axis=axis: fn(a, axis), of=lambda t: T.int32)
      for axis in (0, 1) for name, fn in (("argmax", np.argmax), ("argmin", np.argmin))),
    *(Row(f"tl.sum(a, {axis})", NUMBERS, lambda a, axis=axis: np.sum(a, axis), near=True,
          of=lambda t: t if t.is_float or t.bits >= 32 else T.int32 if t.is_signed else T.uint32) for axis in (0, 1)),
    Row("tl.sum(a)", SINGLE, np.sum, near=True),
    *(Row(f"tl.xor_sum(a, {axis})", INTS, lambda a, axis=axis: np.bitwise_xor.reduce(a, axis)) for axis in (0, 1)),
    Row("tl.reduce_or(a, 0)", INTS, lambda a: np.bitwise_or.reduce(a, 0)),
    *(Row(f"tl.cumsum(a, {axis})", (T.int32, T.int64, T.fp32), lambda a, axis=axis: np.cumsum(a, axis, a.dtype), near=True)
      for axis in (0, 1)),
    Row("tl.cumprod(a, 1)", (T.fp32,), lambda a: np.cumprod(a, 1), near=True, low=0.5, high=1.5),
    Row("tl.sort(a)", NUMBERS, lambda a: np.sort(a, 1)), Row("tl.topk(a, 4)", NUMBERS, lambda a: np.sort(a, 1)[:, ::-1][:, :4],
                                                             low=0, high=100),
    Row("tl.softmax(a, 1)", (T.fp32,), lambda a: np.exp(a - a.max(1, keepdims=True)) /
        np.exp(a - a.max(1, keepdims=True)).sum(1, keepdims=True), near=True, low=-3, high=3),
]
