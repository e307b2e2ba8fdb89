"""Reductions that are one: which ones, what moves behind them, and what they give."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def moments(x, out, BLOCK: tl.constexpr):
    """Mean and mean square, written one after the other; the mean is used between them."""
    v = tl.load(x + tl.arange(0, BLOCK))
    mean = tl.sum(v, 0) / BLOCK
    half = mean * 0.5
    square = tl.sum(v * v, 0) / BLOCK
    least, most = tl.min(v, 0), tl.max(v, 0)
    tl.store(out, half)
    tl.store(out + 1, square)
    tl.store(out + 2, most - least)


@tilejit.kernel
def centred(x, out, BLOCK: tl.constexpr):
    """The second sum needs the first."""
    v = tl.load(x + tl.arange(0, BLOCK))
    v -= tl.sum(v, 0) / BLOCK
    tl.store(out, tl.sum(v * v, 0))


@tilejit.kernel
def told(x, out, BLOCK: tl.constexpr):
    """The first sum is stored before the second is asked for, from memory that the store may have changed."""
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at), 0))
    tl.store(out + 1, tl.sum(tl.load(x + at) + tl.load(out), 0))


@tilejit.kernel
def both_ways(x, rows, columns, BLOCK: tl.constexpr):
    """Along different dimensions."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i[:, None] * BLOCK + i[None, :])
    tl.store(rows + i, tl.sum(v, 1))
    tl.store(columns + i, tl.sum(v, 0))


def reductions(kernel, *args, **kw):
    return str(kernel.compile(*args, **kw).ir).count("= reduce ")


@pytest.mark.parametrize("ctas", [1, 2])
def test_moments(ctas):
    x, out = np.random.default_rng(0).standard_normal(1024).astype(np.float32), np.zeros(3, np.float32)
    kw = dict(BLOCK=1024, num_warps=2, num_ctas=ctas)
    assert reductions(moments, x, out, **kw) == 1
    for target in ("evaluator", "emulator"):
        out[:] = np.nan
        with tilejit.knobs(target=target):
            moments[(1,)](x, out, **kw)
        np.testing.assert_allclose(out, [x.mean() / 2, (x * x).mean(), x.max() - x.min()], rtol=1e-5, atol=1e-6)
    with tilejit.knobs(target="emulator"):
        tilejit.check(moments, (1,), x, out, seeds=[0], **kw).check()


@pytest.mark.parametrize("kernel, arrays", [(centred, 2), (told, 2), (both_ways, 3)], ids=lambda x: getattr(x, "__name__", x))
def test_two_stay_two(kernel, arrays):
    assert reductions(kernel, *["*fp32"] * arrays, BLOCK=64) == 2
