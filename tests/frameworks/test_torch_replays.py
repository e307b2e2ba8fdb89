"""Host functions over torch's tensors are replayed, and seen to compute by torch (`replay_checks.py`)."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent


def test_replays_of_torch_tensors(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler: the stub driver cannot be built")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(tmp_path / "libcuda.so.1"),
                    str(HERE.parent / "runtime" / "libcuda_stub.c"), "-ldl"], check=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEJIT_")}
    env |= {"LD_LIBRARY_PATH": str(tmp_path), "TILEJIT_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), *sys.path])}
    done = subprocess.run([sys.executable, str(HERE / "replay_checks.py")], env=env, capture_output=True, text=True,
                          timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
