"""How a product is planned: the ways there are, estimates that behave, and plans that cover the result."""
from __future__ import annotations

import importlib
import json
from dataclasses import asdict, replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
from tilejit import kernels
from tilejit.kernels import chip as chips
from tilejit.kernels import planning
from tilejit.kernels.estimate import Table, estimate
from tilejit.kernels.launches import tail
from tilejit.kernels.planning import LARGE, SMALL, Plan, choose, table, ways_of
from tilejit.kernels.problem import Problem
from tilejit.kernels.product.sums import sum_parts_kernel
from tilejit.kernels.routes import shortest
from tilejit.kernels.way import DEALT, Way
from tilejit.schedule.registers import BESIDE
from tilejit.testing import rel_error

CHIP = chips.load(chips.FOLDER / "h200.json")
module = importlib.import_module("tilejit.kernels.matmul")


def one(p, way, chip):
    """Nanoseconds that a way takes."""
    return estimate(p, Table((way,)), chip)[0]


def problem(m, n, k, size=2, b_rows=False, **more):
    """Of packed matrices, a row-major."""
    return Problem(m, n, k, size, True, b_rows, (k * size, (n if b_rows else k) * size, 2 * n), **more)


PROBLEMS = st.builds(problem, st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 20000), st.sampled_from([1, 2]),
                     st.booleans())


@pytest.mark.parametrize("path", sorted(chips.FOLDER.glob("*.json")), ids=lambda p: p.stem)
def test_the_chips(path):
    """Every file has every number, or says whose it shares, all positive, and says where they are from."""
    found, given = chips.load(path), json.loads(path.read_text())
    assert given.keys() - {"like"} <= asdict(found).keys() and ("like" in given or given.keys() == asdict(found).keys() - {"hopper"})
    assert found.origin and found.origin == given["origin"]
    assert all(v > 0 or v == 0 and k in ("outside", "pair", "within") for k, v in asdict(found).items() if isinstance(v, (int, float)))
    assert set(found.speeds) <= {str(w) for w in LARGE}


def test_chips_by_name():
    names = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H20": "h20", "": "h200"}
    assert [chips.chip(n, 100).name for n in names] == [chips.load(chips.FOLDER / f"{f}.json").name for f in names.values()]
    assert chips.chip("NVIDIA H200", 100).multiprocessors == 100


def test_terms_of_a_calibrated_chip():
    """Lines beyond a matrix's end cost those tiles that have them, waiting costs CTAs that wait, memory hides, and
    programs on more than half of the multiprocessors have neighbours."""
    p, wide, few = problem(200, 4096, 4096), problem(256, 4096, 4096), problem(128, 4096, 4096)
    alone, pair = Way(128, 128, 4), Way(256, 128, 8, 2)
    none = dict(outside=0.0, pair=0.0, behind=1.0, neighbour=0.0)
    plain = replace(CHIP, **none)
    outside, waiting, hidden, beside = (replace(CHIP, **{**none, **x}) for x in (
        {"outside": 4.0}, {"pair": 0.2}, {"behind": 3.0}, {"neighbour": 0.4}))
    assert one(p, alone, outside) > one(p, alone, plain) and one(wide, alone, outside) == one(wide, alone, plain)
    assert one(p, pair, waiting) > one(p, pair, plain) and one(p, alone, waiting) == one(p, alone, plain)
    assert one(wide, Way(64, 128, 4), beside) > one(wide, Way(64, 128, 4), plain) and one(few, alone, beside) == one(few, alone, plain)
    large = problem(200, 16384, 16384)
    assert one(large, alone, hidden) < one(large, alone, plain) < one(large, alone, hidden) * 2


def test_l2_keeps_all_or_nothing():
    """Of arrays that are used again and again: twice the bytes take many times as long where they fit no more."""
    way = Way(64, 16, 4, swap=True, k_bytes=256)
    small, large, larger = (one(problem(1, 4096 * i, 4096), way, CHIP) for i in (1, 2, 4))
    assert large > 2.5 * small and larger < 2.2 * large


@settings(max_examples=40, deadline=None)
@given(PROBLEMS, st.integers(1, 3))
def test_more_takes_longer(p, times):
    """A deeper K, more rows and more columns never take a way less time (but for what idle multiprocessors leave the
    others, and cost memory); a second batch neither. (More columns of rows narrower than a line may, and rows where
    lines beyond the end were.)"""
    p, chip = replace(p, b_rows=False), replace(CHIP, outside=0.0)
    tiles = ways_of(p, chip)
    t = estimate(p, tiles, chip, parts=np.ones(len(tiles.ways), int))
    assert np.isfinite(t).any() and (t[np.isfinite(t)] > CHIP.launch).all()
    for more in (replace(p, k=p.k * (1 + times)), replace(p, m=p.m * (1 + times)), replace(p, n=p.n * (1 + times)),
                 replace(p, batches=1 + times)):
        after = estimate(more, tiles, chip, parts=np.ones(len(tiles.ways), int))
        assert (after >= 0.95 * t - CHIP.overlap).all()


@settings(max_examples=40, deadline=None)
@given(PROBLEMS)
def test_plans(p):
    """The plan is none of those that take longer; ways divide what they say."""
    (way, ns), times = choose(p, CHIP), planning.considered(p, CHIP)[2]
    assert ns <= times.min() * 1.0001
    assert way.ctas * way.programs <= 132 and way.parts * way.k_ctas <= max(way.k_ctas, -(-p.k_bytes // way.k_bytes))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1024), st.integers(1, 2048), st.integers(1, 20000), st.sampled_from([(None, 1), (None, 2), (3, None), (1, None)]))
def test_restricted(m, n, k, limits):
    """So many programs a tile, as far as there are blocks, or so many CTAs that divide K."""
    split, ctas = limits
    t = choose(problem(m, n, k), CHIP, split, ctas).way
    assert ctas is None or t.k_ctas == ctas
    assert split is None or max(1, t.parts) == min(split, -(-2 * k // t.k_bytes))


@settings(max_examples=40, deadline=None)
@given(PROBLEMS)
def test_without_clusters(p):
    """Where mma.sync multiplies, tiles are of one CTA, as wide as a power of two."""
    t = choose(p, replace(CHIP, hopper=False)).way
    assert t.ctas == 1 and t.n & t.n - 1 == 0 and t.m & t.m - 1 == 0 and not t.swap


def test_a_choice_is_quick():
    """A few calls of numpy for all ways together, not one for each way."""
    import cProfile
    import pstats

    planning.choose.cache_clear()
    choose(problem(100, 200, 300), CHIP)                          # tables are made once
    profile = cProfile.Profile()
    profile.runcall(choose, problem(1000, 2000, 300), CHIP)
    assert pstats.Stats(profile).total_calls < 30000


def test_what_is_read_twice_takes_longer():
    """Lines that begin with sectors of L2 but not with its lines, and elsewhere; a second operand side by side in narrow
    strips; results in lines that begin anywhere."""
    p, t = problem(4096, 4096, 4096), Way(128, 256, 8)
    sectors, anywhere = (replace(p, pitches=(pitch, pitch, 8192)) for pitch in (8224, 8208))
    assert one(p, t, CHIP) < one(sectors, t, CHIP) < one(anywhere, t, CHIP)
    assert one(p, t, CHIP) < one(replace(p, pitches=(8192, 8192, 8208)), t, CHIP)
    wide, narrow = Way(128, 192, 4), Way(128, 160, 4)
    assert narrow.strip == 32 and wide.strip == 64
    rows = replace(p, b_rows=True)
    whole = replace(CHIP, outside=0.0)
    assert one(rows, wide, whole) == one(p, wide, whole) and one(rows, narrow, CHIP) > one(p, narrow, CHIP)


def test_tiles_with_room():
    """A bias and an activation find registers in every tile but those with 192 sums a thread; where results are 32 bits
    wide, in those with 160 at most, or with 80 of three warpgroups."""
    tiles = (*LARGE, *SMALL)
    assert {t.sums for t in tiles if not t.roomy(2)} == {192}
    assert {(t.sums, t.warps == 12) for t in tiles if t.roomy(2) and not t.roomy(4)} == {(176, False), (96, True), (88, True)}
    p = problem(4096, 8192, 4096, ended=True)
    assert all(t.roomy(2) for t in ways_of(p, CHIP).ways) and choose(p, CHIP, tiles=table(LARGE)).way.roomy(2)
    assert all(t.roomy(4) or t.swap for t in ways_of(replace(p, out_bytes=4), CHIP).ways)


def test_second_operands_side_by_side_are_read_in_strips():
    """Of 32 columns at least."""
    assert all(t.swap or t.strip >= 32 for t in ways_of(problem(100, 100, 100, b_rows=True), CHIP).ways)
    assert any(t.strip < 32 for t in ways_of(problem(100, 100, 100), CHIP).ways)


def test_wide_tiles_in_turn():
    """Two groups of consumers take tiles of four warps in turn, which is asked for where the compiler does not do so by
    itself."""
    wide = [t for t in LARGE if "num_consumer_groups" in t.options()]
    assert wide and DEALT == 232 - BESIDE["tile"]
    assert all(t.in_turn and t.sums > DEALT and t.options()["num_consumer_groups"] == 2 for t in wide)
    assert all(t in wide or t.sums <= DEALT for t in LARGE if t.in_turn)


def test_what_is_walked_together_stays_in_l2():
    """2048 rows, 4096 where K is short, and where that is all of a matrix of 17 MiB or less; rounded up to tiles, of which
    there are at most 16 or 32. One row after another where the first operand is the larger one and the other one small."""
    assert {t.m: (t.group(8192, 8192, 64), t.group(8192, 8192, 16)) for t in (*LARGE, *SMALL) if not t.columns} == {
        256: (8, 16), 128: (16, 32), 64: (16, 32)}
    t = Way(128, 192, 4)
    sizes = (8192, 64), (8192, 32), (4096, 32), (4096, 33), (8192, 16), (512, 8)
    assert [t.group(m, 9000, blocks) for m, blocks in sizes] == [16, 16, 32, 32, 32, 32]
    assert t.group(7168, 200, 128) == 1 and t.group(200, 7168, 128) == 32
    assert Way(128, 224, 4, 2, "N").group(7168, 200, 128) == 16


def test_a_printed_plan():
    """The ways considered with their estimates, the choice; what is copied first, or passes through registers."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((300, 512), (256, 512)))
    text = str(kernels.plan(a, b.T))
    assert text.startswith("300x256x512 NT, 16 bits on 132 multiprocessors of NVIDIA H200: ") and " us  " in text
    assert text.split("\n")[-1].startswith("chosen, ") and str(choose(problem(300, 256, 512), CHIP).way) in text
    a, b = np.zeros((64, 5001), np.float16), np.zeros((5001, 64), np.float16)
    assert kernels.plan(a, b).startswith("a copied, and:\n64x64x5001")
    assert "nothing to sum" in kernels.plan(a[:, :0], b[:0])
    with pytest.raises(tilejit.LaunchError, match="5001 != 64"):
        kernels.plan(a, b.T)


@pytest.mark.parametrize("m, n, k", [(2000, 2001, 1024), (4000, 4001, 4096), (2048, 50257, 768), (8000, 8001, 512)])
def test_large_results_without_tma_are_stored_in_lines(m, n, k):
    way = choose(replace(problem(m, n, k), stores=2), CHIP).way
    assert way.ctas == 1 and way.n & (way.n - 1) == 0 and not (way.swap and way.sums > 64)


def test_matmul_takes_the_plan():
    """What `choose` says is what is launched."""
    bf16 = tilejit.ir.types.bf16
    for m, n, k, biased in ((8192, 8192, 8192, False), (8192, 28672, 8192, True), (16, 8192, 8192, False), (512, 512, 65536, False)):
        a, b, c, bias = (tilejit.ArrayInfo(0, bf16, *x, 0) for x in (
            ((m, k), (k, 1)), ((k, n), (1, k)), ((m, n), (n, 1)), ((n,), (1,))))
        launched = module._work((a, b, bias if biased else None, c), None, 132, None, None).launches
        t, given = choose(problem(m, n, k, ended=biased), CHIP).way, launched[0].kernel.given
        assert (given["BM"], given["BN"]) == (t.m, t.n) and given.items() >= t.options().items()
        assert launched[0].grid[0] * t.ctas <= 132
        assert [x.kernel.kernel for x in launched[1:]] == [sum_parts_kernel] * (t.parts > 0)


def test_autotuning_takes_the_fastest_and_remembers_it(monkeypatch, tmp_path):
    """Eight plans at most are measured, once for facts; from disk the next time."""
    from tilejit.tools import tuned

    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    rng, measured = np.random.default_rng(0), []
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((96, 256), (72, 256)))

    def fastest(kernel, values, calls):
        def bench(call):
            measured.append(call())
            return 1.0 if len(measured) == 3 else 2.0
        return tuned.fastest(kernel, values, calls, bench)

    monkeypatch.setattr(tilejit, "fastest", fastest)
    monkeypatch.setattr(module, "_tuned", {})
    for again in range(3):
        with tilejit.knobs(target="evaluator"):
            out = kernels.matmul(a, b.T, autotune=True)
        assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64).T) <= 4e-3
        assert 3 <= len(measured) <= 8 and len(set(module._tuned.values())) == 1
        if again == 1:
            (name,) = module._tuned.values()
            module._tuned.clear()
    assert list(module._tuned.values()) == [name] and name == list(module._plans(*next(iter(module._tuned))))[2]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("way", [
    Way(64, 64, 4), Way(128, 32, 4, 2, programs=2, stream=3), Way(64, 64, 4).divided(100, 200, 2),
    Way(64, 32, 4, 2, "K", swap=True), Way(64, 96, 4, 2, "N")], ids=["whole", "streamed", "parts", "k", "columns"])
def test_matmul_by_ways(target, monkeypatch, way):
    """With a bias, and tiles that hang over the ends."""
    monkeypatch.setattr(module, "choose", lambda *args: Plan(way, 0.0))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 4)
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((100, 192), (200, 192)))
    bias = rng.standard_normal(200).astype(np.float32)
    out = np.full((100, 200), np.nan, np.float32)
    with tilejit.knobs(target=target):
        kernels.matmul(a, b.T, bias=bias, out=out)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T + bias, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("k, size, left", [(4112, 1, 32), (2000, 1, 96), (4104, 2, 16), (4096, 2, 0), (4095, 2, 0),
                                           (120, 1, 0), (5000, 2, 16)])
def test_what_is_left_of_k(k, size, left):
    """In steps of 32 bytes, behind whole blocks; not of tiles in turn, nor for other chips."""
    p = problem(100, 100, k, size)
    assert tail(p, LARGE[0], CHIP) == left
    assert not any(tail(p, t, CHIP) for t in LARGE if t.in_turn) and not tail(p, LARGE[0], CHIP, "relu")
    assert tail(p, LARGE[0], replace(CHIP, hopper=False)) == 0


@pytest.mark.parametrize("k", [136, 200, 248])
@pytest.mark.parametrize("way", [LARGE[0], replace(LARGE[0], swap=True)])
def test_matmul_of_ragged_k(monkeypatch, way, k):
    """Both orders of tiles, K that ends in any quarter of a block."""
    monkeypatch.setattr(module, "choose", lambda *args: Plan(way, 0.0))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 1)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((100, k), (200, k)))
    with tilejit.knobs(target="emulator"):
        out = module.matmul(a, b.T, out_dtype=tilejit.language.float32)
    assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64).T) <= 1e-6


def test_threads_store_wide_tiles_faster():
    """Each row of a tile costs where threads store it; where TMA does, rows are of no consequence."""
    def ratio(stores):
        p = replace(problem(8192, 8192, 64), stores=stores)
        return one(p, Way(128, 128, 4), CHIP) / one(p, Way(64, 256, 4), CHIP)

    assert ratio(2) > 1.05 > ratio(0)


def test_programs_share_multiprocessors_where_there_are_more_of_them():
    """Eighty programs that could be two a multiprocessor are one; twice as many as multiprocessors are two."""
    alone, beside = Way(128, 16, 4, swap=True), Way(128, 16, 4, swap=True, together=2)
    few, many = problem(8, 80 * 128, 14568), problem(8, 264 * 128, 14568)
    assert one(few, beside, CHIP) < 1.03 * one(few, alone, CHIP)
    assert one(many, beside, CHIP) > 1.3 * one(few, beside, CHIP)


@pytest.mark.parametrize("k, k_bytes", [(8, 32), (16, 32), (24, 64), (32, 64), (40, 128)])
def test_a_short_k_has_short_blocks(k, k_bytes):
    """TMA would fill in the rest of a longer one."""
    assert choose(problem(4000, 4096, k), CHIP).way.k_bytes == k_bytes


@pytest.mark.parametrize("n, units", [(5448, (16, 16)), (5456, (0, 0))])
def test_large_results_of_rows_that_begin_within_sectors(n, units):
    """Of a short K: threads read both operands, so that programs do not run ahead of what they store."""
    h100 = chips.load(chips.FOLDER / "h100.json")
    a, b, c = (tilejit.ArrayInfo(0, tilejit.language.bfloat16, s, (s[1], 1), 0) for s in ((12147, 16), (16, n), (12147, n)))
    call = module._call((a, b, None, c), None, 132, None, None)._replace(chip=h100)
    assert shortest(module._routes(call)).call.problem.units == units


def test_multiprocessors_of_four_are_neighbours():
    assert (Way(256, 128, 4, 4).room(132), Way(256, 128, 8, 2).room(132), Way(128, 64, 4, 4, "K").room(132)) == (30, 66, 33)
