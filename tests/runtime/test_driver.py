"""The launch path over a CUDA driver that only remembers (`libcuda_stub.c`), where there is a C compiler."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CHECKS = {
    "launch_checks.py": ["launch", "merged", "lengths", "descriptors", "rank_one", "cupy_arrays", "clusters",
        "room", "dependent_launch", "cooperative_launch", "threads", "forked", "launchers", "quick"],
    "replay_checks.py": ["bound", "bound_options", "bound_calls", "calls", "replays"],
    "driver_checks.py": ["arrays", "errors", "lost", "blocking", "without_ptxas", "other_chip"],
}


@pytest.mark.parametrize("file, check", [(file, check) for file in CHECKS for check in CHECKS[file]])
def test_driver(file, check, stub, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEJIT_")}
    env |= {"LD_LIBRARY_PATH": str(stub), "TILEJIT_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), *sys.path])}
    done = subprocess.run([sys.executable, str(HERE / file), check], env=env, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
