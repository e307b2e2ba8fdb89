"""Tiles that loops only add up, where their elements have no registers: smaller ones, chunk by chunk."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def layernorm(x, w, out, columns, stride, BLOCK: tl.constexpr):
    """Triton's tutorial 05: three loops over a row (to an end that is computed, so that it stays walked)."""
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns + 0, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x + cols, cols < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns + 0, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.where(cols < columns, tl.load(x + cols, cols < columns, other=0.0).to(tl.float32) - mean, 0.0)
        squares += v * v
    r = 1 / tl.sqrt(tl.sum(squares, 0) / columns + 1e-5)
    for start in range(0, columns + 0, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < columns
        v = tl.load(x + cols, inside, other=0.0).to(tl.float32)
        tl.store(out + cols, ((v - mean) * r * tl.load(w + cols, inside).to(tl.float32)).to(out.dtype.element_ty), inside)


@tilejit.kernel
def extremes(x, out, n, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """A sum that is needed element by element too stays whole, with all that its loop carries."""
    i = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        most = tl.maximum(most, tl.load(x + 1 + start + i, start + i < n, other=-float("inf")).to(tl.float32))
    tl.store(out, tl.max(most, 0))
    if WHOLE:
        tl.store(out + 1 + i, most)


@pytest.mark.parametrize("columns, chunked", [(4097, True), (4096, False)])
def test_a_layernorm_of_odd_rows(columns, chunked):
    """Single elements take registers of their own, pairs do not; sums are right either way."""
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(ml_dtypes.bfloat16)
    w, out = np.linspace(-1, 1, columns).astype(ml_dtypes.bfloat16), np.full_like(x, np.nan)
    args, kw = (x, w, out, columns, columns), dict(BLOCK=4096, num_warps=1)
    build = layernorm.compile(*args, **kw)
    assert ("sums at" in build.report()) is ("go through a loop of" in build.report()) is chunked
    wide = x.astype(np.float64)
    wide -= wide.mean(1, keepdims=True)
    want = wide / np.sqrt((wide ** 2).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64)
    for target in ("evaluator", "emulator"):
        out[:] = np.nan
        with tilejit.knobs(target=target):
            layernorm[(2,)](*args, **kw)
        assert np.abs(out.astype(np.float64) - want).max() < 3e-2


def test_the_greatest():
    x, out = np.random.default_rng(1).standard_normal(9001).astype(np.float16), np.zeros(4097, np.float32)
    kw = dict(BLOCK=4096, num_warps=1)
    assert "sums at" in extremes.compile(x, out, 9000, WHOLE=False, **kw).report()
    assert "sums at" not in extremes.compile(x, out, 9000, WHOLE=True, **kw).report()
    with tilejit.knobs(target="emulator"):
        extremes[(1,)](x, out, 9000, WHOLE=False, **kw)
    assert out[0] == x[1:].max()
