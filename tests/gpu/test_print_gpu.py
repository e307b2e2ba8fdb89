"""device_print on a GPU: the driver's vprintf, read from a process of its own (its output is flushed at the end)."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import numpy as np
import tilejit
import tilejit.language as tl

@tilejit.kernel
def show(x, n):
    o = tl.arange(0, 64)
    tl.device_print("x", tl.load(x + o))
    print("n", n, 0.5)

x = tilejit.to_device(np.arange(64, dtype=np.float32))
show[(2,)](x, 7)
x.numpy()
"""


@pytest.mark.gpu
def test_device_print(tmp_path):
    """Every element of every program once, scalars once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    expected = [f"pid ({p}, 0, 0) idx ({i:2}) x: {i:.6f}" for p in range(2) for i in range(64)]
    expected += [f"pid ({p}, 0, 0) idx () n: (operand {i}) {v}" for p in range(2) for i, v in enumerate((7, "0.500000"))]
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == sorted(expected), done.stdout + done.stderr
