from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels.matmul import matmul
from tilejit.kernels.rows.columns import column_sum
from tilejit.kernels.rows.gates import activation_gradient


def wants(x: Any) -> bool:
    return getattr(x, "requires_grad", False)


def _keep(ctx: Any, inputs: tuple, output: Any) -> None:
    a, b, bias, ctx.activation, _, scale_a, scale_b = inputs
    ctx.scaled = scale_a is not None or scale_b is not None
    ctx.save_for_backward(a, b, bias, output if ctx.activation == "relu" else None)


def _backward(ctx: Any, grad: Any) -> tuple:
    """dA = dC B^T, dB = A^T dC, and the bias's; gelu and silu need the product once more."""
    a, b, bias, output = ctx.saved_tensors
    if ctx.scaled or str(a.dtype).startswith("torch.float8"):
        raise tilejit.LaunchError("matmul: products with scales, or of fp8, have no gradient")
    grad = grad.contiguous()
    if ctx.activation is not None:
        z = output if ctx.activation == "relu" else matmul(a, b, bias, out_dtype=tl.float32)
        grad = activation_gradient(grad, z, ctx.activation)
    d_bias = column_sum(grad, bias) if wants(bias) else None
    if grad.dtype != a.dtype:
        grad = grad.to(a.dtype)
    da = matmul(grad, b.T) if wants(a) else None
    db = matmul(a.T, grad) if wants(b) else None
    return da, db, d_bias, None, None, None, None


matmul.register_autograd(_backward, setup_context=_keep)
