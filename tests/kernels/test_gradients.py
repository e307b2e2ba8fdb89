"""Softmax and norms along rows, forward and backward, against float64 formulas: numpy arrays, in the evaluator, and a few
of each in the emulator. tests/frameworks/ has them under torch's autograd."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows import norm_gradients as gradients
from tilejit.kernels.rows.columns import column_sum
from tilejit.kernels.rows.group_norm import group_norm_gradient
from tilejit.kernels.rows.matrices import matrix
from tilejit.kernels.rows.softmax import log_softmax_gradient, softmax_gradient
from tilejit.testing import rel_error

SHAPES = [(2, 3, 40), (7, 1), (2, 20000), (1, 70000), (0, 5), (5, 0), (9,)]
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def evaluated():
    with tilejit.knobs(target="evaluator"):
        yield


def arrays(*shapes, dtype=np.float64, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def softmax64(x, mask=None, scale=1.0):
    v = x.astype(np.float64) * scale
    if mask is not None:
        v = np.where(mask, v, -np.inf) if mask.dtype == np.bool_ else v + mask
    with np.errstate(invalid="ignore"):
        e = np.exp(v - v.max(-1, keepdims=True, initial=-np.inf))
        return e / e.sum(-1, keepdims=True)


def close(found, expected, bound=1e-12):
    assert found.shape == expected.shape
    if found.size:
        assert rel_error(found, expected) <= bound


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax(shape):
    x, grad = arrays(shape, shape)
    y = softmax64(x)
    close(kernels.softmax(x), y)
    close(kernels.log_softmax(x), np.log(y))
    close(softmax_gradient(grad, y, 0.5), 0.5 * y * (grad - (grad * y).sum(-1, keepdims=True)))
    close(log_softmax_gradient(grad, np.log(y), 0.5), 0.5 * (grad - y * grad.sum(-1, keepdims=True)))


@pytest.mark.parametrize("shape, of", [((2, 3, 40), (2, 3, 40)), ((2, 3, 40), (3, 40)), ((2, 3, 40), (40,)), ((2, 9000), (1, 9000)),
                                       ((1, 40000), (40000,))], ids=str)
def test_masks_and_scales(shape, of):
    """Added, or of bools; repeated along x's first dimensions."""
    (x, more), keep = arrays(shape, of), np.random.default_rng(1).random(of) > 0.4
    for mask in (more, more.astype(np.float32), keep):
        close(kernels.softmax(x, mask, scale=0.25), softmax64(x, mask, 0.25))
        close(np.exp(kernels.log_softmax(x, mask, scale=-0.5)), softmax64(x, mask, -0.5))


def test_softmax_of_what_is_no_number():
    """A row with NaN or an infinity, and one that has no elements left, is NaN throughout, and no other."""
    (x,) = arrays((6, 20), dtype=np.float32)
    x[0, 3], x[1, 4], x[2, :], x[3, 5] = np.nan, np.inf, -np.inf, -np.inf
    y = kernels.softmax(x)
    assert np.isnan(y[:3]).all() and not np.isnan(y[3:]).any() and y[3, 5] == 0
    assert kernels.log_softmax(x)[3, 5] == -np.inf


def norm64(x, weight, bias, centred, grad, eps=1e-5, offset=0.0):
    """(value, gradients of x, weight and bias); eps as fp32 has it."""
    x = x.astype(np.float64)
    mean = x.mean(-1, keepdims=True) * centred
    r = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + np.float32(eps))
    h, w = (x - mean) * r, weight.astype(np.float64) + offset
    g = grad * w
    dx = (g - h * (g * h).mean(-1, keepdims=True) - g.mean(-1, keepdims=True) * centred) * r
    axes = tuple(range(x.ndim - weight.ndim))
    return h * w + bias, dx, (grad * h).sum(axes), grad.sum(axes)


NORMS = [((3, 5, 40), 1, 0.0, True), ((3, 6, 40), 2, 1.0, False), ((7, 1), 1, 0.0, True), ((140, 33), 1, 1.0, True),
         ((2, 9000), 1, 0.0, False), ((2, 70000), 1, 1.0, True)]


@pytest.mark.parametrize("shape, dims, offset, centred", NORMS, ids=str)
def test_norms(shape, dims, offset, centred):
    """Values and all gradients; weights of the last dimension or of heads; residuals; walked, and in blocks."""
    x, grad, residual, more = arrays(shape, shape, shape, shape)
    weight, bias = arrays(shape[-dims:], shape[-dims:], seed=4)
    name = "layernorm" if centred else "rmsnorm"
    named = dict(weight=weight, bias=bias, eps=1e-5, offset=offset)
    wanted = norm64(x, weight, bias, centred, grad, offset=offset)
    close(getattr(kernels, name)(x, **named), wanted[0])
    for found, expected in zip(getattr(gradients, name + "_gradient")(grad, x, weight, bias, 1e-5, offset, True, True), wanted[1:]):
        close(found, expected, 1e-11)
    total = x + residual
    wanted = norm64(total, weight, bias, centred, grad, offset=offset)
    out, found = getattr(kernels, "add_" + name)(x, residual, **named)
    close(out, wanted[0])
    assert np.array_equal(found, total)
    dx, dw, db = getattr(gradients, f"add_{name}_gradient")(grad, more, total, weight, None, 1e-5, offset, True, False)
    close(dx, wanted[1] + more)
    close(dw, wanted[2], 1e-11)
    assert db.size == 0


def test_norms_of_nothing():
    for shape in ((0, 5), (5, 0)):
        x, w = np.zeros(shape, np.float32), np.ones(shape[1], np.float32)
        assert kernels.layernorm(x, w, w).shape == shape
        dx, dw, _ = gradients.rmsnorm_gradient(x, x, w, None, 1e-6, 0.0, True, False)
        assert dx.shape == shape and np.array_equal(dw, np.zeros(shape[1]))


def test_dtypes_of_weights_and_residuals():
    """fp32 weights and residual streams of bf16 blocks: results and sums have the dtypes of what they belong to."""
    (x, w, r) = (a.astype(d) for a, d in zip(arrays((6, 256), (256,), (6, 256)), (BF16, np.float32, np.float32)))
    out, total = kernels.add_rmsnorm(x, r, w)
    assert out.dtype == BF16 and total.dtype == np.float32
    close(out, norm64(total, w, 0 * w, False, 0 * r, 1e-6)[0], 4e-3)
    dx, dw, _ = gradients.rmsnorm_gradient(out, x, w, None, 1e-6, 0.0, True, False)
    assert dx.dtype == BF16 and dw.dtype == np.float32


def test_inputs_that_are_not_contiguous():
    x, w = arrays((40, 30), (80,), dtype=np.float32)
    for view in (x.T, x[:, ::2], x[::3], x[::-1], np.broadcast_to(x[:1], (5, 30)), x.reshape(4, 10, 30)[:, ::2]):
        close(kernels.softmax(view), softmax64(view), 1e-6)
        assert np.array_equal(kernels.rmsnorm(view, w[::2][:view.shape[-1]]),
                              kernels.rmsnorm(view.copy(), w[::2][:view.shape[-1]].copy()))
    out = np.full((30, 60), np.nan, np.float32)
    kernels.softmax(x.T, out=out[:, :40])
    close(out[:, :40], softmax64(x.T), 1e-6)
    assert np.isnan(out[:, 40:]).all()


@pytest.mark.parametrize("rows", [0, 1, 129, 300])
def test_column_sums(rows):
    """300 rows are summed in parts."""
    (x,) = arrays((rows, 200), dtype=BF16)
    total = column_sum(x, np.empty(200, BF16))
    assert total.dtype == BF16
    close(total, x.astype(np.float64).sum(0), 4e-3)


@pytest.mark.parametrize("columns", [40, 1000, 20000, 40000])
def test_emulated(columns):
    """The PTX: several rows a program, one, a row over two CTAs of a cluster, over four."""
    x, grad, w = arrays((5 if columns < 1000 else 2, columns), (5 if columns < 1000 else 2, columns), (columns,), dtype=np.float32)
    with tilejit.knobs(target="emulator"):
        y = kernels.softmax(x, scale=0.5)
        close(y, softmax64(x, scale=0.5), 1e-6)
        close(softmax_gradient(grad, y), y * (grad - (grad * y).sum(-1, keepdims=True)), 1e-5)
        wanted = norm64(x, w, w, True, grad)
        close(kernels.layernorm(x, w, w), wanted[0], 1e-5)
        found = gradients.layernorm_gradient(grad, x, w, w, 1e-5, 0.0, True, True)
        for one, expected in zip(found, wanted[1:]):
            close(one, expected, 1e-5)


@pytest.mark.parametrize("columns, centred, programs, warps, unit, parts", [
    (4096, True, 264, 4, 1, 1), (4096, False, 264, 8, 1, 1), (2048, True, 528, 2, 1, 1), (4097, True, 264, 4, 8, 1),
    (8193, False, 128, 8, 8, 1), (50257, False, 15, 8, 8, 2)])
def test_walks(monkeypatch, columns, centred, programs, warps, unit, parts):
    """As many programs as run at once, or a few less, so that rows of each begin alike; in parts where those would be many less."""
    monkeypatch.setattr(tilejit, "clusters", lambda ctas, device: 132 if ctas == 1 else 15)
    rows = matrix("x", np.zeros((4000, columns), BF16))
    found, _, options = gradients.walk(1, False, centred, rows, rows)
    assert (found, options["num_warps"], options["UNIT"], options["PARTS"]) == (programs, warps, unit, parts)


def test_a_gradient_of_few_rows():
    x, grad, w = arrays((6, 2064), (6, 2064), (2064,), dtype=BF16)
    with tilejit.knobs(target="emulator"):
        found = gradients.layernorm_gradient(grad, x, w, w, 1e-5, 0.0, True, True)
    for one, expected in zip(found, norm64(x, w, w, True, grad.astype(np.float64))[1:]):
        close(one, expected, 1e-2)


@pytest.mark.parametrize("columns, n", [(1024, 60), (16400, 11)])
def test_programs_that_are_ahead_wait(monkeypatch, columns, n):
    """They count their steps in memory that may hold anything; the sums are the same each time."""
    monkeypatch.setattr(gradients, "EVERY", 2)
    monkeypatch.setattr(tilejit, "clusters", lambda *args: 3)
    x, grad, w = arrays((n, columns), (n, columns), (columns,), dtype=BF16)
    with tilejit.knobs(target="emulator"):
        found, again = (gradients.rmsnorm_gradient(grad, x, w, None, 1e-5, 0.0, True, False)[:2] for _ in "12")
    for one, other, expected in zip(found, again, norm64(x, w, w, False, grad.astype(np.float64))[1:]):
        close(one, expected, 1e-2)
        np.testing.assert_array_equal(one, other)


def odd_rows(n, columns, pitch, dtype, seed):
    """Rows among NaNs; the first begins at 16 bytes, and behind the last is nothing."""
    buffer = np.full(n * pitch - (pitch - columns), np.nan, dtype)
    rows = np.lib.stride_tricks.as_strided(buffer, (n, columns), (pitch * buffer.itemsize, buffer.itemsize))
    rows[:] = np.random.default_rng(seed).standard_normal((n, columns)).astype(dtype)
    return rows


@pytest.mark.parametrize("n, columns, gap, dtype, programs", [
    (70, 1031, 0, BF16, 2), (40, 1090, 1, np.float16, 2), (13, 2050, 0, np.float32, 3), (5, 4097, 2, BF16, 12), (35, 4099, 4, BF16, 8),
    (10, 8201, 0, BF16, 8), (70, 1031, 0, BF16, 3), (37, 8201, 0, np.float16, 3), (19, 2051, 0, np.float32, 1)])
def test_gradients_of_rows_that_begin_anywhere(monkeypatch, n, columns, gap, dtype, programs):
    """Whole vectors and both ends, by programs whose rows begin alike, all of them, or in several parts where not as many
    programs would; no number of a row beside comes in."""
    monkeypatch.setattr(tilejit, "clusters", lambda *args: programs)
    monkeypatch.setattr(gradients, "EVERY", 2)
    x, grad, more = (odd_rows(n, columns, columns + gap, dtype, i) for i in range(3))
    w = arrays((columns,), dtype=dtype)[0]
    m = matrix("x", x)
    assert gradients.walk(1, True, m, m, m)[2]["UNIT"] == 16 // x.itemsize
    wanted, bound = norm64(x, w, w, True, grad.astype(np.float64))[1:], 1e-5 if dtype == np.float32 else 1e-2
    with tilejit.knobs(target="emulator"):
        found = gradients.add_layernorm_gradient(grad, more, x, w, w, 1e-5, 0.0, True, True, dx=odd_rows(n, columns, columns + gap, dtype, 3))
        for one, expected in zip(found, (wanted[0] + more.astype(np.float64), *wanted[1:])):
            close(one, expected, bound)
        x[n // 2, columns // 2] = grad[n // 2, 0] = np.nan
        dx = gradients.rmsnorm_gradient(grad, x, w, None, 1e-5, 0.0, True, False)[0]
    assert np.isnan(dx.astype(np.float32)).any(1).tolist() == [i == n // 2 for i in range(n)]


def test_bad_inputs():
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(LaunchError, match=r"softmax: the mask must have the shape \[4, 8\].* found \[4, 1\]"):
        kernels.softmax(x, np.zeros((4, 1), np.float32))
    with pytest.raises(LaunchError, match=r"rmsnorm: weight must have shape \[8\], or \[4, 8\].*found \[7\]"):
        kernels.rmsnorm(x, np.zeros(7, np.float32))
    with pytest.raises(LaunchError, match=r"add_rmsnorm: residual must have x's shape \[4, 8\], found \[4, 9\]"):
        kernels.add_rmsnorm(x, np.zeros((4, 9), np.float32))
    with pytest.raises(LaunchError, match=r"softmax: out must have shape \[4, 8\], found \[8, 4\]"):
        kernels.softmax(x, out=np.zeros((8, 4), np.float32))
    with pytest.raises(LaunchError, match="softmax: out must have contiguous rows"):
        kernels.softmax(x, out=np.zeros((8, 4), np.float32).T)
    with pytest.raises(LaunchError, match="at least one dimension"):
        kernels.softmax(np.zeros((), np.float32))
    with pytest.raises(LaunchError, match="expected an array, found list"):
        kernels.softmax([[1.0]])
    with pytest.raises(TypeError, match="missing a required argument: 'residual'"):
        kernels.add_rmsnorm(x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'wieght'"):
        kernels.rmsnorm(x, wieght=x)


@pytest.mark.parametrize("shape, groups", [((2, 6, 5, 7), 3), ((3, 8, 1), 2), ((2, 4, 3000), 2), ((3, 4), 4)], ids=str)
def test_group_norm(shape, groups):
    x, grad = arrays(shape, shape)
    weight, bias = arrays(shape[1:2], shape[1:2], seed=4)
    of = (1, -1) + (1,) * (len(shape) - 2)
    v = x.reshape(shape[0], groups, -1)
    r = 1 / np.sqrt(v.var(-1, keepdims=True) + np.float32(1e-5))
    h = (v - v.mean(-1, keepdims=True)) * r
    g = (grad * weight.reshape(of)).reshape(v.shape)
    dx = (g - h * (g * h).mean(-1, keepdims=True) - g.mean(-1, keepdims=True)) * r
    h, axes = h.reshape(shape), (0, *range(2, len(shape)))
    close(kernels.group_norm(x, groups, weight, bias), h * weight.reshape(of) + bias.reshape(of))
    wanted = dx.reshape(shape), (grad * h).sum(axes), grad.sum(axes)
    for found, expected in zip(group_norm_gradient(grad, x, groups, weight, bias, 1e-5), wanted):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    with pytest.raises(LaunchError, match=r"channels that 5 groups divide, found shape"):
        kernels.group_norm(x, 5)
