"""Root-mean-square normalisation along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import row_launch, rows
from tilejit.kernels.gradients import norm_autograd


@tilejit.kernel
def rmsnorm_kernel(x, weight, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    """One row a program; `weight` may be None."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + eps)
    if weight is not None:
        y = y * tl.load(weight + cols, mask, other=0.0).to(tl.float32)
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
                  fake=lambda x, weight=None, eps=1e-6: tilejit.empty_like(x))
def rmsnorm(x: Any, weight: Any = None, eps: float = 1e-6, out: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight for every row of x [rows, columns]."""
    n, columns, stride = rows(x, "rmsnorm")
    out = tilejit.empty_like(x) if out is None else out
    block, warps, fits = row_launch(columns)
    kernel = rmsnorm_kernel if fits else long_rmsnorm_kernel
    kernel[(n,)](x, weight, out, columns, stride, rows(out, "rmsnorm")[2], float(eps), BLOCK=block, num_warps=warps)
    return out


norm_autograd(rmsnorm, centred=False)
