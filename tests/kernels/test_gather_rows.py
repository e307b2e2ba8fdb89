"""Rows of a matrix by index through descriptors: gather and scatter."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl

desc = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def gathered(source, rows, out, y, N: tl.constexpr):
    got = source.gather(tl.load(rows + tl.arange(0, N)), y)
    tl.store(out + tl.arange(0, N)[:, None] * source.block_shape[1] + tl.arange(0, source.block_shape[1])[None, :], got)


@tilejit.kernel
def scattered(values, rows, into, y, N: tl.constexpr):
    width: tl.constexpr = into.block_shape[1]
    x = tl.load(values + tl.arange(0, N)[:, None] * width + tl.arange(0, width)[None, :])
    into.scatter(x, tl.load(rows + tl.arange(0, N)), y)


TYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.int32, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@settings(max_examples=12, deadline=None)
@given(kind=st.sampled_from(TYPES), wide=st.sampled_from([np.int16, np.int32]), n=st.sampled_from([8, 32]),
       width=st.sampled_from([32, 64]), y=st.sampled_from([0, 16, 48, -16, 80]), nan=st.booleans(), data=st.data())
def test_rows_that_are_named(target, kind, wide, n, width, y, nan, data):
    height, columns = data.draw(st.sampled_from([(5, 64), (40, 96)]))
    at = np.array(data.draw(st.lists(st.integers(-2, height + 2), min_size=n, max_size=n)), wide)
    x = np.arange(height * columns).reshape(height, columns).astype(np.uint8).astype(kind)
    floating = not np.issubdtype(np.dtype(kind), np.integer) and np.dtype(kind).itemsize > 1
    padding = "nan" if nan and floating else "zero"
    fill = np.array(float("nan") if padding == "nan" else 0).astype(kind)
    whole = np.full((height + 10, columns + 200), fill, kind)
    whole[4:4 + height, 100:100 + columns] = x
    want = whole[at.astype(int) + 4][:, 100 + y:100 + y + width]
    out = np.full((n, width), 7, kind)
    with tilejit.knobs(target=target):
        gathered[(1,)](desc(x, (1, width), padding), at, out, y, n)
        np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))
        once = np.concatenate([np.unique(at), np.full(n, -1)])[:n].astype(wide)     # two writers of a row race
        into = np.zeros_like(x)
        scattered[(1,)](out, once, desc(into, (1, width)), y, n)
    expect = np.zeros((height + 10, columns + 200), kind)
    for i in np.flatnonzero((once >= 0) & (once < height)):
        expect[once[i] + 4, 100 + y:100 + y + width] = out[i]
    np.testing.assert_array_equal(into.astype(np.float32), expect[4:4 + height, 100:100 + columns].astype(np.float32))


@tilejit.kernel
def product_of_rows(a, b, rows, out, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [1, BLOCK])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK, N])
    at = tl.load(rows + tl.arange(0, M))
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK):
        total = tl.dot(left.gather(at, k), right.load([k, 0]), total)
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], total)


def test_rows_of_a_product_are_copied_in_whole_vectors():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 128)).astype(np.float16), rng.normal(size=(128, 64)).astype(np.float16)
    rows, out = rng.integers(0, 64, 64).astype(np.int32), np.zeros((64, 64), np.float32)
    k = product_of_rows[(1,)](a, b, rows, out, 128, 64, 64, 32)
    np.testing.assert_allclose(out, a[rows].astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=1e-2)
    copies = [line for line in k.ptx.splitlines() if "cp.async.c" in line]
    assert copies and all(", 16" in line for line in copies)


@tilejit.kernel
def refused(x, rows, N: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [64, 64], [64, 1], [HEIGHT, WIDTH])
    d.gather(tl.load(rows + tl.arange(0, N)).to(WIDE), 0)


@pytest.mark.parametrize("n, height, width, wide, told", [
    (8, 2, 32, tl.int32, "descriptor block must have 1 row, but got"),
    (4, 1, 32, tl.int32, "descriptor gather must have at least 8 rows, but got"),
    (8, 1, 8, tl.int32, "descriptor gather of fp16 must have at least 16 columns, but got 8"),
    (8, 1, 32, tl.int64, "x offsets must have dtype int16 or int32, but got int64")])
def test_what_is_refused(n, height, width, wide, told):
    with pytest.raises(tilejit.CompilationError, match=told):
        refused[(1,)](np.zeros((64, 64), np.float16), np.zeros(8, np.int32), n, height, width, wide)
