"""Batched matrix product C[i] = act(A[i] @ B[i] + bias): one persistent kernel over the tiles of all batches."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Work, called, given, known_of
from tilejit.kernels._operands import (
    K_BYTES,
    Matrix,
    check_one_of,
    check_operands,
    check_vector,
    new,
    operand,
    require_tma,
    result,
)
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import current
from tilejit.kernels.launches import End, load, product
from tilejit.kernels.planning import LARGE, best
from tilejit.kernels.problem import facts
from tilejit.kernels.product import steps, walks
from tilejit.kernels.way import Way

#: Tiles of one CTA, and of two that divide rows. (Those that divide columns are 2 to 8% slower on an H200; beside the
#: batch's coordinates there are too few registers for some of 176 and 208 columns.)
TILES = (*(t for t in LARGE if not t.columns and t.n not in (176, 208)), Way(128, 128, 4),
         *(Way(64, n, 4) for n in (256, 128, 64, 32)))
#: Bytes of a batch's operands up to which L2 holds all of them, however tiles are walked; then two rows of tiles at a
#: time: programs side by side share columns as well (2% faster at 64 x 512^3, 1% at 12 x 768 x 3072 x 768 on an H200).
IN_L2, FEW_ROWS = 8 * 2 ** 20, 2
_WHAT = "batched_matmul"


@tilejit.replayed
def batched_matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
                   out_dtype: Any = None, tiles: Way | None = None) -> Any:
    """activation(a[i] @ b[i] + bias) for every i, with fp32 sums.

    a [batches, M, K], b [batches, K, N]: bf16, fp16, fp32 (tf32 products) or fp8; each matrix row- or column-major
    (fp8 and fp32: a row-major, b column-major); strides and addresses multiples of 16 bytes. An operand with one
    batch, or with batch stride 0, serves all. bias [N]. The result [batches, M, N] has the inputs' dtype (bf16 for
    fp8) unless `out` or `out_dtype` says otherwise. tiles: instead of a choice. Raises LaunchError for what does not
    fit."""
    if out is None:
        out = new(a, _operands(*known_of(a, b))[2], out_dtype)
    called(_work, (a, b, bias, out), activation, tiles)
    return out


@lru_cache(maxsize=1024)
def _operands(a: ArrayInfo, b: ArrayInfo) -> tuple[Matrix, Matrix, tuple[int, ...]]:
    """Both, and the shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = _single(operand(_WHAT, "a", a, 0, 3)), _single(operand(_WHAT, "b", b, 1, 3))
    check_operands(_WHAT, ma, mb)
    batches = max(a.shape[0], b.shape[0])
    for name, x in (("a", ma), ("b", mb)):
        if x.shape[0] not in (1, batches):
            raise tilejit.LaunchError(f"{_WHAT}: {name} has {x.shape[0]} batches, the other one {batches}")
    return ma, mb, (batches, ma.shape[1], mb.shape[2])


@lru_cache(maxsize=1024)
def _work(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None,
          tiles: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """The launch."""
    work, (ma, mb, shape) = Work(4), _operands(a, b)
    (batches, m, n), k = shape, ma.shape[2]
    check_one_of(_WHAT, "activation", activation, ACTIVATIONS)
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, shape, 3)
    if 0 in shape:
        return work
    there = TILES if tilejit.chip() == "sm_90a" else tuple(t for t in TILES if t.ctas == 1 and t.n & t.n - 1 == 0)
    problem = facts(ma, mb, out, bias is not None, activation, batches=batches)
    t = tiles or best(problem, current(a.device, multiprocessors), there)
    bk = K_BYTES // ma.dtype.bytes
    first, second, seen = load(ma, t.m, bk), load(mb.T, t.n, bk), mc.descriptor(t.m, t.n)
    require_tma(_WHAT, a=first[1][0], b=second[1][0], out=seen)
    group = FEW_ROWS if (m + n) * k * ma.dtype.bytes <= IN_L2 else t.group(m, tilejit.cdiv(k, bk))
    # Batches are bound by memory. Measured on an H200 at 64 x 512^3: programs of one CTA take 6% longer if the launch
    # begins while the one before it ends (those of two CTAs 4% less), since they then get multiprocessors in any order;
    # and a tile that another group's products hide is best staged whole.
    work.launches.append(product(
        t, (m, n, k), bk, min(t.room(multiprocessors), batches * t.tiles(m, n)),
        (walks.whole, (tl.constexpr(0), tl.constexpr(0), tl.constexpr(group), batches)), first, second, (steps.accumulate, steps.SUMS),
        End(given(2, bias), activation=activation).stored(seen), launch_pdl=t.ctas > 1,
        store_stages=1 if t.in_turn else 2))
    return work


def _single(x: Matrix) -> Matrix:
    """A stack whose matrices all are one is that one; the stride over a single matrix is immaterial."""
    batches, m, n = x.shape
    if batches > 1 and x.strides[0]:
        return x
    return replace(x, shape=(min(batches, 1), m, n), strides=(m * max(x.strides[1:]), *x.strides[1:]))
