"""Sums, running sums, the greatest, sorting and the k greatest along rows, against numpy; in the evaluator, and a few in
the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.rows import sorting, sums


@pytest.fixture(autouse=True)
def evaluated():
    with tilejit.knobs(target="evaluator"):
        yield


RNG = np.random.default_rng(0)
F64, F32 = RNG.standard_normal((3, 4, 50)), RNG.standard_normal((2, 9000)).astype(np.float32)
INTEGERS = RNG.integers(-5, 5, (7, 300)).astype(np.int32)


def close(found, expected, **bounds):
    np.testing.assert_allclose(found, expected, **{"rtol": 1e-5, "atol": 1e-5, **bounds})


def test_sums():
    """Narrow rows, rows of several blocks, integers (in int64), rows of nothing."""
    for x in (F64, F32, INTEGERS, F64[:, :, :0], F64[:, ::2, 5:9]):
        close(kernels.sum(x), x.sum(-1))
    assert kernels.sum(INTEGERS).dtype == np.int64
    close(kernels.mean(F64), F64.mean(-1), rtol=1e-12)
    assert np.isnan(kernels.mean(F64[:, :, :0])).all()
    grad = F64[..., 0].copy()
    close(sums.mean_gradient(grad, F64), np.repeat(grad[..., None] / 50, 50, -1))
    with pytest.raises(LaunchError, match="mean: x must be of floats, found int32"):
        kernels.mean(INTEGERS)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse):
    for x in (F64, INTEGERS, F32):
        y = x.astype(np.float64)
        want = y[..., ::-1].cumsum(-1)[..., ::-1] if reverse else y.cumsum(-1)
        close(kernels.cumsum(x, reverse), want, atol=1e-3 if x is F32 else 1e-9)


def test_argmax():
    """The first of equals; NaN is above all numbers; whatever lies beyond the last column does not count."""
    with_nan = F32.copy()
    with_nan[0, [5000, 6000]], with_nan[1, 0] = np.nan, np.nan
    for x in (INTEGERS, F32, with_nan, np.zeros((3, 5000), np.float32), np.full((2, 5), -np.inf, np.float32), -1 - INTEGERS[:, :5] ** 2):
        values, indices = kernels.argmax(x)
        np.testing.assert_array_equal(indices, x.argmax(-1))
        np.testing.assert_array_equal(values, np.take_along_axis(x, x.argmax(-1)[:, None], -1)[:, 0])
    with pytest.raises(LaunchError, match="x has no columns"):
        kernels.argmax(F64[:, :, :0])


SPECIAL = np.float32([[3, np.nan, -np.inf, 0, -0.0, np.inf, 3, -2, np.nan, 1e-40]])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("x", [RNG.integers(-9, 9, (5, 100)).astype(np.float16), INTEGERS], ids=["fp16", "int32"])
def test_sort(x, descending):
    values, indices = kernels.sort(x, descending)
    order = np.argsort(-x if descending else x, axis=-1, kind="stable")
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_sort_of_special_numbers():
    values, indices = kernels.sort(SPECIAL)
    np.testing.assert_array_equal(indices[0], [2, 7, 3, 4, 9, 0, 6, 5, 1, 8])
    np.testing.assert_array_equal(values[0], SPECIAL[0][indices[0]])
    np.testing.assert_array_equal(kernels.sort(SPECIAL, True)[1][0], [1, 8, 5, 0, 6, 9, 3, 4, 7, 2])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.int8, np.uint8, np.int16,
                                   np.uint16])
def test_keys_of_32_bits(dtype):
    """Elements of at most 16 bits: the ends of their ranges, equal ones, and what is no number."""
    x = RNG.integers(0, 1 << 16, (3, 200)).astype(np.uint16).view(np.dtype(dtype)) if np.dtype(dtype).itemsize == 2 else \
        RNG.integers(0, 256, (3, 200)).astype(np.uint8).view(dtype)
    x[1] = x[1, :7].repeat(29)[:200]
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    wide = np.where(np.isnan(wide), np.inf, np.clip(wide, -1e300, 1e300))
    for descending in (False, True):
        order = np.argsort(-wide if descending else wide, axis=-1, kind="stable")
        np.testing.assert_array_equal(kernels.sort(x, descending)[1], order)
        np.testing.assert_array_equal(kernels.topk(x, 9, descending)[1], order[:, :9])


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("shape, dtype", [((2, 9001), np.float32), ((1, 20000), np.float16), ((1, 12288), np.int32)], ids=str)
def test_sort_of_wide_rows(shape, dtype, target):
    """Runs that are merged: full ones, one that ends early, one without another."""
    x = (3 * RNG.standard_normal(shape)).astype(dtype)
    if dtype is not np.int32:
        x[0, [5, 9, 11, 13]] = np.nan, -np.inf, -0.0, 0.0
    wide = np.where(np.isnan(x), np.inf, x.astype(np.float64))
    with tilejit.knobs(target=target):
        for descending in (False, True):
            values, indices = kernels.sort(x, descending)
            order = np.argsort(-wide if descending else wide, axis=-1, kind="stable")
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_argmax_of_blocks():
    """The first of equals in rows of several blocks, which begin anywhere, NaN above all; rows of the least there is."""
    x = np.tile(RNG.integers(-5, 5, 97), 100)[None, :9699].repeat(5, 0).astype(np.float32)
    x[1, [4000, 9000]], x[2, [0, 5000]], x[3], x[4, 9698] = np.nan, 9, -np.inf, 7
    close(kernels.sum(x), x.sum(-1))
    for y in (x, x.astype(np.float16), np.nan_to_num(x, nan=8, neginf=-128).astype(np.int8)):
        values, indices = kernels.argmax(y)
        np.testing.assert_array_equal(indices, y.astype(np.float32).argmax(-1))
        np.testing.assert_array_equal(values, np.take_along_axis(y, indices[:, None], -1)[:, 0])


@pytest.mark.parametrize("k, largest", [(1, True), (5, True), (32, False)])
def test_topk(k, largest):
    for x in (INTEGERS, F32):
        values, indices = kernels.topk(x, k, largest)
        order = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :k]
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("shape, k, dtype", [((3, 1100), 5, np.float32), ((2, 2049), 8, np.float16), ((1, 20000), 3, np.int32)],
                         ids=str)
def test_topk_of_groups(shape, k, dtype, target):
    """The best of the best groups, of many equal elements, too."""
    x = (3 * RNG.standard_normal(shape)).astype(dtype)
    if dtype is not np.int32:
        x[0, [5, 261, 1090, 13, 900]], x[-1, 300:] = (np.nan, -np.inf, -np.nan, 0.0, np.inf), -np.inf
    wide = np.where(np.isnan(x), 1e300, np.clip(x.astype(np.float64), -1e299, 1e299))
    with tilejit.knobs(target=target):
        for largest in (True, False):
            values, indices = kernels.topk(x, k, largest)
            order = np.argsort(-wide if largest else wide, axis=-1, kind="stable")[:, :k]
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_gradients_of_sorting():
    x, grad = F32[:, :20].copy(), F32[:, 20:25].copy()
    indices = kernels.topk(x, 5)[1]
    want = np.zeros_like(x)
    np.put_along_axis(want, indices, grad, -1)
    np.testing.assert_array_equal(sorting.topk_gradient(grad, x, indices), want)
    assert kernels.topk(np.zeros((0, 30000), np.int16), 50)[0].shape == (0, 50)


def test_bad_inputs():
    with pytest.raises(LaunchError, match="topk: k must be from 1 to 300, found 301"):
        kernels.topk(INTEGERS, 301)
    with pytest.raises(LaunchError, match="sort: elements of at most 32 bits, found fp64"):
        kernels.sort(F64)


def test_emulated():
    with tilejit.knobs(target="emulator"):
        close(kernels.sum(F32), F32.astype(np.float64).sum(-1), atol=1e-3)
        np.testing.assert_array_equal(kernels.argmax(INTEGERS)[1], INTEGERS.argmax(-1))
        np.testing.assert_array_equal(kernels.cumsum(INTEGERS), INTEGERS.cumsum(-1))
        np.testing.assert_array_equal(kernels.topk(INTEGERS, 3)[1], np.argsort(-INTEGERS, axis=-1, kind="stable")[:, :3])
        np.testing.assert_array_equal(kernels.sort(SPECIAL)[1][0], [2, 7, 3, 4, 9, 0, 6, 5, 1, 8])
