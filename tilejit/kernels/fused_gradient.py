from __future__ import annotations

from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.fused import fused_matmul, gated_matmul, swiglu
from tilejit.kernels.matmul import matmul
from tilejit.kernels.matmul_gradient import OF, RESULTS, product_gradient, scales_of
from tilejit.kernels.rows.columns import sum_columns
from tilejit.kernels.rows.gates import glu_gradient
from tilejit.kernels.rows.matrices import matrix

gradient(fused_matmul, *OF, passed="residual")(product_gradient)


@gradient(gated_matmul, *OF, passed="residual")
@gradient(swiglu, *OF, passed="residual")
@operator(**RESULTS)
def gated_gradient(da, db, d_bias, grad: Array, a: Array, b: Array, bias: Array | None, wants_a: bool, wants_b: bool,
                   wants_bias: bool, activation: str | None = "silu", scale_a: Array | None = None,
                   scale_b: Array | None = None) -> None:
    """As of one product, of both matrices side by side; it is computed once more, and its gradient takes its place."""
    scales, (k, n) = scales_of(a, scale_a, scale_b), (a.shape[1], grad.shape[1])
    both = b if len(b.shape) == 2 else b.swapaxes(0, 1).reshape(k, 2 * n)
    z = matmul(a, both, None if bias is None else bias.reshape(2 * n), **scales)
    gate, up = z[:, :n], z[:, n:]
    glu_gradient(grad, gate, up, activation, d_gate=gate, d_up=up)
    if wants_bias:
        sum_columns(d_bias, matrix("gated_gradient", z))
    if wants_a:
        matmul(z, both.T, out=da, **scales)
    if wants_b:
        for x, out in [(z, db)] if both is b else [(gate, db[0]), (up, db[1])]:
            matmul(a.T, x, out=out, **scales)
