"""Grouped and batched products against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, info

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import batched, grouped
from tilejit.kernels.batched import batched_matmul
from tilejit.kernels.grouped import grouped_matmul, masked_grouped_matmul
from tilejit.kernels.planning import GROUPED
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
#: The tensor cores' fp8 sums keep fewer bits than fp32.
FP8_SUMS = 1e-3
SQUARE, NARROW, PAIRS = Way(64, 64, 4), Way(128, 16, 4, swap=True), Way(128, 64, 4, 2)


@pytest.fixture(params=["evaluator", "emulator"])
def target(request, monkeypatch):
    """Where the test's launches run, on few multiprocessors."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 3)
    with tilejit.knobs(target=request.param):
        yield request.param


def stack(rng, batches, rows, columns, dtype, rows_first):
    """Random matrices in row- or column-major order."""
    if rows_first:
        return rng.standard_normal((batches, rows, columns)).astype(dtype)
    return rng.standard_normal((batches, columns, rows)).astype(dtype).transpose(0, 2, 1)


@pytest.mark.parametrize("config", [SQUARE, NARROW, PAIRS], ids=["square", "swapped", "pairs"])
@pytest.mark.parametrize("dtype, b_rows", [(BF16, True), (BF16, False), (ml_dtypes.float8_e4m3fn, False)])
def test_contiguous(target, config, dtype, b_rows):
    """Groups that are empty, start anywhere, and end inside tiles; rows of no group stay."""
    rng = np.random.default_rng(0)
    offsets = np.array([3, 3, 80, 81, 140], np.int32)
    a, b = rng.standard_normal((150, 144)).astype(dtype), stack(rng, 4, 144, 80, dtype, b_rows)
    out = np.full((150, 80), np.nan, np.float32)
    assert grouped_matmul(a, b, offsets, out, config=config) is out
    for e in range(4):
        rows = slice(offsets[e], offsets[e + 1])
        if offsets[e] < offsets[e + 1]:
            bound = 1e-5 if dtype == BF16 else FP8_SUMS
            assert rel_error(out[rows], a[rows].astype(np.float64) @ b[e].astype(np.float64)) <= bound
    assert np.isnan(out[:3]).all() and np.isnan(out[140:]).all()


@pytest.mark.parametrize("expected", [None, 10])
def test_masked(target, expected):
    """Rows up to each group's count; none after it."""
    rng = np.random.default_rng(1)
    counts = np.array([0, 40, 7], np.int32)
    a, b = rng.standard_normal((3, 40, 64)).astype(BF16), stack(rng, 3, 64, 136, BF16, False)
    out = np.full((3, 40, 136), np.nan, BF16)
    masked_grouped_matmul(a, b, counts, out, expected=expected)
    for e, count in enumerate(counts):
        assert not count or rel_error(out[e, :count], a[e, :count].astype(np.float64) @ b[e].astype(np.float64)) <= 8e-3
        assert np.isnan(out[e, count:].astype(np.float32)).all()


def spread(scales, rows):
    """A scale per `rows` rows and 128 columns over all of them."""
    return scales.astype(np.float64).repeat(rows, -2).repeat(128, -1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("config", [None, Way(64, 128, 4)])
def test_block_scales(target, masked, config):
    """fp8 with scales of blocks, in both forms, swapped and not."""
    rng = np.random.default_rng(4)
    fp8, groups, n, k = ml_dtypes.float8_e4m3fn, 3, 136, 272
    counts, capacity = np.array([24, 0, 70], np.int32), 72
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    a, b = rng.standard_normal((groups, capacity, k)).astype(fp8), stack(rng, groups, k, n, fp8, False)
    scale_a, scale_b = (2.0 ** rng.integers(-8, 8, (groups, x, 3)).astype(np.float32) for x in (capacity, 2))
    ref = (a.astype(np.float64) * spread(scale_a, 1)[..., :k]) @ (
        b.astype(np.float64) * spread(scale_b, 128)[:, :n, :k].transpose(0, 2, 1))
    if masked:
        out = masked_grouped_matmul(a, b, counts, out_dtype=tilejit.language.float32, scale_a=scale_a, scale_b=scale_b,
                                    expected=24, config=config)
    else:
        pick = [np.concatenate([x[e, :counts[e]] for e in range(groups)]) for x in (a, scale_a)]
        flat = grouped_matmul(pick[0], b, offsets, out_dtype=tilejit.language.float32, scale_a=pick[1],
                              scale_b=scale_b, config=config)
        out = np.zeros((groups, capacity, n))
        for e in range(groups):
            out[e, :counts[e]] = flat[offsets[e]:offsets[e + 1]]
    for e in (0, 2):
        assert rel_error(out[e, :counts[e]], ref[e, :counts[e]]) <= FP8_SUMS


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_batched(target, a_rows, b_rows):
    """All orders, ragged sizes, bias and activation."""
    rng = np.random.default_rng(2)
    a, b = stack(rng, 3, 72, 80, np.float16, a_rows), stack(rng, 3, 80, 136, np.float16, b_rows)
    bias = rng.standard_normal(136).astype(np.float16)
    out = batched_matmul(a, b, bias, "relu", tiles=Way(64, 64, 4))
    assert rel_error(out, np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)) <= 2e-3


def test_batched_with_one_matrix(target):
    """An operand with one batch, and one whose batch stride is 0, serve all batches."""
    rng = np.random.default_rng(3)
    a, b = stack(rng, 3, 64, 64, BF16, True), stack(rng, 1, 64, 64, BF16, True)
    ref = a.astype(np.float64) @ b.astype(np.float64)
    assert rel_error(batched_matmul(a, b), ref) <= 8e-3
    assert rel_error(batched_matmul(a, np.broadcast_to(b, (3, 64, 64))), ref) <= 8e-3
    assert rel_error(batched_matmul(b, a), b.astype(np.float64) @ a.astype(np.float64)) <= 8e-3


def test_rejects():
    """What does not fit is told apart."""
    a, b = np.zeros((4, 16, 32), BF16), np.zeros((4, 32, 16), BF16)
    sizes = np.zeros(4, np.int32)
    for match, call in [
            (r"offsets must be int32 \[5\], found int32 \[4\]", lambda: grouped_matmul(a[0], b, sizes)),
            (r"counts must be int32 \[4\], found int64", lambda: masked_grouped_matmul(a, b, sizes.astype(np.int64))),
            ("a must be a matrix", lambda: grouped_matmul(a, b, sizes)),
            ("a must be a contiguous stack", lambda: masked_grouped_matmul(a[:, :8], b, sizes)),
            ("a has 2 batches, the other one 4", lambda: batched_matmul(a[:2], b)),
            ("scales of blocks are for fp8", lambda: masked_grouped_matmul(a, b, sizes, scale_a=a, scale_b=b)),
            ("32 != 16", lambda: batched_matmul(a, a))]:
        with pytest.raises(LaunchError, match=match):
            call()


@pytest.mark.parametrize("t", (*GROUPED["accumulate"], Way(256, 256, 8, 2)), ids=lambda t: f"{t.m}x{t.n}")
def test_grouped_compiles(t):
    """Every tile that may be chosen is specialised, though sizes are read on the way, and assembles cleanly; its
    programs all run at once, those of pairs of CTAs too."""
    infos = (info("bfloat16", 1000, 512), info("bfloat16", 4, 512, 256, rows_first=False), info("int32", 5),
             info("bfloat16", 1000, 256), None, None)
    (launch,) = grouped._work(infos, "grouped_matmul", False, None, t, 132, None).launches
    kernel = compiled(launch, {2: "*int32"})
    assert launch.grid[0] * t.ctas <= 132
    assert "specialised" in kernel.report() and kernel.ptx.count("wgmma.mma_async") >= 4


@pytest.mark.parametrize("t", GROUPED["promote"], ids=lambda t: f"{t.m}x{t.n}")
def test_scaled_compiles(t):
    infos = (info("float8e4nv", 4, 200, 512), info("float8e4nv", 4, 512, 256, rows_first=False), info("int32", 4),
             info("bfloat16", 4, 200, 256), info("float32", 4, 200, 4), info("float32", 4, 2, 4))
    (launch,) = grouped._work(infos, "masked_grouped_matmul", True, None, t, 132, None).launches
    kernel = compiled(launch, {2: "*int32", 4: "*fp32", 5: "*fp32"})
    assert "specialised" in kernel.report()


@pytest.mark.parametrize("t", batched.TILES[::4], ids=str)
def test_batched_compiles(t):
    infos = (info("bfloat16", 3, 500, 512), info("bfloat16", 3, 512, 512), info("bfloat16", 512), info("bfloat16", 3, 500, 512))
    (launch,) = batched._work(infos, "gelu" if t.roomy(2) else None, t, 132, None).launches
    kernel = compiled(launch, {2: "*bf16"})
    assert "specialised" in kernel.report() and "tensor.3d" in kernel.ptx
