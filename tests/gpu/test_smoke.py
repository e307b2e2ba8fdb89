"""The GPU run of `benchmarks/gpu_smoke.py`, part by part: `pytest -m gpu`."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["rows", "matmul", "cache", "sass", "sm80"])
def test_part(part, tmp_path):
    """Every part prints PASS and exits with 0."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    script = str(ROOT / "benchmarks/gpu_smoke.py")
    done = subprocess.run([sys.executable, script, "--only", part, "--out", str(tmp_path)], env=env,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and f"PASS {part}" in done.stdout, done.stdout + done.stderr
