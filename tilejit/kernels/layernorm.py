"""Layer normalisation along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import WIDEST, row_launch, rows
from tilejit.kernels.gradients import norm_autograd
from tilejit.kernels.row_tiles import row_sum, row_tile


@tilejit.kernel
def layernorm_kernel(x, weight, bias, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr, n=0,
                     ROWS: tl.constexpr = 1):
    """One row a program, or ROWS of the n rows; `weight` and `bias` may be None."""
    row, cols, mask = row_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    mean = row_sum(v, ROWS) / columns
    centred = tl.where(mask, v - mean, 0.0)
    y = centred * tl.rsqrt(row_sum(centred * centred, ROWS) / columns + eps)
    if weight is not None:
        y = y * tl.load(weight + cols, cols < columns, other=0.0).to(tl.float32)
    if bias is not None:
        y = y + tl.load(bias + cols, cols < columns, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask)


@tilejit.kernel
def long_layernorm_kernel(x, weight, bias, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    """One row a program, in blocks: the mean, then the variance, then the result."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x + row * x_stride + start + cols, start + cols < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        v = tl.load(x + row * x_stride + start + cols, mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, v - mean, 0.0)
        squares += centred * centred
    scale = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        y = (tl.load(x + row * x_stride + start + cols, mask, other=0.0).to(tl.float32) - mean) * scale
        if weight is not None:
            y = y * tl.load(weight + start + cols, mask, other=0.0).to(tl.float32)
        if bias is not None:
            y = y + tl.load(bias + start + cols, mask, other=0.0).to(tl.float32)
        tl.store(out + row * out_stride + start + cols, y.to(out.dtype.element_ty), mask)


@tilejit.torch_op("tilejit::layernorm", "(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
                  fake=lambda x, weight=None, bias=None, eps=1e-5: tilejit.empty_like(x), replay=True)
def layernorm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, out: Any = None) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias for every row of x [rows, columns]."""
    n, columns, stride = rows(x, "layernorm")
    out = tilejit.empty_like(x) if out is None else out
    launch = row_launch(n, columns, WIDEST, size=tilejit.array_info(x).dtype.bytes)
    args = x, weight, bias, out, columns, stride, rows(out, "layernorm")[2], float(eps)
    if launch.whole:
        layernorm_kernel[launch.grid](*args, **launch.options, n=n, ROWS=launch.rows)
    else:
        long_layernorm_kernel[launch.grid](*args, **launch.options)
    return out


norm_autograd(layernorm, centred=True)
