"""Descriptors of rank 1 to 5 through TMA, and the inline pipeline, run where kernels run by default."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime import driver

pytestmark = pytest.mark.skipif(driver.available(), reason="host arrays run on the CPU only without a GPU")
desc = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def copy_1d(src, dst):
    dst.store([tl.program_id(0) * 64], src.load([tl.program_id(0) * 64]) * 2.0)


@tilejit.kernel
def copy_3d(src, dst):
    i = tl.program_id(0) * 2
    dst.store([i, 0, 0], src.load([i, 0, 0]) + 1.0)


@tilejit.kernel
def shift_4d(src, dst, by, columns):
    i, j = tl.program_id(0) * 2, tl.program_id(1) * 2
    for k in range(0, 8, 4):
        dst.store([i, j, k, 0], src.load([i, j - by, k, columns]))


@tilejit.kernel
def shift_5d(src, dst, by, columns):
    i, j = tl.program_id(0) * 2, tl.program_id(1) * 2
    for k in range(0, 8, 4):
        dst.store([i, j, k, 0, 0], src.load([i, j - by, k, 0, columns]))


@tilejit.kernel
def row_sums(src, dst, N):
    acc = tl.zeros((16, 64), tl.float32)
    for k in range(0, N, 64):
        acc += src.load([0, k])
    dst.store([0, 0], acc)


def test_rank_1():
    """A row of several swizzle spans: sub-tiles must start on TMA's alignment."""
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    out = np.full_like(x, np.nan)
    copy_1d[(4,)](desc(x, (64,)), desc(out, (64,)))
    assert np.array_equal(out, 2 * x)


def test_rank_3():
    """Boxes that hang over the first dimension's end write only what exists."""
    x = np.random.default_rng(1).standard_normal((5, 4, 32)).astype(np.float32)
    out = np.full_like(x, np.nan)
    copy_3d[(3,)](desc(x, (2, 4, 32)), desc(out, (2, 4, 32)))
    assert np.array_equal(out, x + 1)


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("kernel,shape,block", [(shift_4d, (3, 3, 6, 32), (2, 2, 4, 32)),
                                                (shift_5d, (3, 3, 6, 2, 32), (2, 2, 4, 2, 32))])
def test_rank_4_and_5(kernel, shape, block, dtype, by):
    """Boxes that hang over on both sides, inside by 16 bytes: loads fill with zeros, stores write what exists."""
    x = np.random.default_rng(3).integers(-100, 100, shape).astype(dtype)
    out = np.full(shape, 99).astype(dtype)
    rank, columns = len(shape), by * 16 // x.itemsize
    assert f"cp.async.bulk.tensor.{rank}d.shared" in (
        compiled := kernel[(2, 2)](desc(x, block), desc(out, block), by, columns)).ptx
    assert f"cp.async.bulk.tensor.{rank}d.global" in compiled.ptx
    expected = np.zeros_like(x)
    expected[:, by:, ..., :32 - columns] = x[:, :3 - by, ..., columns:]
    assert np.array_equal(out.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("blocks", [0, 1, 2, 5])
def test_inline_pipeline(blocks):
    """Loads issued ahead: fewer iterations than stages, none, and more."""
    x = np.random.default_rng(2).standard_normal((16, max(1, blocks) * 64)).astype(np.float32)
    out = np.full((16, 64), np.nan, np.float32)
    row_sums[(1,)](desc(x, (16, 64)), desc(out, (16, 64)), blocks * 64)
    ref = x.reshape(16, -1, 64).sum(1) if blocks else np.zeros((16, 64), np.float32)
    assert np.allclose(out, ref, atol=1e-5)


@tilejit.kernel
def operand_kept(a, b, twice, product):
    """An operand of a product is stored as it lies in registers: warps side by side along N hold the same rows of it."""
    x = a.load([0, 0])
    product.store([0, 0], tl.dot(x, b.load([0, 0])))
    twice.store([0, 0], x + x)


def test_tiles_that_warps_hold_alike_are_stored_once():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((32, 32), (32, 16)))
    twice, product = np.empty((32, 32), np.float16), np.empty((32, 16), np.float32)
    args = [desc(a, [32, 32]), desc(b, [32, 16]), desc(twice, [32, 32]), desc(product, [32, 16])]
    with tilejit.knobs(target="emulator"):
        tilejit.check(operand_kept, (1,), *args, seeds=[0]).check()
        operand_kept[(1,)](*args)
    assert (twice == 2 * a).all() and (product == a.astype(np.float32) @ b.astype(np.float32)).all()
    assert "stmatrix" in operand_kept.compile(*args).ptx


@tilejit.kernel
def moved_on(x, y, R: tl.constexpr, S: tl.constexpr, T: tl.constexpr):
    """A block whose rows, or whose rows of rows, are longer than a box: stored from registers, loaded again."""
    at = (tl.arange(0, R)[:, None, None] * S + tl.arange(0, S)[None, :, None]) * T + tl.arange(0, T)[None, None, :]
    to = tl.make_tensor_descriptor(y, [R, S, T], [S * T, T, 1], [R, S, T])
    to.store([0, 0, 0], tl.load(x + at))
    again = tl.make_tensor_descriptor(y + R * S * T, [R, S, T], [S * T, T, 1], [R, S, T])
    again.store([0, 0, 0], tl.make_tensor_descriptor(x, [R, S, T], [S * T, T, 1], [R, S, T]).load([0, 0, 0]) + 1)


@pytest.mark.parametrize("shape", [(1, 4, 512), (2, 4, 512), (2, 512, 16), (2, 2, 1024)])
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_boxes_of_long_dimensions_lie_without_gaps(shape, dtype):
    size = int(np.prod(shape))
    x = (np.arange(size) * 7 % 113).astype(dtype)
    y = np.zeros(2 * size, dtype)
    with tilejit.knobs(target="emulator"):
        moved_on[(1,)](x, y, *shape)
    assert (y[:size] == x).all() and (y[size:] == x + 1).all()
