"""What is loaded when: `import tilejit` nearly nothing, its kernels no compiler, a launch from the disk cache neither."""
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What nobody pays for who launches a kernel that is on disk already.
COMPILER = ("tilejit.frontend.walker", "tilejit.frontend.building", "tilejit.passes", "tilejit.schedule", "tilejit.ptx.emit",
            "tilejit.ir.ops", "tilejit.layout", "tilejit.emulator", "tilejit.ir.evaluate", "astunparse", "numba", "torch", "jax")
START = "import sys, json, numpy\nbefore = set(sys.modules)\n{}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
LAUNCH = """
sys.path.insert(0, {tests!r})
from stub_driver import HALF, fake_torch, state, tensors
fake_torch()
from tilejit import kernels
x, y = tensors(2, (256, 256), HALF)
kernels.softmax(x), kernels.matmul(x, y)
assert state.launches == 2
before -= {{"tilejit"}}
"""


def loaded(text, **env):
    done = subprocess.run([sys.executable, "-c", START.format(text)], capture_output=True, text=True, timeout=100, cwd=ROOT,
                          env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([str(ROOT), *sys.path]), **env})
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("text", ["import tilejit", "from tilejit import kernels", "import tilejit.kernels"])
def test_an_import_loads_the_packages_alone(text):
    ours = {m for m in loaded(text) if m.startswith("tilejit")}
    assert ours <= {"tilejit", "tilejit.kernels"}


@pytest.mark.parametrize("name", ["softmax", "matmul", "attention", "weight_only_matmul"])
def test_a_kernel_is_loaded_without_a_compiler(name):
    found = loaded(f"from tilejit.kernels import {name}")
    assert not [m for m in found if m.startswith((*COMPILER, "cuda", "ml_dtypes", "subprocess", "tempfile", "difflib"))]


def test_functions_stand_where_their_modules_are_called_alike():
    loaded("import tilejit.kernels.fused, tilejit.kernels.matmul, tilejit.kernels.attention.forward\n"
           "from tilejit import kernels\n"
           "assert [getattr(kernels, n) for n in kernels.__all__] and callable(kernels.matmul)\n"
           "assert kernels.matmul is sys.modules['tilejit.kernels.matmul'].matmul and kernels.matmul.backward\n"
           "assert kernels.streamk is sys.modules['tilejit.kernels.streamk']\n"
           "assert set(kernels.__all__) <= set(dir(kernels))\n"
           "try:\n    kernels.nothing\nexcept AttributeError as error:\n    assert 'nothing' in str(error)")


def test_a_launch_from_disk_loads_no_compiler(stub, tmp_path):
    env = {"LD_LIBRARY_PATH": str(stub), "TILEJIT_CACHE_DIR": str(tmp_path / "cache")}
    text = LAUNCH.format(tests=str(Path(__file__).parent))
    assert "tilejit.passes" in loaded(text, **env)
    found = loaded(text, **env)
    assert not [m for m in found if m.startswith(COMPILER[:-2])], sorted(found)


def test_compiling_loads_little_of_python(tmp_path):
    found = loaded("from tilejit.kernels.add import add_kernel\n"
                   "add_kernel.compile('*fp32', '*fp32', '*fp32', 'int32', BLOCK=64)", TILEJIT_CACHE_DIR=str(tmp_path))
    assert "tilejit.passes" in found and not found & {"subprocess", "tempfile", "cuda", "ml_dtypes"}


def test_the_wheel_stays_small():
    """Below 1 MB: the package's files, compressed as in a wheel, what that notes of each, and its description."""
    files = [p for p in (ROOT / "tilejit").rglob("*") if p.suffix in (".py", ".json", ".typed")]
    size = sum(len(zlib.compress(p.read_bytes(), 6)) + 2 * len(str(p.relative_to(ROOT))) + 114 for p in files)
    assert len(files) > 300 and size + 2_000 < 1_000_000
