from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import kernels
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.fp8 import narrowed
from tilejit.kernels.matmul import matmul
from tilejit.kernels.rows.columns import sum_columns
from tilejit.kernels.rows.gates import differentiate
from tilejit.kernels.rows.matrices import contiguous, matrix

_WHAT, OF, RELU = "gradient of a product", ("a", "b", "bias"), ("activation", "relu")
RESULTS: dict[str, Any] = dict(
    da=lambda a, wants_a: a if wants_a else None, db=lambda b, wants_b: b if wants_b else None,
    d_bias=lambda bias, wants_bias: bias if wants_bias else None)


@gradient(matmul, *OF, only=RELU)
@operator(**RESULTS)
def product_gradient(da, db, d_bias, grad: Array, a: Array, b: Array, bias: Array | None, activation: str | None,
                     wants_a: bool, wants_b: bool, wants_bias: bool, scale_a: Array | None = None,
                     scale_b: Array | None = None, recipe: str | None = None, out: Array | None = None) -> None:
    """dA = dC B^T, dB = A^T dC, and the bias's; gelu and silu need the product once more, relu its result."""
    of_da = of_db = scales = scales_of(a, scale_a, scale_b)
    grad = contiguous(grad)
    if activation is not None:
        z = out if out is not None else (matmul if len(a.shape) == 2 else kernels.batched_matmul)(
            a, b, bias, out_dtype=tl.float32, **scales)
        grad, of = tilejit.empty_like(grad), grad
        differentiate(_WHAT, grad, of, z, activation)
    if wants_bias:
        sum_columns(d_bias, matrix(_WHAT, grad))
    if recipe is None:
        grad = cast(grad, a)
    else:
        (a, of_a), (b, of_b), (grad, of_c) = narrowed(a), narrowed(b), narrowed(grad, tl.float8e5)
        of_da, of_db = {"scale_a": of_c, "scale_b": of_b}, {"scale_a": of_a, "scale_b": of_c}
    if wants_a:
        _multiply(grad, b.swapaxes(-1, -2), da, of_da)
    if wants_b:
        _multiply(a.swapaxes(-1, -2), grad, db, of_db)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.wants, ctx.plain = inputs[5:8], all(x is None for x in (inputs[4], *inputs[8:]))


def _again(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    """Gradients of gradients, by torch's own products."""
    if not ctx.plain:
        raise tilejit.LaunchError(f"{_WHAT} has a gradient only without activation, scales and recipe")
    grad, a, b = ctx.saved_tensors
    of_a, of_b, of_bias = (x if wants else None for x, wants in zip(gradients, ctx.wants))
    like = grad.to(a.dtype)
    terms = [*([of_a @ b] if of_a is not None else []), *([a @ of_b] if of_b is not None else []),
             *([of_bias.expand(grad.shape)] if of_bias is not None else [])]
    return (sum(terms).to(grad.dtype) if terms else None,
            None if of_b is None else (like @ of_b.mT).sum_to_size(a.shape),
            None if of_a is None else (of_a.mT @ like).sum_to_size(b.shape), *[None] * 9)


product_gradient.register_autograd(_again, setup_context=_keep)


def scales_of(a: Array, *scales: Array | None) -> dict[str, Array]:
    """Those that are given."""
    found = {f"scale_{n}": s for n, s in zip("ab", scales) if s is not None}
    if tilejit.array_info(a).dtype.bytes == 1 or any(max(s.shape, default=1) > 1 for s in found.values()):
        raise tilejit.LaunchError("products of fp8, or with scales of rows or columns, have no gradient")
    return found


def cast(x: Array, like: Array) -> Array:
    if x.dtype == like.dtype:
        return x
    y = tilejit.empty_like(x, None, like.dtype)
    differentiate(_WHAT, y, x, x, None)
    return y


def _multiply(x: Array, y: Array, out: Array, scales: dict[str, Any]) -> None:
    """The sum over a stack, where `out` is one matrix."""
    stack = max(x.shape[0], y.shape[0])
    if len(x.shape) == 3 and stack == out.shape[0]:
        kernels.batched_matmul(x, y, out=out)
        return
    if len(x.shape) == 3:
        k = stack * x.shape[2]
        x, y, out = x.swapaxes(0, 1).reshape(x.shape[1], k), y.reshape(k, y.shape[2]), out[0]
    matmul(x, y, out=out, **scales)
