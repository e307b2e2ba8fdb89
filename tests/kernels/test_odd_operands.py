"""Every product takes operands of any strides and addresses, and results whose rows begin anywhere."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels import (
    batched_matmul,
    fused_matmul,
    gated_matmul,
    grouped_matmul,
    masked_grouped_matmul,
    matmul,
    matmul_blockscaled,
    matmul_streamk,
    swiglu,
    weight_only_matmul,
)

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
#: How an array lies: row-major, column-major, rows that are parts of longer ones, every second number, at an odd address.
VIEWS = "rows", "columns", "within", "second", "odd"


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture(autouse=True)
def target(request):
    """Some orders run in the evaluator, the others, and what has none, in the emulator."""
    how = getattr(request.node, "callspec", None) and request.node.callspec.params.get("how")
    with tilejit.knobs(target="evaluator" if how in ("rows", "within", "odd") else "emulator"):
        yield


def lying(values: np.ndarray, how: str) -> np.ndarray:
    """The same numbers, in other memory."""
    *stack, m, n = values.shape
    if how == "columns":
        found = np.swapaxes(np.empty((*stack, n, m), values.dtype), -1, -2)
    elif how == "within":
        found = np.empty((*stack, m + 1, n + 5), values.dtype)[..., :m, 3:n + 3]
    elif how == "second":
        found = np.empty((*stack, m, 2 * n), values.dtype)[..., ::2]
    elif how == "odd":
        found = np.empty(values.size + 1, values.dtype)[1:].reshape(values.shape)
    else:
        found = np.empty(values.shape, values.dtype)
    found[...] = values
    return found


def whole(rng, *shape, dtype=BF16):
    return rng.integers(-2, 3, shape).astype(dtype)


def f64(x):
    return np.asarray(x).astype(np.float64)


def poisoned(shape, dtype):
    """A result within longer rows, which must stay as they are."""
    there = np.full((*shape[:-1], shape[-1] + 3), 7, dtype)
    return there, there[..., 1:shape[-1] + 1]


def kept(there):
    return (f64(there[..., 0]) == 7).all() and (f64(there[..., -2:]) == 7).all()


@pytest.mark.parametrize("how", VIEWS)
@pytest.mark.parametrize("dtype", [BF16, np.float32, FP8])
def test_batched(rng, how, dtype):
    a, b = whole(rng, 3, 37, 51, dtype=dtype), whole(rng, 3, 51, 29, dtype=dtype)
    there, out = poisoned((3, 37, 29), np.float32)
    batched_matmul(lying(a, how), lying(b, VIEWS[VIEWS.index(how) - 1]), out=out)
    assert np.array_equal(f64(out), f64(a) @ f64(b)) and kept(there)


@pytest.mark.parametrize("shared", ["a", "b"])
def test_one_matrix_for_all_batches(rng, shared):
    a, b = whole(rng, 1 if shared == "a" else 3, 21, 131), whole(rng, 1 if shared == "b" else 3, 131, 35)
    if shared == "a":
        a = np.broadcast_to(a, (3, 21, 131))
    assert np.array_equal(f64(batched_matmul(lying(a, "odd") if shared == "b" else a, b, out_dtype=tilejit.language.float32)),
                          f64(a) @ f64(b))


@pytest.mark.parametrize("how", VIEWS)
@pytest.mark.parametrize("few", [True, False])
def test_fused(rng, how, few):
    m, n, k = (19, 75, 645) if few else (150, 131, 67)
    a, b, residual = whole(rng, m, k), whole(rng, k, n), whole(rng, m, n)
    bias, scale = whole(rng, n, dtype=np.float32), whole(rng, m, 1, dtype=np.float32)
    there, out = poisoned((m, n), np.float32)
    _, z = poisoned((m, n), np.float32)
    fused_matmul(lying(a, how), lying(b, VIEWS[VIEWS.index(how) - 1]), scale_a=scale, bias=bias, residual=residual, z=z,
                 activation="relu", out=out)
    want = f64(a) @ f64(b) * f64(scale) + f64(bias)
    assert np.array_equal(f64(z), want) and np.array_equal(f64(out), np.maximum(want, 0) + f64(residual)) and kept(there)


def test_fused_integers(rng):
    a, b = whole(rng, 33, 45, dtype=np.int8), whole(rng, 45, 21, dtype=np.int8)
    out = fused_matmul(a, b, out=np.empty((33, 21), np.int32))
    assert np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("how", VIEWS)
def test_gated(rng, how):
    a, b = whole(rng, 40, 51), whole(rng, 2, 51, 37)
    there, out = poisoned((40, 37), np.float32)
    gated_matmul(lying(a, how), lying(b, how), activation="relu", out=out)
    gate, up = (f64(a) @ f64(b[i]) for i in (0, 1))
    assert np.array_equal(f64(out), np.maximum(gate, 0) * up) and kept(there)


@pytest.mark.parametrize("how", VIEWS)
def test_swiglu(rng, how):
    a, b = whole(rng, 40, 51), whole(rng, 51, 74)
    out = swiglu(lying(a, how), lying(b, how), out_dtype=tilejit.language.float32)
    gate, up = f64(a) @ f64(b[:, :37]), f64(a) @ f64(b[:, 37:])
    assert np.allclose(f64(out), gate / (1 + np.exp(-gate)) * up, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("how", VIEWS)
@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_grouped(rng, how, dtype):
    offsets = np.array([0, 13, 13, 50, 61], np.int32)
    a, b = whole(rng, 70, 51, dtype=dtype), whole(rng, 4, 51, 37, dtype=dtype)
    there, out = poisoned((70, 37), np.float32)
    before = out.copy()
    grouped_matmul(lying(a, how), lying(b, how), offsets, out=out)
    for e in range(4):
        rows = slice(*offsets[e:e + 2])
        before[rows] = f64(a[rows]) @ f64(b[e])
    assert np.array_equal(out, before) and kept(there)


@pytest.mark.parametrize("how", ["rows", "columns", "odd"])
def test_masked_groups(rng, how):
    counts = np.array([7, 0, 21], np.int32)
    a, b = whole(rng, 3, 21, 51), whole(rng, 3, 51, 37)
    out = np.full((3, 21, 37), 7, np.float32)
    masked_grouped_matmul(lying(a, how), lying(b, how), counts, out=out)
    for e in range(3):
        assert np.array_equal(out[e, :counts[e]], f64(a[e, :counts[e]]) @ f64(b[e])) and (out[e, counts[e]:] == 7).all()


@pytest.mark.parametrize("how", VIEWS)
@pytest.mark.parametrize("given", [{}, {"accumulate": True}, {"split": 3}, {"ctas": 2}])
def test_streams(rng, how, given):
    a, b = whole(rng, 37, 1031), whole(rng, 1031, 29)
    there, out = poisoned((37, 29), np.float32)
    matmul_streamk(lying(a, how), lying(b, VIEWS[VIEWS.index(how) - 1]), out=out, **given)
    assert np.array_equal(f64(out), f64(a) @ f64(b) + 7 * ("accumulate" in given)) and kept(there)


@pytest.mark.parametrize("how", VIEWS)
def test_block_scales(rng, how):
    a, b = whole(rng, 37, 203, dtype=FP8), whole(rng, 203, 131, dtype=FP8)
    scale_a, scale_b = whole(rng, 37, 2, dtype=np.float32), whole(rng, 2, 2, dtype=np.float32)
    out = matmul_blockscaled(lying(a, how), lying(b, how), scale_a, scale_b, out_dtype=tilejit.language.float32)
    spread = np.repeat(np.repeat(f64(scale_b), 128, 0), 128, 1)[:131, :203].T
    assert np.allclose(f64(out), (f64(a) * np.repeat(f64(scale_a), 128, 1)[:, :203]) @ (f64(b) * spread))


@pytest.mark.parametrize("how", VIEWS)
def test_weights_alone(rng, how):
    x, w, scales = whole(rng, 21, 75), whole(rng, 37, 75, dtype=np.int8), np.ones(37, np.float32)
    out = weight_only_matmul(lying(x, how), lying(w, how), scales, out=np.empty((21, 37), np.float32))
    assert np.array_equal(f64(out), f64(x) @ f64(w).T)


@pytest.mark.parametrize("how", VIEWS)
def test_matmul(rng, how):
    a, b = whole(rng, 37, 51), whole(rng, 51, 29)
    assert np.array_equal(f64(matmul(lying(a, how), lying(b, VIEWS[VIEWS.index(how) - 1]), out_dtype=tilejit.language.float32)),
                          f64(a) @ f64(b))


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_nothing(shape):
    m, n, k = shape
    a, b = np.zeros((m, k), BF16), np.zeros((k, n), BF16)
    assert (f64(fused_matmul(a, b, residual=np.ones((max(m, 1), n), BF16)[:m])) == 1).all()
    assert (f64(batched_matmul(a[None], b[None])) == 0).all()
