"""Scans: every axis, both directions, tuples, and combine functions that do not commute."""
import numpy as np
import pytest
from run import equal

import tilejit
import tilejit.language as tl

SHAPES = [((256,), 4), ((16, 64), 4), ((4, 8, 32), 2), ((2, 2), 1)]


@tilejit.kernel
def running(y, z, x, SHAPE: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, SHAPE[0] * (SHAPE[1] if len(SHAPE) > 1 else 1) * (SHAPE[2] if len(SHAPE) > 2 else 1))
    at = tl.reshape(at, SHAPE)
    v = tl.load(x + at)
    tl.store(y + at, tl.cumsum(v, AXIS, reverse=REVERSE))
    tl.store(z + at, v.cumprod(AXIS, REVERSE))


@pytest.mark.parametrize("shape,warps", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_products(shape, warps, reverse):
    x = np.random.default_rng(1).integers(-9, 9, shape, np.int32)
    for axis in range(len(shape)):
        flip = (lambda a, axis=axis: np.flip(a, axis)) if reverse else (lambda a: a)
        expected = [flip(np.cumsum(flip(x), axis, dtype=np.int32)), flip(np.cumprod(flip(x), axis, dtype=np.int32))]
        equal(running, expected, x, SHAPE=shape, AXIS=axis - len(shape), REVERSE=reverse, num_warps=warps)


@tilejit.kernel
def after(a, b, c, d):
    return a * c, b * c + d


@tilejit.kernel
def apart(a, b, c, d):
    return a + c, tl.minimum(b, d)


@tilejit.kernel
def of_two(y, z, x, w, N: tl.constexpr, COMBINE: tl.constexpr):
    at = tl.arange(0, N)
    first, second = tl.associative_scan((tl.load(x + at), tl.load(w + at)), 0, COMBINE)
    tl.store(y + at, first)
    tl.store(z + at, second)


def test_a_combine_function_of_tuples_that_does_not_commute():
    x, w = np.random.default_rng(2).integers(-99, 99, (2, 128), np.int32)
    total, state, expected = 1, 0, []
    for a, b in zip(x.tolist(), w.tolist()):
        total, state = total * a, state * a + b
        expected.append((total, state))
    wide = np.array([[v & 0xFFFFFFFF for v in row] for row in expected], np.uint32).view(np.int32)
    equal(of_two, [wide[:, 0].copy(), wide[:, 1].copy()], x, w, N=128, COMBINE=after)


@tilejit.kernel
def of_row(y, x, start, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + start + at, tl.cumsum(tl.load(x + start + at, at < n, other=0)), at < n)


@pytest.mark.parametrize("start, moved", [("int32", True), ("int32:16", False)])
def test_rows_of_many_chunks(start, moved):
    """Where a thread has single elements, each of a chunk of its own, it gets neighbours first: a total a warp is left."""
    k = of_row.compile("*fp32", "*fp32", start, "int32:16", BLOCK=4096, num_warps=4)
    assert (k.ir.count("convert %") == 2) == moved
    first = 1 if moved else 16
    x = np.random.default_rng(4).integers(-9, 9, 3008 + first, np.int32)
    equal(of_row, [np.concatenate([x[:first] * 0, np.cumsum(x[first:], dtype=np.int32)])], x, first, 3008, BLOCK=4096)


@tilejit.kernel
def narrow(y, x, N: tl.constexpr, DTYPE: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.cumsum(tl.load(x + at), dtype=DTYPE))


@pytest.mark.parametrize("dtype,asked,out", [(np.int8, None, np.int32), (np.uint8, None, np.uint32),
                                             (np.bool_, None, np.uint32), (np.int16, tl.int16, np.int16),
                                             (np.float32, tl.float64, np.float64)])
def test_types_of_running_sums(dtype, asked, out):
    x = (np.random.default_rng(3).random(64) * 2).astype(dtype) if dtype in (np.bool_, np.float32) else \
        np.random.default_rng(3).integers(100, 127, 64).astype(dtype)
    equal(narrow, [np.cumsum(x, dtype=out)], x, N=64, DTYPE=asked, exact=out != np.float64)


@tilejit.kernel
def add_within_range(a, b):
    wide = a.to(tl.int64) + b.to(tl.int64)
    tl.device_assert((wide >= -2 ** 31) & (wide < 2 ** 31), "overflow")
    return a + b


@tilejit.kernel(debug=True)
def checked_sums(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.associative_scan(tl.load(x + i), 0, add_within_range))


def test_functions_with_assertions():
    """The combining function has labels, which are placed once for each element."""
    x = np.where(np.arange(512) < 300, 32, 0).astype(np.int32)
    out = np.full(512, -1, np.int32)
    checked_sums[(1,)](x, out, 512)
    np.testing.assert_array_equal(out, np.cumsum(x))


def test_a_combine_function_that_folds_each_of_a_tuple_in_its_own_way():
    """What lanes had nothing before them got as a beginning was a sum's for all: least numbers were 0 at most."""
    x, w = np.random.default_rng(3).integers(1, 99, (2, 128), np.int32)
    equal(of_two, [np.cumsum(x, dtype=np.int32), np.minimum.accumulate(w)], x, w, N=128, COMBINE=apart)
