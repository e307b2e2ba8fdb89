from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._calls import Work, called
from tilejit.kernels._operands import new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.copy import k_first
from tilejit.kernels.launches import add
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import End, call_of
from tilejit.kernels.routes import reached
from tilejit.kernels.way import Way

_WHAT = "matmul_streamk"


@function(new)
def matmul_streamk(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, out: Any = None,
                   out_dtype: DType | None = None, *, scale_a: Array | None = None, scale_b: Array | None = None,
                   accumulate: bool = False, split: int | None = None, ctas: int | None = None,
                   config: Way | None = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums, for shapes whose tiles alone do not fill the chip.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, copied first where TMA does not read them as they lie.
    scale_a, scale_b: arrays of one fp32 number (without: 1). bias [N]. The result has the inputs' dtype (bf16 for fp8)
    unless `out` or `out_dtype` says otherwise. Sums have a fixed order: equal inputs give equal bits.
    accumulate: out (fp32) += a @ b, in no fixed order; no scales, bias or activation. split: programs a tile; ctas: 1,
    2, 4 or 8 CTAs a program, which divide K (default of both: chosen from the shape). config: all of it, instead of a
    choice. Raises LaunchError for what does not fit. Stream-K: arXiv 2301.03598."""
    if out is None and accumulate:
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to `out`")
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, bias, out, scale_a, scale_b), activation, accumulate, split, ctas, config)
    return out


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], activation: str | None, accumulate: bool, split: int | None, ctas: int | None,
          config: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """Raises LaunchError for what does not fit."""
    call, work = call_of(_WHAT, infos, activation, multiprocessors), Work(6)
    (m, n), dtype = call.c.shape, call.c.dtype
    if accumulate and (call.end != End() or dtype != tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to an fp32 `out`, without bias, activation or scales; "
                                  f"found {dtype}")
    if ctas not in (None, 1, 2, 4, 8) or (ctas or 1) > 1 and split is not None:
        raise tilejit.LaunchError(f"{_WHAT}: ctas is 1, 2, 4 or 8, and without split; found {ctas} and split={split}")
    if accumulate and not call.c.in_reach:
        if ctas not in (None, 1):
            raise tilejit.LaunchError(f"{_WHAT}: CTAs that divide K add to rows at multiples of 16 bytes only")
        ctas = 1
    if 0 in (m, n):
        return work
    call = reached(work, call, k_first(call.a, True), k_first(call.b, False))
    t = config or choose(call.problem, call.chip, split, ctas).way
    tiles = t.tiles(m, n)
    if t.stream > tiles or t.parts and t.stream < tiles:
        raise tilejit.LaunchError(f"{_WHAT}: config divides {t.stream} tiles, the result has {tiles} of "
                                  f"{t.m} x {t.n}: see Way.divided")
    add(work, call, t, accumulate)
    return work
