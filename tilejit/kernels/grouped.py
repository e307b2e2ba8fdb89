from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import Matrix, check_operands, new, operand, result
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.chip import current
from tilejit.kernels.copy import brought, k_first
from tilejit.kernels.launches import Piece, multiply, stored
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import Call, End, facts
from tilejit.kernels.product import loads, steps, walks
from tilejit.kernels.scaled import promoted, scale_steps
from tilejit.kernels.way import Way

#: Rows of a group up to which a tile should hold twice as many: groups differ.
FEW = 64


@function(new)
def grouped_matmul(a: Array, b: Array, offsets: Array, out: Any = None, out_dtype: DType | None = None, *,
                   scale_a: Array | None = None, scale_b: Array | None = None, config: Way | None = None) -> Any:
    """out[offsets[e]:offsets[e + 1]] = a[offsets[e]:offsets[e + 1]] @ b[e] for every group e (contiguous form).

    a [rows, K], b [groups, K, N]: bf16, fp16, fp32 (tf32 products) or fp8, copied first where TMA does not read them as
    they lie; fp32 sums. offsets: int32 [groups + 1] on the device, ascending, at most `rows`; groups may be empty and
    start at any row. Rows outside all groups are not written. scale_a [rows, ceil(K / 128)] and scale_b [groups,
    ceil(N / 128), ceil(K / 128)], both or none: fp32 scales of blocks of fp8 operands, as for `matmul_blockscaled`.
    The result [rows, N] has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Raises
    LaunchError for what does not fit."""
    return _run("grouped_matmul", a, b, out, out_dtype, offsets, (scale_a, scale_b), False, None, config)


@function(new)
def masked_grouped_matmul(a: Array, b: Array, counts: Array, out: Any = None, out_dtype: DType | None = None, *,
                          scale_a: Array | None = None, scale_b: Array | None = None, expected: int | None = None,
                          config: Way | None = None) -> Any:
    """out[e, :counts[e]] = a[e, :counts[e]] @ b[e] for every group e (masked form; other rows are not written).

    a [groups, capacity, K] and the result [groups, capacity, N] are contiguous stacks of row-major matrices, or a is
    copied first, as b is (`grouped_matmul`); counts: int32 [groups] on the device, at most `capacity`. scale_a [groups,
    capacity, ceil(K / 128)], the groups stacked as densely, and scale_b: as for `grouped_matmul`. expected: rows of a
    usual group, which chooses the tile (default: the capacity)."""
    return _run("masked_grouped_matmul", a, b, out, out_dtype, counts, (scale_a, scale_b), True, expected, config)


def _run(what: str, a: Any, b: Any, out: Any, out_dtype: Any, sizes: Any, scales: tuple[Any, Any], masked: bool,
         expected: int | None, config: Way | None) -> Any:
    """`sizes` are the groups' offsets or, masked, their rows. Returns the result."""
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, sizes, out, *scales), what, masked, expected, config)
    return out


def flat(what: str, name: str, x: Matrix) -> Matrix:
    groups, rows, columns = x.shape
    if not x.rows_first or groups > 1 and x.strides[0] != rows * x.strides[1]:
        raise tilejit.LaunchError(f"{what}: {name} must be a contiguous stack of row-major matrices, found strides "
                                  f"{list(x.strides)} for shape {list(x.shape)}")
    return x.viewed((groups * rows, columns), x.strides[1:])


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], what: str, masked: bool, expected: int | None, config: Way | None,
          multiprocessors: int, knobs: Any) -> Work:
    """Raises LaunchError for arrays that do not go together."""
    a, b, sizes, out, scale_a, scale_b = infos
    work, ma, mb = Work(6), operand(what, "a", a, 0, 2 + masked), operand(what, "b", b, 1, 3)
    if masked and a.shape[0] != b.shape[0]:
        raise tilejit.LaunchError(f"{what}: a has {a.shape[0]} groups, b {b.shape[0]}")
    mc = result(what, out, (*a.shape[:-1], b.shape[2]), 3)
    check_operands(what, ma, mb)
    rows, (groups, _, n) = prod(a.shape[:-1]), mb.shape
    name, length = ("counts", groups) if masked else ("offsets", groups + 1)
    if sizes.dtype != tl.int32 or sizes.shape != (length,) or sizes.strides[0] != 1 and length > 1:
        raise tilejit.LaunchError(f"{what}: {name} must be int32 [{length}], found {sizes.dtype} {list(sizes.shape)}")
    if 0 in (rows, n, groups):
        return work
    ma, mb = brought(work, (ma, True), (mb, k_first(mb, False)))
    ma, mc = (flat(what, "a", ma), flat(what, "out", mc)) if masked else (ma, mc)
    blocks = (scale_a, scale_b) != (None, None)
    average = tilejit.cdiv(rows, groups) if expected is None else expected
    problem = facts(ma, mb, mc, m=min(2 * average, max(average, FEW)), batches=groups, grouped=True,
                    step="promote" if blocks else "accumulate")
    chip = current(a.device, multiprocessors)
    t = config or choose(problem, chip).way
    high, wide = t.computed(t.m, t.n)
    tiles = (tilejit.cdiv(rows, high) + groups) * tilejit.cdiv(n, wide)  # at most
    multiply(work, Call(ma, mb, mc, replace(problem, m=0), chip), t, programs=min(t.room(multiprocessors), tiles),
             step=_promoted(what, masked, a, mb, scale_a, scale_b) if blocks else (steps.accumulate, steps.SUMS),
             walk=(walks.groups, (At(2), groups, a.shape[1] if masked else None)),
             a=(loads.group_rows, (ma.descriptor(high, t.step(problem.size)),)),
             last=stored(End(), mc.ragged(high, wide)))
    return work


def _promoted(what: str, masked: bool, a: ArrayInfo, b: Matrix, *scales: ArrayInfo | None) -> Piece:
    """The STEP for scales of blocks of a and b."""
    if not a.dtype.is_fp8():
        raise tilejit.LaunchError(f"{what}: scales of blocks are for fp8 operands, found {a.dtype}")
    groups, k, n = b.shape
    scale_a, scale_b = scale_steps(what, (scales[0], (*a.shape[:-1], k)), (scales[1], (groups, n, k)))
    if masked and groups > 1 and scale_a.strides[0] != a.shape[1] * scale_a.strides[1]:
        raise tilejit.LaunchError(f"{what}: scale_a must be a dense stack, found strides {list(scale_a.strides)}")
    return promoted(prod(a.shape[:-1]), 4, scale_a.strides[-2:], 5, scale_b.strides)
