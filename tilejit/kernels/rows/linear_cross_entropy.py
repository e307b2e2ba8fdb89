from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.fused import fused_matmul
from tilejit.kernels.matmul import matmul
from tilejit.kernels.rows.columns import sums_like
from tilejit.kernels.rows.cross_entropy import Call, total_of
from tilejit.kernels.rows.matrices import contiguous, elements, matrix, result, vector
from tilejit.kernels.rows.tiles import scale_kernel

#: Rows of a chunk at least: fewer do not fill the chip.
LEAST = 1024


@operator(replay=False, loss=lambda x: (x, (), tl.float32), dx=lambda x, need_x: x if need_x else None,
          dw=lambda weight, need_weight: (weight, None, tl.float32) if need_weight else None)
def linear_cross_entropy_forward(loss, dx, dw, x: Array, weight: Array, target: Array, ignore_index: int = -100,
                                 label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0,
                                 reduction: str = "mean", chunk: int = 0, need_x: bool = False,
                                 need_weight: bool = False) -> None:
    """(loss, its gradient by x, by the weight in fp32): see `linear_cross_entropy`."""
    what = "linear_cross_entropy"
    if reduction not in ("mean", "sum") or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
        raise tilejit.LaunchError(f"{what}: expected x [.., width], weight [V, width] and the reduction mean or sum, "
                                  f"found {list(x.shape)}, {list(weight.shape)}, {reduction!r}")
    if not hasattr(x, "reshape"):
        raise tilejit.LaunchError(f"{what}: expected torch tensors or numpy arrays, found {type(x).__name__}")
    width = x.shape[-1]
    x, target = contiguous(x).reshape(-1, width), contiguous(target).reshape(-1)
    n, columns = x.shape[0], weight.shape[0]
    size = min(n, chunk or chunk_of(n, columns, width)) or 1
    options = None, ignore_index, label_smoothing, z_loss, softcap, reduction
    losses, count = sums_like(x, (n,)), sums_like(x, (1,)) if reduction == "mean" else None
    if count is not None:
        total_of(n, columns, None, None, None, count, target, None, ignore_index)
    # rows of whole units of 16 bytes, for TMA
    logits = tilejit.empty_like(x, (size, tilejit.cdiv(columns, 16) * 16))[:, :columns]
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        some = logits[:rows.stop - first]
        matmul(x[rows], weight.T, out=some)
        call = Call(what, some, target[rows], *options)
        call.rows(losses[rows], None, call.x if need_x or need_weight else None, count)
        if need_x:
            matmul(some, weight, out=dx.reshape(-1, width)[rows])
        if need_weight and first:
            fused_matmul(some.T, x[rows], residual=dw, out=dw)
        elif need_weight:
            matmul(some.T, x[rows], out=dw)
    total_of(n, columns, loss, losses, count)


@gradient(linear_cross_entropy_forward, "x", "weight")
@operator(gx=lambda dx: dx, gw=lambda weight, wants_weight: weight if wants_weight else None)
def linear_cross_entropy_gradient(gx, gw, grad_loss: Array, dx: Array, dw: Array, weight: Array,
                                  wants_weight: bool) -> None:
    what = "linear_cross_entropy_gradient"
    factor = vector(what, grad_loss, 1, "grad")
    for made, out in ((dx, gx), (dw, gw)):
        if out is not None:
            (m, o), grid, sizes = elements(matrix(what, made), result(what, out))
            scale_kernel[grid](m.array, factor, o.array, m.n, m.columns, m.pitch, o.pitch, **sizes)


def linear_cross_entropy(x: Array, weight: Array, target: Array, ignore_index: int = -100, label_smoothing: float = 0.0,
                         z_loss: float = 0.0, softcap: float = 0.0, reduction: str = "mean", chunk: int = 0) -> Any:
    """cross_entropy(x @ weight.T, target, ..) for x [.., width], weight [V, width], targets [..]: bf16, fp16 or fp32
    (tf32 products), torch tensors or numpy arrays.

    Products are of `chunk` rows at a time (0: so many that the logits take about as much memory as x); all else is as
    for `cross_entropy`. Where torch asks for gradients they are computed here, chunk by chunk, and the backward pass
    only scales them.
    """
    needs = [bool(getattr(a, "requires_grad", False)) for a in (x, weight)]
    return linear_cross_entropy_forward(x, weight, target, ignore_index, label_smoothing, z_loss, softcap, reduction,
                                        chunk, *needs)[0]


def chunk_of(n: int, columns: int, width: int) -> int:
    return max(LEAST, tilejit.next_power_of_2(tilejit.cdiv(n * width, max(1, columns))))
