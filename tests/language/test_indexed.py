"""gather, histogram and functions mapped over elements, against numpy."""
import numpy as np
import pytest
from run import both, equal

import tilejit
import tilejit.language as tl


@tilejit.kernel
def gathers(y, x, index, N: tl.constexpr, SRC: tl.constexpr, M: tl.constexpr, INDEX: tl.constexpr, AXIS: tl.constexpr):
    src = tl.load(x + tl.reshape(tl.arange(0, N), SRC))
    at = tl.load(index + tl.reshape(tl.arange(0, M), INDEX))
    tl.store(y + tl.reshape(tl.arange(0, M), INDEX), src.gather(at, AXIS))


@pytest.mark.parametrize("src,index,axis,dtype,kind", [
    ((128,), (256,), 0, np.float32, np.int32), ((16, 64), (16, 8), 1, np.float16, np.int64),
    ((32, 16), (64, 16), -2, np.int8, np.uint8), ((4, 8, 16), (4, 2, 16), 1, np.float64, np.int16),
    ((64, 4), (64, 4), 0, np.bool_, np.int32),
    ((4, 512), (4, 32), 1, np.float32, np.int16), ((4, 1024), (2, 1024), 0, np.int16, np.int32)])
def test_gather(src, index, axis, dtype, kind):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if dtype == np.bool_ else 100, src).astype(dtype)
    at = rng.integers(0, src[axis], index).astype(kind)
    equal(gathers, [np.take_along_axis(x, at.astype(np.int64), axis)], x, at, N=x.size, SRC=src, M=at.size, INDEX=index,
          AXIS=axis)


@tilejit.kernel
def counts(y, x, mask, N: tl.constexpr, BINS: tl.constexpr, MASKED: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    h = tl.histogram(v, BINS, tl.load(mask + at) != 0) if MASKED else v.histogram(BINS)
    tl.store(y + tl.arange(0, BINS), h)


@pytest.mark.parametrize("n,bins,masked,warps", [(512, 64, False, 4), (64, 256, True, 4), (2048, 2, True, 1), (16, 1, False, 1)])
def test_histogram(n, bins, masked, warps):
    """Numbers out of range and masked ones are not counted."""
    rng = np.random.default_rng(2)
    x, mask = rng.integers(-bins, 2 * bins, n).astype(np.int32), rng.integers(0, 2, n).astype(np.int8)
    inside = x[(x >= 0) & (x < bins) & ((mask != 0) | (not masked))]
    equal(counts, [np.bincount(inside, minlength=bins).astype(np.int32)], x, mask, N=n, BINS=bins, MASKED=masked,
          num_warps=warps)


@tilejit.kernel
def collatz(x, most):
    steps = 0
    v = x
    while (v > 1) & (steps < most):
        if v % 2 == 0:
            v = v // 2
        else:
            v = 3 * v + 1
        steps += 1
    return steps, v


@tilejit.kernel
def maps(y, z, x, N: tl.constexpr):
    at = tl.arange(0, N)
    steps, last = tl.map_elementwise(collatz, tl.load(x + at), 20)
    tl.store(y + at, steps)
    tl.store(z + at, last)


def plain(v, most):
    steps = 0
    while v > 1 and steps < most:
        v = v // 2 if v % 2 == 0 else 3 * v + 1
        steps += 1
    return steps, v


def test_map_with_loops_and_branches_of_single_elements():
    x = np.random.default_rng(3).integers(1, 200, 128).astype(np.int32)
    expected = np.array([plain(int(v), 20) for v in x], np.int32)
    equal(maps, [expected[:, 0].copy(), expected[:, 1].copy()], x, N=128)


@tilejit.kernel
def pairs(a0, a1, b0, b1):
    return a0 + b0, a1 - b1, a0 > b0, a1 > b1


@tilejit.kernel
def packed(y, z, x, w, N: tl.constexpr):
    at = tl.arange(0, N)
    total, larger = tl.map_elementwise(pairs, tl.load(x + at), tl.load(w + at), pack=2)
    tl.store(y + at, total)
    tl.store(z + at, larger)


def test_packed_elements_come_in_groups_of_their_argument():
    """Which elements pair up is open, but each of a pair is in one place in arguments and results."""
    x, w = np.random.default_rng(4).integers(-99, 99, (2, 256)).astype(np.int32)
    for y, z in both(packed, [np.zeros(256, np.int32), np.zeros(256, np.bool_)], x, w, N=256):
        first = y == x + w
        assert (first | (y == x - w)).all() and first.sum() >= 128
        np.testing.assert_array_equal(z, x > w)
