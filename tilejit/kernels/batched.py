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
from tilejit.kernels.planning import BY_K, FOURS, LARGE, LONG, SHORT, SMALL, Plan, brief, choose, table, turned
from tilejit.kernels.problem import Call, Problem, call_of
from tilejit.kernels.routes import PIECE, Route, routed, routes, shortest, strewn
from tilejit.kernels.way import Way

#: Without pairs that divide columns, and widths that leave too few registers for the batch's coordinates.
TILES = tuple(t for t in (*LARGE, *SMALL, *LONG, *FOURS, *BY_K)
              if not t.columns and (t.ctas == 1 or t.n not in (176, 208)))
_BOTH = table(turned(TILES))
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
    return routed(work, call, shortest(_routes(call, tiles)))


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
