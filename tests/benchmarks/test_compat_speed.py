"""benchmarks/compat_speed.py: what is measured within its limits, and what is named when it is not."""
import math
import time

import pytest


@pytest.fixture(scope="module")
def speed(folder):
    import compat_speed

    return compat_speed


class Fake:
    """A side whose cases launch one kernel, `slow` ones after their limit, `bad` ones with an error."""

    failed: type[Exception]

    def __init__(self, triton):
        self.triton, self.process, self.asked = triton, object(), []

    def ask(self, limit, method, *given):
        self.asked.append(given)
        if method == "names":
            return []
        if given[0] == "slow":
            raise self.failed(f"over {limit:.0f} s")
        if given[0] == "bad" and self.triton:
            raise self.failed("ValueError: no")
        return 2.0 * (1 + self.triton) if method == "burst" else (["kernel", "extra" * self.triton], [[1.0, math.nan]])

    def end(self):
        pass


def measured(speed, names, seconds=60.0):
    Fake.failed, notes = speed.Failed, []
    compiled = speed.compile_cases(names, 4, 5.0, speed.Clock(seconds), Fake)
    rows, left_out = speed.measure(names, {t: Fake(t) for t in (False, True)}, compiled, speed.Clock(seconds), 5.0,
                                   lambda rows, left_out: notes.append((len(rows), len(left_out))))
    return rows, left_out, notes


def test_kernels_of_both_sides_are_timed_and_the_rest_is_named(speed):
    rows, left_out, notes = measured(speed, ["a", "slow", "bad", "b"])
    assert [(row["case"], row["kernel"], row["us"], row["triton_us"], row["speed"], row["gap"]) for row in rows] == [
        ("a", "kernel", 2.0, 4.0, 2.0, 0.0), ("b", "kernel", 2.0, 4.0, 2.0, 0.0)]
    assert left_out == {"slow": "tilejit: over 5 s; Triton: over 5 s", "bad": "Triton: ValueError: no"}
    assert notes == [(1, 0), (1, 1), (1, 2), (2, 2)]
    assert "geomean of speed 2.000" in speed.summary(rows, left_out) and "left out: bad: Triton" in speed.summary(rows, left_out)


def test_without_time_everything_is_left_out(speed):
    rows, left_out, _ = measured(speed, ["a", "b"], 0.0)
    assert not rows and all("not compiled in time" in why for why in left_out.values())


def test_gap_takes_equal_infinities_and_nans_as_equal(speed):
    assert speed.gap([[1.0, math.inf, math.nan]], [[1.0, math.inf, math.nan]]) == 0
    assert speed.gap([[1.0, math.nan]], [[1.0, 2.0]]) == math.inf
    assert speed.gap([[1.0]], [[1.0, 2.0]]) == math.inf
    assert speed.gap([[3.0, 4.5]], [[3.0, 4.0]]) == pytest.approx(0.1)


def hangs(pipe, seconds):
    while (request := pipe.recv()) is not None:
        if request[0] == "hang":
            time.sleep(seconds)
        if request[0] == "break":
            pipe.send((None, request[-1]))
            return
        pipe.send((request[0] != "fail", request[-1]))


def test_a_process_that_hangs_is_replaced(speed):
    side = speed.Side(hangs, 60)
    try:
        assert side.ask(30, "echo", 5) == 5
        with pytest.raises(speed.Failed, match="why"):
            side.ask(30, "fail", "why")
        assert side.process is not None
        with pytest.raises(speed.Failed, match="over 0 s"):
            side.ask(0.1, "hang", 1)
        assert side.process is None
        assert side.ask(30, "echo", 6) == 6
        with pytest.raises(speed.Failed, match="no GPU"):
            side.ask(30, "break", "no GPU")
        assert side.ask(30, "echo", 7) == 7
    finally:
        side.end()


def test_orders_begin_evenly(folder):
    pytest.importorskip("torch")
    import compat

    assert [compat.apart(i) for i in range(1, 8)] == [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
