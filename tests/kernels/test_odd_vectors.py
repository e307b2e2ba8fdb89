"""Vectors, and what is computed with them, whose size is no power of two: exact in every form, or an error that says why."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def masked(x, y, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    mask = at < n
    value = tl.load(x + at, mask, other=3.0)
    tl.store(y + at, (value + value).to(tl.bfloat16).to(tl.float32), mask)


@tilejit.kernel
def unmasked(x, y, n, N: tl.constexpr):
    """A vector as rows and as columns of a matrix, transposed on the way."""
    rows = tl.load(x + tl.arange(0, N))[:, None] * tl.load(x + tl.arange(0, 4))[None, :]
    tl.store(y + tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :], tl.trans(rows))


@tilejit.kernel
def bytes_(x, y, n, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at).to(tl.int8)
    tl.store(y + at, (value * value).to(tl.float32), mask=at != 3)


@tilejit.kernel
def summed(x, y, n, N: tl.constexpr):
    acc = tl.zeros((N,), tl.float32)
    for i in range(4):
        acc += tl.load(x + i * 8 + tl.arange(0, N), mask=tl.arange(0, N) < N - 5, other=2.0)
    tl.atomic_add(y + tl.arange(0, N), acc, mask=tl.arange(0, N) < N - 1)


@tilejit.kernel
def through_a_descriptor(x, y, n, N: tl.constexpr):
    """The block arrives in shared memory and is read in another layout than it is stored in."""
    desc = tl.make_tensor_descriptor(x, [n], [1], [N])
    tl.store(y + tl.arange(0, N), desc.load([16]) + 1.0)


@tilejit.kernel
def joined(x, y, n, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :], tl.join(value, value + 1.0))


def exact(kernel, x, n, size):
    """What a launch leaves in y, of zeros: of 2 programs where these differ or add."""
    y = np.zeros(4 * 512, np.float32)
    if kernel is masked:
        y[:min(n, 2 * size)] = 2 * x[:min(n, 2 * size)]
    elif kernel is unmasked:
        y[:4 * size] = (x[:4, None] * x[:size]).ravel()
    elif kernel is bytes_:
        y[:size] = np.where(np.arange(size) == 3, 0, x[:size] ** 2)
    elif kernel is summed:
        y[:size] = 2 * np.where(np.arange(size) < size - 5, sum(x[8 * i:8 * i + size] for i in range(4)), 8)
        y[size - 1] = 0
    elif kernel is through_a_descriptor:
        y[:size] = np.where(np.arange(16, 16 + size) < n, x[16:16 + size], 0) + 1
    else:
        y[:2 * size] = np.stack([x[:size], x[:size] + 1], 1).ravel()
    return y


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("size", [96, 144, 320])
@pytest.mark.parametrize("kernel", [masked, unmasked, bytes_, summed, through_a_descriptor])
def test_odd_vectors(kernel, size, warps, target):
    x, y = np.random.default_rng(size).integers(-5, 6, 1024).astype(np.float32), np.zeros(4 * 512, np.float32)
    n = size + 37
    with tilejit.knobs(target=target):
        kernel[(2 if kernel in (masked, summed) else 1,)](x, y, n, N=size, num_warps=warps)
    np.testing.assert_array_equal(y, exact(kernel, x, n, size))


@tilejit.kernel
def moved(x_desc, y_desc):
    y_desc.store([0], x_desc.load([32]))


@pytest.mark.parametrize("dtype, size, box", [(np.float32, 320, (64,)), (np.float16, 384, (128,)), (np.float16, 96, (96,)),
                                                (np.float16, 272, None), (np.int8, 320, None)])
def test_boxes_divide_the_block(dtype, size, box):
    """Boxes of at most 256 that lie at multiples of 128 bytes; pointers where there are none."""
    x, y = np.arange(512).astype(dtype), np.zeros(512, dtype)
    with tilejit.knobs(target="emulator"):
        build = moved[(1,)](*(tilejit.TensorDescriptor.from_tensor(a, (size,)) for a in (x, y)))
    assert (y[:size] == x[32:32 + size]).all() and not y[size:].any()
    assert {p.base_arg: p.box for p in build.metadata.params if hasattr(p, "box")}.get("x_desc") == box
    assert (box is None) == ("does not divide into boxes" in build.report())


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_parts_that_do_not_move(target):
    """144 elements are 9 for each of 16 threads: join and store work in the same layout."""
    x, y = np.arange(1024, dtype=np.float32), np.zeros(4 * 512, np.float32)
    with tilejit.knobs(target=target):
        joined[(1,)](x, y, 144, N=144, num_warps=4)
    np.testing.assert_array_equal(y, exact(joined, x, 144, 144))


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.parametrize("size", [96, 320])
def test_nothing_behind_the_vector_is_touched(size, warps):
    """The arrays end with the vector: the sanitizer sees every access behind it."""
    x, y = np.ones(size, np.float32), np.zeros(size, np.float32)
    tilejit.check(masked, (1,), x, y, size, N=size, num_warps=warps, seeds=[0]).check()
    assert (y == 2).all()


@tilejit.kernel
def squared(x, y, n, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :], value[:, None] * value[None, :])


@tilejit.kernel
def reshaped(x, y, n, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, 2)[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :], tl.reshape(value, (2, N // 2)))


@tilejit.kernel
def a_block(x, y, n, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [8, N], [N, 1], [8, N])
    result = tl.make_tensor_descriptor(y, [8, N], [N, 1], [8, N])
    result.store([0, 0], source.load([0, 0]) + 1.0)


@pytest.mark.parametrize("kernel, size, why", [
    (masked, 100, "found 100 in .* multiple of 16 columns up to 256, for each of the CTAs"),
    (masked, 528, "found 528 in "),
    (squared, 96, "no layout for a tile .*96 is no power of two"),
    (reshaped, 96, r"reshape: a size that is no power of two may only become another one and powers .* \[96\] and \[2, 48\]"),
    (joined, 96, r"a tile fp32\[96x2\] cannot change its layout: 96 is no power of two"),
    (a_block, 96, r"desc_load: registers take a block of sizes that are powers of two, found \[8, 96\]"),
])
def test_what_cannot_be(kernel, size, why):
    with pytest.raises(tilejit.CompilationError, match=why):
        kernel.compile("*fp32", "*fp32", "int32", N=size)
