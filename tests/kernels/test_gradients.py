"""The kernels that gradients are made of, against float64 formulas; tests/frameworks/ has them under torch's autograd."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels import gradients
from tilejit.kernels.softmax import softmax_gradient
from tilejit.testing import rel_error

SHAPES = [(3, 40), (70, 300), (2, 20000)]


@pytest.fixture(autouse=True, params=["evaluator", "emulator"])
def target(request):
    with tilejit.knobs(target=request.param):
        yield request.param


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(shape):
    x, grad, weight = arrays(shape, shape, shape[1])
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    expected = y * (grad - (grad * y).sum(1, keepdims=True))
    assert rel_error(softmax_gradient(grad, y), expected) < 2e-5
    for centred in (False, True):
        x64 = x.astype(np.float64)
        mean = x64.mean(1, keepdims=True) * centred
        r = 1 / np.sqrt(((x64 - mean) ** 2).mean(1, keepdims=True) + 1e-5)
        h, g = (x64 - mean) * r, grad.astype(np.float64) * weight
        expected = (g - h * (g * h).mean(1, keepdims=True) - g.mean(1, keepdims=True) * centred) * r
        dx, stats = gradients.norm_gradient(grad, x, weight, 1e-5, centred)
        assert rel_error(dx, expected) < 2e-5
        assert rel_error(stats, np.concatenate([mean, r], 1)) < 2e-5
        if shape[1] < 1000:
            assert rel_error(gradients.norm_weight_gradient(grad, x, stats, weight), (grad * h).sum(0)) < 2e-5


@pytest.mark.parametrize("rows", [1, 129, 300])
def test_column_sums(rows, monkeypatch):
    """300 rows are summed in parts."""
    (x,) = arrays((rows, 200), dtype=ml_dtypes.bfloat16)
    total = gradients.column_sum(x, np.empty(200, ml_dtypes.bfloat16))
    assert total.dtype == ml_dtypes.bfloat16 and rel_error(total, x.astype(np.float64).sum(0)) < 4e-3


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_derivatives(activation):
    z, grad = arrays((5, 1100), (5, 1100))
    z64 = z.astype(np.float64)
    s = 1 / (1 + np.exp(-z64))
    phi = np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi))
    slope = {"relu": lambda: z64 > 0, "gelu": lambda: phi(z64), "silu": lambda: s * (1 + z64 * (1 - s))}[activation]()
    assert rel_error(gradients.activation_gradient(grad, z, activation), grad * slope) < 2e-5
