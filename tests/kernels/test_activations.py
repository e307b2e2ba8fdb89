"""Errors of the activation functions, over floats of every magnitude."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import language as tl
from tilejit.kernels.activations import activate

BLOCK = 8192
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38], np.float32)


@tilejit.kernel
def activation_kernel(x, y, N, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """y = ACTIVATION(x), or its error function, of which DTYPE is kept."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < N, other=0.0)
    v = tl.erf(v) if ACTIVATION == "erf" else activate(v, ACTIVATION, DTYPE)
    tl.store(y + at, v, at < N)


def every() -> np.ndarray:
    """Floats of both signs: every 32771st of all, and 2^16 evenly spaced ones between 0 and 16."""
    bits = np.arange(0, 0x7F800000, 32771, np.uint32).view(np.float32)
    some = np.concatenate([bits, np.linspace(0, 16, 1 << 16, dtype=np.float32)])
    return np.concatenate([some, -some])


def computed(x: np.ndarray, activation: str, dtype: object = tl.float32) -> np.ndarray:
    y = np.empty_like(x)
    activation_kernel[(tilejit.cdiv(x.size, BLOCK),)](x, y, x.size, ACTIVATION=activation, DTYPE=dtype, BLOCK=BLOCK)
    return y.astype(np.float64)


def gelu(x: np.ndarray) -> np.ndarray:
    """In float64, with all digits of the lower tail."""
    return x * 0.5 * np.array([math.erfc(v) for v in -x / math.sqrt(2)])


@pytest.mark.parametrize("dtype", [tl.float32, tl.float16], ids=str)
def test_gelu(dtype):
    """The bound that the docstring gives; of results above 0.001 also in proportion; positive ones to 20 bits."""
    x = every()
    meant, made = gelu(x.astype(np.float64)), computed(x, "gelu", dtype)
    error = np.abs(made - meant)
    assert np.max(error / np.maximum(1, np.abs(x))) < 3e-7
    large, above = np.abs(meant) > 1e-3, meant > 1e-30
    assert np.max(error[large] / np.abs(meant[large])) < 5e-6
    assert np.max(error[above] / meant[above]) < 1.5e-6


@pytest.mark.parametrize("dtype", [tl.bfloat16, tl.float8e4nv, tl.float8e5], ids=str)
def test_gelu_of_few_bits(dtype):
    """The bounds that the docstring gives; results that are rounded to bf16 are next to what they are meant to be."""
    x = every()
    meant, made = gelu(x.astype(np.float64)), computed(x, "gelu", dtype)
    error, large = np.abs(made - meant), np.abs(meant) >= 1e-3
    assert np.max(error[large] / np.abs(meant[large])) < 4.3e-4
    assert np.max(error[~large & (np.abs(x) < 16)]) < 4.3e-7
    to_bf16 = [v[large].astype(np.float32).astype(ml_dtypes.bfloat16).view(np.int16).astype(np.int32) for v in (made, meant)]
    assert np.max(np.abs(to_bf16[0] - to_bf16[1])) <= 1


def test_gelu_of_special_values():
    """NaN is kept; what is far below zero gives nearly 0, infinity included."""
    np.testing.assert_allclose(computed(SPECIAL, "gelu"), [0, 0, np.inf, 0, np.nan, 0, 0, np.float32(3e38), 0], 0, 1e-18)


def test_silu():
    x = every().astype(np.float64)
    meant, made = x * np.exp(-np.logaddexp(0, -x)), computed(x.astype(np.float32), "silu")
    normal = np.abs(x) < 80
    assert np.max(np.abs(made - meant)[normal] / np.maximum(np.abs(meant[normal]), 1e-37)) < 1e-5
    assert np.max(np.abs(made - meant) / np.maximum(np.abs(meant), 1e-30)) < 1e-5


def test_erf():
    """Absolute error below what `tl.erf` promises, sign of zero kept."""
    x = every()
    assert np.max(np.abs(computed(x, "erf") - [math.erf(v) for v in x.astype(np.float64)])) < 4e-7
    made = computed(SPECIAL, "erf")
    np.testing.assert_array_equal(made, [0, 0, 1, -1, np.nan, 0, 0, 1, -1])
    assert list(np.signbit(made[:2])) == [False, True]
