"""Measuring helpers: errors, records, and the pairing of measurements (over a clock of the test's own)."""
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tilejit
from tilejit import testing

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bursts  # noqa: E402
import records  # noqa: E402


def test_rel_error():
    x = np.array([3.0, 4.0])
    assert testing.rel_error(x, x) == 0
    assert testing.rel_error(x + [0, 0.5], x) == pytest.approx(0.1)
    assert testing.rel_error(np.array([3.0, np.nan]), x) == float("inf")
    assert testing.rel_error(np.array([0.0, 2.0]), np.zeros(2)) == 2
    with tilejit.knobs(target="evaluator"):
        assert testing.rel_error(tilejit.to_device(x.astype(np.float16)), x) == 0
    with pytest.raises(ValueError, match="differ"):
        testing.rel_error(x, x[:1])


def test_assert_close():
    testing.assert_close(np.ones(3), np.ones(3) * 1.001, 2e-3)
    with pytest.raises(AssertionError, match="scores: relative error"):
        testing.assert_close(np.ones(3), np.ones(3) * 1.01, 2e-3, "scores")


class Clock:
    """CUDA events whose time is that of the functions called between them; ends must be waited for."""

    def __init__(self):
        self.now, self.rests, self.order, self.sleeps = 0.0, [], [], []

    def torch(self):
        clock = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self):
                self.at = clock.now

            def synchronize(self):
                self.waited = True

            def elapsed_time(self, end):
                return end.at - self.at

        module = types.ModuleType("torch")
        module.cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: None, _sleep=self.sleeps.append)
        module.int8 = "int8"
        module.empty = lambda *a, **k: types.SimpleNamespace(zero_=lambda: None)
        return module

    def call(self, name, milliseconds):
        def fn():
            self.now += milliseconds
            self.order.append(name)
        return fn


@pytest.fixture
def clock(monkeypatch):
    c = Clock()
    monkeypatch.setitem(sys.modules, "torch", c.torch())
    monkeypatch.setattr(bursts.time, "sleep", c.rests.append)
    return c


def test_pairs(clock):
    """Bursts alternate, each after a rest; a ratio above 1 says that ours is faster."""
    p = bursts.bench_pairs(clock.call("a", 2.0), clock.call("b", 3.0), rounds=5, burst=8, idle=0.35)
    assert (p.ours_ms, p.peer_ms, p.ratio, p.quartiles) == (2.0, 3.0, 1.5, (1.5, 1.5))
    assert set(clock.rests) == {0.35} and len(clock.rests) == 12
    assert "".join(clock.order[-80:]) == ("a" * 8 + "b" * 8) * 5


def test_a_burst_is_enqueued_behind_a_sleep_of_the_gpu(clock):
    """The sleep is outside the events and as long as the host took before."""
    burst = bursts.gpu_burst(clock.call("a", 2.0))
    assert (burst(3), burst(5)) == (2.0, 2.0) and "".join(clock.order) == "a" * 8
    assert clock.sleeps[0] == int(5e-5 * 1.9e9) and clock.sleeps[1] >= clock.sleeps[0]


def test_group_bursts_are_interleaved_and_as_long_as_asked(clock):
    """Every round has everyone, from another start each time; short calls come in longer bursts, up to 30."""
    calls = []
    times = {"a": 1.0, "b": 0.01, "c": 9.0}
    contenders = {n: lambda k, n=n: calls.append((n, k)) or times[n] for n in times}
    found = bursts.bench_group(contenders, rounds=3, burst_ms=5.0, rest=10.0)
    assert found == {"a": [1.0] * 3, "b": [0.01] * 3, "c": [9.0] * 3}
    assert [n for n, _ in calls[6:]] == list("abcbcacab")
    assert dict(calls[6:]) == {"a": 5, "b": 30, "c": 2}
    assert clock.rests[-3:] == [0.18, 0.05, 0.03] and min(clock.rests) == 0.03          # c, a, b


def test_a_group_stops_early_but_not_before_a_round(clock):
    assert bursts.bench_group({"a": lambda n: 1.0}, rounds=5, until=0.0) == {"a": [1.0]}


def test_sustained_load_has_no_rest(clock):
    calls = []
    contenders = {n: lambda k, n=n: calls.append((n, k)) or 2.0 for n in "ab"}
    assert bursts.bench_sustained(contenders, each=0.1, rounds=2, warm=0.3) == {"a": [2.0] * 2, "b": [2.0] * 2}
    assert calls == [("a", 2), ("b", 2), ("a", 150), *[("a", 50), ("b", 50)] * 2] and not clock.rests


def test_pair_ratio():
    """Pairs of one round; quartiles lie within the ratios."""
    assert records.pair_ratio([1.0, 2.0, 4.0], [1.1, 2.0, 4.8]) == (1.1, (pytest.approx(1.05), pytest.approx(1.15)))
    assert records.pair_ratio([2.0], [3.0]) == (1.5, (1.5, 1.5))


def test_do_bench(clock):
    assert testing.do_bench(clock.call("a", 2.0)) == 2.0
    assert testing.do_bench(clock.call("a", 2.0), quantiles=[0.5, 0.2]) == [2.0, 2.0]
    assert testing.do_bench(clock.call("a", 2.0), return_mode="min") == 2.0
    assert len(testing.do_bench(clock.call("a", 2.0), rep=20, return_mode="all")) == 10
    with pytest.raises(ValueError, match="return_mode"):
        testing.do_bench(clock.call("a", 2.0), return_mode="mode")


def test_record(tmp_path, monkeypatch):
    """Rows are appended, one a line, with every field of the format."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for case in ("first", "second"):
        path = records.record("b", [records.row("b", case, "bf16", 1.23456, "peer", 2.0, "us", 1.62, (1.5, 1.7))], tmp_path)
    rows = json.loads(path.read_text())
    assert [r["case"] for r in rows] == ["first", "second"] and len(path.read_text().splitlines()) == 4
    assert set(rows[0]) == {"bench", "case", "dtype", "ours", "peer", "peer_value", "unit", "ratio", "spread", "date",
                            "gpu", "driver", "versions", "commit"}
    assert rows[0]["ours"] == 1.2346 and rows[0]["spread"] == [1.5, 1.7] and "python" in rows[0]["versions"]


def test_record_row():
    """A record has the agreed fields, rounded."""
    made = records.row("matmul", "8192", "bf16", 700.123456, "cublas", 690.0, "TFLOPS", 1.014671, (1.0, 1.02))
    assert made == {"bench": "matmul", "case": "8192", "dtype": "bf16", "ours": 700.1235, "peer": "cublas",
                    "peer_value": 690.0, "unit": "TFLOPS", "ratio": 1.0147, "spread": [1.0, 1.02]}
