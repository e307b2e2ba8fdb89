"""Weights of 8 and 4 bits against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels.mixed import TILES, stages, weight_only_matmul
from tilejit.kernels.streamk import streamk_kernel
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16


def packed(q):
    """4-bit numbers, two a byte, the even one low."""
    return (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("m, dtype, group, split", [
    (5, BF16, None, 1), (16, np.float16, 128, 2), (24, BF16, 64, 3), (72, BF16, 128, 2)])
def test_weights(target, bits, m, dtype, group, split):
    """A scale per row, or per row and group; bias and activation; whole and divided K."""
    rng = np.random.default_rng(0)
    n, k = 136, 384
    x = rng.standard_normal((m, k)).astype(dtype)
    q = rng.integers(*((-128, 128) if bits == 8 else (0, 16)), (n, k))
    scales = rng.random((n, k // group) if group else n).astype(np.float32)
    bias = rng.standard_normal(n).astype(dtype)
    with tilejit.knobs(target=target):
        out = weight_only_matmul(x, q.astype(np.int8) if bits == 8 else packed(q), scales, None, bias, "relu",
                                 split=split)
    spread = scales.repeat(group, 1) if group else scales[:, None]
    ref = np.maximum(x.astype(np.float64) @ ((q - (0 if bits == 8 else 8)) * spread.astype(np.float64)).T
                     + bias.astype(np.float64), 0)
    assert rel_error(out, ref) <= 8e-3


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_zeros(target, dtype):
    """4-bit numbers less the zero of their group; ordered sums."""
    rng = np.random.default_rng(1)
    x, q = rng.standard_normal((8, 256)).astype(dtype), rng.integers(0, 16, (128, 256))
    scales, zeros = rng.random((128, 2)).astype(dtype), rng.integers(0, 16, (128, 2)).astype(dtype)
    with tilejit.knobs(target=target):
        out = weight_only_matmul(x, packed(q), scales, zeros, split=2, ordered=True)
    spread = [s.astype(np.float64).repeat(128, 1) for s in (scales, zeros)]
    assert rel_error(out, x.astype(np.float64) @ ((q - spread[1]) * spread[0]).T) <= 8e-3


def test_rejects():
    x, w, s = np.zeros((8, 128), BF16), np.zeros((16, 128), np.int8), np.zeros(16, np.float32)
    for match, args in [
            ("rows of 128 and 256 elements", (x, w.view(np.uint8), s)),
            ("x must be bf16 or fp16 and the weight int8", (x, x, s)),
            ("weight must be row-major", (x, np.zeros((128, 16), np.int8).T, s)),
            ("multiple of 64 elements of 128", (x, w, np.zeros((16, 4), np.float32))),
            ("scales must be bf16, fp16 or fp32", (x, w, s.astype(np.int32))),
            ("zeros go with 4-bit weights", (x, w, s, s))]:
        with pytest.raises(LaunchError, match=match):
            weight_only_matmul(*args)


@pytest.mark.parametrize("dtype, bits, scale_steps, zeros, group", [
    ("bf16", 8, 0, None, 128), ("bf16", 8, 1, None, 64), ("bf16", 4, 1, "*bf16", 128), ("fp16", 8, 0, None, 128),
    ("fp16", 4, 2, None, 128)])
@pytest.mark.parametrize("t", TILES, ids=lambda t: f"{t.m}x{t.n}")
def test_compiles(t, dtype, bits, scale_steps, zeros, group):
    """Every tile is specialised, takes the weight from registers, and assembles cleanly."""
    bk = 128 if t.n <= 32 and group == 128 else 64
    a = f"desc<int8[128x{bk}]>" if bits == 8 else f"desc<uint8[128x{bk // 2}]>"
    kernel = streamk_kernel.compile(
        a, f"desc<{dtype}[{t.n}x{bk}]>", f"desc<{dtype}[{t.n}x128]>", f"desc<fp32[128x{t.n}]>", "*fp32", "*int32", "*bf16",
        "*bf16", zeros, *["int32"] * 6, BM=128, BN=t.n, BK=bk, GROUP=8, A_ROWS=True, B_ROWS=False, C_ROWS=False,
        ACTIVATION="gelu", ADD=False, ORDERED=False, A_BITS=bits, SCALE_STEPS=scale_steps, num_warps=t.warps,
        num_stages=stages(t, bk, bits, 2))
    report = kernel.report()
    assert "specialised" in report and stages(t, bk, bits, 2) >= 6
    assert "from registers, in 2 pieces" in report and "through registers" not in report
    assert ("one round of wgmma stays in flight" in report) == (scale_steps == 0)
