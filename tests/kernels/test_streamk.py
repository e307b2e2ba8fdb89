"""Split-K, stream-K and decode products against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, work_of
from references import StandIn, matrix

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import launches
from tilejit.kernels.planning import BY_K
from tilejit.kernels.streamk import matmul_streamk
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
targets = pytest.mark.parametrize("target", ["evaluator", "emulator"])
#: Tiles that may be shared out, of all warps that there are.
TILES = (Way(128, 256, 8), Way(128, 128, 8), Way(64, 128, 4), Way(64, 64, 4), Way(64, 16, 4, swap=True, k_bytes=256),
         Way(128, 32, 4, swap=True))


@targets
@pytest.mark.parametrize("m, n, k, programs, stream", [
    (64, 128, 512, 3, 2),         # two tiles, parts of unequal length
    (100, 128, 256, 3, 4),        # four tiles of four blocks in three runs: parts that begin and end inside tiles
    (64, 448, 128, 4, 7),         # two programs share a tile
    (64, 448, 128, 4, 3),         # whole tiles after streamed ones
])
def test_streams(target, m, n, k, programs, stream):
    """Every tile is finished once, with bias and activation."""
    t = Way(64, 64, 4, programs=programs, stream=stream)
    rng = np.random.default_rng(0)
    a, b = matrix(rng, m, k, BF16, True), matrix(rng, k, n, BF16, False)
    bias = rng.standard_normal(n).astype(BF16)
    z = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    with tilejit.knobs(target=target):
        out = np.full((m, n), np.nan, BF16)
        matmul_streamk(a, b, bias, "silu", out, config=t)
    assert rel_error(out, z / (1 + np.exp(-z))) <= 8e-3


@targets
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("m, split", [(1, 1), (5, 2), (24, 3), (64, 2)])
def test_decode(target, dtype, m, split):
    """Swapped operands: few rows are the small side of the product."""
    rng = np.random.default_rng(1)
    n, k = 136, 3 * 128 + 16
    a, b = matrix(rng, m, k, dtype, True), matrix(rng, k, n, dtype, False)
    bias = rng.standard_normal(n).astype(np.float32)
    with tilejit.knobs(target=target):
        out = matmul_streamk(a, b, bias, split=split)
    ref = a.astype(np.float64) @ b.astype(np.float64) + bias
    assert rel_error(out, ref) <= (1.5e-3 if dtype == np.float32 else 8e-3)


@targets
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("m", [16, 72])
def test_majors(target, a_rows, b_rows, m):
    """All orders of 16-bit operands, swapped and not."""
    rng = np.random.default_rng(2)
    a, b = matrix(rng, m, 128, np.float16, a_rows), matrix(rng, 128, 72, np.float16, b_rows)
    with tilejit.knobs(target=target):
        out = matmul_streamk(a, b, split=2)
    assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64)) <= 2e-3


@targets
@pytest.mark.parametrize("m", [8, 80])
def test_accumulate(target, m):
    """Parts are added to what the output holds."""
    rng = np.random.default_rng(3)
    a, b = matrix(rng, m, 256, BF16, True), matrix(rng, 256, 64, BF16, True)
    out = rng.standard_normal((m, 64)).astype(np.float32)
    ref = out + a.astype(np.float64) @ b.astype(np.float64)
    with tilejit.knobs(target=target):
        assert matmul_streamk(a, b, out=out, accumulate=True, split=4) is out
    assert rel_error(out, ref) <= 1e-5


@pytest.mark.one_schedule                # polling takes its time
@pytest.mark.parametrize("m", [16, 80])
@pytest.mark.parametrize("programs, polled", [(3, True), (7, True), (8, False)])
def test_ordered_sums(m, programs, polled):
    """The same bits whoever is first, whether programs poll a tile's flag and add to its sum in order (uneven parts), or
    store equal parts that a second kernel adds up: the fp32 sum of the parts' products."""
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, 1024), (1024, 128)))
    t = Way(64, 64, 4) if m > 16 else Way(64, 16, 4, swap=True, k_bytes=256)
    t = replace(t, programs=programs, stream=t.tiles(m, 128))
    assert (t.parts == 0) == polled
    with tilejit.knobs(target="emulator"):
        found, again = (matmul_streamk(a, b, out_dtype=tilejit.language.float32, config=t) for _ in range(2))
    assert np.array_equal(found, again)
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)


def test_rejects():
    """What does not fit is told apart."""
    a, b = np.zeros((8, 16), np.float16), np.zeros((16, 8), np.float16)
    for match, args, kwargs in [
            ("16 != 8", (a, a), {}), ("int32 x int32", (a.astype(np.int32), b.astype(np.int32)), {}),
            ("activation 'tanh'", (a, b), {"activation": "tanh"}), ("accumulate adds to an fp32", (a, b), {
                "accumulate": True, "out": np.zeros((8, 8), np.float16)}),
            ("accumulate adds to `out`", (a, b), {"accumulate": True}), ("bias must be a contiguous", (a, b), {"bias": a}),
            ("config divides 2 tiles, the result has 1 of 64 x 64", (a, b), {"config": Way(64, 64, 4).divided(8, 70, 2)}),
            ("CTAs that divide K add to rows at multiples of 16 bytes only", (a, b), {
                "accumulate": True, "ctas": 2, "out": np.zeros((8, 9), np.float32)[:, :8]})]:
        with pytest.raises(LaunchError, match=match):
            matmul_streamk(*args, **kwargs)


def test_single_tiles():
    """One tile a program, as wide as a wave takes; results are right with rows and columns cut short."""
    rng = np.random.default_rng(2)
    a, b = matrix(rng, 60, 520, BF16, True), matrix(rng, 520, 304, BF16, False)
    t = Way(64, 80, 4, k_bytes=256, single=True)
    assert t.options()["num_consumer_groups"] == 1
    with tilejit.knobs(target="emulator"):
        got = matmul_streamk(a, b, config=t, bias=np.ones(304, np.float32))
    assert rel_error(got, a.astype(np.float64) @ b.astype(np.float64) + 1) <= 5e-3


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("m, dtype, a_rows, b_rows", [
    (40, BF16, True, False), (90, BF16, True, True), (128, BF16, False, True), (64, BF16, False, False),
    (100, ml_dtypes.float8_e4m3fn, True, False), (128, np.float32, True, False)], ids=str)
def test_pairs(m, dtype, a_rows, b_rows, target):
    """Rows, columns and K cut short, a bias for each row of the transpose."""
    rng = np.random.default_rng(m)
    a, b, bias = matrix(rng, m, 336, dtype, a_rows), matrix(rng, 336, 304, dtype, b_rows), np.arange(304, dtype=np.float32)
    t = Way(128, -(-m // 32) * 32, 4, 2, "N", True, 256 if m <= 64 else 128, single=True)
    with tilejit.knobs(target=target):
        got = matmul_streamk(a, b, bias, "relu", config=t)
    ref = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert rel_error(got, ref) <= 1e-2


@pytest.mark.parametrize("n, k, overlap", [(7168, 18432, False), (8192, 8192, True), (512, 1024, True)])
def test_launches_overlap_where_no_multiprocessor_is_idle(n, k, overlap, monkeypatch):
    """112 programs on 132 multiprocessors start when the launch ahead has ended, 128 while it ends; and so do few
    programs where memory takes no time to speak of."""
    launched = {}

    monkeypatch.setattr(launches, "product_kernel",
                        StandIn(lambda grid, *args, **options: launched.update(options, programs=grid[0])))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 132)
    a, b = np.zeros((16, k), BF16), np.zeros((n, k), BF16).T
    t = Way(64, 16, 4, swap=True, k_bytes=256)
    matmul_streamk(a, b, out=np.zeros((16, n), BF16), config=t)
    assert (launched["launch_pdl"], launched["programs"]) == (overlap, n // 64)


@pytest.mark.parametrize("t", [Way(64, 16, 4, swap=True, programs=5, k_bytes=256),
                               Way(64, 16, 4, swap=True, programs=2, k_bytes=256, ctas=2, split="K"),
                               Way(128, 32, 4, swap=True, programs=2, ctas=4, split="K")], ids=lambda t: f"{t.m}/{t.ctas}")
@pytest.mark.parametrize("dtype", [BF16, ml_dtypes.float8_e4m3fn])
def test_chosen_ways(t, dtype):
    """Long reads, clusters that take several tiles: with rows, columns and K cut short."""
    rng = np.random.default_rng(8)
    a, b = matrix(rng, 13, 1168, dtype, True), matrix(rng, 1168, 304, dtype, False)
    with tilejit.knobs(target="emulator"):
        got = matmul_streamk(a, b, config=t)
    assert rel_error(got, a.astype(np.float64) @ b.astype(np.float64)) <= 2e-2


@pytest.mark.one_schedule                # nothing is launched
@pytest.mark.parametrize("t", [replace(t, stream=2, programs=3) for t in TILES], ids=lambda t: f"{t.m}x{t.n}")
def test_compiles(t):
    """Every tile that may be chosen assembles without remarks (spills, stack, serialised products)."""
    (launch,) = work_of(t, *t.computed(2 * t.m, t.n), 512, activation="gelu", bias=True).launches
    kernel = compiled(launch, {2: "*bf16", 4: "*fp32", 5: "*int32"})
    assert "specialised" in kernel.report() and kernel.ptx.count("wgmma.mma_async") >= 4


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("t", BY_K[::3], ids=lambda t: f"{t.m}x{t.n}/{t.ctas}")
def test_clusters_compile(t, swap):
    """The same of tiles whose K is divided over a cluster, with as many blocks as are counted on."""
    t = replace(t, swap=swap)
    (launch,) = work_of(t, *t.computed(2 * t.m, t.n), 8 * t.k_bytes, activation="gelu", bias=True).launches
    kernel = compiled(launch, {2: "*bf16"})
    assert not kernel.warnings() and kernel.metadata.num_stages >= 4 and "st.async" in kernel.ptx


@targets
@pytest.mark.parametrize("dtype, m, n, ctas", [
    (BF16, 72, 136, 2), (BF16, 5, 136, 4), (ml_dtypes.float8_e4m3fn, 33, 72, 8), (np.float32, 72, 72, 4)])
def test_clusters_divide_k(target, dtype, m, n, ctas):
    """Parts that meet in the shared memory of a cluster: swapped operands and not, an epilogue, equal bits each time."""
    rng = np.random.default_rng(5)
    k = 128 if ctas == 8 else ctas * 128 + 48            # fewer blocks than CTAs: some have nothing
    a, b = matrix(rng, m, k, dtype, True), matrix(rng, k, n, dtype, False)
    bias = rng.standard_normal(n).astype(np.float32)
    with tilejit.knobs(target=target):
        found = [matmul_streamk(a, b, bias, "relu", ctas=ctas) for _ in range(2)]
    ref = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert rel_error(found[0], ref) <= (1.5e-3 if dtype == np.float32 else 8e-3)
    assert np.array_equal(*found)


@pytest.mark.parametrize("m", [8, 80])
def test_clusters_accumulate(m):
    rng = np.random.default_rng(3)
    a, b = matrix(rng, m, 256, BF16, True), matrix(rng, 256, 64, BF16, True)
    out = rng.standard_normal((m, 64)).astype(np.float32)
    ref = out + a.astype(np.float64) @ b.astype(np.float64)
    with tilejit.knobs(target="emulator"):
        matmul_streamk(a, b, out=out, accumulate=True, ctas=2)
    assert rel_error(out, ref) <= 1e-5
    with pytest.raises(LaunchError, match="ctas is 1, 2, 4 or 8, and without split; found 2 and split=2"):
        matmul_streamk(a, b, ctas=2, split=2)
