"""Matrix products."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, fp16, fp32, int32
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor

_DOT = {"fp16": ("fp16",), "bf16": ("bf16",), "fp32": ("fp32",), "fp8e4nv": ("fp8e4nv", "fp8e5"),
        "fp8e5": ("fp8e4nv", "fp8e5"), "int8": ("int8", "uint8"), "uint8": ("int8", "uint8")}


@builtin
def dot(input: tensor, other: tensor, acc: Any = None, input_precision: str | None = None,
        allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None, out_dtype: Any = fp32,
        depth: Any = None, *, _b: KernelBuilder) -> tensor:
    """input [M,K] @ other [K,N] (+ acc): fp16, bf16, tf32 (fp32 inputs), fp8 with fp32 sums; int8 with int32.

    depth: elements of K that are multiplied, the first so many (a multiple of 32 bytes; default: all). The others may
    be anything: so the last block of a ragged K need not take as long as a whole one."""
    a, c = input, other
    for name, x in (("input", a), ("other", c)):
        if not isinstance(x, tensor) or len(x.shape) != 2:
            raise CompilationError(f"dot: {name} must be a tile of rank 2, found {x!r}")
    ea, ec = str(a.elem), str(c.elem)
    if ec not in _DOT.get(ea, ()):
        pairs = ", ".join(f"{k} x {'/'.join(v)}" for k, v in _DOT.items())
        raise CompilationError(f"dot: {ea} x {ec} is not a pair that the tensor cores take; legal: {pairs}")
    (m, k), (k2, n) = a.shape, c.shape
    if k != k2:
        raise CompilationError(f"dot: ({m},{k}) @ ({k2},{n}): inner dimensions {k} != {k2}")
    assert isinstance(a.elem, DType)
    step = 16 // a.elem.bytes
    warps, target = _b.num_warps, _b.target  # type: ignore[attr-defined]
    if m % 16:
        raise CompilationError(f"dot: M={m} must be a multiple of 16 (the tensor cores compute 16 rows at a time)")
    if k % step:
        raise CompilationError(f"dot: K={k} must be a multiple of {step} for {ea} (16 bytes)")
    if n % 8:
        raise CompilationError(f"dot: N={n} must be a multiple of 8")
    if a.elem.is_fp8 and not target.hopper:
        raise CompilationError(f"dot: {target.name} has no tensor cores for {ea}; use fp16, or target=\"sm_90a\"")
    out = int32 if a.elem.is_int else sem.as_dtype(out_dtype)
    if a.elem.is_float and out not in (fp32, fp16):
        raise CompilationError(f"dot: out_dtype must be float32 (or float16), found {out}")
    total = int32 if a.elem.is_int else fp32
    per_thread = m * n // (32 * warps)
    if per_thread > 208:
        raise CompilationError(f"dot: the {m}x{n} accumulator needs {per_thread} registers per thread with "
                               f"num_warps={warps}, at most 208 fit: use more warps or a smaller tile")
    if unwrap(acc) is None:
        acc_t = sem.splat_const(_b, 0, (m, n), total)
    else:
        acc_t = sem.cast(_b, to_tensor(_b, acc), total)
        if acc_t.shape != (m, n):
            raise CompilationError(f"dot: acc has shape {list(acc_t.shape)}, the product {[m, n]}")
    precision = unwrap(input_precision) or ("tf32" if unwrap(allow_tf32) in (None, True) else "ieee")
    if a.elem == fp32 and precision != "tf32":
        raise CompilationError(f"dot: input_precision={precision!r} is not supported for fp32; use 'tf32'")
    attrs = {"precision": precision} if a.elem == fp32 else {}
    used = unwrap(depth)
    if used is not None and used != k:
        if not isinstance(used, int) or not 0 < used < k or used * a.elem.bytes % 32:
            raise CompilationError(f"dot: depth={used!r} must be a constant multiple of {32 // a.elem.bytes} "
                                   f"(32 bytes), at most K={k}")
        attrs["depth"] = used
    result = tensor(_b("dot", a.value, c.value, acc_t.value, **attrs))
    return sem.cast(_b, result, out)


__all__ = ["dot"]
