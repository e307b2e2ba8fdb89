"""Batched matrix product C[i] = act(A[i] @ B[i] + bias): one persistent kernel over the tiles of all batches."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Launch, facts_of, infos_of, place
from tilejit.kernels._operands import (
    DTYPES,
    K_BYTES,
    Matrix,
    check_operands,
    check_vector,
    new,
    operand,
    require_tma,
    result,
)
from tilejit.kernels.activations import ACTIVATIONS, activate, biased
from tilejit.kernels.chip import current
from tilejit.kernels.order import tile_at
from tilejit.kernels.planning import LARGE, best
from tilejit.kernels.problem import facts
from tilejit.kernels.way import Way


@tilejit.kernel(do_not_specialize=("batches", "M", "N", "K"))
def batched_kernel(a_desc, b_desc, c_desc, bias, batches, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr, GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
                   ACTIVATION: tl.constexpr):
    """Each program walks tiles batch by batch, within one in groups of GROUP tile rows.

    Descriptors are of rank 3 with blocks [1, ., .]; one of a single matrix serves all batches. A_ROWS, B_ROWS: the
    descriptor sees the matrices themselves, else their transposes."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    a_last = a_desc.shape[0] - 1
    b_last = b_desc.shape[0] - 1
    for t in tl.range(tl.program_id(0), batches * tiles_m * tiles_n, tl.num_programs(0)):
        batch = t // (tiles_m * tiles_n)
        tile = t % (tiles_m * tiles_n)
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        in_a = tl.minimum(batch, a_last)
        in_b = tl.minimum(batch, b_last)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            if A_ROWS:
                a = a_desc.load([in_a, m, k * BK]).reshape(BM, BK)
            else:
                a = a_desc.load([in_a, k * BK, m]).reshape(BK, BM).T
            if B_ROWS:
                b = b_desc.load([in_b, k * BK, n]).reshape(BK, BN)
            else:
                b = b_desc.load([in_b, n, k * BK]).reshape(BN, BK).T
            acc = tl.dot(a, b, acc)
        acc = biased(acc, bias, n, N, BN)
        c = activate(acc, ACTIVATION, c_desc.dtype).to(c_desc.dtype)
        c_desc.store([batch, m, n], c.reshape(1, BM, BN))


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
    ia, ib, ibias = infos_of(a, b, bias)
    if out is None:
        shape = _checked(*facts_of(ia, ib))
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, ia.dtype)
    io = tilejit.array_info(out)
    launch = _launch(*facts_of(ia, ib, ibias, io), activation, tiles, *place(ia))
    if launch is not None:
        launch((a, b, out), (ia, ib, io), bias)
    return out


def _operands(a: ArrayInfo, b: ArrayInfo) -> tuple[Matrix, Matrix]:
    ma, mb = _single(operand(_WHAT, "a", a, 3)), _single(operand(_WHAT, "b", b, 3))
    check_operands(_WHAT, ma, mb, DTYPES)
    return ma, mb


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = _operands(a, b)
    batches = max(a.shape[0], b.shape[0])
    for name, x in (("a", ma), ("b", mb)):
        if x.shape[0] not in (1, batches):
            raise tilejit.LaunchError(f"{_WHAT}: {name} has {x.shape[0]} batches, the other one {batches}")
    return batches, ma.shape[1], mb.shape[2]


@lru_cache(maxsize=1024)
def _launch(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None,
            tiles: Way | None, multiprocessors: int, knobs: Any) -> Launch | None:
    """The launch for a, b and the result; None where that is empty."""
    batches, m, n = _checked(a, b)
    ma, mb = _operands(a, b)
    k = ma.shape[2]
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{_WHAT}: activation {activation!r} is not one of {ACTIVATIONS}")
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (batches, m, n))
    if 0 in (batches, m, n):
        return None
    bk = K_BYTES // ma.dtype.bytes
    there = TILES if tilejit.chip() == "sm_90a" else tuple(t for t in TILES if t.ctas == 1 and t.n & t.n - 1 == 0)
    problem = facts(ma, mb, out, bias is not None, activation, batches=batches)
    t = tiles or best(problem, current(a.device, multiprocessors), there)
    descriptors = {"a": ma.descriptor(t.m, bk), "b": mb.descriptor(bk, t.n), "out": mc.descriptor(t.m, t.n)}
    require_tma(_WHAT, **descriptors)
    grid = min(t.room(multiprocessors), batches * tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n))
    group = FEW_ROWS if (m + n) * k * ma.dtype.bytes <= IN_L2 else t.group(m, tilejit.cdiv(k, bk))
    # Batches are bound by memory. Measured on an H200 at 64 x 512^3: programs of one CTA take 6% longer if the launch
    # begins while the one before it ends (those of two CTAs 4% less), since they then get multiprocessors in any order;
    # and a tile that another group's products hide is best staged whole.
    kernel = batched_kernel.partial(
        batches=batches, M=m, N=n, K=k, BM=t.m, BN=t.n, BK=bk, GROUP=group, A_ROWS=ma.rows_first,
        B_ROWS=mb.rows_first, ACTIVATION=activation, launch_pdl=t.ctas > 1, store_stages=1 if t.in_turn else 2,
        **t.options)
    return Launch(kernel, (grid,), tuple(descriptors.values()))


def _single(x: Matrix) -> Matrix:
    """A stack whose matrices all are one is that one; the stride over a single matrix is immaterial."""
    batches, m, n = x.shape
    if batches > 1 and x.strides[0]:
        return x
    return replace(x, shape=(min(batches, 1), m, n), strides=(m * max(x.strides[1:]), *x.strides[1:]))
