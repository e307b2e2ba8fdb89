"""Row kernels on one GPU: bytes that must move over the time, as a share of a copy measured in the same round.

    PYTHONPATH=. python benchmarks/rows.py [--columns 64,1024,...] [--mebibytes 512] [--dtype bf16] [--seconds 200] [--out FOLDER]

softmax, rmsnorm and layernorm forward, beside torch's own operators. Each result is checked against float64 on sampled
rows, in an output that held NaN before. Times are medians of interleaved short bursts.
"""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilejit.testing import bench_group, gpu_burst, record, row

COLUMNS = (64, 128, 1000, 1024, 4096, 5120, 8192, 16384, 32768, 65536, 131072, 262144)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def kernels_of(x: Any, w: Any, out: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], Any]]]:
    """name -> (ours into `out`, torch's operator, its value of float64 rows)."""
    import torch
    from torch.nn import functional as F

    from tilejit import kernels

    n = (x.shape[1],)
    return {
        "softmax": (lambda: kernels.softmax(x, out), lambda: torch.softmax(x, 1), lambda v: torch.softmax(v, 1)),
        "rmsnorm": (lambda: kernels.rmsnorm(x, w, out=out), lambda: F.rms_norm(x, n, w, 1e-6),
                    lambda v: F.rms_norm(v, n, w.double(), 1e-6)),
        "layernorm": (lambda: kernels.layernorm(x, w, w, out=out), lambda: F.layer_norm(x, n, w, w),
                      lambda v: F.layer_norm(v, n, w.double(), w.double()))}


def measure(columns: int, size: int, dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of the record for one width: GB/s of ours, of torch and of a copy."""
    import torch

    kind = getattr(torch, DTYPES[dtype])
    count = max(1, size // (columns * torch.empty(0, dtype=kind).element_size()))
    x = torch.randn(count, columns, device="cuda").to(kind)
    w, out, other = torch.randn(columns, device="cuda").to(kind), torch.empty_like(x), torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size() / 1e6
    bursts = {"copy": gpu_burst(lambda: other.copy_(x))}
    sample = torch.randint(0, count, (16,), device="cuda")
    table = kernels_of(x, w, out)
    for name, (ours, theirs, reference) in table.items():
        out.fill_(float("nan"))
        ours()
        want = reference(x[sample].double())
        error = float((out[sample].double() - want).norm() / want.norm())
        if not error < 1e-2 or bool(out.isnan().any()):
            raise ArithmeticError(f"{name} of {count} x {columns} {dtype}: relative error {error}")
        bursts[name], bursts[name + " torch"] = gpu_burst(ours), gpu_burst(theirs)
    times = bench_group(bursts, rounds, burst_ms=2.0, rest=2.0)
    made = []
    for name in table:
        ours, copy, peer = (np.array(times[k]) for k in (name, "copy", name + " torch"))
        share = np.sort(copy / ours)
        made.append({**row("rows", f"{name} {count}x{columns}", dtype, moved / np.median(ours), "copy",
                           moved / np.median(copy), "GB/s", float(np.median(share)), (float(share[0]), float(share[-1]))),
                     "torch": round(float(moved / np.median(peer)), 1)})
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200, help="stop after so long")
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.seconds
    for columns in map(int, options.columns.split(",")):
        if time.monotonic() > until:
            print(f"stopped after {options.seconds} s")
            break
        found = measure(columns, options.mebibytes << 20, options.dtype, options.rounds)
        rows += found
        print(f"{columns:7d} columns: " + ", ".join(
            f"{r['case'].split()[0]} {r['ratio']:.3f} of copy ({r['ours'] / r['torch']:.2f} of torch)" for r in found), flush=True)
    record("rows", rows, Path(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
