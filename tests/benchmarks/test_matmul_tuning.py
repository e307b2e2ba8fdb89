"""The library's choice of tiles against many ways: each way computes the product, the fastest is found and named."""
import importlib

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels.way import Way


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


def test_the_librarys_own_choice_is_among_the_plans(tuning):
    cases = importlib.import_module("matmul_cases")
    for c in cases.cases_of("tuning"):
        size = cases.BYTES[c.dtype]
        found = tuning.plans(c.m, c.n, c.k, size)
        assert tuning.chosen(c.m, c.n, c.k, size) in found and 30 <= len(found) <= tuning.PLANS + 1, c.label


def test_the_best_plan_computes_the_product_and_says_what_it_is(tuning, monkeypatch):
    """One that does not fit into shared memory is left out."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    a, b, exact = matrices()
    out, seen = np.full(exact.shape, np.nan, exact.dtype), []

    def burst(call):
        seen.append(call)
        return lambda calls: {1: 0.5}.get(seen.index(call), 1.0)

    ways = {"a": Way(128, 256, 8), "b": Way(128, 128, 4), "c": Way(128, 128, 4, k_bytes=1024)}
    best = tuning.best(a, b, out, {"other": lambda: None}, burst, ways)
    assert best.note == "b, best of 3" and best.out is out
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
