"""fp8 products with block scales against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import division, scaled_rows
from tilejit.kernels.scaled import TILES, block_scaled_kernel, choose, matmul_blockscaled
from tilejit.testing import rel_error

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def spread(scales, rows, columns, shape):
    """Every scale over its block of rows x columns."""
    return scales.repeat(rows, 0).repeat(columns, 1)[:shape[0], :shape[1]].astype(np.float64)


def arrays(m, n, k, dtypes=(E4M3, E4M3)):
    """Operands and scales in both orders, whose magnitudes only the scales reconcile; and the product."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtypes[0]), rng.standard_normal((n, k)).astype(dtypes[1]).T
    steps = -(-k // 128)
    a_scale = np.asfortranarray(2.0 ** rng.integers(-8, 8, (m, steps)).astype(np.float32) * 1.1)
    b_scale = np.ascontiguousarray(2.0 ** rng.integers(-8, 8, (-(-n // 128), steps)).astype(np.float32) * 0.9)
    ref = (a.astype(np.float64) * spread(a_scale, 1, 128, (m, k))) @ (
        b.astype(np.float64) * spread(b_scale.T, 128, 128, (k, n)))
    return (a, b, a_scale, b_scale), ref


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("m, n, k, dtypes, few", [
    (72, 136, 272, (E4M3, E4M3), True), (8, 264, 128, (E5M2, E4M3), True), (136, 64, 400, (E4M3, E5M2), True),
    (520, 72, 144, (E5M2, E5M2), False)])
def test_block_scales(target, m, n, k, dtypes, few):
    """Sizes that leave blocks incomplete, as they are chosen."""
    given, ref = arrays(m, n, k, dtypes)
    assert isinstance(choose(m, n, k, 132), division.Config) == few
    out = np.full((m, n), np.nan, np.float32)
    with tilejit.knobs(target=target):
        matmul_blockscaled(*given, out)
    # The tensor cores' fp8 sums keep fewer bits than fp32 (the emulator's too); the evaluator's are fp32's.
    assert rel_error(out, ref) <= (1e-5 if target == "evaluator" else 1e-3)


#: Rows beyond a tile's or fewer; columns that end within a tile, and within a scale's block; a last block of K cut.
RAGGED = [(t, t.n + 3 if t.n == 128 or t.m == 64 else t.n - 3, 264, 528) for t in scaled_rows.TILES]


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("t, m, n, k", RAGGED, ids=lambda x: f"{x.m}x{x.n}x{x.k_bytes}" if isinstance(x, division.Config) else None)
def test_few_rows(t, m, n, k, parts):
    """Every tile of few rows: two programs in turn, K divided, and into more parts than it has blocks; strided scales."""
    (a, b, a_scale, b_scale), ref = arrays(m, n, k)
    a_scale, b_scale = (np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3] for x in (a_scale, b_scale))
    assert a_scale.strides[1] == 12 and not b_scale.flags.c_contiguous
    for dtype, bound in ((np.float32, 1e-3), (ml_dtypes.bfloat16, 4e-3)):
        out = np.full((m, n), np.nan, dtype)
        with tilejit.knobs(target="emulator"):
            matmul_blockscaled(a, b, a_scale, b_scale, out,
                               config=replace(t, programs=2) if parts == 1 else t.split(n, m, parts))
        assert rel_error(out, ref) <= bound


@pytest.mark.parametrize("config", [TILES[4], replace(scaled_rows.TILES[3], warps=8, programs=1)], ids=["tile", "few rows"])
def test_configured(config):
    """A configuration of either way instead of the choice."""
    given, ref = arrays(20, 136, 256)
    with tilejit.knobs(target="emulator"):
        assert rel_error(matmul_blockscaled(*given, out_dtype=tilejit.language.float32, config=config), ref) <= 1e-3


def problem(t, m, n, k):
    """Operands of block_scaled_kernel on two tiles each way, the grid, and the result they should have."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(E4M3), rng.standard_normal((n, k)).astype(E4M3)
    steps = -(-k // 128)
    a_scale = (rng.random((steps, m)) + 0.5).astype(np.float32).T
    b_scale = (rng.random((-(-n // 128), steps)) + 0.5).astype(np.float32)
    out = np.full((m, n), np.nan, np.float32)
    boxes = zip((a, b, out), ((t.m, 128), (t.n, 128), (t.m, t.n)))
    descriptors = [tilejit.TensorDescriptor(x, x.shape, (x.shape[1], 1), box) for x, box in boxes]
    args = [*descriptors, a_scale, b_scale, m, n, k, 1, m, steps, 1]
    constants = dict(BM=t.m, BN=t.n, GROUP=8, num_warps=t.warps, num_stages=t.stages, num_ctas=t.ctas)
    ref = (a.astype(np.float64) * spread(a_scale, 1, 128, (m, k))) @ (
        b.astype(np.float64) * spread(b_scale, 128, 128, (n, k))).T
    return (1,), args, constants, out, ref


@pytest.mark.parametrize("k", [128, 256, 384, 528])
@pytest.mark.parametrize("t", TILES, ids=lambda t: f"{t.m}x{t.n}")
def test_tiles(t, k):
    """Every tile, two a program, under three policies with the sanitizer; one block of K to five."""
    grid, args, constants, out, ref = problem(t, t.m + 8, t.n, k)
    tilejit.check(block_scaled_kernel, grid, *args, seeds=[1], **constants).check()
    assert rel_error(out, ref) <= 1e-3


def test_choice():
    """Clusters where there are many tiles, single CTAs where theirs would leave multiprocessors idle; three warpgroups
    where that makes no more turns of larger tiles. Whatever K is, of more than 512 rows."""
    for (m, n), tile in {(4096, 14336): (384, 128, 2), (8192, 8192): (192, 128, 1), (4096, 4096): (256, 128, 2),
                         (1152, 1792): (128, 128, 1), (513, 4096): (384, 128, 2), (640, 2048): (256, 128, 2),
                         (1024, 512): (64, 64, 1), (520, 64): (64, 64, 1)}.items():
        for k in (128, 7168):
            t = choose(m, n, k, 132)
            assert (t.m, t.n, t.ctas) == tile and t in TILES
    assert choose(4096, 4096, 4096, 1).ctas == 1


def test_choice_of_few_rows():
    """Programs for all multiprocessors, by parts of K where tiles are too few; tiles as wide as the rows; two blocks at a
    time where that takes less. Many tiles of many rows are those of `TILES`."""
    for (m, n, k), way in {
            (1, 7168, 16384): (64, 16, 256, 112, 0), (1, 2048, 7168): (64, 16, 256, 128, 4),
            (64, 7168, 2048): (64, 64, 256, 112, 0), (17, 24576, 1536): (128, 32, 128, 192, 0),
            (1, 129280, 7168): (64, 16, 128, 264, 0), (128, 4096, 16384): (128, 128, 128, 128, 4),
            (8, 128, 128): (64, 16, 128, 2, 0)}.items():
        t = choose(m, n, k, 132)
        assert isinstance(t, division.Config)
        assert (t.m, t.n, t.k_bytes, t.programs, t.parts) == way
    assert choose(256, 7168, 4096, 132) in TILES and choose(512, 7168, 16384, 132) in TILES


def test_rejects():
    a, b = np.zeros((8, 256), E4M3), np.zeros((8, 256), E4M3).T
    good = np.ones((8, 2), np.float32), np.ones((1, 2), np.float32)
    wide = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    for match, args in [(r"scale_a must be fp32 \[8, 2\], found fp32 \[8, 1\]", (a, b, good[0][:, :1], good[1])),
                        (r"scale_b must be fp32 \[1, 2\]", (a, b, good[0], good[0])),
                        ("bf16 x bf16 is not supported", (*wide, *good)),
                        ("K contiguous", (a, np.ascontiguousarray(b), *good))]:
        with pytest.raises(LaunchError, match=match):
            matmul_blockscaled(*args)
    t = scaled_rows.TILES[0]
    for match, config in [("none of scaled_rows.TILES", replace(t, m=32)), ("none of", replace(t, ctas=2)),
                          ("divides 4 tiles among 8 programs, the result has 1 tiles", t.split(256, 8, 2))]:
        with pytest.raises(LaunchError, match=match):
            matmul_blockscaled(a, b, *good, config=config)


@pytest.mark.parametrize("t", TILES, ids=lambda t: f"{t.m}x{t.n}")
def test_compiles(t):
    """No spills; products lead; the first one of a block does not read the sum, so nothing clears it."""
    kernel = block_scaled_kernel.compile(
        f"desc<fp8e4nv[{t.m}x128]>", f"desc<fp8e4nv[{t.n}x128]>", f"desc<bf16[{t.m}x{t.n}]>", "*fp32", "*fp32",
        *["int32"] * 7, BM=t.m, BN=t.n, GROUP=8, num_warps=t.warps, num_stages=t.stages, num_ctas=t.ctas)
    assert kernel.resources.spill_stores == kernel.resources.spill_loads == 0 and not kernel.resources.messages
    if t.warps == 12:                       # one warpgroup adds while the others multiply
        assert "3 consumer warpgroups" in kernel.report() and "products_ahead" not in kernel.report()
        return
    sets = dict(re.findall(r"setp\.ne\.b32 (%p\d+), (\d), 0;", kernel.ptx))
    adds = [sets[p] for p in re.findall(r"wgmma\.mma_async.*\}, %rd?\d+, %rd?\d+, (%p\d+),", kernel.ptx)]
    assert "".join(adds) == "0111" * 4, "two products in the loop, one before it, one after it"
    assert "specialised" in kernel.report()
    assert "part of the next iteration is in flight while this one's is used (products_ahead)" in kernel.report()


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("t", scaled_rows.TILES, ids=lambda t: f"{t.m}x{t.n}x{t.k_bytes}")
def test_few_rows_compile(t, parts):
    """No spills; a product in flight beside the one that is added, but where two would fill the registers; deep rings.
    Where more programs than multiprocessors are launched, two fit one."""
    for tiles in (2, 40):
        config = t.split(tiles * t.m, t.n, parts) if parts > 1 else replace(t, programs=tiles)
        options = scaled_rows.options(config, t.n, tiles * t.m, 2, 40)
        kernel = scaled_rows.few_rows_kernel.compile(
            f"desc<fp8e4nv[{t.m}x128]>", f"desc<fp8e4nv[{t.n}x128]>",
            f"desc<fp32[{t.m}x{t.n}]>" if parts > 1 else f"desc<bf16[{t.n}x{t.m}]>", "*fp32", "*fp32", *["int32"] * 7,
            BM=t.n, BN=t.m, BLOCKS=t.k_bytes // 128, GROUP=8, PARTS=parts, **options)
        resources, shared = kernel.resources, scaled_rows.together(config, 40)
        assert resources.spill_stores == resources.spill_loads == 0 and not resources.messages
        assert shared == (2 if config.programs > 40 and t.n <= 32 and t.m * t.n * t.k_bytes <= 2 ** 19 else 1)
        assert shared * (kernel.metadata.shared_bytes + 1024) <= 228 * 1024
        assert shared == 1 or resources.registers <= 128 and kernel.metadata.num_threads == 256
        assert kernel.metadata.num_stages * (t.m + t.n) * t.k_bytes * shared >= 100 * 1024
        ahead = t.k_bytes == 128 and t.n < 128 and (shared == 1 or t.m * t.n <= 2048)
        assert ("(products_ahead)" in kernel.report()) == ahead
        if t.k_bytes == 256:
            waits = re.findall(r"wgmma.wait_group.sync.aligned (\d)", kernel.ptx)
            assert waits == ["1", "0"], "one product of a pair is added while the other is computed"


def test_what_stands_behind_a_wait():
    """Between a slot's bytes and the first product on them nothing is computed, and the wait was tried long before.
    Scales are loaded for the next block behind the product of those for this one, which ptxas must not turn round: on an
    H200 that use would wait for the new loads, which have the same scoreboard."""
    t = next(t for t in TILES if t.warps == 8)
    ptx = block_scaled_kernel.compile(
        f"desc<fp8e4nv[{t.m}x128]>", f"desc<fp8e4nv[{t.n}x128]>", f"desc<bf16[{t.m}x{t.n}]>", "*fp32", "*fp32",
        *["int32"] * 7, BM=t.m, BN=t.n, GROUP=8, num_warps=t.warps, num_stages=t.stages, num_ctas=t.ctas).ptx
    between = re.findall(r"try_wait.*\n.*bra.*\n.*bra.*\n\S+:\n((?:.*\n)*?)\s+wgmma\.fence", ptx)
    assert len(between) == 4 and not re.search(r"\b(add|mad|shl|shr|or|bfe|cvt)\.", "".join(between))
    tests = re.findall(r"test_wait\S+ %p\d+", ptx)
    assert len(tests) == 4 and ptx.count("test_wait") == 4
    halves = re.findall(r"wgmma\.commit_group.*\n((?:.*\n)*?)\s+wgmma\.wait_group", ptx)[1:3]
    for half in halves:
        kinds = re.findall(r"(mul\.rn\.f32|bar\.warp\.sync|ld\.global)", half)
        assert kinds == ["mul.rn.f32", "mul.rn.f32", "bar.warp.sync", "ld.global", "ld.global", "bar.warp.sync", "ld.global"]
