"""Matrix product of 16-bit numbers and a weight of 8- or 4-bit integers, widened on its way to the tensor cores.

C^T = W X^T by the kernel of `streamk.py`: tiles of the weight come by TMA and become 16-bit numbers in the
registers from which the products take them. Scales of groups of K multiply the sums of their blocks.
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo, active_knobs
from tilejit.kernels._calls import Call, Calls, Launch, facts_of, infos_of
from tilejit.kernels._operands import Workspace, check_vector, operand, require_tma, result
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.division import GROUP, Config, divide
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.streamk import meeting, streamk_kernel

#: Tiles of C^T by the rows of X that they hold.
TILES = (Config(128, 16, 4, True), Config(128, 32, 4, True), Config(128, 64, 4, True), Config(128, 128, 8, True))
_SHARED = 222 * 1024
_WHAT = "weight_only_matmul"
_calls = Calls()


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, group: int, multiprocessors: int, split: int | None = None) -> tuple[Config, int]:
    """Tile and elements of K in a block for x [m, k] and a weight [n, k] with scales of `group` elements."""
    t = next((t for t in TILES if m <= t.n), TILES[-1])
    bk = 128 if t.n <= 32 and group % 128 == 0 else 64
    tiles = tilejit.cdiv(n, t.m) * tilejit.cdiv(m, t.n)
    programs, stream = divide(tiles, max(1, tilejit.cdiv(k, bk)), multiprocessors, split)
    return replace(t, programs=programs, stream_tiles=stream), bk


def stages(t: Config, bk: int, bits: int, out_bytes: int) -> int:
    """Blocks that fit in shared memory beside staging (twice that where groups take turns)."""
    staged = t.m * min(t.n, 32) * 4 * (1 + (t.n > 32)) + t.m * t.n * out_bytes
    groups = 2 if t.warps == 4 else 1
    return min(12, (_SHARED - groups * staged) // (t.m * bk * bits // 8 + t.n * bk * 2))


def weight_only_matmul(x: Any, weight: Any, scales: Any, zeros: Any = None, bias: Any = None,
                       activation: str | None = None, out: Any = None, *, ordered: bool = False,
                       split: int | None = None, workspace: Workspace | None = None) -> Any:
    """activation(x @ w^T + bias), where w [N, K] are the weight's integers (less their zeros) times their scales.

    x [M, K]: bf16 or fp16, row-major. weight: int8 [N, K]; or uint8 [N, K / 2], two unsigned 4-bit numbers a byte, the
    one of even k low, from which 8 is subtracted, or zeros: integers as numbers of any float type, shaped and strided
    as the scales. scales: [N], or [N, K / group] where group is a multiple of 64 (floats). Rows are multiples of 16
    bytes. bias [N]. The result [M, N] has x's dtype unless out says otherwise. ordered, split, workspace: as for
    `matmul_streamk`. Raises LaunchError for what does not fit."""
    ix, iw, iscales, izeros, ibias = infos_of(x, weight, scales, zeros, bias)
    if out is None:
        out = tilejit.empty_like(x, (*ix.shape[:1], *iw.shape[:1]), ix.dtype)
    io = tilejit.array_info(out)
    key = (ix, iw, iscales, izeros, ibias, io, activation, ordered, split, workspace and workspace.infos,
           active_knobs())
    if _calls.repeat(key):
        return out
    plan = _plan(*facts_of(ix, iw, iscales, izeros, ibias, io), activation, ordered, split,
                 tilejit.multiprocessors(ix.device))
    if plan is not None:
        t, launch = plan
        meet = meeting(_WHAT, x, t, workspace)
        launches: list[Call] = [(launch, ((weight, x, out), (iw, ix, io), *meet, bias, scales, zeros), {})]
        if t.parts:
            launches.append(sum_parts(meet[1], out, io, bias, activation, (t.m, t.n), t.parts, GROUP, True))
        _calls.run(None if t.met and workspace is None else key, *launches)
    return out


@lru_cache(maxsize=1024)
def _plan(x: ArrayInfo, weight: ArrayInfo, scales: ArrayInfo, zeros: ArrayInfo | None, bias: ArrayInfo | None,
          out: ArrayInfo, activation: str | None, ordered: bool, split: int | None,
          multiprocessors: int) -> tuple[Config, Launch] | None:
    """Tile, and the launch for weight, x and result; None where that is empty."""
    mx, mw = operand(_WHAT, "x", x), operand(_WHAT, "weight", weight)
    bits = {"int8": 8, "uint8": 4}.get(str(mw.dtype))
    if str(mx.dtype) not in ("bf16", "fp16") or bits is None:
        raise tilejit.LaunchError(f"{_WHAT}: x must be bf16 or fp16 and the weight int8 or uint8 (two numbers of 4 "
                                  f"bits a byte), found {mx.dtype} and {mw.dtype}")
    for name, matrix in (("x", mx), ("weight", mw)):
        if not matrix.rows_first:
            raise tilejit.LaunchError(f"{_WHAT}: {name} must be row-major, found strides {list(matrix.strides)}")
    (m, k), n = mx.shape, mw.shape[0]
    if mw.shape[1] * 8 != k * bits:
        raise tilejit.LaunchError(f"{_WHAT}: x is {list(mx.shape)}, the weight {list(mw.shape)} of {bits} bits: rows "
                                  f"of {k} and {mw.shape[1] * 8 // bits} elements")
    group, down, across = _groups(scales, zeros, n, k, bits)
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{_WHAT}: activation {activation!r} is not one of {ACTIVATIONS}")
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (m, n))
    if 0 in (m, n):
        return None
    t, bk = choose(m, n, k, group or 128, multiprocessors, split)
    dw, dx, dc = mw.descriptor(t.m, bk * bits // 8), mx.descriptor(t.n, bk), mc.descriptor(t.n, t.m)
    require_tma(_WHAT, weight=dw, x=dx, out=dc)
    kernel = streamk_kernel.partial(
        M=n, N=m, K=k, stream_tiles=t.stream_tiles, scale_down=down, scale_across=across, BM=t.m, BN=t.n, BK=bk,
        GROUP=GROUP, A_ROWS=True, B_ROWS=False, C_ROWS=False, ACTIVATION=activation, ADD=False, ORDERED=ordered,
        A_BITS=bits, SCALE_STEPS=group // bk, PARTS=t.parts, num_warps=t.warps,
        num_stages=stages(t, bk, bits, mc.dtype.bytes))
    return t, Launch(kernel, (t.programs,), (dw, dx, dc))


def _groups(scales: ArrayInfo, zeros: ArrayInfo | None, n: int, k: int, bits: int) -> tuple[int, int, int]:
    """Elements of K that share a scale (0: all) and the strides of the scales."""
    if scales.dtype not in (tl.bfloat16, tl.float16, tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: scales must be bf16, fp16 or fp32, found {scales.dtype}")
    if zeros is not None and (bits == 8 or (zeros.shape, zeros.strides) != (scales.shape, scales.strides)
                              or len(scales.shape) != 2):
        raise tilejit.LaunchError(f"{_WHAT}: zeros go with 4-bit weights, and have the shape [N, groups] and the "
                                  "strides of the scales")
    if scales.shape == (n,):
        return 0, scales.strides[0], 0
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    if scales.shape != (n, groups) or groups < 1 or k % groups or k // groups % 64:
        raise tilejit.LaunchError(f"{_WHAT}: scales must have shape [{n}] or [{n}, groups] with groups of a multiple "
                                  f"of 64 elements of {k}, found {list(scales.shape)}")
    return k // groups, scales.strides[0], scales.strides[1]
