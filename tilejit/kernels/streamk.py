"""Products whose K loops are divided between programs on request: split-K, stream-K, sums added to a result."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import facts_of, infos_of, place, run
from tilejit.kernels._operands import DTYPES, Workspace, check_operands, new, operand, require_tma, tensor_scales
from tilejit.kernels.chip import current
from tilejit.kernels.planning import restricted
from tilejit.kernels.problem import checked, facts
from tilejit.kernels.steps import Step, meeting, step, workspace_of
from tilejit.kernels.way import Part, Way

_WHAT = "matmul_streamk"


@tilejit.replayed
def matmul_streamk(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
                   out_dtype: Any = None, *, scale_a: Any = None, scale_b: Any = None, accumulate: bool = False,
                   ordered: bool = False, split: int | None = None, ctas: int | None = None,
                   workspace: Workspace | None = None, config: Way | None = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums, for shapes whose tiles alone do not fill the chip.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major (fp8 and fp32: a row-major,
    b column-major); strides and addresses multiples of 16 bytes. scale_a, scale_b: arrays of one fp32 number (without:
    1). bias [N]. The result has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise.
    accumulate: out (fp32) += a @ b; no scales, bias, activation or workspace. ordered: sums in a fixed order, so that
    equal inputs give equal bits. split: programs a tile; ctas: 1, 2, 4 or 8 CTAs a program, which divide K (default of
    both: chosen from the shape). workspace: reused memory (`workspace_for`); without one each call clears its own.
    config: all of it, instead of a choice.
    Raises LaunchError for what does not fit. Stream-K: arXiv 2301.03598."""
    infos = infos_of(a, b, bias)
    if out is None:
        if accumulate:
            raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to `out`")
        shape = _checked(*facts_of(*infos[:2]))
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, infos[0].dtype)
    scales = tensor_scales(_WHAT, scale_a, scale_b)
    if accumulate and scales:
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds the product itself, without scales")
    infos = *infos, tilejit.array_info(out)
    found = _plan(*facts_of(*infos), activation, accumulate, ordered, split, ctas, config, *place(infos[0]))
    if found is not None:
        meet = (None, None, None) if accumulate else meeting(_WHAT, a, found.way, workspace)
        run(*found.calls((a, b, out), (infos[0], infos[1], infos[3]), bias, scales, meet))
    return out


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    check_operands(_WHAT, ma, mb, DTYPES)
    return ma.shape[0], mb.shape[1]


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None, accumulate: bool,
          ordered: bool, split: int | None, ctas: int | None, config: Way | None, multiprocessors: int,
          knobs: Any) -> Step | None:
    """The launch, and the way that it goes; None where the result is empty."""
    ma, mb, mc = checked(_WHAT, a, b, bias, out, activation)
    if accumulate and (bias is not None or activation is not None or ordered or mc.dtype != tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to an fp32 `out`, without bias, activation or order; "
                                  f"found {mc.dtype}")
    if ctas not in (None, 1, 2, 4, 8) or (ctas or 1) > 1 and split is not None:
        raise tilejit.LaunchError(f"{_WHAT}: ctas is 1, 2, 4 or 8, and without split; found {ctas} and split={split}")
    m, n = mc.shape
    if 0 in (m, n):
        return None
    problem, chip = facts(ma, mb, out, bias is not None, activation), current(a.device, multiprocessors)
    t = config or restricted(problem, chip, bool(tilejit.chip() == "sm_90a"), split, ctas)
    tiles = t.tiles(m, n)
    if t.stream > tiles or t.parts and t.stream < tiles:
        raise tilejit.LaunchError(f"{_WHAT}: config divides {t.stream} tiles, the result has {tiles} of "
                                  f"{t.m} x {t.n}: see Way.divided")
    found = step(problem, Part(0, 0, *t.computed(m, n), t), ma, mb, mc, activation, chip, accumulate,
                 t.beside or ordered and t.ctas == 1)
    named = dict(zip(("b", "a", "out") if t.swap else ("a", "b", "out"), found.launch.descriptors))
    require_tma(_WHAT, **named)                     # the sum of parts is written through pointers
    return found


def workspace_for(a: Any, b: Any, split: int | None = None, ctas: int | None = None,
                  config: Way | None = None) -> Workspace:
    """A workspace that is large enough for `matmul_streamk(a, b, split=split, ctas=ctas, config=config)`."""
    ia, ib = infos_of(a, b)
    ma, mb = operand(_WHAT, "a", ia), operand(_WHAT, "b", ib)
    chip = current(ia.device)
    return workspace_of(config or restricted(facts(ma, mb, ia), chip, bool(tilejit.chip() == "sm_90a"), split, ctas), a)
