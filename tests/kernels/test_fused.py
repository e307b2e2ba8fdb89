"""Products with fused epilogues against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, info

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import fused
from tilejit.kernels._calls import known_of
from tilejit.kernels.fused import GATED_TILES, TILES, fitting, fused_matmul, gated_matmul, swiglu
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    """Where the test's launches run."""
    with tilejit.knobs(target=request.param):
        yield request.param


@pytest.fixture(params=["one launch", "two launches"])
def way(request, monkeypatch):
    """Whether the product's kernel ends its tiles, or a second launch all of them."""
    fused._work.cache_clear()
    monkeypatch.setattr(fused, "_apart", lambda *_: request.param == "two launches")
    yield request.param
    fused._work.cache_clear()


def silu(x):
    return x / (1 + np.exp(-x))


def arrays(m, n, k, dtype=BF16):
    """a, b (K contiguous) and their product."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype).T
    return rng, a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("m, n", [(72, 144), (70, 88), (136, 256), (1, 88)])
def test_everything(target, way, m, n):
    """Scale per row, bias, activation, second output, residual and row sums; widths that vectors divide, and not."""
    rng, a, b, product = arrays(m, n, 80)
    scale, bias = rng.standard_normal((m, 1)).astype(np.float32), rng.standard_normal(n).astype(BF16)
    residual = rng.standard_normal((m, n)).astype(BF16)
    z, squares = np.full((m, n), np.nan, BF16), np.ones(m, np.float32)
    out = fused_matmul(a, b, scale_a=scale, bias=bias, activation="silu", residual=residual, z=z, reduction="squares",
                       reduced=squares)
    ref = scale * product + bias.astype(np.float64)
    assert rel_error(z, ref) <= 8e-3
    ref = silu(ref) + residual.astype(np.float64)
    assert rel_error(out, ref) <= 8e-3
    assert rel_error(squares, 1 + (ref ** 2).sum(1)) <= 1e-4


def test_residual_of_wide_tiles(target, monkeypatch):
    """Halves of halves of the residual."""
    monkeypatch.setattr(fused, "choose", lambda *_, **__: (TILES[0], 0.0))
    rng, a, b, product = arrays(136, 272, 64)
    residual = rng.standard_normal((136, 272)).astype(BF16)
    out = fused_matmul(a, b, activation="relu", residual=residual)
    assert rel_error(out, np.maximum(product, 0) + residual.astype(np.float64)) <= 8e-3


@pytest.mark.parametrize("scale, reduction", [("one", "sum"), ("columns", "max")])
def test_scales_and_reductions(target, way, scale, reduction):
    """One scale, one per column; sums and maxima (of negative rows too) with columns that hang over the end."""
    m, n = 64, 72
    rng, a, b, product = arrays(m, n, 64, ml_dtypes.float8_e4m3fn)
    s = rng.random(1 if scale == "one" else (1, n)).astype(np.float32)
    start = np.zeros(m, np.float32) if reduction == "sum" else np.full(m, -np.inf, np.float32)
    shift = np.full(n, -1000, np.float32)
    out = fused_matmul(a, b, scale_b=s, bias=shift, reduction=reduction, reduced=start)
    ref = product * s + shift
    assert rel_error(out, ref) <= 8e-3
    assert np.allclose(start, ref.sum(1) if reduction == "sum" else ref.max(1), rtol=1e-4)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("extras", [True, False])
def test_gated(target, way, merged, extras):
    """SwiGLU of a merged weight, and of two matrices that lie apart; with everything else too."""
    m, n, k = 72, 72, 80
    rng, a, _, _ = arrays(m, n, k)
    w = rng.standard_normal((2, n if merged else n + 8, k)).astype(BF16)[:, :n]
    gate, up = (a.astype(np.float64) @ x.astype(np.float64).T for x in w)
    kwargs = {}
    if extras:
        bias, scale = rng.standard_normal((2, n)).astype(np.float32), rng.random((2, n)).astype(np.float32)
        residual, z = rng.standard_normal((m, n)).astype(BF16), np.full((2, m, n), np.nan, BF16)
        kwargs = {"bias": bias, "scale_b": scale, "residual": residual, "z": z}
        gate, up = gate * scale[0] + bias[0], up * scale[1] + bias[1]
    out = gated_matmul(a, w.transpose(0, 2, 1), **kwargs)
    ref = silu(gate) * up
    if extras:
        assert rel_error(z, np.stack([gate, up])) <= 8e-3
        ref += residual.astype(np.float64)
    assert rel_error(out, ref) <= 8e-3


@pytest.mark.one_schedule                # for time: test_schedules explores
@pytest.mark.remarks("spills", "stack", reason="8 bytes, where the result ends through pointers")
@pytest.mark.parametrize("beyond", [40, 41])
@pytest.mark.parametrize("t", GATED_TILES[:-1], ids=lambda t: f"{t.m}x{t.n // 2}")
def test_every_gated_tile(target, monkeypatch, t, beyond):
    """Tiles that hang over the end, where 8 divides the columns, and where nothing does; with what they all take."""
    monkeypatch.setattr(fused, "choose", lambda *_, **__: (t, 0.0))
    m, n, k = t.m + 24, t.n // 2 + beyond, 72
    rng, a, _, _ = arrays(m, n, k)
    w = rng.standard_normal((2, n + beyond % 8, k)).astype(BF16)[:, :n]
    down, bias = rng.random((m, 1)).astype(np.float32), rng.standard_normal((2, n)).astype(BF16) if t.roomy(4) else None
    out = np.full((m, tilejit.cdiv(n, 8) * 8), np.nan, BF16)[:, :n]
    gated_matmul(a, w.transpose(0, 2, 1), scale_a=down, bias=bias, out=out)
    gate, up = (down * (a.astype(np.float64) @ x.astype(np.float64).T) for x in w)
    if bias is not None:
        gate, up = gate + bias[0].astype(np.float64), up + bias[1].astype(np.float64)
    assert rel_error(out, silu(gate) * up) <= 8e-3


@pytest.mark.one_schedule                # for time: test_schedules explores
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.float32, np.int8], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("t", GATED_TILES[:2], ids=lambda t: f"{t.m}x{t.n // 2}")
def test_gated_tiles_of_other_dtypes(target, monkeypatch, t, dtype):
    """A merged weight; sums of integers are exact, products of fp32 numbers are rounded to tf32."""
    monkeypatch.setattr(fused, "choose", lambda *_, **__: (t, 0.0))
    rng, n = np.random.default_rng(3), t.n // 2 + 16
    a, b = (rng.integers(-3, 4, (rows, 80)).astype(dtype) for rows in (t.m, 2 * n))
    scale = np.full(1, 0.125, np.float32)
    out = swiglu(a, b.T, scale_b=scale)
    exact = a.astype(np.float64) @ b.astype(np.float64).T / 8
    assert out.dtype == (np.float32 if dtype is np.float32 else BF16)
    assert rel_error(out, silu(exact[:, :n]) * exact[:, n:]) <= 8e-3


def test_a_pair_of_ctas_with_a_residual(target, monkeypatch):
    """The second output and the residual of tiles whose CTAs divide rows."""
    monkeypatch.setattr(fused, "choose", lambda *_, **__: (GATED_TILES[2], 0.0))
    rng, a, b, product = arrays(264, 320, 80)
    z, residual = np.full((2, 264, 160), np.nan, BF16), rng.standard_normal((264, 160)).astype(BF16)
    out = swiglu(a, b, z=z, residual=residual)
    assert rel_error(z, np.stack([product[:, :160], product[:, 160:]])) <= 8e-3
    assert rel_error(out, silu(product[:, :160]) * product[:, 160:] + residual.astype(np.float64)) <= 8e-3


def test_swiglu(target, way):
    """Both matrices beside each other in one weight, as layers keep them."""
    rng, a, b, product = arrays(72, 176, 80)
    out = swiglu(a, b, residual=np.ones((72, 88), BF16))
    assert rel_error(out, silu(product[:, :88]) * product[:, 88:] + 1) <= 8e-3


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")])
def test_integers(target, dtypes):
    """int32 sums, exact; and scaled per row and column, as quantised layers are."""
    rng = np.random.default_rng(5)
    limits = {"int8": (-128, 128), "uint8": (0, 256)}
    a, b = (rng.integers(*limits[t], s).astype(t) for t, s in zip(dtypes, ((72, 144), (80, 144))))
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    assert np.array_equal(fused_matmul(a, b.T, out_dtype=tilejit.language.int32), exact)
    down, across = rng.random((72, 1)).astype(np.float32), rng.random((1, 80)).astype(np.float32)
    out = fused_matmul(a, b.T, scale_a=down, scale_b=across, activation="relu")
    assert out.dtype == BF16 and rel_error(out, np.maximum(exact * down * across, 0)) <= 8e-3


def test_rejects():
    """What does not fit is told apart."""
    a, b = np.zeros((8, 16), BF16), np.zeros((16, 8), BF16)
    for match, call in [
            ("b must be .2, K, N., found shape .3, 16, 8.", lambda: gated_matmul(a, np.zeros((3, 16, 8), BF16))),
            ("b must be .K, 2 N., found shape .16, 7.", lambda: swiglu(a, b[:, :7])),
            (r"scale_a must be fp32 \[1\] or \[8, 1\]", lambda: fused_matmul(a, b, scale_a=np.zeros((8, 1)))),
            ("an int32 result is the sum of integer", lambda: fused_matmul(a, b, out_dtype=tilejit.language.int32)),
            ("reduction 'mean' is not one of", lambda: fused_matmul(a, b, reduction="mean")),
            ("reduction and reduced go together", lambda: fused_matmul(a, b, reduction="sum")),
            ("reduced must be fp32", lambda: fused_matmul(a, b, reduction="sum", reduced=np.zeros(8))),
            ("residual must be a row-major", lambda: fused_matmul(a, b, residual=a)),
            (r"bias must be a contiguous \[2, 8\]", lambda: gated_matmul(
                a, np.zeros((2, 8, 16), BF16).transpose(0, 2, 1), bias=np.zeros(8)))]:
        with pytest.raises(LaunchError, match=match):
            call()


@pytest.fixture
def built(monkeypatch):
    """built(tile, ...): its kernel and an epilogue with a bias; residual: None, "whole" or "odd" lines."""
    def build(t, gated, *, z=False, scales=False, reduction=None, residual=None):
        monkeypatch.setattr(fused, "choose", lambda *_, **__: (t, 0.0))
        monkeypatch.setattr(fused, "_apart", lambda *_: False)
        m, n, k = 2 * t.m, t.n + (residual == "odd"), 256
        two = (2,) if gated else ()
        wide = info("bfloat16", m, n + 8)._replace(shape=(m, n)) if residual == "odd" else info("bfloat16", m, n)
        at = tilejit.cdiv(n, 8) * 8
        def dense(*outer):
            return tilejit.ArrayInfo(0, tilejit.language.bfloat16, (*outer, m, n), (*[m * at] * len(outer), at, 1), 0)
        extras = (info("float32", m, 1) if scales else None, info("float32", *(two or (1,)), n) if scales else None,
                  info("bfloat16", *two, n), wide if residual else None, dense(*two) if z else None,
                  info("float32", m) if reduction else None)
        b = info("bfloat16", *two, n, k)
        b = b._replace(shape=(*two, k, n), strides=(*b.strides[:-2], 1, k))
        (launch,) = fused._work((info("bfloat16", m, k), b, dense(), *extras), "gated_matmul" if gated else "fused_matmul",
                                "gelu", reduction, 132, None).launches
        return compiled(launch, {i + 3: f"*{x.dtype}" for i, x in enumerate(extras) if x is not None})
    return build


@pytest.mark.parametrize("residual", [None, "whole"])
@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("t, gated", [*((t, False) for t in TILES), *((t, True) for t in GATED_TILES)],
                         ids=lambda x: f"{x.m}x{x.n}" if isinstance(x, Way) else "gated" if x else "plain")
def test_compiles(built, t, gated, others, residual):
    """Every tile assembles without remarks, with any extras it may be picked for."""
    if t in fitting(gated, True, others or residual is not None, reduction=others):
        kernel = built(t, gated, z=others, scales=others, reduction="max" if others else None, residual=residual)
        assert "stays in flight" in kernel.report() and (kernel.resources is None or kernel.resources.clean)
        assert others or residual or "convert at" not in kernel.report()       # nothing changes threads


@pytest.mark.remarks("spills", "stack", reason="addresses of a result that ends through pointers, beside the residual's")
@pytest.mark.parametrize("gated", [False, True])
def test_compiles_unaligned(built, gated):
    """A residual whose rows are read element by element takes a tile that has registers for it, but for a few of its
    addresses beside the result's that ends through pointers."""
    for t in fitting(gated, True, True, narrow=True):
        kernel = built(t, gated, residual="odd")
        assert kernel.resources is None or kernel.resources.spill_stores <= 80


def test_little_more_is_a_plain_product(monkeypatch):
    """A number for each operand, a bias and an activation are `matmul`'s; one thing more is the fused kernel's."""
    seen = []
    monkeypatch.setattr(fused, "matmul", lambda a, b, *more, **scales: seen.append((*more, *scales.values())))
    rng, a, b, _ = arrays(64, 72, 64)
    bias, one, rows = rng.random(72, np.float32), np.ones(1, np.float32), np.ones((64, 1), np.float32)
    fused_matmul(a, b, bias=bias, activation="gelu", scale_b=one)
    assert len(seen) == 1 and seen[0][0] is bias and seen[0][1] == "gelu" and seen[0][-1] is one
    with tilejit.knobs(target="evaluator"):
        for more in ({"scale_a": rows}, {"residual": np.zeros((64, 72), BF16)}, {"z": np.zeros((64, 72), BF16)}):
            fused_matmul(a, b, bias=bias, **more)
        fused_matmul(a.astype(np.int8), b.astype(np.int8))
    assert len(seen) == 1


def test_what_tiles_are_for():
    """Pairs of CTAs neither fold rows nor read a residual element by element, and need as many multiprocessors."""
    assert fitting(True) == GATED_TILES and not GATED_TILES[0].roomy(4)
    assert fitting(True, per_column=True) == GATED_TILES[1:]
    assert [t.ctas for t in fitting(True, arrays=True)] == [2, 1, 1]
    assert fitting(True, narrow=True) == GATED_TILES[-1:] and fitting(False, narrow=True) == TILES[2:]
    assert fitting(False, narrow=True, reduction=True) == TILES[3:]
    assert fitting(True, reduction=True) == fitting(True, ctas=1) == GATED_TILES[-2:]


@pytest.mark.parametrize("chip, multiprocessors, ctas", [("sm_90a", 132, 2), ("sm_90a", 1, 1), ("sm_80", 132, 1)])
def test_pairs_need_a_chip_with_clusters(chip, multiprocessors, ctas):
    """Of one multiprocessor, or without clusters, programs are single CTAs. (Lines begin within L2's.)"""
    a, b, out = np.empty((4096, 1032), BF16), np.empty((2, 7168, 1032), BF16), np.empty((4096, 7168), BF16)
    with tilejit.knobs(arch=chip):
        (launch,) = fused._work(known_of(a, b.transpose(0, 2, 1), out, *(None,) * 6), "gated_matmul", "silu", None,
                                multiprocessors, tilejit.active_knobs()).launches
    assert launch.kernel.given.get("num_ctas", 1) == ctas and launch.grid == (max(1, multiprocessors // ctas),)
