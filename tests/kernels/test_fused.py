"""Products with fused epilogues against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import fused
from tilejit.kernels.fused import GATED_TILES, TILES, fused_kernel, fused_matmul, gated_matmul, swiglu
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    """Where the test's launches run."""
    with tilejit.knobs(target=request.param):
        yield request.param


def silu(x):
    return x / (1 + np.exp(-x))


def arrays(m, n, k, dtype=BF16):
    """a, b (K contiguous) and their product."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype).T
    return rng, a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("m, n", [(72, 144), (70, 88), (136, 256)])
def test_everything(target, m, n):
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
    monkeypatch.setattr(fused, "choose_tiles", lambda *_: TILES[0])
    rng, a, b, product = arrays(136, 272, 64)
    residual = rng.standard_normal((136, 272)).astype(BF16)
    out = fused_matmul(a, b, activation="relu", residual=residual)
    assert rel_error(out, np.maximum(product, 0) + residual.astype(np.float64)) <= 8e-3


@pytest.mark.parametrize("scale, reduction", [("one", "sum"), ("columns", "max")])
def test_scales_and_reductions(target, scale, reduction):
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
def test_gated(target, merged, extras):
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


def test_swiglu(target):
    """Both matrices beside each other in one weight, as layers keep them."""
    rng, a, b, product = arrays(72, 176, 80)
    out = swiglu(a, b, residual=np.ones((72, 88), BF16))
    assert rel_error(out, silu(product[:, :88]) * product[:, 88:] + 1) <= 8e-3
    with pytest.raises(LaunchError, match="b must be a column-major"):
        swiglu(a, np.ascontiguousarray(b))


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
    stacked = np.zeros((2, 16, 8), BF16)
    for match, call in [
            ("b must be .2, K, N. with K contiguous", lambda: gated_matmul(a, stacked)),
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


@pytest.mark.parametrize("extras", ["none", "residual", "others", "all"])
@pytest.mark.parametrize("t, gated", [*((t, False) for t in TILES), *((t, True) for t in GATED_TILES)],
                         ids=lambda x: f"{x.m}x{x.n}" if isinstance(x, fused.Config) else "gated" if x else "plain")
def test_compiles(t, gated, extras):
    """Every tile assembles without remarks, with any extras."""
    others, added = extras in ("others", "all"), extras in ("residual", "all")
    z = f"desc<bf16[{f'1x{t.m}x64' if gated else f'{t.m}x{min(t.n, 128)}'}]>"
    kernel = fused_kernel.compile(
        f"desc<bf16[{t.m}x64]>", f"desc<bf16[{'2x' if gated else ''}{t.n}x64]>", f"desc<bf16[{t.m}x{min(t.n, 128)}]>",
        z if others else None, "*fp32" if others else None, "*fp32" if others else None, "*bf16",
        "*bf16" if added else None, "*fp32" if others else None, "int32", "int32:16", "int32",
        "int32:16" if added else 0, BM=t.m, BN=t.n, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False,
        SCALE_A="rows" if others else None, SCALE_B="columns" if others else None, ACTIVATION="gelu", GATED=gated,
        REDUCE="max" if others else None, num_warps=t.warps, num_stages=t.stages if extras == "none" else t.extra_stages)
    assert "stays in flight" in kernel.report()


@pytest.mark.parametrize("t, gated", [(TILES[1], False), (GATED_TILES[1], True)])
def test_compiles_unaligned(t, gated):
    """A residual whose rows are read element by element takes a tile that has registers for it."""
    block = f"{t.m}x{t.n}"
    fused_kernel.compile(
        f"desc<bf16[{t.m}x64]>", f"desc<bf16[{'2x' if gated else ''}{t.n}x64]>", f"desc<bf16[{block}]>", None, None, None,
        "*bf16", "*bf16:2", None, "int32", "int32", "int32", "int32", BM=t.m, BN=t.n, BK=64, GROUP=8, A_ROWS=True,
        B_ROWS=False, SCALE_A=None, SCALE_B=None, ACTIVATION="gelu", GATED=gated, REDUCE=None, num_warps=t.warps,
        num_stages=t.extra_stages)
