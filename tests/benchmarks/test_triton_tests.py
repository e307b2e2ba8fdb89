"""The command that runs Triton's own tests: what it makes of their outcomes, and a run of a test written here."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = [{"test": "language/test_a.py::one[1]", "outcome": "passed", "said": ""},
        {"test": "language/test_a.py::one[2]", "outcome": "failed", "said": "KeyError: 12 at 0xab\nmore"},
        {"test": "language/test_a.py::two", "outcome": "failed", "said": "KeyError: 7 at 0xcd"},
        {"test": "runtime/test_b.py::three", "outcome": "xfailed", "said": ""}]


def test_counts_and_groups(folder):
    import triton_tests

    assert triton_tests.counts(ROWS) == {"test_a.py": {"passed": 1, "failed": 2}, "test_b.py": {"xfailed": 1}}
    assert triton_tests.grouped(ROWS) == [("KeyError: # at #", ["language/test_a.py::one[2]", "language/test_a.py::two"])]


def test_a_run(folder, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "language").mkdir()
    (tmp_path / "test_c.py").write_text("""
import pytest, triton

@pytest.mark.parametrize("n", range(9))
def test_it(n, device, fresh_knobs):
    assert triton.knobs is fresh_knobs and device == "cuda" and triton.__name__ == "tilejit.compat.triton"
""")
    run = subprocess.run([sys.executable, str(Path(folder, "triton_tests.py")), str(tmp_path), "test_c.py", "--sample", "4"],
                         capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert "test_c.py                            passed 4" in run.stdout, run.stdout + run.stderr
