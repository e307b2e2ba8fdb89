"""Where launches are timed."""
import os


def test_a_round_is_timed_on_the_core_where_a_call_is_shortest(monkeypatch, folder):
    import launch

    cores = sorted(os.sched_getaffinity(0))
    best = cores[-1]
    monkeypatch.setattr(launch, "once", lambda fn: 3.5 if os.sched_getaffinity(0) == {best} else 5.0)
    try:
        assert launch.settle(lambda: None, cores) == (3.5, 5.0 if len(cores) > 1 else 3.5)
        assert os.sched_getaffinity(0) == {best}
        best = cores[0]
        launch.settle(lambda: None, cores)
        assert os.sched_getaffinity(0) == {best}
    finally:
        os.sched_setaffinity(0, cores)
