"""Inductor's own kernels, compiled and launched by tilejit in Triton's place."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch._inductor")
SCRIPT = """
import sys, tilejit.compat.triton
device = sys.argv[1]
tilejit.compat.triton.install()
import torch
from torch._inductor import config
from tilejit.compat.triton.compiler.compiler import CompiledKernel
config.cpu_backend, config.force_disable_caches = "triton", True
torch.set_default_device(device)
launched, run = [], CompiledKernel.run
CompiledKernel.run = lambda self, *args: launched.append(self.name) or run(self, *args)
F, x, y = torch.nn.functional, torch.randn(12, 300), torch.randn(12, 300)
cases = [(lambda x, y: F.layer_norm(x * y + 1, (300,)).softmax(-1), x, y), (lambda x, y: (x.cumsum(-1), y.t() + 1), x, y),
         (lambda x, y: (x * y).var(0), x, y), (lambda x, i: x[i].sum(0), x, torch.tensor([3, 1, 3]))]
for f, *args in cases:
    found, right = torch.compile(f)(*args), f(*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, right))):
        assert torch.allclose(a, b, rtol=2e-4, atol=1e-4), (a - b).abs().max()
assert len(launched) >= len(cases), launched
print("right")
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_its_kernels_are_right(device, tmp_path):
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
           **({"TILEJIT_TARGET": "emulator"} if device == "cpu" else {})}
    done = subprocess.run([sys.executable, "-c", SCRIPT, device], text=True, capture_output=True, env=env)
    assert done.returncode == 0 and done.stdout.split()[-1] == "right", done.stderr[-2000:]
