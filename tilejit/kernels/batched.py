"""Batched matrix product C[i] = act(A[i] @ B[i] + bias): one persistent kernel over the tiles of all batches."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._operands import (
    Matrix,
    check_operands,
    check_vector,
    facts,
    facts_of,
    new,
    operand,
    require_tma,
    result,
)
from tilejit.kernels.activations import ACTIVATIONS, activate
from tilejit.kernels.order import tile_at


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
        if bias is not None:
            cols = n + tl.arange(0, BN)
            acc += tl.load(bias + cols, cols < N, other=0.0).to(tl.float32)[None, :]
        c = activate(acc, ACTIVATION, c_desc.dtype).to(c_desc.dtype)
        c_desc.store([batch, m, n], c.reshape(1, BM, BN))


@dataclass(frozen=True)
class Config:
    """A tile and how it runs."""

    m: int
    n: int
    warps: int
    stages: int


#: Largest first.
TILES = (Config(128, 256, 8, 4), Config(128, 128, 8, 5), Config(64, 128, 4, 6), Config(64, 64, 4, 6))
DTYPES = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32")
K_BYTES = 128
_WHAT = "batched_matmul"


@lru_cache(maxsize=1024)
def choose(batches: int, m: int, n: int, multiprocessors: int) -> Config:
    """The tile with the least time: turns of the multiprocessors, each as long as a tile's operands take to arrive
    (rows + columns) or its products to compute, whichever is longer."""
    def time(t: Config) -> float:
        tiles = batches * tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n)
        return tilejit.cdiv(tiles, multiprocessors) * max((t.m + t.n) / 48, t.m * t.n / 4096)

    return min(TILES, key=time)


def batched_matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
                   out_dtype: Any = None, config: Config | None = None) -> Any:
    """activation(a[i] @ b[i] + bias) for every i, with fp32 sums.

    a [batches, M, K], b [batches, K, N]: bf16, fp16, fp32 (tf32 products) or fp8; each matrix row- or column-major
    (fp8 and fp32: a row-major, b column-major); strides and addresses multiples of 16 bytes. An operand with one
    batch, or with batch stride 0, serves all. bias [N]. The result [batches, M, N] has the inputs' dtype (bf16 for
    fp8) unless `out` or `out_dtype` says otherwise. Raises LaunchError for what does not fit."""
    ia, ib, ibias = facts_of(a, b, bias)
    assert ia is not None and ib is not None
    if out is None:
        shape = _checked(ia, ib)
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, ia.dtype)
    plan = _plan(ia, ib, ibias, facts(out), activation, config, tilejit.multiprocessors())
    if plan is not None:
        grid, (da, db, dc), sizes, constants = plan
        batched_kernel[grid](da.over(a), db.over(b), dc.over(out), bias, *sizes, **constants)
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
def _plan(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None,
          config: Config | None, multiprocessors: int) -> tuple[
              tuple[int], tuple[tilejit.TensorDescriptor, ...], tuple[int, ...], dict[str, Any]] | None:
    """Grid, descriptors to put over the arrays, sizes, and constants; None where the result is empty."""
    batches, m, n = _checked(a, b)
    ma, mb = _operands(a, b)
    k = ma.shape[2]
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{_WHAT}: activation {activation!r} is not one of {ACTIVATIONS}")
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (batches, m, n))
    if 0 in (batches, m, n):
        return None
    t = config or choose(batches, m, n, multiprocessors)
    bk = K_BYTES // ma.dtype.bytes
    descriptors = {"a": ma.descriptor(t.m, bk), "b": mb.descriptor(bk, t.n), "out": mc.descriptor(t.m, t.n)}
    require_tma(_WHAT, **descriptors)
    grid = min(multiprocessors, batches * tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n))
    return (grid,), tuple(descriptors.values()), (batches, m, n, k), dict(
        BM=t.m, BN=t.n, BK=bk, GROUP=8, A_ROWS=ma.rows_first, B_ROWS=mb.rows_first, ACTIVATION=activation,
        num_warps=t.warps, num_stages=t.stages)


def _single(x: Matrix) -> Matrix:
    """A stack whose matrices all are one is that one; the stride over a single matrix is immaterial."""
    batches, m, n = x.shape
    if batches > 1 and x.strides[0]:
        return x
    return replace(x, shape=(min(batches, 1), m, n), strides=(m * max(x.strides[1:]), *x.strides[1:]))
