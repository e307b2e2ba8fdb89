from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, called, given, infos_of
from tilejit.kernels._operands import check_dense, check_one_of, operand, result
from tilejit.kernels._operator import Array, function
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import current
from tilejit.kernels.copy import brought
from tilejit.kernels.launches import multiply
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import Call, End, facts
from tilejit.kernels.product import loads, steps
from tilejit.kernels.way import Way

_WHAT = "weight_only_matmul"


@function(lambda x, weight: (x, (x.shape[0], weight.shape[0]), None))
def weight_only_matmul(x: Array, weight: Array, scales: Array, zeros: Array | None = None, bias: Array | None = None,
                       activation: str | None = None, out: Any = None, *, split: int | None = None,
                       config: Way | None = None) -> Any:
    """activation(x @ w^T + bias), where w [N, K] are the weight's integers (less their zeros) times their scales.

    x [M, K]: bf16 or fp16. weight: int8 [N, K]; or uint8 [N, K / 2], two unsigned 4-bit numbers a byte, the
    one of even k low, from which 8 is subtracted, or zeros: integers as numbers of any float type, shaped and strided
    as the scales. scales: [N], or [N, K / group] where group is a multiple of 64 (floats; then they and w are rounded
    to x's dtype). Rows that are no multiples of 16 bytes, and others than contiguous ones, are copied first. bias [N].
    The result [M, N] has x's dtype unless out says otherwise. split: programs that divide K (default: chosen from the
    shape); their parts are summed in a fixed order. config: all of it, instead of a choice. Raises LaunchError for what
    does not fit."""
    if out is None:
        ix, iw = infos_of(x, weight)
        out = tilejit.empty_like(x, (*ix.shape[:1], *iw.shape[:1]), ix.dtype)
    called(_work, (x, weight, scales, zeros, bias, out), activation, split, config)
    return out


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], activation: str | None, split: int | None, config: Way | None, multiprocessors: int,
          knobs: Any) -> Work:
    x, weight, scales, zeros, bias, out = infos
    work, mx, mw = Work(6), operand(_WHAT, "x", x, 0), operand(_WHAT, "weight", weight, 1)
    bits = {"int8": 8, "uint8": 4}.get(str(mw.dtype))
    if str(mx.dtype) not in ("bf16", "fp16") or bits is None:
        raise tilejit.LaunchError(f"{_WHAT}: x must be bf16 or fp16 and the weight int8 or uint8 (two numbers of 4 "
                                  f"bits a byte), found {mx.dtype} and {mw.dtype}")
    (m, k), n = mx.shape, mw.shape[0]
    if mw.shape[1] * 8 != k * bits:
        raise tilejit.LaunchError(f"{_WHAT}: x is {list(mx.shape)}, the weight {list(mw.shape)} of {bits} bits: rows "
                                  f"of {k} and {mw.shape[1] * 8 // bits} elements")
    group, run, down, across = _groups(scales, zeros, n, k, bits)
    check_one_of(_WHAT, "activation", activation, ACTIVATIONS)
    check_dense(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (m, n), 5)
    if 0 in (m, n):
        return work
    mx, mw = brought(work, (mx, True), (mw, True))
    problem = facts(mx, mw.T, mc, step="widen", bits=bits, group=group)
    call = Call(mx, mw.T, mc, problem, current(x.device, multiprocessors), End(given(4, bias), activation=activation))
    t = config or choose(problem, call.chip, split).way
    bk, constant = t.step(problem.size), tl.constexpr
    step = (steps.widen, (At(2), given(3, zeros), down, across, *map(constant, (bits, group // bk, run))))
    # Weights that are read once leave L2 to x.
    packed = mw.descriptor(t.m, bk * bits // 8), constant(bits), "evict_first" if m <= t.n else ""
    multiply(work, call, t, step=step, b=(loads.packed_rows, packed), beside=True,
             num_stages=t.depth(mc.dtype.bytes, t.m * t.k_bytes * bits // 16 + t.n * t.k_bytes))
    return work


def _groups(scales: ArrayInfo, zeros: ArrayInfo | None, n: int, k: int, bits: int) -> tuple[int, int, int, int]:
    """Elements of K that share a scale (0: all), scales read at once in 64 bits (else 1), and their strides."""
    if scales.dtype not in (tl.bfloat16, tl.float16, tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: scales must be bf16, fp16 or fp32, found {scales.dtype}")
    if zeros is not None and (bits == 8 or (zeros.shape, zeros.strides) != (scales.shape, scales.strides)
                              or len(scales.shape) != 2):
        raise tilejit.LaunchError(f"{_WHAT}: zeros go with 4-bit weights, and have the shape [N, groups] and the "
                                  "strides of the scales")
    if scales.shape == (n,):
        return 0, 1, scales.strides[0], 0
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    if scales.shape != (n, groups) or groups < 1 or k % groups or k // groups % 64:
        raise tilejit.LaunchError(f"{_WHAT}: scales must have shape [{n}] or [{n}, groups] with groups of a multiple "
                                  f"of 64 elements of {k}, found {list(scales.shape)}")
    (down, across), run = scales.strides, 8 // scales.dtype.bytes
    words = across == 1 and down % run == 0 and groups % run == 0 and all(
        x.address % 8 == 0 and x.dtype.bytes == scales.dtype.bytes for x in (scales, zeros) if x is not None)
    return k // groups, run if words else 1, down, across
