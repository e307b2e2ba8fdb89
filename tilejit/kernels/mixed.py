"""Matrix product of 16-bit numbers and a weight of 8- or 4-bit integers, widened on its way to the tensor cores.

C^T = W X^T by the kernel of `streamk.py`: tiles of the weight come by TMA, pass through registers, where they become
16-bit numbers, and go to shared memory for the products. Scales of groups of K multiply the sums of their blocks.
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operands import Workspace, operand, require_tma, result, vector
from tilejit.kernels.streamk import ACTIVATIONS, Config, divide, meeting, streamk_kernel

#: Tiles of C^T by the rows of X that they hold.
TILES = (Config(128, 16, 4, True), Config(128, 32, 4, True), Config(128, 64, 4, True), Config(128, 128, 8, True))
_SHARED = 222 * 1024


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, group: int, multiprocessors: int, split: int | None = None) -> tuple[Config, int]:
    """Tile and elements of K in a block for x [m, k] and a weight [n, k] with scales of `group` elements."""
    t = next((t for t in TILES if m <= t.n), TILES[-1])
    bk = 128 if t.n <= 32 and group % 128 == 0 else 64
    tiles = tilejit.cdiv(n, t.m) * tilejit.cdiv(m, t.n)
    programs, stream = divide(tiles, max(1, tilejit.cdiv(k, bk)), multiprocessors, split)
    return replace(t, programs=programs, stream_tiles=stream), bk


def stages(t: Config, bk: int, bits: int, out_bytes: int) -> int:
    """Blocks that fit in shared memory beside staging and the widened weight (two of each where groups take turns)."""
    staged = t.m * min(t.n, 32) * 4 * (1 + (t.n > 32)) + t.m * t.n * out_bytes + t.m * bk * 2
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
    what = "weight_only_matmul"
    mx, mw = operand(what, "x", x), operand(what, "weight", weight)
    bits = {"int8": 8, "uint8": 4}.get(str(mw.dtype))
    if str(mx.dtype) not in ("bf16", "fp16") or bits is None:
        raise tilejit.LaunchError(f"{what}: x must be bf16 or fp16 and the weight int8 or uint8 (two numbers of 4 bits "
                                  f"a byte), found {mx.dtype} and {mw.dtype}")
    for name, matrix in (("x", mx), ("weight", mw)):
        if not matrix.rows_first:
            raise tilejit.LaunchError(f"{what}: {name} must be row-major, found strides {list(matrix.strides)}")
    (m, k), n = mx.shape, mw.shape[0]
    if mw.shape[1] * 8 != k * bits:
        raise tilejit.LaunchError(f"{what}: x is {list(mx.shape)}, the weight {list(mw.shape)} of {bits} bits: rows of "
                                  f"{k} and {mw.shape[1] * 8 // bits} elements")
    group, down, across = _groups(what, scales, zeros, n, k, bits)
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{what}: activation {activation!r} is not one of {ACTIVATIONS}")
    vector(what, "bias", bias, n)
    mc = result(what, x, (m, n), out, mx.dtype)
    if 0 in (m, n):
        return mc.array
    t, bk = choose(m, n, k, group or 128, tilejit.multiprocessors(), split)
    dw, dx, dc = mw.descriptor(t.m, bk * bits // 8), mx.descriptor(t.n, bk), mc.descriptor(t.n, t.m)
    require_tma(what, weight=dw, x=dx, out=dc)
    streamk_kernel[(t.programs,)](
        dw, dx, dc, *meeting(what, x, t, workspace), bias, scales, zeros, n, m, k, t.stream_tiles, down, across,
        BM=t.m, BN=t.n, BK=bk, GROUP=8, A_ROWS=True, B_ROWS=False, C_ROWS=False, ACTIVATION=activation, ADD=False,
        ORDERED=ordered, A_BITS=bits, SCALE_STEPS=group // bk, num_warps=t.warps,
        num_stages=stages(t, bk, bits, mc.dtype.bytes))
    return mc.array


def _groups(what: str, scales: Any, zeros: Any, n: int, k: int, bits: int) -> tuple[int, int, int]:
    """Elements of K that share a scale (0: all) and the strides of the scales."""
    info = tilejit.array_info(scales)
    if info.dtype not in (tl.bfloat16, tl.float16, tl.float32):
        raise tilejit.LaunchError(f"{what}: scales must be bf16, fp16 or fp32, found {info.dtype}")
    if zeros is not None:
        given = tilejit.array_info(zeros)
        if bits == 8 or (given.shape, given.strides) != (info.shape, info.strides) or len(info.shape) != 2:
            raise tilejit.LaunchError(f"{what}: zeros go with 4-bit weights, and have the shape [N, groups] and the "
                                      "strides of the scales")
    if info.shape == (n,):
        return 0, info.strides[0], 0
    groups = info.shape[1] if len(info.shape) == 2 else 0
    if info.shape != (n, groups) or groups < 1 or k % groups or k // groups % 64:
        raise tilejit.LaunchError(f"{what}: scales must have shape [{n}] or [{n}, groups] with groups of a multiple of "
                                  f"64 elements of {k}, found {list(info.shape)}")
    return k // groups, info.strides[0], info.strides[1]
