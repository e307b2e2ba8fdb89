"""Elementwise kernels of feed-forward blocks, and derivatives."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import elements, matrix, result, same
from tilejit.kernels.rows.tiles import element_tile, put, wide

#: SwiGLU, GEGLU (exact, or by tanh), ReGLU, GLU.
GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")


@tilejit.kernel
def activated(z, ACTIVATION: tl.constexpr):
    """(value, derivative) at z, in z's own type."""
    if ACTIVATION is None:
        y = z
        d = 1.0
    elif ACTIVATION == "relu":
        y = tl.where(z > 0.0, z, tl.where(z <= 0.0, 0.0, z))
        d = tl.where(z > 0.0, 1.0, 0.0)
    elif ACTIVATION == "relu2":
        y = tl.where(z > 0.0, z * z, tl.where(z <= 0.0, 0.0, z))
        d = tl.where(z > 0.0, 2.0 * z, 0.0)
    elif ACTIVATION == "sigmoid":
        y = tl.sigmoid(z)
        d = y * (1.0 - y)
    elif ACTIVATION == "silu":
        s = tl.sigmoid(z)
        y = z * s
        d = s * (1.0 + z * (1.0 - s))
    elif ACTIVATION == "gelu":
        p = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
        y = z * p
        d = p + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    else:
        inner = 0.7978845608028654 * (z + 0.044715 * z * z * z)
        p = tl.sigmoid(2.0 * inner)  # (1 + tanh(inner)) / 2
        y = z * p
        d = p + z * 2.0 * p * (1.0 - p) * 0.7978845608028654 * (1.0 + 0.134145 * z * z)
    return y, d


@tilejit.kernel
def glu_kernel(gate, up, out, n, columns, gate_pitch, up_pitch, out_pitch, ACTIVATION: tl.constexpr,
               BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    y, d = activated(wide(tl.load(gate + row * gate_pitch + cols, inside, other=0.0)), ACTIVATION)
    if up is not None:
        y = y * tl.load(up + row * up_pitch + cols, inside, other=0.0).to(y.dtype)
    put(out + row * out_pitch + cols, y, inside)


@tilejit.kernel
def glu_gradient_kernel(grad, gate, up, d_gate, d_up, n, columns, grad_pitch, gate_pitch, up_pitch, d_gate_pitch,
                        d_up_pitch, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    g = wide(tl.load(grad + row * grad_pitch + cols, inside, other=0.0))
    y, d = activated(wide(tl.load(gate + row * gate_pitch + cols, inside, other=0.0)).to(g.dtype), ACTIVATION)
    if up is not None:
        d = d * tl.load(up + row * up_pitch + cols, inside, other=0.0).to(g.dtype)
        put(d_up + row * d_up_pitch + cols, g * y, inside)
    put(d_gate + row * d_gate_pitch + cols, g * d, inside)


@operator(out=lambda gate: gate)
def glu(out, gate: Array, up: Array, activation: str = "silu") -> None:
    """activation(gate) * up, elementwise, of arrays of one shape (halves of one array are fine): "silu" is SwiGLU,
    "gelu" GEGLU, "gelu_tanh" GEGLU by tanh, "relu" ReGLU, "sigmoid" GLU."""
    same("glu", gate, up, "up", "gate")
    _check("glu", activation, GATES)
    (g, u, o), grid, sizes = elements(matrix("glu", gate, "gate"), matrix("glu", up, "up"), result("glu", out))
    glu_kernel[grid](g.array, u.array, o.array, g.n, g.columns, g.pitch, u.pitch, o.pitch, ACTIVATION=activation,
                     **sizes)


@gradient(glu, "gate", "up")
@operator(d_gate=lambda gate: gate, d_up=lambda up: up)
def glu_gradient(d_gate, d_up, grad: Array, gate: Array, up: Array, activation: str | None) -> None:
    same("glu_gradient", gate, grad, "grad", "gate")
    (r, g, u, a, b), grid, sizes = elements(
        matrix("glu_gradient", grad), matrix("glu_gradient", gate), matrix("glu_gradient", up),
        result("glu_gradient", d_gate, "d_gate"), result("glu_gradient", d_up, "d_up"))
    glu_gradient_kernel[grid](r.array, g.array, u.array, a.array, b.array, r.n, r.columns, r.pitch, g.pitch, u.pitch,
                              a.pitch, b.pitch, ACTIVATION=activation, **sizes)


@operator(out=lambda x: x)
def relu_squared(out, x: Array) -> None:
    """max(x, 0)^2, elementwise."""
    (m, o), grid, sizes = elements(matrix("relu_squared", x), result("relu_squared", out))
    glu_kernel[grid](m.array, None, o.array, m.n, m.columns, m.pitch, 0, o.pitch, ACTIVATION="relu2", **sizes)


@gradient(relu_squared, "x")
@operator(dx=lambda x: x)
def relu_squared_gradient(dx, grad: Array, x: Array) -> None:
    differentiate("relu_squared_gradient", dx, grad, x, "relu2")


def differentiate(what: str, dz: Array, grad: Array, z: Array, activation: str | None) -> None:
    """grad times the derivative of an activation function at z; for relu z may be its value."""
    same(what, z, grad, "grad")
    (g, m, o), grid, sizes = elements(matrix(what, grad), matrix(what, z), result(what, dz))
    glu_gradient_kernel[grid](g.array, m.array, None, o.array, None, g.n, g.columns, g.pitch, m.pitch, 0, o.pitch, 0,
                              ACTIVATION=activation, **sizes)


def _check(what: str, activation: str, known: tuple[str, ...]) -> None:
    if activation not in known:
        raise tilejit.LaunchError(f"{what}: activation must be one of {', '.join(known)}, found {activation!r}")
