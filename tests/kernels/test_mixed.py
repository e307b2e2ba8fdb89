"""Weights of 8 and 4 bits against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from product_launches import weights

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels.mixed import weight_only_matmul
from tilejit.kernels.planning import WIDENED
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
    """4-bit numbers less the zero of their group."""
    rng = np.random.default_rng(1)
    x, q = rng.standard_normal((8, 256)).astype(dtype), rng.integers(0, 16, (128, 256))
    scales, zeros = rng.random((128, 2)).astype(dtype), rng.integers(0, 16, (128, 2)).astype(dtype)
    with tilejit.knobs(target=target):
        out = weight_only_matmul(x, packed(q), scales, zeros, split=2)
    spread = [s.astype(np.float64).repeat(128, 1) for s in (scales, zeros)]
    assert rel_error(out, x.astype(np.float64) @ ((q - spread[1]) * spread[0]).T) <= 8e-3


@pytest.mark.parametrize("scales", ["words", "apart", "turned", "odd"])
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_scales_anywhere(target, scales):
    """Scales that 64 bits hold several of, and such that lie elsewhere; K that ends inside of them."""
    rng = np.random.default_rng(2)
    n, groups = 72, 7 if scales == "odd" else 12
    x, q = rng.standard_normal((8, groups * 64)).astype(BF16), rng.integers(-128, 128, (n, groups * 64)).astype(np.int8)
    s = rng.random((n, groups)).astype(BF16)
    given = {"apart": np.zeros((n, 2 * groups), BF16)[:, ::2], "turned": np.zeros((groups, n), BF16).T}.get(scales, s)
    given[:] = s
    with tilejit.knobs(target=target):
        out = weight_only_matmul(x, q, given, split=2, out=np.zeros((8, n), np.float32))
    assert rel_error(out, x.astype(np.float64) @ (q * s.astype(np.float64).repeat(64, 1)).T) <= 3e-3


def test_rejects():
    x, w, s = np.zeros((8, 128), BF16), np.zeros((16, 128), np.int8), np.zeros(16, np.float32)
    for match, args in [
            ("rows of 128 and 256 elements", (x, w.view(np.uint8), s)),
            ("x must be bf16 or fp16 and the weight int8", (x, x, s)),
            ("multiple of 64 elements of 128", (x, w, np.zeros((16, 4), np.float32))),
            ("scales must be bf16, fp16 or fp32", (x, w, s.astype(np.int32))),
            ("zeros go with 4-bit weights", (x, w, s, s))]:
        with pytest.raises(LaunchError, match=match):
            weight_only_matmul(*args)


@pytest.mark.parametrize("dtype, bits, steps, zeros", [
    ("bf16", 8, 0, None), ("bf16", 8, 1, None), ("bf16", 4, 1, "*bf16"), ("fp16", 8, 0, None), ("fp16", 4, 2, None)])
@pytest.mark.parametrize("t", WIDENED[128], ids=str)
def test_compiles(t, dtype, bits, steps, zeros):
    """Every tile is specialised, takes the weight from registers, keeps products in flight, and assembles cleanly."""
    kernel = weights(t, {"bf16": "bfloat16", "fp16": "float16"}[dtype], bits, steps, bool(zeros), True, "gelu")
    report = kernel.report()
    assert "specialised" in report and kernel.metadata.num_stages >= 3 and not kernel.warnings()
    assert "from registers, in 2 pieces" in report and "through registers" not in report
    assert "one round of wgmma stays in flight" in report
    if t.together > 1 and kernel.resources is not None:
        assert t.together * kernel.metadata.num_threads * kernel.resources.registers <= 65536
