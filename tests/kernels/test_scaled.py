"""fp8 products with block scales against float64, in the evaluator and on the emulated SM."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, info
from references import StandIn

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import chip as chips
from tilejit.kernels import launches, scaled
from tilejit.kernels.planning import PROMOTED, choose
from tilejit.kernels.problem import Problem
from tilejit.kernels.scaled import matmul_blockscaled
from tilejit.testing import rel_error

CHIP = chips.load(chips.FOLDER / "h200.json")
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
@pytest.mark.parametrize("m, n, k, dtypes", [
    (72, 136, 272, (E4M3, E4M3)), (8, 264, 128, (E5M2, E4M3)), (20, 64, 4112, (E4M3, E5M2)),
    (136, 200, 4112, (E4M3, E5M2)), (520, 72, 144, (E5M2, E5M2))])
def test_block_scales(target, m, n, k, dtypes):
    """Sizes that leave blocks incomplete, as they are chosen; with K divided where it is deep."""
    given, ref = arrays(m, n, k, dtypes)
    t = choose(Problem(m, n, k, 1, step="promote"), CHIP).way
    assert (t.parts > 1) == (k > 1000)
    out = np.full((m, n), np.nan, np.float32)
    with tilejit.knobs(target=target):
        matmul_blockscaled(*given, out, config=t)
    # The tensor cores' fp8 sums keep fewer bits than fp32 (the emulator's too); the evaluator's are fp32's.
    assert rel_error(out, ref) <= (1e-5 if target == "evaluator" else 1e-3)


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("t", [t for t in PROMOTED if t.ctas == 1], ids=str)
def test_parts(t, parts, strided):
    """Whole tiles and divided K, into more parts than it has blocks too; scales that TMA reads, and those it cannot;
    rows fewer than a tile's or more, columns that end within a tile and within a scale's block, a last block cut."""
    rows = t.computed(t.m, t.n)[0]
    m, n, k = rows + 4, 264, 528
    (a, b, a_scale, b_scale), ref = arrays(m, n, k)
    if strided:
        a_scale, b_scale = (np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3] for x in (a_scale, b_scale))
    dtype, bound = (ml_dtypes.bfloat16, 4e-3) if strided else (np.float32, 1e-3)
    out = np.full((m, n), np.nan, dtype)
    with tilejit.knobs(target="emulator"):
        matmul_blockscaled(a, b, a_scale, b_scale, out, config=t.divided(m, n, parts) if parts > 1 else t)
    assert rel_error(out, ref) <= bound


def built(t, turned=False, parts=1):
    """The kernel of a tile, for scales that lie row after row or `turned` column after column."""
    high, wide = t.computed(t.m, t.n)
    m, n, k = 4 * high, 4 * wide, 128 * 4 * parts
    scales = info("float32", m, k // 128, rows_first=not turned), info("float32", -(-n // 128), k // 128)
    infos = (info("float8e4nv", m, k), info("float8e4nv", k, n, rows_first=False), None, info("bfloat16", m, n), *scales)
    work = scaled._work(infos, t.divided(m, n, parts) if parts > 1 else t, 132, None)
    return compiled(work.launches[0], {4: "*fp32", 5: "*fp32"})


@pytest.mark.parametrize("k", [128, 256, 384, 528])
@pytest.mark.parametrize("t", [t for t in PROMOTED if not t.swap], ids=str)
def test_tiles(t, k, monkeypatch):
    """Every tile, two a program, under three policies with the sanitizer; one block of K to five."""
    kernel = launches.product_kernel
    monkeypatch.setattr(launches, "product_kernel", StandIn(
        lambda grid, *args, **options: tilejit.check(kernel, grid, *args, seeds=[1], **options).check()))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: t.ctas)
    given, ref = arrays(t.m + 8, t.n, k)
    out = np.full(ref.shape, np.nan, np.float32)
    with tilejit.knobs(target="emulator"):
        matmul_blockscaled(*given[:2], np.ascontiguousarray(given[2]), given[3], out, config=t)
    assert rel_error(out, ref) <= 1e-3


def test_rejects():
    a, b = np.zeros((8, 256), E4M3), np.zeros((8, 256), E4M3).T
    good = np.ones((8, 2), np.float32), np.ones((1, 2), np.float32)
    wide = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    for match, args in [(r"scale_a must be fp32 \[8, 2\], found fp32 \[8, 1\]", (a, b, good[0][:, :1], good[1])),
                        (r"scale_b must be fp32 \[1, 2\]", (a, b, good[0], good[0])),
                        ("bf16 x bf16 is not supported", (*wide, *good))]:
        with pytest.raises(LaunchError, match=match):
            matmul_blockscaled(*args)


@pytest.mark.parametrize("t", [t for t in PROMOTED if not t.swap], ids=str)
def test_compiles(t):
    """No spills; products lead; the first one of a block does not read the sum, so nothing clears it."""
    kernel = built(t)
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
@pytest.mark.parametrize("t", [t for t in PROMOTED if t.scales_come], ids=str)
def test_scales_by_tma_compile(t, parts):
    """No spills, a product in flight beside the one that is added, eight blocks or 100 KB of them, no load of a number
    but B's scale."""
    kernel = built(t, True, parts)
    assert not kernel.warnings() and kernel.metadata.num_stages >= min(8, 100 * 1024 // ((t.m + t.n) * 128))
    assert "(products_ahead)" in kernel.report()
    assert kernel.ptx.count("ld.global") == 4                # before the loop, in two iterations of it, behind it


def test_what_stands_behind_a_wait():
    """Between a slot's bytes and the first product on them nothing is computed, and the wait was tried long before.
    This block's scales are multiplied in front of the wait, and the next ones are loaded behind the product, which ptxas
    must not turn round: on an H200 that use would wait for the new loads, which have the same scoreboard (10%)."""
    t = next(t for t in PROMOTED if t.warps == 8)
    ptx = built(t).ptx
    between = re.findall(r"try_wait.*\n.*bra.*\n.*bra.*\n\S+:\n((?:.*\n)*?)\s+wgmma\.fence", ptx)
    assert len(between) == 4 and not re.search(r"\b(add|mad|shl|shr|or|bfe|cvt)\.", "".join(between))
    tests = re.findall(r"test_wait\S+ %p\d+", ptx)
    assert len(tests) == 4 and ptx.count("test_wait") == 4
    halves = re.findall(r"wgmma\.commit_group.*\n((?:.*\n)*?)\s+wgmma\.wait_group", ptx)[1:3]
    for half in halves:
        kinds = re.findall(r"(mul\.rn\.f32|bar\.warp\.sync|ld\.global)", half)
        assert kinds == ["bar.warp.sync", "ld.global", "ld.global", "bar.warp.sync", "ld.global"]
    second = re.findall(r"wgmma\.wait_group((?:.*\n)*?)\s+wgmma\.commit_group", ptx)[0]
    assert re.findall(r"mul\.rn\.f32|try_wait|wgmma\.fence", second) == ["mul.rn.f32"] * 2 + ["try_wait", "wgmma.fence"]
