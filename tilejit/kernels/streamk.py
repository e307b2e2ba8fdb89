"""Products whose K loops are divided between programs on request: split-K, stream-K, sums added to a result."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Work, called, known_of, place
from tilejit.kernels._calls import Workspace as Workspace
from tilejit.kernels._operands import new
from tilejit.kernels.chip import hopper
from tilejit.kernels.launches import End, add, call_of
from tilejit.kernels.planning import restricted
from tilejit.kernels.way import Part, Way

_WHAT = "matmul_streamk"


@tilejit.replayed
def matmul_streamk(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
                   out_dtype: Any = None, *, scale_a: Any = None, scale_b: Any = None, accumulate: bool = False,
                   split: int | None = None, ctas: int | None = None, workspace: Workspace | None = None,
                   config: Way | None = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums, for shapes whose tiles alone do not fill the chip.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major (fp8 and fp32: a row-major,
    b column-major); strides and addresses multiples of 16 bytes. scale_a, scale_b: arrays of one fp32 number (without:
    1). bias [N]. The result has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Sums have
    a fixed order: equal inputs give equal bits.
    accumulate: out (fp32) += a @ b, in no fixed order; no scales, bias or activation. split: programs a tile; ctas: 1,
    2, 4 or 8 CTAs a program, which divide K (default of both: chosen from the shape). workspace: reused memory
    (`workspace_for`). config: all of it, instead of a choice.
    Raises LaunchError for what does not fit. Stream-K: arXiv 2301.03598."""
    if out is None and accumulate:
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to `out`")
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, bias, out, scale_a, scale_b), activation, accumulate, split, ctas, config, workspace=workspace)
    return out


@lru_cache(maxsize=1024)
def _work(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, scale_a: ArrayInfo | None,
          scale_b: ArrayInfo | None, activation: str | None, accumulate: bool, split: int | None, ctas: int | None,
          config: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """The launches. Raises LaunchError for what does not fit."""
    call = call_of(_WHAT, a, b, bias, out, scale_a, scale_b, activation, multiprocessors)
    if accumulate and (call.end != End() or out.dtype != tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to an fp32 `out`, without bias, activation or scales; "
                                  f"found {out.dtype}")
    if ctas not in (None, 1, 2, 4, 8) or (ctas or 1) > 1 and split is not None:
        raise tilejit.LaunchError(f"{_WHAT}: ctas is 1, 2, 4 or 8, and without split; found {ctas} and split={split}")
    work, (m, n) = Work(6), out.shape
    if 0 in (m, n):
        return work
    t = config or restricted(call.problem, call.chip, hopper(), split, ctas)
    tiles = t.tiles(m, n)
    if t.stream > tiles or t.parts and t.stream < tiles:
        raise tilejit.LaunchError(f"{_WHAT}: config divides {t.stream} tiles, the result has {tiles} of "
                                  f"{t.m} x {t.n}: see Way.divided")
    add(work, call, Part(0, 0, *t.computed(m, n), t), accumulate)
    return work


def workspace_for(a: Any, b: Any, split: int | None = None, ctas: int | None = None,
                  config: Way | None = None) -> Workspace:
    """A workspace that is large enough for `matmul_streamk(a, b, split=split, ctas=ctas, config=config)`."""
    ia, ib = known_of(a, b)
    m, n = ia.shape[0], ib.shape[1]
    out = tilejit.ArrayInfo(0, tl.float32, (m, n), (tilejit.cdiv(n, 4) * 4, 1), ia.device)
    work = _work(ia, ib, None, out, None, None, None, False, split, ctas, config, *place(ia))
    return Workspace(a, work.memory)
