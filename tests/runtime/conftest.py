"""What tests of the runtime share: a driver that only remembers."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def stub(tmp_path_factory):
    """A folder with the stub as libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler: the stub driver cannot be built")
    folder = tmp_path_factory.mktemp("stub")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libcuda.so.1"),
                    str(HERE / "libcuda_stub.c"), "-ldl"], check=True)
    return folder
