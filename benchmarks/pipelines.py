"""Pictures of one matrix product in four forms, from the emulator's timeline (an illustration, not a measurement).

    PYTHONPATH=. python benchmarks/pipelines.py [--out docs]

Writes pipeline-FORM.png for inline, specialised, storerole and pingpong, and prints how busy the tensor cores are.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilejit
from tilejit.kernels.matmul import matmul_kernel
from tilejit.runtime.timeline import Timeline

#: name -> launch options
FORMS: dict[str, dict[str, Any]] = {
    "inline": dict(num_warps=8, warp_specialize=False),
    "specialised": dict(num_warps=8, warp_specialize=True, num_consumer_groups=1, store_role=False),
    "storerole": dict(num_warps=8, warp_specialize=True, num_consumer_groups=1, store_role=True),
    "pingpong": dict(num_warps=4, warp_specialize=True, num_consumer_groups=2)}
M, N, K, BM, BN, BK = 512, 128, 512, 128, 128, 64


def pipeline(name: str, path: Path, clocks: int) -> Timeline:
    """Draw one form's first `clocks`: one CTA computes four tiles. Raises ArithmeticError for a wrong result."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((M, K), (N, K)))
    out = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    desc = tilejit.TensorDescriptor.from_tensor
    with tempfile.TemporaryDirectory() as folder:            # for the trace that comes with the picture
        line = tilejit.timeline(
            matmul_kernel, (1,), desc(a, (BM, BK)), desc(b, (BN, BK)), desc(out, (BM, BN)), None, M, N, K, BM=BM, BN=BN,
            BK=BK, GROUP=8, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_stages=4, **FORMS[name],
            out=Path(folder, path.name), window=(0, clocks))
        path.write_bytes(Path(folder, path.name).read_bytes())
    if not np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)):
        raise ArithmeticError(f"{name}: wrong result")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs", help="folder of the pictures")
    parser.add_argument("--clocks", type=int, default=16000, help="how much of the run they show")
    args = parser.parse_args(argv)
    for name in FORMS:
        line = pipeline(name, Path(args.out, f"pipeline-{name}.png"), args.clocks)
        print(f"{name}: {line.clocks} clocks, tensor cores busy {line.busy(0, 'tensor core'):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
