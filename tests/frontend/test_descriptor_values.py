"""Descriptors as values: chosen by `if`, carried by loops, in tuples, returned."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.tools.tensor_descriptor import TensorDescriptor

N = 32


@pytest.fixture(params=["evaluator", "emulator"], autouse=True)
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@tilejit.kernel
def remade(x, out, n, N: tl.constexpr):
    desc = tl.make_tensor_descriptor(x, [4, N], [N, 1], [4, N])
    total = tl.zeros((4, N), tl.float32)
    for i in range(n):
        total += desc.load([0, 0])
        desc = tl.make_tensor_descriptor(x + (i + 1) * 4 * N, [4, N], [N, 1], [4, N])
    tl.store(out + tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :], total + desc.load([0, 0]))


def test_remade_in_a_loop():
    x, out = np.random.default_rng(0).normal(size=(20, N)).astype(np.float32), np.zeros((4, N), np.float32)
    remade[(1,)](x, out, 4, N)
    np.testing.assert_allclose(out, x.reshape(5, 4, N).sum(0), rtol=1e-5)


@tilejit.kernel
def chosen(a, b, out, which, N: tl.constexpr):
    if which > 0:
        desc = tl.make_tensor_descriptor(a, [4, N], [N, 1], [2, N])
        size = 4
    else:
        desc = tl.make_tensor_descriptor(b, [3, N], [N, 1], [2, N], padding_option="zero")
        size = 3
    into = tl.make_tensor_descriptor(out, [4, N], [N, 1], [2, N])
    into.store([2, 0], desc.load([2, 0]) + size)
    tl.store(out, desc.shape[0])
    tl.store(out + 1, desc.strides[0])


@pytest.mark.parametrize("which", [0, 5])
def test_chosen_by_if(which):
    a, b = (np.random.default_rng(i).integers(0, 50, (4, N)).astype(np.int32) for i in range(2))
    out = np.zeros((4, N), np.int32)
    chosen[(1,)](a, b, out, which, N)
    source = a if which else np.where(np.arange(4)[:, None] < 3, b, 0)
    size = 4 if which else 3
    np.testing.assert_array_equal(out[2:], source[2:] + size)
    assert out[0, :2].tolist() == [size, N]


@tilejit.kernel
def arguments(a, b, out, which, N: tl.constexpr):
    pair = (a, b)
    desc = a if which > 0 else pair[1]
    for i in range(2):
        tl.store(out + i * 2 * N + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :], desc.load([2 * i, 0]))
        if which > 1:
            desc = b


@pytest.mark.parametrize("which", [0, 1, 2])
def test_arguments_chosen_by_if_and_loop(which):
    a, b = (np.random.default_rng(i).normal(size=(4, N)).astype(np.float32) for i in range(2))
    out = np.zeros((4, N), np.float32)
    arguments[(1,)](TensorDescriptor.from_tensor(a, [2, N]), TensorDescriptor.from_tensor(b, [2, N]), out, which, N)
    np.testing.assert_array_equal(out, {0: b, 1: a, 2: np.concatenate([a[:2], b[2:]])}[which])


@tilejit.kernel
def swapped(x, y, n, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [2, N], [N, 1], [2, N])
    into = tl.make_tensor_descriptor(y, [2, N], [N, 1], [2, N])
    pair = (source, into)
    for i in range(n):
        value = pair[0].load([0, 0])
        tl.debug_barrier()
        pair[1].store([0, 0], value + 1)
        tl.debug_barrier()
        pair = (pair[1], pair[0])


def test_swapped_in_a_tuple():
    x, y = np.zeros((2, N), np.int32), np.zeros((2, N), np.int32)
    swapped[(1,)](x, y, 3, N)
    assert (x == 2).all() and (y == 3).all()


@tilejit.kernel
def same_in_loop(x, out, n, N: tl.constexpr):
    for i in range(n):
        desc = tl.make_tensor_descriptor(x, [n, N], [N, 1], [1, N])
        tl.store(out + i * N + tl.arange(0, N), desc.load([i, 0]).reshape([N]))


def test_made_in_every_iteration_stays_with_tma():
    x, out = np.random.default_rng(0).normal(size=(3, N)).astype(np.float32), np.zeros((3, N), np.float32)
    k = same_in_loop[(1,)](x, out, 3, N)
    np.testing.assert_array_equal(out, x)
    assert not k.warnings()


@tilejit.kernel
def different_blocks(x, n, N: tl.constexpr):
    desc = tl.make_tensor_descriptor(x, [n, N], [N, 1], [1, N])
    for i in range(n):
        tl.store(x, desc.load([0, 0]).sum())
        desc = tl.make_tensor_descriptor(x, [n, N], [N, 1], [2, N])


def test_blocks_must_agree():
    with pytest.raises(tilejit.CompilationError, match=r"desc<fp32\[1x32\]> before the loop.*desc<fp32\[2x32\]> after"):
        different_blocks[(1,)](np.zeros((3, N), np.float32), 3, N)


@tilejit.kernel
def beside_a_division(x, out, n, N: tl.constexpr):
    desc = tl.make_tensor_descriptor(x, [n, N], [N, 1], [2, N])
    lane = tl.arange(0, N)
    tl.store(out + (lane + n) % N, desc.load([0, 0]).sum(0) * 0 + lane // n)


def test_descriptors_beside_divisions():
    out = np.zeros(N, np.float32)
    beside_a_division[(1,)](np.ones((4, N), np.float32), out, 4, N)
    assert out.sum() == (np.arange(N) // 4).sum()
