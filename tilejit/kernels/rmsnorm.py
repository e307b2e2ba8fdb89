"""Root-mean-square normalisation along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import WIDEST, row_launch, rows
from tilejit.kernels.gradients import norm_autograd
from tilejit.kernels.row_tiles import row_sum, row_tile


@tilejit.kernel
def rmsnorm_kernel(x, weight, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr, n=0,
                   ROWS: tl.constexpr = 1):
    """One row a program, or ROWS of the n rows; `weight` may be None."""
    row, cols, mask = row_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    y = v * tl.rsqrt(row_sum(v * v, ROWS) / columns + eps)
    if weight is not None:
        y = y * tl.load(weight + cols, cols < columns, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask)


@tilejit.kernel
def long_rmsnorm_kernel(x, weight, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    """One row a program, in blocks: the mean square, then the result."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        v = tl.load(x + row * x_stride + start + cols, start + cols < columns, other=0.0).to(tl.float32)
        squares += v * v
    scale = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        y = tl.load(x + row * x_stride + start + cols, mask, other=0.0).to(tl.float32) * scale
        if weight is not None:
            y = y * tl.load(weight + start + cols, mask, other=0.0).to(tl.float32)
        tl.store(out + row * out_stride + start + cols, y.to(out.dtype.element_ty), mask)


@tilejit.torch_op("tilejit::rmsnorm", "(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor",
                  fake=lambda x, weight=None, eps=1e-6: tilejit.empty_like(x), replay=True)
def rmsnorm(x: Any, weight: Any = None, eps: float = 1e-6, out: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight for every row of x [rows, columns]."""
    n, columns, stride = rows(x, "rmsnorm")
    out = tilejit.empty_like(x) if out is None else out
    launch = row_launch(n, columns, WIDEST, size=tilejit.array_info(x).dtype.bytes)
    args = x, weight, out, columns, stride, rows(out, "rmsnorm")[2], float(eps)
    if launch.whole:
        rmsnorm_kernel[launch.grid](*args, **launch.options, n=n, ROWS=launch.rows)
    else:
        long_rmsnorm_kernel[launch.grid](*args, **launch.options)
    return out


norm_autograd(rmsnorm, centred=False)
