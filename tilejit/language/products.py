from __future__ import annotations

import warnings
from math import prod
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.numeric import PARTS
from tilejit.ir.types import DType, Scalar, bf16, fp16, fp32, fp64, int32
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.shape import permute
from tilejit.language.tensor import KernelBuilder, builtin, tensor

#: What is multiplied as it is, beside any two kinds of fp8.
_DOT = {"fp16": ("fp16",), "bf16": ("bf16",), "fp32": ("fp32",), "fp64": ("fp64",), "int8": ("int8", "uint8"),
        "uint8": ("int8", "uint8")}
#: Kinds of fp8 that the tensor cores take.
_NATIVE_FP8 = ("fp8e4nv", "fp8e5")
PRECISIONS = ("tf32", "ieee", *PARTS)


def _transposed(x: Any, b: KernelBuilder) -> tensor:
    rank = len(x.shape)
    return permute(x, (*range(rank - 2), rank - 1, rank - 2), _b=b)


@builtin
def dot(input: tensor, other: tensor, acc: Any = None, input_precision: str | None = None,
        allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None, out_dtype: Any = None,
        depth: Any = None, trans_a: Any = False, trans_b: Any = False, *, _b: KernelBuilder) -> tensor:
    """input [.., M, K] @ other [.., K, N] (+ acc [.., M, N]), batched over the dimensions ahead; any size from 1 on.

    fp16, bf16, fp32, fp64, int8, uint8 or a kind of fp8; two that the tensor cores do not multiply are converted to the
    least that holds both (fp16 and bf16: fp32). Sums are fp32 (fp64 of fp64, int32 of
    integers, fp16 where fp16 inputs give fp16); the result has the dtype of `acc`, or `out_dtype`: float32, or float16
    of fp16 or fp8.
    input_precision, of fp32 inputs: "tf32" (10 bits of fraction, the default), "tf32x3" and "bf16x6" (about fp32),
    "bf16x3" (about 16 bits), "ieee" (fp32 multiply-adds). allow_tf32: "tf32" or "ieee".
    max_num_imprecise_acc, of fp8 inputs: after so many elements of K the tensor cores' sum, of fewer bits, is added in
    fp32 (default: never).
    depth: how many elements of K are multiplied (a multiple of 32 bytes; default: all); the rest may be anything.
    trans_a, trans_b: `input` [.., K, M], `other` [.., N, K] are transposed first (as in Triton before 2.1).
    """
    a, c, out_dtype = input, other, unwrap(out_dtype)
    a, c = (_transposed(x, _b) if unwrap(flag) else x for x, flag in ((a, trans_a), (c, trans_b)))
    ta, tc = _operand("lhs", a), _operand("rhs", c)
    shape = _product_shape(a.shape, c.shape)
    if not (ta.is_fp8() and tc.is_fp8()):
        for side, t in (("lhs", ta), ("rhs", tc)):
            if t.name not in _DOT and not t.is_fp8():
                raise CompilationError(f"dot: Unsupported {side} dtype {t}; legal: fp8 of any kinds, {', '.join(_DOT)}")
        if tc.name not in _DOT.get(ta.name, ()):
            names = {ta.name, tc.name}
            ta = tc = (fp64 if "fp64" in names else fp32 if "fp32" in names or names == {"fp16", "bf16"} else
                       bf16 if "bf16" in names else fp16)
            a, c = sem.cast(_b, a, ta), sem.cast(_b, c, ta)
    elif not {ta.name, tc.name} <= set(_NATIVE_FP8):
        for t in dict.fromkeys((ta, tc)):
            if t.name == "fp8e4b15":
                warnings.warn("the use of fp8e4b15 is deprecated on Hopper and later architectures and can cause "
                              "significant slow down: it is converted to fp16", stacklevel=2)
        a, c = sem.cast(_b, a, fp16), sem.cast(_b, c, fp16)
    total: DType = int32 if ta.is_int() else fp64 if ta == fp64 else fp32
    start = unwrap(acc)
    start = None if start is None else to_tensor(_b, start)
    out = _result_dtype(ta, total, start, None if out_dtype is None else sem.as_dtype(out_dtype))
    if start is not None and start.shape != shape:
        raise CompilationError(f"dot: expected accumulator shape {list(shape)}, got {list(start.shape)}: "
                               "accumulator shape is incompatible")
    if out == fp16 and ta == tc == fp16:
        total = fp16
    attrs = _precision(ta, unwrap(input_precision), unwrap(allow_tf32))
    attrs |= _promotion(a.shape[-1], bool(ta.is_fp8() and tc.is_fp8()), unwrap(max_num_imprecise_acc))
    attrs |= _depth(unwrap(depth), a)
    start = sem.splat_const(_b, 0, shape, total) if start is None else sem.cast(_b, start, total)
    values = [a.value, c.value, start.value]
    if len(shape) > 3:
        values = [_b("reshape", v, shape=(prod(shape[:-2]), *v.type.shape[-2:])) for v in values]  # type: ignore
    made = _b("dot", *values, **attrs)
    return sem.cast(_b, tensor(_b("reshape", made, shape=shape) if len(shape) > 3 else made), out)


def _operand(side: str, x: Any) -> DType:
    if not isinstance(x, tensor) or len(x.shape) < 2 or not isinstance(x.elem, DType):
        raise CompilationError(f"dot: {side} must be a tile of numbers of rank 2 or more, found {x!r}: "
                               "input and other must have equal ranks >= 2")
    return x.elem


def _product_shape(a: tuple[int, ...], c: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != len(c):
        raise CompilationError(f"dot: input and other must have equal ranks >= 2, found {list(a)} and {list(c)}")
    if a[:-2] != c[:-2]:
        raise CompilationError(f"dot: input and other must have equal batch shapes, found {list(a)} and {list(c)}")
    if a[-1] != c[-2]:
        raise CompilationError(f"dot: input and other must have equal reduction dimensions: First input shape "
                               f"({list(a)}) and second input shape {list(c)} are not compatible for matmul, "
                               f"{a[-1]} != {c[-2]}")
    return (*a[:-1], c[-1])


def _result_dtype(ta: DType, total: DType, acc: tensor | None, out: Scalar | None) -> Scalar:
    if ta.is_float and str(out or (acc.elem if acc is not None else "")) == "bf16":
        raise CompilationError("dot: out_dtype=bfloat16 is unsupported. Please use out_dtype=float32/float16 and cast "
                               "with `.to(tl.bfloat16)`")
    if acc is not None and out is not None and ta.is_float and acc.elem != out:
        raise CompilationError(f"dot: expected accumulator dtype {out}, got {acc.elem}; pass out_dtype={acc.elem} to "
                               "use this accumulator dtype")
    given = out or (acc.elem if acc is not None else total)
    if ta.is_float and ta.bits < 32 and given not in (fp32, fp16):
        raise CompilationError(f"dot: out_dtype must be float32 or float16, found {given}")
    return given if given == fp16 and ta.name not in ("bf16", "fp32", "fp64") and ta.is_float else total


def _precision(ta: DType, asked: Any, allow_tf32: Any) -> dict[str, Any]:
    if asked is not None and allow_tf32 is not None:
        raise CompilationError("dot: Only one of input_precision and allow_tf32 can be specified")
    precision = asked or ("tf32" if allow_tf32 in (None, True) else "ieee")
    if precision not in PRECISIONS:
        raise CompilationError(f"dot: input_precision must be one of {', '.join(PRECISIONS)}, found {precision!r}")
    return {"precision": precision} if ta == fp32 else {}


def _promotion(k: int, fp8: bool, asked: Any) -> dict[str, Any]:
    if asked is None or not fp8:
        return {}
    if asked > k:
        raise CompilationError(f"max_num_imprecise_acc ({asked}) must be <= K ({k})")
    return {"promote": max(32, -(-asked // 32) * 32)} if k > 32 else {}


def _depth(used: Any, a: tensor) -> dict[str, Any]:
    k, size = a.shape[-1], a.elem.bits // 8
    if used is None or used == k:
        return {}
    if not isinstance(used, int) or not 0 < used < k or used * size % 32:
        raise CompilationError(f"dot: depth={used!r} must be a constant multiple of {32 // size} (32 bytes), "
                               f"at most K={k}")
    return {"depth": used}


__all__ = ["dot"]
