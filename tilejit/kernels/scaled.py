"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.copy import brought
from tilejit.kernels.launches import Piece, multiply
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import call_of, facts
from tilejit.kernels.product import steps
from tilejit.kernels.product.steps import SCALE_BLOCK
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


def scale_steps(what: str, *scales: tuple[ArrayInfo | None, tuple[int, ...]]) -> tuple[ArrayInfo, ...]:
    """The scales of both operands, checked: one a row or one for `SCALE_BLOCK` of N, for as many of K."""
    found = []
    for i, (info, (*outer, k)) in enumerate(scales):
        lines = outer[-1] if i == 0 else tilejit.cdiv(outer[-1], SCALE_BLOCK)
        wanted = *outer[:-1], lines, tilejit.cdiv(k, SCALE_BLOCK)
        if info is None or info.dtype != tl.float32 or info.shape != wanted:
            there = "none" if info is None else f"{info.dtype} {list(info.shape)}"
            raise tilejit.LaunchError(f"{what}: scale_{'ab'[i]} must be fp32 {list(wanted)}, found {there}")
        found.append(info)
    return tuple(found)


def promoted(rows: int, row_scales: int, strides: tuple[int, ...], block_scales: int, block_strides: tuple[int, ...],
             seen: At | None = None) -> Piece:
    """The STEP for scales in arrays of a call, with strides: of so many rows, and of blocks. seen: what TMA sees of
    those of rows."""
    apart, down, across = block_strides if len(block_strides) == 3 else (0, *block_strides)
    side_by_side = tl.constexpr(1) if strides[0] == 1 else strides[0]
    return steps.promote, (seen, At(row_scales), rows, side_by_side, strides[1], At(block_scales), apart, down, across)


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], config: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """Raises LaunchError for arrays that do not go together."""
    call, work, (scale_a, scale_b) = call_of(_WHAT, infos[:4], None, multiprocessors, dtypes=_FP8), Work(6), infos[4:]
    (m, k), n = call.a.shape, call.b.shape[1]
    scale_steps(_WHAT, (scale_a, (m, k)), (scale_b, (n, k)))
    if 0 in (m, n):
        return work
    a, b = brought(work, (call.a, True), (call.b, False))
    call = call._replace(a=a, b=b, problem=facts(a, b, call.c, step="promote"))
    t = config or choose(call.problem, call.chip).way
    high, (down, across), view = t.computed(t.m, t.n)[0], scale_a.strides, None
    if t.scales_come and down == 1 and k > 0:
        shape = tilejit.cdiv(k, SCALE_BLOCK), m
        view = Matrix(scale_a, at=4).seen(shape, (across, 1), (1, high))
        view = view if view.descriptor is not None and view.descriptor.tma else None
    multiply(work, call, t, step=promoted(m, 4, (down, across), 5, scale_b.strides, view))
    return work
