"""The recorder without a GPU: what becomes of programs that hang, crash or fail."""
from __future__ import annotations

import sys
import time

import pytest
from record import Lane

WORKER = """
import os, sys, time
for name in sys.argv[1:]:
    print("start", name, flush=True)
    if name == "hangs": time.sleep(60)
    if name == "crashes": os.abort()
    if name == "fails": print("fail fails because so", flush=True); continue
    if name == "faults": print("fault faults CUDA_ERROR_X", flush=True); sys.exit(1)
    if name == "loses": print("fail loses its context", flush=True); sys.exit(1)
    print("done", name, flush=True)
"""


def lane(names: list[str], seconds: float = 30) -> Lane:
    run = Lane([sys.executable, "-c", WORKER], names, time.monotonic() + seconds, one=2, first=5)
    run.thread.join()
    assert not run.left or seconds < 1
    return run


def test_every_other_program_runs() -> None:
    run = lane(["a", "hangs", "b", "crashes", "faults", "c", "fails", "d", "loses", "e"])
    failed = run.failed
    assert run.faults == {"faults": "CUDA_ERROR_X"}
    assert set(failed) == {"hangs", "crashes", "fails", "loses"}
    assert failed["hangs"] == "no answer in 2 s" and failed["crashes"].startswith("the process ended with -6")
    assert failed["fails"] == "because so"


def test_the_time_ends() -> None:
    assert set(lane(["hangs", "a"], 0.5).failed) == {"hangs", "a"}


def test_a_worker_that_cannot_start_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    run = Lane([sys.executable, "-c", "raise SystemExit('no driver')"], ["a"], time.monotonic() + 20)
    run.thread.join()
    assert run.failed == {"a": "not run"} and "no driver" in capfd.readouterr().err
