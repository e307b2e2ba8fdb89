"""What gradients share: of a norm's input, of weights and biases (sums over rows), of activation functions."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import WIDEST, row_launch, rows

#: The tile of a sum over rows.
SUM_ROWS, SUM_COLUMNS = 32, 128


@tilejit.kernel
def norm_gradient_kernel(x, weight, grad, out, stats, columns, x_stride, grad_stride, out_stride, eps,
                         CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program; the row's mean and reciprocal deviation go to stats [rows, 2]. With h the normalised row and
    g = grad * weight the result is (g - mean(g) - h mean(g h)) / deviation, where only CENTRED rows lose mean(g)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    g = tl.load(grad + row * grad_stride + cols, mask, other=0.0).to(tl.float32)
    if weight is not None:
        g = g * tl.load(weight + cols, mask, other=0.0).to(tl.float32)
    mean = 0.0
    if CENTRED:
        mean = tl.sum(v, 0) / columns
        v = tl.where(mask, v - mean, 0.0)
    r = tl.rsqrt(tl.sum(v * v, 0) / columns + eps)
    h = v * r
    d = g - h * (tl.sum(g * h, 0) / columns)
    if CENTRED:
        d = d - tl.sum(g, 0) / columns
    tl.store(out + row * out_stride + cols, (d * r).to(out.dtype.element_ty), mask)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, r)


@tilejit.kernel
def long_norm_gradient_kernel(x, weight, grad, out, stats, columns, x_stride, grad_stride, out_stride, eps,
                              CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """The same, a row in blocks: mean, deviation, the two means of the gradient, the result."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x += row * x_stride
    grad += row * grad_stride
    mean = 0.0
    if CENTRED:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            total += tl.load(x + start + cols, start + cols < columns, other=0.0).to(tl.float32)
        mean = tl.sum(total, 0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        v = tl.where(mask, tl.load(x + start + cols, mask, other=0.0).to(tl.float32) - mean, 0.0)
        g = tl.load(grad + start + cols, mask, other=0.0).to(tl.float32)
        if weight is not None:
            g = g * tl.load(weight + start + cols, mask, other=0.0).to(tl.float32)
        squares += v * v
        products += g * v
        sums += g
    r = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    slope = tl.sum(products, 0) / columns * r
    level = tl.sum(sums, 0) / columns if CENTRED else 0.0
    for start in range(0, columns, BLOCK):
        mask = start + cols < columns
        v = tl.load(x + start + cols, mask, other=0.0).to(tl.float32) - mean
        g = tl.load(grad + start + cols, mask, other=0.0).to(tl.float32)
        if weight is not None:
            g = g * tl.load(weight + start + cols, mask, other=0.0).to(tl.float32)
        d = (g - level - v * r * slope) * r
        tl.store(out + row * out_stride + start + cols, d.to(out.dtype.element_ty), mask)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, r)


@tilejit.kernel
def column_sum_kernel(x, scaled, stats, out, row_count, columns, x_stride, scaled_stride, per, ROWS: tl.constexpr,
                      COLUMNS: tl.constexpr):
    """Sums of COLUMNS columns over `per` rows; scaled: None, or what x is multiplied by, normalised by stats."""
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * per
    last = tl.minimum(first + per, row_count)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(first, last, ROWS):
        at = start + tl.arange(0, ROWS)
        mask = (at < last)[:, None] & (cols < columns)[None, :]
        at = at.to(tl.int64)
        v = tl.load(x + at[:, None] * x_stride + cols[None, :], mask, other=0.0).to(tl.float32)
        if scaled is not None:
            h = tl.load(scaled + at[:, None] * scaled_stride + cols[None, :], mask, other=0.0).to(tl.float32)
            mean = tl.load(stats + at * 2, at < last, other=0.0)
            r = tl.load(stats + at * 2 + 1, at < last, other=0.0)
            v = v * ((h - mean[:, None]) * r[:, None])
        total += tl.sum(v, 0)
    tl.store(out + tl.program_id(1).to(tl.int64) * columns + cols, total.to(out.dtype.element_ty), cols < columns)


@tilejit.kernel
def activation_gradient_kernel(grad, z, out, columns, grad_stride, z_stride, out_stride, ACTIVATION: tl.constexpr,
                               BLOCK: tl.constexpr):
    """grad times the derivative at z; for relu z may be the function's value."""
    row = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(z + row * z_stride + cols, mask, other=0.0).to(tl.float32)
    g = tl.load(grad + row * grad_stride + cols, mask, other=0.0).to(tl.float32)
    if ACTIVATION == "relu":
        d = tl.where(v > 0.0, 1.0, 0.0)
    elif ACTIVATION == "gelu":
        d = 0.5 + 0.5 * tl.erf(v * 0.7071067811865476) + v * tl.exp(-0.5 * v * v) * 0.3989422804014327
    else:
        s = tl.sigmoid(v)
        d = s * (1.0 + v * (1.0 - s))
    tl.store(out + row * out_stride + cols, (g * d).to(out.dtype.element_ty), mask)


@tilejit.torch_op("tilejit::norm_gradient",
                  "(Tensor grad, Tensor x, Tensor? weight, float eps, bool centred) -> (Tensor, Tensor)",
                  fake=lambda grad, x, weight, eps, centred: (
                      tilejit.empty_like(x), tilejit.empty_like(x, (x.shape[0], 2), tl.float32)), replay=True)
def norm_gradient(grad: Any, x: Any, weight: Any, eps: float, centred: bool) -> tuple[Any, Any]:
    """The gradient of x where grad is that of rmsnorm(x, weight, eps), or layernorm if centred; and each row's mean
    (0 unless centred) and reciprocal deviation [rows, 2], as `norm_weight_gradient` takes them."""
    n, columns, stride = rows(x, "norm_gradient")
    out, stats = tilejit.empty_like(x), tilejit.empty_like(x, (n, 2), tl.float32)
    launch = row_launch(n, columns, WIDEST, several=False, size=2 * tilejit.array_info(x).dtype.bytes)
    kernel = norm_gradient_kernel if launch.whole else long_norm_gradient_kernel
    kernel[launch.grid](x, weight, grad, out, stats, columns, stride, rows(grad, "norm_gradient")[2],
                        rows(out, "norm_gradient")[2], float(eps), CENTRED=centred, **launch.options)
    return out, stats


@tilejit.torch_op("tilejit::norm_weight_gradient", "(Tensor grad, Tensor x, Tensor stats, Tensor like) -> Tensor",
                  fake=lambda grad, x, stats, like: tilejit.empty_like(like), replay=True)
def norm_weight_gradient(grad: Any, x: Any, stats: Any, like: Any) -> Any:
    """The gradient of a norm's weight, which is like `like`: sums over rows of grad times the normalised x."""
    return _column_sum(grad, x, stats, like)


@tilejit.torch_op("tilejit::column_sum", "(Tensor x, Tensor like) -> Tensor",
                  fake=lambda x, like: tilejit.empty_like(like), replay=True)
def column_sum(x: Any, like: Any) -> Any:
    """The sums of the columns of x [rows, columns], in fp32, rounded to the dtype of `like` [columns]."""
    return _column_sum(x, None, None, like)


def _column_sum(x: Any, scaled: Any, stats: Any, like: Any) -> Any:
    """A launch over parts of the rows where columns alone do not fill the chip, then one over the parts."""
    n, columns, stride = rows(x, "column_sum")
    out = tilejit.empty_like(like)
    across = tilejit.cdiv(columns, SUM_COLUMNS)
    parts = max(1, min(2 * tilejit.multiprocessors(tilejit.array_info(x).device) // max(1, across),
                       tilejit.cdiv(n, 4 * SUM_ROWS)))
    per = tilejit.cdiv(n, parts)
    sizes = dict(ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS)
    target = out if parts == 1 else tilejit.empty_like(x, (parts, columns), tl.float32)
    other = 0 if scaled is None else rows(scaled, "column_sum")[2]
    column_sum_kernel[(across, parts)](x, scaled, stats, target, n, columns, stride, other, per, **sizes)
    if parts > 1:
        column_sum_kernel[(across, 1)](target, None, None, out, parts, columns, columns, 0, parts, **sizes)
    return out


@tilejit.torch_op("tilejit::activation_gradient", "(Tensor grad, Tensor z, str activation) -> Tensor",
                  fake=lambda grad, z, activation: tilejit.empty_like(grad), replay=True)
def activation_gradient(grad: Any, z: Any, activation: str) -> Any:
    """grad times the derivative of an activation ("relu", "gelu" or "silu") at z, both [rows, columns]."""
    n, columns, stride = rows(grad, "activation_gradient")
    out = tilejit.empty_like(grad)
    activation_gradient_kernel[(tilejit.cdiv(columns, 1024), n)](
        grad, z, out, columns, stride, rows(z, "activation_gradient")[2], rows(out, "activation_gradient")[2],
        ACTIVATION=activation, BLOCK=1024)
    return out


def wants(x: Any) -> bool:
    """Whether a tensor is there and a gradient of it is asked for."""
    return x is not None and x.requires_grad


def norm_autograd(op: Any, centred: bool) -> None:
    """Give a norm of (x, weight, [bias,] eps) its gradient."""
    def keep(ctx: Any, inputs: tuple, output: Any) -> None:
        x, weight, *bias, eps = inputs
        ctx.save_for_backward(x, weight, *bias)
        ctx.eps = eps

    def backward(ctx: Any, grad: Any) -> tuple:
        x, weight, *bias = ctx.saved_tensors
        grad = grad.contiguous()
        dx, stats = norm_gradient(grad, x, weight, ctx.eps, centred)
        dw = norm_weight_gradient(grad, x, stats, weight) if wants(weight) else None
        return (dx, dw, *(column_sum(grad, b) if wants(b) else None for b in bias), None)

    op.register_autograd(backward, setup_context=keep)
