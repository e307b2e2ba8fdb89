"""Products of numbers with block scales (OCP Microscaling Formats, version 1.0)."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, bf16, fp8e4nv, fp8e5, fp16, fp32, uint8, uint16, uint32
from tilejit.language import semantics as sem
from tilejit.language.products import dot
from tilejit.language.semantics import unwrap
from tilejit.language.shape import expand_dims, join, reshape, trans
from tilejit.language.tensor import KernelBuilder, builtin, tensor

#: None for two numbers a byte.
FORMATS: dict[str, DType | None] = {"e2m1": None, "e4m3": fp8e4nv, "e5m2": fp8e5, "bf16": bf16, "fp16": fp16}


@builtin
def dot_scaled(lhs: tensor, lhs_scale: Any, lhs_format: str, rhs: tensor, rhs_scale: Any, rhs_format: str,
               acc: Any = None, fast_math: bool = False, lhs_k_pack: bool = True, rhs_k_pack: bool = True,
               out_dtype: Any = fp32, *, _b: KernelBuilder) -> tensor:
    """(lhs * lhs_scale) [.., M, K] @ (rhs * rhs_scale) [.., K, N] (+ acc [.., M, N]), fp32.

    Formats: e2m1 (uint8, two numbers a byte, the first in the lower half: neighbours along K, or along M or N where
    `k_pack` is false), e4m3, e5m2 (fp8 or uint8), bf16, fp16. Scales are powers of two, e8m0 in uint8, one for 32 (or
    16, from the shapes) elements of K: lhs_scale [.., M, K / 32], rhs_scale [.., N, K / 32], not transposed; or None.
    0xff makes numbers NaN (with `fast_math`: undefined). Operands are widened to bf16 (fp16 where one is) and scaled
    there.
    """
    formats = [_format(side, unwrap(f)) for side, f in (("lhs", lhs_format), ("rhs", rhs_format))]
    packs = [bool(unwrap(x)) for x in (lhs_k_pack, rhs_k_pack)]
    if sem.as_dtype(out_dtype) != fp32:
        raise CompilationError("dot_scaled: Only float32 is supported for out_dtype at the moment")
    for x in (lhs, rhs):
        if not isinstance(x, tensor) or len(x.shape) < 2 or len(lhs.shape) != len(rhs.shape):
            raise CompilationError(f"dot_scaled: lhs and rhs must be tiles of one rank of 2 or more, found {lhs!r} and "
                                   f"{rhs!r}")
    wide = fp16 if "fp16" in formats else bf16
    x = _widened(_b, lhs, formats[0], packs[0], len(lhs.shape) - (1 if packs[0] else 2), wide, "lhs")
    y = _widened(_b, rhs, formats[1], packs[1], len(rhs.shape) - (2 if packs[1] else 1), wide, "rhs")
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    if k != y.shape[-2]:
        raise CompilationError("Reduction dimension should pack the same number of elements; "
                               f"(lhs: {list(lhs.shape)} vs rhs: {list(rhs.shape)})")
    scales = [unwrap(s) for s in (lhs_scale, rhs_scale)]
    group = _group(k, scales)
    for name, s, rows in (("lhs_scale", scales[0], m), ("rhs_scale", scales[1], n)):
        if s is not None and s.shape[-2:] != (rows, k // group):
            raise CompilationError(f"{name} must be a tensor of shape [..., {rows}, {k // group}]. Got {list(s.shape)}")
    exact = not unwrap(fast_math)
    if scales[0] is not None:
        x = _scaled(_b, x, scales[0], exact)
    if scales[1] is not None:
        y = trans(_scaled(_b, trans(y, _b=_b), scales[1], exact), _b=_b)
    return dot(x, y, acc, out_dtype=fp32, _b=_b)


def _format(side: str, name: Any) -> str:
    if name not in FORMATS:
        raise CompilationError(f"dot_scaled: {side}_format must be one of {', '.join(FORMATS)}: Invalid float format: "
                               f"{name}.")
    return str(name)


def _group(k: int, scales: list[tensor | None]) -> int:
    found = [k // s.shape[-1] if len(s.shape) > 1 and s.numel > 1 else None for s in scales if s is not None]
    given = [g for g in found if g]
    if len(given) == 2 and given[0] != given[1]:
        raise CompilationError(f"Operands must have the same scale factor; (lhs: {given[0]} vs rhs: {given[1]})")
    if given and given[0] not in (16, 32):
        raise CompilationError(f"dot_scaled: a scale is for 32 elements of K, or 16, found {given[0]}")
    return given[0] if given else min(32, k)


def _widened(b: KernelBuilder, x: tensor, name: str, k_pack: bool, dim: int, wide: DType, side: str) -> tensor:
    elem = FORMATS[name]
    if elem is None:
        if x.elem != uint8:
            raise CompilationError(f"e2m1 format must be packed as uint8. Got {x.elem}")
        return _of_halves(b, x, dim, wide)
    if not k_pack:
        raise CompilationError("only mxfp4 inputs can be packed along a dimension different than K")
    if x.elem != elem:
        raw = uint8 if elem.bits == 8 else uint16
        if x.elem != raw:
            raise CompilationError(f"Unexpected dtype for {name}. Got {x.elem} ({side} is {elem} or {raw})")
        x = tensor(b("bitcast", x.value, dtype=elem))
    return sem.cast(b, x, wide)


def _of_halves(b: KernelBuilder, x: tensor, dim: int, wide: DType) -> tensor:
    """Two a byte, side by side along `dim`, moved to the end of the 16-bit type's fields; one exact product corrects
    the bias."""
    fraction, bias = (7, 127) if wide == bf16 else (10, 15)

    def number(half: tensor) -> tensor:
        n = sem.cast(b, half, uint16)
        bits = sem.binary(b, "<<", sem.binary(b, "&", n, 7), fraction - 1)
        sign = sem.binary(b, "<<", sem.binary(b, "&", n, 8), 12)
        low = tensor(b("bitcast", sem.binary(b, "|", bits, sign).value, dtype=wide))
        return sem.binary(b, "*", low, sem.splat_const(b, 2.0 ** (bias - 1), (), wide))

    pair = join(number(x), number(sem.binary(b, ">>", x, 4)), _b=b)
    rank = len(x.shape)
    if dim == rank - 2:
        pair = trans(pair, *range(rank - 1), rank, rank - 1, _b=b)
    return reshape(pair, tuple(2 * n if d == dim else n for d, n in enumerate(x.shape)), _b=b)


def _scaled(b: KernelBuilder, x: tensor, scale: tensor, exact: bool) -> tensor:
    shape = x.shape
    assert isinstance(x.elem, DType)

    def spread(s: tensor) -> tensor:
        groups = (*s.shape, shape[-1] // s.shape[-1])
        return reshape(sem.broadcast_to(b, expand_dims(s, len(s.shape), _b=b), groups), shape, _b=b)

    if scale.elem == fp8e4nv:
        return sem.binary(b, "*", x, spread(sem.cast(b, scale, x.elem)))
    if scale.elem != uint8:
        raise CompilationError(f"dot_scaled: scales are e8m0 in uint8 (or float8e4nv), found {scale.elem}")
    if x.elem == bf16:
        factor = tensor(b("bitcast", sem.binary(b, "<<", sem.cast(b, scale, uint16), 7).value, dtype=bf16))
    else:
        factor = sem.cast(b, tensor(b("bitcast", sem.binary(b, "<<", sem.cast(b, scale, uint32), 23).value,
                                      dtype=fp32)), fp16)
    if exact:
        nan = sem.splat_const(b, float("nan"), scale.shape, x.elem)
        bad = sem.binary(b, "==", scale, sem.splat_const(b, 255, (), uint8))
        factor = tensor(b("select", bad.value, nan.value, factor.value))
    return sem.binary(b, "*", x, spread(factor))


__all__ = ["dot_scaled"]
