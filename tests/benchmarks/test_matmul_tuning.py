"""The library's choice of tiles against many ways: each way computes the product, the fastest is found and named."""
import importlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilejit


@pytest.fixture
def tuning():
    return importlib.import_module("matmul_tuning")


@pytest.fixture
def contender():
    return importlib.import_module("contender")


def matrices(m=300, n=280, k=136):
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k)))
    return a, b.T, (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)


def test_every_way_has_its_own_name(tuning):
    found = tuning.ways(8192, 8192, 64)
    assert len({w.label for w in found}) == len(found) >= 20
    assert {tuning.of_tiles(t, t.group(8192, 64)) for t in tuning.TILES} <= set(found)


def test_the_librarys_own_choice_is_among_the_plans(tuning):
    cases = importlib.import_module("matmul_cases")
    for c in cases.cases_of("tuning"):
        size = cases.BYTES[c.dtype]
        found = tuning.plans(c.m, c.n, c.k, size)
        assert tuning.chosen(c.m, c.n, c.k, size) in found, c.label
        assert 60 <= len(found) <= 150


@pytest.mark.parametrize("m, n", [(3000, 7000), (4096, 4096), (2049, 6152)])
def test_the_parts_of_a_plan_are_the_whole_result(tuning, m, n):
    for plan in tuning.plans(m, n, 4096, 2).values():
        seen = np.zeros((n, m) if plan[0][0].turned else (m, n), np.uint8)
        for _, (m0, n0, m1, n1) in plan:
            seen[m0:m1, n0:n1] += 1
        assert (seen == 1).all()


def test_every_way_compiles(tuning, monkeypatch):
    """To PTX, in one raster; what cannot be compiled should not be in the list."""
    monkeypatch.setenv("TILEJIT_PTXAS", "driver")
    out = np.zeros((300, 280), ml_dtypes.bfloat16)
    picked = list({replace(w, group=0): w for w in tuning.ways(8192, 8192, 64)}.values())
    for dtype, ways in ((ml_dtypes.bfloat16, picked), (ml_dtypes.float8_e4m3fn, picked[::4])):
        a, b, _ = matrices(k=144)
        a, b = a.astype(dtype), b.T.astype(dtype).T
        assert tuning.prepared({w.label: [tuning.launch_of(a, b, out, w, (0, 0, *((280, 300) if w.turned else (300, 280))))] for w in ways}) == {}


def test_the_best_plan_computes_the_product_and_says_what_it_is(tuning, monkeypatch):
    """Here the divided one is best; one that does not fit into shared memory is left out."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    a, b, exact = matrices()
    out, seen, whole = np.full(exact.shape, np.nan, exact.dtype), [], (0, 0, 300, 280)

    def burst(call):
        seen.append(call)
        return lambda calls: {1: 0.5}.get(seen.index(call), 1.0)

    Way = tuning.Way
    found = [((Way(128, 256, 8), whole),), ((Way(128, 128, 4), (0, 0, 256, 280)), (Way(64, 64, 4), (256, 0, 300, 280))),
             ((Way(128, 256, 8, stages=8), whole),)]
    best = tuning.best(a, b, out, {"other": lambda: None}, burst, {tuning.name_of(p): p for p in found})
    assert best.note == "128x128x128B w4 g16 to 256,280 + 64x64x128B w4 g16, best of 3" and best.out is out
    assert np.array_equal(best.call(), exact)


def test_a_race(contender):
    """A first look at all, bursts of the best few; who cannot start is named, a broken GPU ends it."""
    looked = []

    def entrant(name, times):
        turn = iter(times)

        def burst(calls):
            looked.append(name)
            return next(turn, times[-1])

        return lambda: burst

    def broken():
        raise ValueError("no such layout")

    found = contender.race({"a": entrant("a", [9, 1.00, 1.2]), "b": entrant("b", [9, 1.05, 1.0]), "c": broken,
                            "d": entrant("d", [9, 3.0])}, rest=0)
    assert found.order == ("b", "a") and found.failed == {"c": "ValueError: no such layout"}
    assert looked.count("d") == 2 < looked.count("a")
    assert contender.race({"c": broken}).order == ()

    def dead():
        raise RuntimeError("CUDA error: an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        contender.race({"a": entrant("a", [1, 1]), "x": dead})


def test_the_table_says_how_far_the_choice_is_from_the_best():
    report = importlib.import_module("matmul_report")
    row = {"case": "a", "peer": "best of many", "ratio": 0.8, "ours_note": "X", "note": "Y, best of 3"}
    assert report.choices([row]) == ["a: heuristic time / best time 1.250; X against Y, best of 3"]
    assert tilejit.multiprocessors() > 0


@pytest.mark.parametrize("turned", [False, True])
def test_a_streamed_plan_computes_the_product(tuning, monkeypatch, turned):
    """Three tiles of four by two programs; flags and workspace serve any number of calls."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 4)
    a, b, exact = matrices(200, 120)
    out = np.full(exact.shape, np.nan, exact.dtype)
    way = tuning.Way(128, 64, 4, 2, 8, stream=3, turned=turned)
    assert way.label.endswith("c2 streamed" + " turned" * turned)
    plan = ((way, (0, 0, 120, 200) if turned else (0, 0, 200, 120)),)
    best = tuning.best(a, b, out, {}, lambda call: lambda calls: 1.0, {tuning.name_of(plan): plan})
    for _ in range(2):
        out.fill(np.nan)
        assert np.array_equal(best.call(), exact)
