from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.copy import k_first
from tilejit.kernels.launches import multiply, stored
from tilejit.kernels.planning import choose
from tilejit.kernels.problem import End, call_of
from tilejit.kernels.product import loads, steps, walks
from tilejit.kernels.routes import reached
from tilejit.kernels.scaled import promotion
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
    a, b, sizes, out, *scales = infos
    call, work = call_of(what, (a, b, None, out), None, multiprocessors, ranks=(2 + masked, 3)), Work(6)
    if masked and a.shape[0] != b.shape[0]:
        raise tilejit.LaunchError(f"{what}: a has {a.shape[0]} groups, b {b.shape[0]}")
    rows, (groups, _, n) = prod(a.shape[:-1]), b.shape
    name, length = ("counts", groups) if masked else ("offsets", groups + 1)
    if sizes.dtype != tl.int32 or sizes.shape != (length,) or sizes.strides[0] != 1 and length > 1:
        raise tilejit.LaunchError(f"{what}: {name} must be int32 [{length}], found {sizes.dtype} {list(sizes.shape)}")
    if 0 in (rows, n, groups):
        return work
    plain = scales == [None, None]
    step = (steps.accumulate, steps.SUMS) if plain else promotion(what, call.a, call.b, tuple(scales))
    average = tilejit.cdiv(rows, groups) if expected is None else expected
    call = reached(work, call, True, k_first(call.b, False), m=min(2 * average, max(average, FEW)), batches=groups,
                   grouped=True, step="accumulate" if plain else "promote")
    if masked:
        call = call._replace(a=flat(what, "a", call.a), c=flat(what, "out", call.c))
    t = config or choose(call.problem, call.chip).way
    high, wide = t.computed(t.m, t.n)
    tiles = (tilejit.cdiv(rows, high) + groups) * tilejit.cdiv(n, wide)  # at most
    multiply(work, call._replace(problem=replace(call.problem, m=0)), t, step=step,
             programs=min(t.room(multiprocessors), tiles),
             walk=(walks.groups, (At(2), groups, a.shape[1] if masked else None)),
             a=(loads.group_rows, (call.a.descriptor(high, t.step(call.problem.size)),)),
             last=stored(End(), call.c.ragged(high, wide)))
    return work
