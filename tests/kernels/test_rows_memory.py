"""Kernels that move, look up, drop or narrow elements: dropout, embeddings, transposes, quantisation, the optimiser."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from row_launches import LISTS

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows.dropout import dropout_gradient
from tilejit.kernels.rows.embedding import embedding_gradient

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@pytest.fixture(autouse=True)
def evaluated():
    with tilejit.knobs(target="evaluator"):
        yield


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_dropout(target):
    """The share, the scale, and the same mask in the gradient and in the emulator; another one for another seed."""
    x = np.ones(9001, np.float32)
    y = kernels.dropout(x, 0.25, 7)
    with tilejit.knobs(target=target):
        np.testing.assert_array_equal(dropout_gradient(x, 0.25, 7), y)
        assert set(np.unique(y)) == {0, np.float32(1 / 0.75)} and abs((y != 0).mean() - 0.75) < 0.02
        assert not np.array_equal(kernels.dropout(x, 0.25, 8), y)
        np.testing.assert_array_equal(kernels.dropout(x, 0.0, 1), x)
    with pytest.raises(LaunchError, match="p must be at least 0 and less than 1, found 1.0"):
        kernels.dropout(x, 1.0, 1)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_embedding(target, deterministic):
    weight, at = random(20, 33), np.random.default_rng(1).integers(0, 20, (4, 9))
    grad = random(4, 9, 33, seed=2)
    want = np.zeros(weight.shape)
    np.add.at(want, at, grad)
    want[3] = 0
    with tilejit.knobs(target=target):
        np.testing.assert_array_equal(kernels.embedding(weight, at), weight[at])
        found = embedding_gradient(grad, weight, at, 3, deterministic)[0]
        np.testing.assert_allclose(found, want, atol=1e-5)
    assert np.isnan(kernels.embedding(weight, np.array([20, -1, 5]))).all(1).tolist() == [True, True, False]
    with pytest.raises(LaunchError, match=r"expected a table \[count, columns\] and integers, found \[20, 33\] and fp32"):
        kernels.embedding(weight, grad)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_transpose(target):
    x = random(2, 70, 130)
    with tilejit.knobs(target=target):
        for a in (x, x[0], x[:, :, 3:60], x[0, ::2, ::2], np.broadcast_to(x[0], x.shape), x[:, :0]):
            np.testing.assert_array_equal(kernels.transpose(a), a.swapaxes(-1, -2))


@pytest.mark.parametrize("of, dtype, bound", [("tensor", E4M3, 0.04), ("row", np.int8, 0.004), ("block", E5M2, 0.08),
                                              ("row", E4M3, 0.04)])
def test_quantisation(of, dtype, bound):
    """A scale is the greatest over the dtype's greatest; what comes back is near; zeros stay zeros."""
    most = {E4M3: 448, E5M2: 57344, np.int8: 127}[dtype]
    for x in (random(3, 300), random(2, 9001)[:, 1:], np.zeros((2, 8), np.float32)):
        q, scale = kernels.quantise(x, of, dtype)
        size = {"tensor": x.size, "row": x.shape[1], "block": 128}[of]
        pieces = [x] if of == "tensor" else [x[:, i:i + size] for i in range(0, x.shape[1], size)]
        want = np.stack([abs(p).max(axis=None if of == "tensor" else 1) for p in pieces], -1).reshape(scale.shape) / most
        np.testing.assert_allclose(scale, want, rtol=1e-6)
        assert q.dtype == dtype and abs(q.astype(np.float64)).max() <= most
        np.testing.assert_allclose(kernels.dequantise(q, scale, np.float32), x, atol=bound * max(1e-9, abs(x).max()))


def test_quantisation_rounds_to_nearest():
    x = np.float32([[127, 0.5, 1.5, -2.5, -0.49, np.nan]])
    with tilejit.knobs(target="emulator"):
        assert kernels.quantise(x[:, :5], "row", np.int8)[0].tolist() == [[127, 0, 2, -2, 0]]
        assert np.isnan(kernels.quantise(x, "row", E4M3)[0].astype(np.float32)).tolist() == [[False] * 5 + [True]]
    with pytest.raises(LaunchError, match="to fp8e4nv, fp8e5, int8, with scales of a tensor, row or block; found fp16"):
        kernels.quantise(x, "row", np.float16)
    with pytest.raises(LaunchError, match="no scales of a tensor, of rows or of 1 x 128 blocks"):
        kernels.dequantise(np.zeros((1, 6), np.int8), np.ones((2, 1), np.float32), np.float32)


@pytest.mark.one_schedule                        # what addresses in arrays lead to is not put back between launches
def test_adamw():
    """Two steps of tensors of different sizes in one launch each, and clipping, against float64 formulas."""
    shapes = [(5, 7), (5000,), (1,)]
    params, grads, first, second = ([random(*s, seed=i, dtype=np.float64) * (i < 2) for s in shapes] for i in range(4))
    p, m, v = ([x.astype(np.float64) for x in xs] for xs in (params, first, second))
    with tilejit.knobs(target="emulator"):
        for step in (1, 2):
            kernels.adamw_(params, grads, first, second, step, lr=0.1)
            for i, g in enumerate(grads):
                m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g.astype(np.float64) ** 2
                p[i] = p[i] * 0.999 - 0.1 * m[i] / (1 - 0.9 ** step) / (np.sqrt(v[i] / (1 - 0.999 ** step)) + 1e-8)
        for found, want in zip(params, p):
            np.testing.assert_allclose(found, want, atol=1e-13)
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
        clipped, kept = ([g.copy() for g in grads] for _ in range(2))
        np.testing.assert_allclose(kernels.clip_grad_norm_(clipped, 1.0), norm, rtol=1e-6)
        kernels.clip_grad_norm_(kept, 1000.0)
        for found, same, g in zip(clipped, kept, grads):
            np.testing.assert_allclose(found, g / norm, rtol=1e-5)
            np.testing.assert_array_equal(same, g)
    with pytest.raises(LaunchError, match=r"lists of one length expected, found \[3, 2, 3, 3\]"):
        kernels.adamw_(params, grads[:2], first, second, 1)
    with pytest.raises(LaunchError, match=r"grads\[0\] must be contiguous, of shape \[5, 7\], found shape \[7, 5\]"):
        kernels.adamw_(params, [grads[0].T, *grads[1:]], first, second, 1)


@pytest.mark.one_schedule                        # what addresses in arrays lead to is not put back between launches
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors(name):
    """Launches of kernels that read addresses from tables."""
    with tilejit.knobs(target="emulator"):
        LISTS[name]()
