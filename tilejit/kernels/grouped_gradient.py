from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import operand, result
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.batched import TILES
from tilejit.kernels.chip import current
from tilejit.kernels.copy import brought
from tilejit.kernels.grouped import flat, grouped_matmul, masked_grouped_matmul
from tilejit.kernels.launches import GROUP, multiply
from tilejit.kernels.planning import choose, table, turned
from tilejit.kernels.problem import Call, facts
from tilejit.kernels.product import loads, walks
from tilejit.kernels.rows.matrices import contiguous
from tilejit.kernels.way import DEALT

_WHAT, _TILES = "gradient of a grouped product", table(turned(t for t in TILES if t.ctas == 1 and t.sums <= DEALT))


@gradient(grouped_matmul, "a", "b")
@gradient(masked_grouped_matmul, "a", "b")
@operator(da=lambda a, wants_a: (a, None, None, True) if wants_a else None,
          db=lambda a, b, wants_b: (b, None, None, 0 in a.shape) if wants_b else None)
def grouped_gradient(da, db, grad: Array, a: Array, b: Array, wants_a: bool, wants_b: bool,
                     offsets: Array | None = None, counts: Array | None = None) -> None:
    """Zero where rows are in no group."""
    if tilejit.array_info(a).dtype.bytes != 2:
        raise tilejit.LaunchError("grouped products have gradients in 16 bits only")
    grad, multiplied = contiguous(grad), grouped_matmul if counts is None else masked_grouped_matmul
    if wants_a:
        multiplied(grad, b.swapaxes(1, 2), offsets if counts is None else counts, out=da)
    if wants_b:
        called(_work, (contiguous(a), grad, offsets if counts is None else counts, db))


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], multiprocessors: int, knobs: Any) -> Work:
    """db[e] = a^T grad of group e's rows."""
    a, grad, sizes, db = infos
    masked = len(a.shape) == 3
    work, groups, c = Work(4), db.shape[0], result(_WHAT, db, db.shape, 3)
    if 0 in (*db.shape, *a.shape):
        return work
    both = brought(work, *((operand(_WHAT, "", x, i, len(x.shape)), True) for i, x in enumerate((a, grad))))
    x, y = (flat(_WHAT, "", v) if masked else v for v in both)
    chip = current(a.device, multiprocessors)
    p = facts(x.T, y, c, k=tilejit.cdiv(x.shape[0], groups), batches=groups)
    # Blocks of K are not known ahead: no two groups of consumers take tiles in turn.
    t = replace(choose(p, chip, split=1, tiles=_TILES).way, single=True)
    (high, wide), bk = t.computed(t.m, t.n), t.step(p.size)
    multiply(work, Call(x.T, y, c, replace(p, k=0), chip), t, a=(loads.group_columns, (x.ragged(bk, high),)),
             b=(loads.group_columns, (y.ragged(bk, wide),)),
             walk=(walks.whole, (tl.constexpr(GROUP), At(2), groups, a.shape[1] if masked else None)))
    return work
