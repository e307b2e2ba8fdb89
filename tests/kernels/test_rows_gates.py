"""Elementwise row kernels against float64 formulas, in the evaluator, and a few in the emulator."""
from __future__ import annotations

import math

import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows.gates import GATES, differentiate, glu_gradient, relu_squared_gradient
from tilejit.testing import rel_error


@pytest.fixture(autouse=True)
def evaluated():
    with tilejit.knobs(target="evaluator"):
        yield


def arrays(*shapes, dtype=np.float64):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


VALUES = {"silu": lambda z: z * sigmoid(z), "gelu": lambda z: z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) / 2,
          "gelu_tanh": lambda z: z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3))) / 2,
          "relu": lambda z: np.maximum(z, 0), "sigmoid": sigmoid}


def slope(f, z, step=1e-6):
    return (f(z + step) - f(z - step)) / (2 * step)


@pytest.mark.parametrize("activation", GATES)
def test_gates(activation):
    """Values, and gradients against differences."""
    gate, up, grad = arrays((3, 5, 70), (3, 5, 70), (3, 5, 70))
    f = VALUES[activation]
    assert rel_error(kernels.glu(gate, up, activation), f(gate) * up) < 1e-12
    d_gate, d_up = glu_gradient(grad, gate, up, activation)
    assert rel_error(d_up, grad * f(gate)) < 1e-12 and rel_error(d_gate, grad * up * slope(f, gate)) < 1e-7
    differentiate("test", up, grad, gate, activation)
    assert rel_error(up, grad * slope(f, gate)) < 1e-7


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("shape", [(3, 40), (2, 5000), (1, 1), (300, 6), (0, 4), (4, 0)], ids=str)
def test_shapes(shape, target):
    """Halves of one matrix, whose rows have gaps, and whole ones, which are one row."""
    (x,) = arrays((shape[0], 2 * shape[1]), dtype=np.float32)
    gate, up = x[:, :shape[1]], x[:, shape[1]:]
    with tilejit.knobs(target=target):
        for a, b in ((gate, up), (gate.copy(), up.copy())):
            out = kernels.glu(a, b)
            np.testing.assert_allclose(out, VALUES["silu"](a.astype(np.float64)) * b, rtol=1e-5, atol=1e-6)


def test_relu_squared():
    x, grad = arrays((4, 33), (4, 33))
    x[0, :3] = np.nan, np.inf, -np.inf
    y = kernels.relu_squared(x)
    assert np.isnan(y[0, 0]) and y[0, 1] == np.inf and y[0, 2] == 0
    np.testing.assert_allclose(y[1:], np.maximum(x[1:], 0) ** 2)
    np.testing.assert_allclose(relu_squared_gradient(grad, x)[1:], 2 * grad[1:] * np.maximum(x[1:], 0))


def test_bad_inputs():
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(LaunchError, match="activation must be one of silu, gelu, gelu_tanh, relu, sigmoid, found 'swish'"):
        kernels.glu(x, x, "swish")
    with pytest.raises(LaunchError, match=r"glu: up must have gate's shape \[4, 8\], found \[4, 7\]"):
        kernels.glu(x, x[:, :7])
