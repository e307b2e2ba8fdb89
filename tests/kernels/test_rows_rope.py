"""Rotary embeddings against float64 formulas."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows.rope import rope_gradient


def rope64(x, cos, sin, positions, interleaved, inverse=False):
    x, n = x.astype(np.float64), cos.shape[1]
    at = np.arange(x.shape[1])[None] if positions is None else positions
    c, s = (m[at][:, :, None].astype(np.float64) for m in (cos, -sin if inverse else sin))
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
    out = x.copy()
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., second] * c + x[..., first] * s
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs, columns", [(16, 32), (10, 33), (4, 16), (0, 5)])
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_rope(target, pairs, columns, interleaved):
    """Whole and partial, in slices of a joint projection, with positions and without; turned back by the gradient."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 9, columns)).astype(np.float32)[:, :, 3:6]
    angles = rng.standard_normal((12, pairs))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = rng.integers(0, 12, (2, 5))
    with tilejit.knobs(target=target):
        for at in (None, positions):
            want = rope64(x, cos, sin, at, interleaved)
            np.testing.assert_allclose(kernels.rope(x, cos, sin, at, interleaved), want, atol=1e-5)
            turned = x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
            np.testing.assert_allclose(kernels.rope(turned, cos, sin, at, interleaved), want, atol=1e-5)
        back = rope_gradient(kernels.rope(x, cos, sin, positions, interleaved), cos, sin, positions, interleaved)
        np.testing.assert_allclose(back, x, atol=1e-5)


def test_bad_inputs():
    x, c = np.zeros((1, 4, 2, 8), np.float32), np.zeros((4, 4), np.float32)
    with pytest.raises(LaunchError, match=r"at least 4 positions and at most 4 pairs, found \[3, 4\] and \[3, 4\]"):
        kernels.rope(x, c[:3], c[:3])
    with pytest.raises(LaunchError, match=r"x must be \[batch, length, heads, columns\], found shape \[4, 2, 8\]"):
        kernels.rope(x[0], c, c)
    with pytest.raises(LaunchError, match=r"positions must be integers of shape \[1, 4\], found int64 \[4\]"):
        kernels.rope(x, c, c, np.arange(4))
