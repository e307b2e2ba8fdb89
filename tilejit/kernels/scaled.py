"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B."""
from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.launches import Piece, multiply
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import call_of
from tilejit.kernels.product import steps
from tilejit.kernels.product.steps import SCALE_BLOCK
from tilejit.kernels.routes import reached
from tilejit.kernels.way import Way

_WHAT, _FP8 = "matmul_blockscaled", ("fp8e4nv", "fp8e5")


@function(new)
def matmul_blockscaled(a: Array, b: Array, scale_a: Array, scale_b: Array, out: Any = None,
                       out_dtype: DType | None = None, *, config: Way | None = None) -> Any:
    """(a * scale_a) @ (b * scale_b^T), each scale spread over its block, with fp32 sums; bf16 unless out says so.

    a [M, K], b [K, N]: fp8, copied first unless K is contiguous, in rows of multiples of 16 bytes. scale_a fp32 [M,
    ceil(K / 128)]: one per row and 128 of K. scale_b fp32 [ceil(N / 128), ceil(K / 128)]: one per 128 x 128 block.
    Both scales may have any strides; those of A are read fastest column by column (M contiguous, columns at multiples
    of 16 bytes, as DeepGEMM has them). config: instead of a choice. Raises LaunchError for what does not fit."""
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, None, out, scale_a, scale_b), config)
    return out


def promotion(what: str, a: Matrix, b: Matrix, scales: tuple[ArrayInfo | None, ...]) -> Piece:
    """The STEP for scales of blocks, arrays 4 and 5 of a call, of operands or stacks of them: checked to be one a row
    of a, or one for `SCALE_BLOCK` columns of b, for as many of K."""
    if not a.dtype.is_fp8():
        raise tilejit.LaunchError(f"{what}: scales of blocks are for fp8 operands, found {a.dtype}")
    (*stack, k, n), found = b.shape, []
    blocks, lines = tilejit.cdiv(k, SCALE_BLOCK), tilejit.cdiv(n, SCALE_BLOCK)
    for name, info, shape in zip(("scale_a", "scale_b"), scales, ((*a.shape[:-1], blocks), (*stack, lines, blocks))):
        if info is None or info.dtype != tl.float32 or info.shape != shape:
            there = "none" if info is None else f"{info.dtype} {list(info.shape)}"
            raise tilejit.LaunchError(f"{what}: {name} must be fp32 {list(shape)}, found {there}")
        found.append(info.strides)
    (*apart, down, across), of_blocks = found
    if apart and a.shape[0] > 1 and apart[0] != a.shape[1] * down:
        raise tilejit.LaunchError(f"{what}: scale_a must be a dense stack, found strides {[*apart, down, across]}")
    side_by_side = tl.constexpr(1) if down == 1 else down
    return steps.promote, (None, At(4), prod(a.shape[:-1]), side_by_side, across, At(5),
                           *(0,) * (3 - len(of_blocks)), *of_blocks)


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], config: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """Raises LaunchError for arrays that do not go together."""
    call, work, scales = call_of(_WHAT, infos[:4], None, multiprocessors, dtypes=_FP8), Work(6), infos[4:]
    step, (_, *numbers) = promotion(_WHAT, call.a, call.b, scales)
    if 0 in call.c.shape:
        return work
    call = reached(work, call, True, False, step="promote")
    t, of_rows, seen = config or choose(call.problem, call.chip).way, Matrix(scales[0], at=4).T, None
    if t.scales_come and of_rows.strides[1] == 1 and call.problem.k:
        seen = of_rows.seen(of_rows.shape, of_rows.strides, (1, t.computed(t.m, t.n)[0]))
        seen = seen if seen.descriptor and seen.descriptor.tma else None
    multiply(work, call, t, step=(step, (seen, *numbers)))
    return work
