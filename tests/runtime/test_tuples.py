"""Tuples and named tuples as arguments: arrays, numbers, constants, kernels and descriptors in them, nested."""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError, LaunchError
from tilejit.tools.tensor_descriptor import TensorDescriptor


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    with tilejit.knobs(target=request.param):
        yield


class Matrix(NamedTuple):
    """An array with what is to be known of it."""

    base: Any
    shape: tuple
    strides: tuple


class Closure(NamedTuple):
    """A kernel and its first arguments."""

    fn: Any
    captured: tuple


@tilejit.kernel
def scaled(x, a, n):
    return x * tl.load(a) + n


@tilejit.kernel
def apply(closure, x, y, rest, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (rows < x.shape[0]) & (columns < x.shape[1])
    v = tl.load(x.base + rows * x.strides[0] + columns * x.strides[1], inside, other=0)
    if rest[0] is None:
        v = closure.fn(v, *closure.captured)
    tl.store(y.base + rows * y.strides[0] + columns * y.strides[1], v, inside)
    (_, (first, _), count) = rest
    tl.static_assert(count == 4)
    tl.store(first + 1, tl.load(first) + rest[1][1])


def matrix(x):
    return Matrix(x, x.shape, tuple(s // x.itemsize for s in x.strides))


@pytest.mark.parametrize("offset", [3, 1])
def test_named_and_nested(target, offset):
    """1 in a tuple is specialised, as alone; another launch with other numbers compiles nothing that is not needed."""
    x = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    y = np.zeros((10, 6), np.float32).T
    a, c = np.full(1, 2.5, np.float32), np.array([7, 0], np.int32)
    apply[(1,)](Closure(scaled, (a, offset)), matrix(x), matrix(y), (None, (c, 5), tl.constexpr(4)), 8, 16)
    np.testing.assert_allclose(y, x * 2.5 + offset, rtol=1e-5, atol=1e-5)
    assert c.tolist() == [7, 12]


@tilejit.kernel
def through(descs, n, N: tl.constexpr):
    for i in range(n):
        descs[1].store([i, 0], descs[0].load([i, 0]) + 1)


def test_descriptors(target):
    x, y = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32), np.zeros((3, 32), np.float32)
    through[(1,)](tuple(TensorDescriptor.from_tensor(v, [1, 32]) for v in (x, y)), 3, 32)
    np.testing.assert_array_equal(y, x + 1)


@tilejit.kernel
def first(xs, out):
    tl.store(out, tl.load(xs[0]))


def test_a_launch_is_looked_up_by_the_elements(target):
    out, x = np.zeros(1, np.float32), np.ones(4, np.float32)
    k1 = first[(1,)]((x, 5), out)
    k2 = first[(1,)]((x + 1, 7), out)
    assert k1 is k2 and out[0] == 2
    assert first[(1,)]((x, 1), out) is not k1
    assert first[(1,)]((x.astype(np.float16), 5), out) is not k1


def test_errors():
    with tilejit.knobs(target="evaluator"):
        out = np.zeros(1, np.float32)
        with pytest.raises(LaunchError, match=r"argument 'xs\[1\]': a dict"):
            first[(1,)]((out, {}), out)
        with pytest.raises(LaunchError, match=r"argument 'xs\[1\]': expected an array"):
            first[(1,)]((out, object()), out)
        with pytest.raises(KeyError, match="num_warp was specified but unrecognised"):
            first[(1,)]((out,), out, num_warp=4)

        @tilejit.kernel(do_not_specialize=["N"])
        def both(x, N: tl.constexpr):
            tl.store(x, N)

        with pytest.raises(CompilationError, match="N marked as constexpr and listed in do_not_specialize"):
            both[(1,)](out, 5)


def test_types_instead_of_values():
    k = first.compile(("*fp32", "int32"), "*fp32")
    assert len(k.metadata.params) == 2 and "xs_0" in k.ir
