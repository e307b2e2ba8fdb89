"""Losses along rows against float64 formulas: numpy arrays, in the evaluator, and a few in the emulator."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows.cross_entropy import cross_entropy_, cross_entropy_forward, cross_entropy_gradient
from tilejit.kernels.rows.divergences import js_divergence_gradient, kl_divergence_gradient
from tilejit.kernels.rows.linear_cross_entropy import linear_cross_entropy_forward
from tilejit.testing import rel_error


@pytest.fixture(autouse=True)
def evaluated():
    with tilejit.knobs(target="evaluator"):
        yield


def logits_of(*shape, dtype=np.float64):
    rng = np.random.default_rng(5)
    target = rng.integers(0, shape[-1], shape[:-1])
    target[0] = -100
    return rng.standard_normal(shape).astype(dtype), target, rng.random(shape[-1]).astype(np.float32)


def losses64(x, t, w=None, smoothing=0.0, z=0.0, cap=0.0):
    """(each row's loss, its gradient's rows, the weights of its target, lse)."""
    x = x.astype(np.float64)
    v = cap * np.tanh(x / cap) if cap else x
    w = np.ones(x.shape[1]) if w is None else w.astype(np.float64)
    kept = t != -100
    safe = np.where(kept, t, 0)
    lse = np.log(np.exp(v - v.max(1, keepdims=True)).sum(1)) + v.max(1)
    own = w[safe] * kept
    loss = (1 - smoothing) * own * (lse - v[np.arange(len(t)), safe]) + kept * (
        smoothing / x.shape[1] * (w.sum() * lse - v @ w) + z * lse ** 2)
    p = np.exp(v - lse[:, None])
    most = ((1 - smoothing) * own)[:, None]
    d = p * (most + smoothing / x.shape[1] * w.sum() + 2 * z * lse[:, None]) - smoothing / x.shape[1] * w
    d[np.arange(len(t)), safe] -= most[:, 0]
    d *= kept[:, None] * (1 - (v / cap) ** 2 if cap else 1.0)
    return loss, d, own, lse


@pytest.mark.parametrize("shape, smoothing, z, cap, weighted, reduction", [
    ((5, 37), 0.0, 0.0, 0.0, False, "mean"), ((5, 37), 0.1, 0.01, 4.0, True, "mean"), ((3, 9001), 0.1, 0.01, 0.0, True, "sum"),
    ((3, 9001), 0.0, 0.0, 4.0, False, "none"), ((3, 1), 0.0, 0.0, 0.0, False, "mean"), ((2, 70000), 0.1, 0.0, 0.0, False, "mean")],
    ids=str)
def test_cross_entropy(shape, smoothing, z, cap, weighted, reduction):
    """The loss, its gradient, and both in one pass."""
    x, t, w = logits_of(*shape)
    w = w.astype(x.dtype) ** 2 if weighted else None
    loss, d, own, lse = losses64(x, t, w, smoothing, z, cap)
    count = own.sum() if reduction == "mean" else 1.0
    want = loss if reduction == "none" else loss.sum() / count
    options = (w, -100, smoothing, z, cap, reduction)
    found, logarithms, total = cross_entropy_forward(x, t, *options)
    np.testing.assert_allclose(found, want, rtol=1e-11)
    np.testing.assert_allclose(logarithms, lse, rtol=1e-11)
    grad = np.full(found.shape, 0.5)
    dx = cross_entropy_gradient(grad, x, t, w, logarithms, total, *options[1:])
    np.testing.assert_allclose(dx, 0.5 * d / count, rtol=1e-10, atol=1e-14)
    place = x.copy()
    np.testing.assert_allclose(cross_entropy_(place, t, *options), want, rtol=1e-11)
    np.testing.assert_allclose(place, d / count, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [(5, 40), (2, 5000), (3, 4097), (2, 40000)], ids=str)
def test_emulated(shape):
    """Several rows a program, one, also one that begins anywhere, and a row over the CTAs of a cluster; int32 targets."""
    x, t, _ = logits_of(*shape, dtype=np.float32)
    loss, d, own, _ = losses64(x, t, smoothing=0.1)
    with tilejit.knobs(target="emulator"):
        found = cross_entropy_(x, t.astype(np.int32), label_smoothing=0.1)
    np.testing.assert_allclose(found, loss.sum() / own.sum(), rtol=1e-5)
    assert rel_error(x, d / own.sum()) < 1e-5


@pytest.mark.parametrize("columns, dtype", [(2051, np.float16), (4097, np.float32)])
def test_gradients_of_rows_that_begin_anywhere(columns, dtype):
    """Vectors that a row has whole, and its ends, each with the target among them."""
    x, t, w = logits_of(9, columns, dtype=dtype)
    t[1:5] = 0, 1, columns - 1, columns - 2
    loss, d, own, lse = losses64(x, t, w, 0.1)
    one = np.ones((), np.float32)
    with tilejit.knobs(target="emulator"):
        found = cross_entropy_gradient(one, x, t, w, lse.astype(np.float32),
                                       np.full((), own.sum(), np.float32), -100, 0.1, 0.0, 0.0, "mean")
        place = x.copy()
        each = cross_entropy_(place, t, w, -100, 0.1, reduction="none")
    bound = 1e-5 if dtype == np.float32 else 1e-2
    assert rel_error(found, d / own.sum()) < bound and rel_error(place, d) < bound and rel_error(each, loss) < bound


@pytest.mark.parametrize("columns, dtype", [(777, np.float16), (1001, np.float32), (9003, np.float16)])
def test_in_place_in_registers(columns, dtype):
    """Rows that begin anywhere are vectors in registers; targets are found there, also where a row begins and ends."""
    x, t, _ = logits_of(10, columns, dtype=dtype)
    t[:9] = 0, 1, columns - 1, columns - 2, columns // 2, 7, 8, -100, -100
    loss, d, _, _ = losses64(x, t)
    t[8] = columns
    with tilejit.knobs(target="emulator"):
        each = cross_entropy_(x, t, reduction="none")
    assert np.isnan(each[8]) and np.isnan(x[8]).all()
    for i in (*range(8), 9):
        assert rel_error(x[i], d[i]) < 1e-2 if d[i].any() else not x[i].any()
        assert abs(each[i] - loss[i]) < 1e-2


@pytest.mark.parametrize("shape", [(5, 48), (4, 4096), (4, 4097), (4, 20000), (33000, 3)], ids=str)
def test_losses_emulated(shape):
    """Losses alone: rows together and one by one, in blocks, and so many that a cluster sums their losses."""
    x, t, _ = logits_of(*shape, dtype=np.float32)
    x[1, :3] = -np.inf, 1e4, -np.inf
    loss, _, own, _ = losses64(x[2:], t[2:])
    with tilejit.knobs(target="emulator"):
        found = kernels.cross_entropy(x, t, reduction="none")
        np.testing.assert_allclose(found[2:], loss, rtol=1e-5, atol=1e-6)
        assert found[0] == 0 and found[1] == (np.inf if t[1] in (0, 2) else np.float32(1e4) - x[1, t[1]])
        np.testing.assert_allclose(kernels.cross_entropy(x[2:], t[2:]), loss.sum() / own.sum(), rtol=1e-5)


def test_targets_that_are_no_class():
    x, t, _ = logits_of(4, 9)
    t[1], t[2] = 9, -1
    each = kernels.cross_entropy(x, t, reduction="none")
    assert each[0] == 0 and np.isnan(each[1:3]).all() and np.isfinite(each[3])
    assert np.isnan(kernels.cross_entropy(x, np.full(4, -100)))
    assert kernels.cross_entropy(x[:0], t[:0], reduction="sum") == 0


def test_bad_inputs():
    x, t, w = logits_of(4, 9)
    with pytest.raises(LaunchError, match=r"the target must be integers of shape \[4\], found fp64 \[4\]"):
        kernels.cross_entropy(x, t.astype(np.float64))
    with pytest.raises(LaunchError, match=r"weight must have 9 elements, found shape \[8\]"):
        kernels.cross_entropy(x, t, w[:8])
    with pytest.raises(LaunchError, match="reduction must be one of mean, sum, none, found 'max'"):
        kernels.cross_entropy(x, t, reduction="max")


def test_linear_cross_entropy():
    """Loss and both gradients, the rows in chunks, the last one smaller; a vocabulary that TMA could not store."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((40, 32), (50, 32)))
    t = rng.integers(0, 50, 40)
    t[3] = -100
    loss, d, own, _ = losses64(x.astype(np.float64) @ w.T.astype(np.float64), t)
    with tilejit.knobs(target="emulator"):
        found, dx, dw = linear_cross_entropy_forward(x, w, t, chunk=16, need_x=True, need_weight=True)
    np.testing.assert_allclose(found, loss.sum() / own.sum(), rtol=1e-3)
    assert rel_error(dx, d @ w / own.sum()) < 5e-3 and rel_error(dw, d.T @ x / own.sum()) < 5e-3
    with pytest.raises(LaunchError, match=r"expected x \[.., width\], weight \[V, width\] and the reduction mean or sum"):
        kernels.linear_cross_entropy(x, w.T, t)


def test_divergences():
    """Of distributions with zeros among them; limits of the infinite."""
    rng = np.random.default_rng(0)
    p, q = (v / v.sum(-1, keepdims=True) for v in rng.random((2, 3, 4, 135)))
    p[..., 3] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        want = np.where(p > 0, p * np.log(p / q), 0).sum(-1)
        m = 0.3 * p + 0.7 * q
        mixed = np.where(p > 0, 0.3 * p * np.log(p / m), 0).sum(-1) + (0.7 * q * np.log(q / m)).sum(-1)
        logs = np.log(p)
    x = np.log(q)
    np.testing.assert_allclose(kernels.kl_divergence(x, p), want)
    np.testing.assert_allclose(kernels.js_divergence(x, logs, 0.3), mixed, rtol=1e-6)
    np.testing.assert_allclose(kernels.kl_divergence(x, x, log_target=True), 0, atol=1e-12)
    grad = np.ones((3, 4))
    np.testing.assert_allclose(kl_divergence_gradient(grad, x, p, False), -p)
    np.testing.assert_allclose(js_divergence_gradient(grad, x, logs, 0.3), 0.7 * q * np.log(q / m), rtol=1e-5, atol=1e-8)
    with pytest.raises(LaunchError, match="beta must lie between 0 and 1, found 1.0"):
        kernels.js_divergence(x, x, 1.0)
