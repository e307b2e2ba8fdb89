from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import contiguous, number
from tilejit.kernels.rows.tiles import put, wide

BLOCK = 4096


@tilejit.kernel
def dropout_kernel(x, out, n, seed, least, scale, BLOCK: tl.constexpr):
    """x * scale where a number is at least `least`, else 0; four elements have the four numbers of a counter."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    a, b, c, d = tl.randint4x(seed, first // 4 + tl.arange(0, BLOCK // 4))
    kept = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (BLOCK,)).to(tl.int32, bitcast=True) >= least
    at = first + tl.arange(0, BLOCK)
    v = wide(tl.load(x + at, at < n, other=0.0))
    put(out + at, tl.where(kept, v * scale, 0.0), at < n)


@operator(replay=False, out=lambda x: x)
def dropout(out, x: Array, p: float, seed: int) -> None:
    """x / (1 - p) where a random number is at least p, else 0. The numbers are those of Philox for the seed (any int64)
    and the element's index, so equal seeds give equal masks, in the gradient too, and no mask is kept."""
    _launch("dropout", out, x, p, seed)


@gradient(dropout, "x")
@operator(replay=False, dx=lambda grad: grad)
def dropout_gradient(dx, grad: Array, p: float, seed: int) -> None:
    _launch("dropout_gradient", dx, grad, p, seed)


def _launch(what: str, out: Any, x: Any, p: float, seed: int) -> None:
    if not 0.0 <= p < 1.0:
        raise tilejit.LaunchError(f"{what}: p must be at least 0 and less than 1, found {p}")
    x = contiguous(x)
    n = 1
    for size in x.shape:
        n *= size
    dropout_kernel[(tilejit.cdiv(n, BLOCK),)](x, out, n, seed, round(p * 2**32) - 2**31, number(1.0 / (1.0 - p), x),
                                              BLOCK=BLOCK)
