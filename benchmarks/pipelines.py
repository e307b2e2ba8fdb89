"""Pictures of one matrix product in four forms, and of attention, from the emulator's timeline (an illustration, not a
measurement).

    PYTHONPATH=. python benchmarks/pipelines.py [--out docs] [FORM ..]

Writes pipeline-FORM.png for inline, specialised, storerole, pingpong and attention, and prints how busy the tensor
cores are.
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
from tilejit.kernels.attention.forward_kernel import attention_kernel
from tilejit.kernels.attention.scores import LOG2E, Options
from tilejit.kernels.product.plain import matmul_kernel
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


def attention(path: Path, clocks: int, keys: int = 768, d: int = 128) -> Timeline:
    """Draw a block of 128 queries and its keys. Raises ArithmeticError for a wrong result."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 1, d), np.float32).astype(ml_dtypes.bfloat16) for n in (128, keys, keys))
    out = np.full((1, 128, 1, d), np.nan, ml_dtypes.bfloat16)
    blocks = [tilejit.TensorDescriptor.from_tensor(x, (1, 128, 1, d)) for x in (q, k, v, out)]
    with tempfile.TemporaryDirectory() as folder:
        line = tilejit.timeline(
            attention_kernel, (1, 1, 1), *blocks, None, 128, keys, d ** -0.5 * LOG2E, 1, 1, Options(), GROUP=1, PACK=1,
            TAIL=False, SPLIT=1, PARTED=False, PERSISTENT=False, TURNED=False, BM=128, BN=128, D=d, DV=d, num_warps=8,
            out=Path(folder, path.name), window=(0, clocks))
        path.write_bytes(Path(folder, path.name).read_bytes())
    scores = q[0, :, 0].astype(np.float64) @ k[0, :, 0].astype(np.float64).T * d ** -0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v[0, :, 0].astype(np.float64)
    if not np.allclose(out[0, :, 0].astype(np.float64), want, atol=1e-2):
        raise ArithmeticError("attention: wrong result")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", default=[*FORMS, "attention"], help="all if none is named")
    parser.add_argument("--out", default="docs", help="folder of the pictures")
    parser.add_argument("--clocks", type=int, default=16000, help="how much of the run they show")
    args = parser.parse_args(argv)
    for name in args.forms:
        path = Path(args.out, f"pipeline-{name}.png")
        line = attention(path, args.clocks) if name == "attention" else pipeline(name, path, args.clocks)
        print(f"{name}: {line.clocks} clocks, tensor cores busy {line.busy(0, 'tensor core'):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
