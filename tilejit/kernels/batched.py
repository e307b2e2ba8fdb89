from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any

import tilejit
from tilejit.kernels._calls import Work, called
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.launches import load, multiply, whole
from tilejit.kernels.planning import BY_K, FOURS, LARGE, LONG, SHORT, SMALL, Plan, brief, choose, table, turned
from tilejit.kernels.problem import Call, Problem, call_of
from tilejit.kernels.routes import PIECE, Route, routed, routes, shortest, strewn
from tilejit.kernels.way import Way

#: Without pairs that divide columns, and widths that leave too few registers for the batch's coordinates.
TILES = tuple(t for t in (*LARGE, *SMALL, *LONG, *FOURS, *BY_K)
              if not t.columns and (t.ctas == 1 or t.n not in (176, 208)))
_BOTH = table(turned(TILES))
#: Bytes of a batch's operands up to which L2 holds all of them; then two rows of tiles at a time: programs side by side
#: share columns as well.
IN_L2, FEW_ROWS = 8 * 2 ** 20, 2
_WHAT = "batched_matmul"


@function(new)
def batched_matmul(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, out: Any = None,
                   out_dtype: DType | None = None, tiles: Way | None = None) -> Any:
    """activation(a[i] @ b[i] + bias) for every i, with fp32 sums.

    a [batches, M, K], b [batches, K, N]: bf16, fp16, fp32 (tf32 products) or fp8; of any strides, copied or read by
    threads where `matmul` does so. An operand with one batch, or with batch stride 0, serves all. bias [N]. The result
    [batches, M, N] has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. tiles: instead of a
    choice. Raises LaunchError for what does not fit."""
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, bias, out), activation, tiles)
    return out


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], activation: str | None, tiles: Way | None, multiprocessors: int, knobs: Any) -> Work:
    """Raises LaunchError for arrays that do not go together."""
    call, work = call_of(_WHAT, infos, activation, multiprocessors, ranks=(3, 3)), Work(4)
    call = call._replace(a=_single(call.a), b=_single(call.b))
    batches = call.c.shape[0]
    for name, x in (("a", call.a), ("b", call.b)):
        if x.shape[0] not in (1, batches):
            raise tilejit.LaunchError(f"{_WHAT}: {name} has {x.shape[0]} batches, the other one {batches}")
    if 0 in call.c.shape:
        return work
    call = call._replace(problem=replace(call.problem, batches=batches))
    return routed(work, call, shortest(_routes(call, tiles)), _launch)


def _launch(work: Work, call: Call, t: Way) -> None:
    p, units = call.problem, call.problem.units
    blocks = tilejit.cdiv(p.k, t.step(p.size))
    group = FEW_ROWS if (p.m + p.n) * p.k_bytes <= IN_L2 else t.group(*t.computed(p.m, p.n), blocks)
    high, wide = t.computed(t.m, t.n)
    # Programs of one CTA take longer if a launch begins while another ends; a tile that is hidden is best staged whole.
    multiply(work, call, t, walk=whole(group, p.batches),
             a=load(call.a, high, t.step(p.size), threads=units[0]),
             b=load(call.b.T, wide, t.step(p.size), threads=units[1]),
             num_stages=t.depth(call.c.dtype.bytes, copied=blocks * all(units)),
             launch_pdl=t.ctas > 1 or t.alone, store_stages=None if t.alone else 1 if t.in_turn else 2)


def _routes(call: Call, tiles: Way | None = None) -> Iterator[Route]:
    """Where TMA reads both operands, threads do whole units only: of those that it reads slowly, or both; any where K
    is short, none by a caller's tiles."""
    def pick(problem: Problem) -> Plan:
        if tiles:
            return Plan(tiles, inf if any(problem.units) else 0.0)
        return choose(problem, chip, split=1, tiles=_BOTH)

    a, b, _, p, chip, _ = call
    slow = strewn(a, True), strewn(b, False)
    straight = p.k_bytes <= 2 * SHORT if any(slow) else p.k_bytes <= SHORT // 2 and not brief(p, chip)
    return routes(call, pick, straight, 16 if a.in_reach and b.in_reach else 1 if brief(p, chip) else PIECE)


def _single(x: Matrix) -> Matrix:
    batches, m, n = x.shape
    if batches > 1 and x.strides[0]:
        return x
    return x.viewed((min(batches, 1), m, n), (m * max(x.strides[1:]), *x.strides[1:]))
