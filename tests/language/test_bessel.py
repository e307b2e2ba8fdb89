"""Bessel functions of libdevice, against integrals (Abramowitz and Stegun 9.1.21, 9.6.19), a Wronskian, and tables."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.language.extra import libdevice

X = np.concatenate([np.linspace(0.01, 9, 40), np.linspace(7.9, 26, 60), np.linspace(24.9, 90, 27), [500.25]])
#: Y_0 and Y_1 of some numbers (torch.special, whose own errors reach 1e-7).
TABLE = {0.05: (-1.9793110008172095, -12.789855171174972), 1: (0.08825696421567697, -0.7812128213002888),
         7.5: (0.11731328137254243, -0.2591285055701094), 8.5: (0.2702051052031286, -0.026168676820611445),
         12.25: (-0.20430162611368968, -0.10933907411635094), 24.5: (-0.15942871774975054, -0.026954655331886703),
         26: (0.012044625860755253, -0.15579655322960267), 500.25: (0.0017430276694887009, 0.03563270804526331)}


@tilejit.kernel
def functions(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, libdevice.j0(v))
    tl.store(out + N + at, libdevice.j1(v))
    tl.store(out + 2 * N + at, libdevice.y0(v))
    tl.store(out + 3 * N + at, libdevice.y1(v))
    tl.store(out + 4 * N + at, libdevice.cyl_bessel_i0(v))
    tl.store(out + 5 * N + at, libdevice.cyl_bessel_i1(v))


@tilejit.kernel
def of_order(x, out, N: tl.constexpr, ORDER: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    tl.store(out + tl.arange(0, N), libdevice.jn(ORDER, v))
    tl.store(out + N + tl.arange(0, N), libdevice.yn(ORDER, v))


def first_kind(n, x):
    at = (np.arange(4000) + 0.5) * np.pi / 4000
    return np.cos(n * at - x[:, None] * np.sin(at)).mean(1)


def modified(n, x):
    at = (np.arange(4000) + 0.5) * np.pi / 4000
    return (np.exp(x[:, None] * (np.cos(at) - 1)) * np.cos(n * at)).mean(1)


def evaluated(kernel, x, count, *more):
    out = np.zeros((count, len(x)), x.dtype)
    with tilejit.knobs(target="evaluator"):
        kernel[(1,)](x, out, len(x), *more)
    return out


def test_orders_0_and_1():
    j0, j1, y0, y1, i0, i1 = evaluated(functions, X, 6)
    assert np.abs(j0 - first_kind(0, X)).max() < 1e-13 and np.abs(j1 - first_kind(1, X)).max() < 1e-13
    assert np.abs((j1 * y0 - j0 * y1) * np.pi * X / 2 - 1).max() < 1e-11
    assert np.abs(i0 * np.exp(-X) / modified(0, X) - 1).max() < 1e-12
    assert np.abs(i1 * np.exp(-X) / modified(1, X) - 1).max() < 1e-12
    known = np.array(list(TABLE) * 16, np.float64)
    _, _, y0, y1, _, _ = evaluated(functions, known, 6)
    want = np.array(list(TABLE.values()) * 16)
    assert np.abs(y0 - want[:, 0]).max() < 1e-8 and np.abs(y1 / want[:, 1] - 1).max() < 2e-7


def test_ends_and_fp32():
    ends = np.array([0.0, -1.0, np.nan, 1e300], np.float64)
    j0, j1, y0, y1, i0, i1 = evaluated(functions, ends, 6)
    assert j0[0] == 1 and j1[0] == 0 and y0[0] == y1[0] == -np.inf and i0[0] == 1 and i1[0] == 0
    assert j0[1] == pytest.approx(0.7651976865579665) and j1[1] == pytest.approx(-0.44005058574493355)
    assert np.isnan(y0[1]) and np.isnan(y1[1]) and i1[1] == pytest.approx(-0.5651591039924851)
    assert np.isnan([v[2] for v in (j0, j1, y0, y1, i0, i1)]).all() and j0[3] == 0
    single = evaluated(functions, X.astype(np.float32), 6)
    assert single.dtype == np.float32 and np.abs(single[0] - first_kind(0, X.astype(np.float32))).max() < 1e-6


@pytest.mark.parametrize("n", [1, 12, -3])
def test_other_orders(n):
    x = np.concatenate([np.linspace(0.5, 30, 32)])
    j, y = evaluated(of_order, x, 2, n)
    above, y_above = evaluated(of_order, x, 2, n + 1)
    assert np.abs(j - first_kind(n, x)).max() < 1e-12
    assert np.abs((above * y - j * y_above) * np.pi * x / 2 - 1).max() < 1e-8


def test_orders_are_constants():
    @tilejit.kernel
    def wrong(x):
        tl.store(x, libdevice.jn(tl.load(x).to(tl.int32), tl.load(x)))

    with pytest.raises(CompilationError, match="jn's order must be a constant"):
        wrong.compile("*fp32")
