"""Softmax along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import WIDEST, row_launch, rows
from tilejit.kernels.row_tiles import row_max, row_sum, row_tile


@tilejit.kernel
def softmax_kernel(x, out, columns, x_stride, out_stride, BLOCK: tl.constexpr, n=0, ROWS: tl.constexpr = 1):
    """One row a program, or ROWS of the n rows, whole rows in one tile."""
    row, cols, mask = row_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_stride + cols, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - row_max(v, ROWS))
    y = e / row_sum(e, ROWS)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask)


@tilejit.kernel
def long_softmax_kernel(x, out, columns, x_stride, out_stride, BLOCK: tl.constexpr):
    """One row a program, in blocks: running maximum and sum first (online softmax), then the quotients."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        v = tl.load(x + row * x_stride + start + cols, mask, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, v)
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.exp(v - safe)
        top = new
    m = tl.max(top, 0)
    s = tl.sum(total * tl.exp(top - m), 0)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        v = tl.load(x + row * x_stride + start + cols, mask, other=-float("inf")).to(tl.float32)
        tl.store(out + row * out_stride + start + cols, (tl.exp(v - m) / s).to(out.dtype.element_ty), mask)


@tilejit.kernel
def softmax_gradient_kernel(y, grad, out, columns, y_stride, grad_stride, out_stride, BLOCK: tl.constexpr,
                            WHOLE: tl.constexpr):
    """One row a program: y * (grad - sum(grad * y)). WHOLE: a block holds the row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    y += row * y_stride
    grad += row * grad_stride
    total = tl.zeros((BLOCK,), tl.float32)
    if WHOLE:
        mask = cols < columns
        v = tl.load(y + cols, mask, other=0.0).to(tl.float32)
        g = tl.load(grad + cols, mask, other=0.0).to(tl.float32)
        tl.store(out + row * out_stride + cols, (v * (g - tl.sum(v * g, 0))).to(out.dtype.element_ty), mask)
    else:
        for start in range(0, columns, BLOCK):
            mask = start + cols < columns
            v = tl.load(y + start + cols, mask, other=0.0).to(tl.float32)
            total += v * tl.load(grad + start + cols, mask, other=0.0).to(tl.float32)
        s = tl.sum(total, 0)
        for start in range(0, columns, BLOCK):
            mask = start + cols < columns
            v = tl.load(y + start + cols, mask, other=0.0).to(tl.float32)
            g = tl.load(grad + start + cols, mask, other=0.0).to(tl.float32)
            tl.store(out + row * out_stride + start + cols, (v * (g - s)).to(out.dtype.element_ty), mask)


@tilejit.torch_op("tilejit::softmax", "(Tensor x) -> Tensor", fake=lambda x: tilejit.empty_like(x),
                  replay=True)
def softmax(x: Any, out: Any = None) -> Any:
    """Softmax of every row of x [rows, columns]; fp32, fp16 or bf16."""
    n, columns, stride = rows(x, "softmax")
    out = tilejit.empty_like(x) if out is None else out
    launch = row_launch(n, columns, WIDEST, size=tilejit.array_info(x).dtype.bytes)
    pitch = rows(out, "softmax")[2]
    if launch.whole:
        softmax_kernel[launch.grid](x, out, columns, stride, pitch, **launch.options, n=n, ROWS=launch.rows)
    else:
        long_softmax_kernel[launch.grid](x, out, columns, stride, pitch, **launch.options)
    return out


@tilejit.torch_op("tilejit::softmax_gradient", "(Tensor grad, Tensor y) -> Tensor",
                  fake=lambda grad, y: tilejit.empty_like(y), replay=True)
def softmax_gradient(grad: Any, y: Any, out: Any = None) -> Any:
    """The gradient of x where y is softmax(x) and grad the gradient of y, all [rows, columns]."""
    n, columns, stride = rows(y, "softmax_gradient")
    out = tilejit.empty_like(y) if out is None else out
    launch = row_launch(n, columns, WIDEST, several=False, size=2 * tilejit.array_info(y).dtype.bytes)
    softmax_gradient_kernel[launch.grid](y, grad, out, columns, stride, rows(grad, "softmax_gradient")[2],
                                         rows(out, "softmax_gradient")[2], WHOLE=launch.whole, **launch.options)
    return out


softmax.register_autograd(lambda ctx, grad: softmax_gradient(grad.contiguous(), *ctx.saved_tensors),
                          setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))
