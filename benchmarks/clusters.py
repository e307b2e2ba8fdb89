"""Clusters on a GPU: products whose K is divided, and rows that are divided; first whether they are right, then how fast.

    PYTHONPATH=. timeout 300 python benchmarks/clusters.py [--only right,products,rows] [--out benchmarks/results]

Times are medians in microseconds, with the L2 cache overwritten before each call.
"""
from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from records import record, row

from tilejit import kernels, next_power_of_2
from tilejit.kernels.rows.softmax import softmax_kernel
from tilejit.kernels.streamk import matmul_streamk
from tilejit.testing import do_bench, rel_error

#: Few deep tiles, then decode shapes.
SHAPES = ((512, 512, 65536), (512, 512, 16384), (512, 512, 4096), (256, 256, 65536), (1024, 1024, 16384),
          (1024, 1024, 4096), (768, 512, 8192), (64, 4096, 4096), (64, 4096, 14336), (16, 4096, 4096), (16, 1024, 8192))
CTAS = (1, 2, 4, 8)
ROWS = ((256, 32768), (4096, 32768), (256, 65536), (2048, 65536), (256, 131072), (1024, 131072))


def matrix(rows: int, columns: int, dtype: torch.dtype, rows_first: bool = True) -> Any:
    """Random numbers, row- or column-major."""
    x = torch.randn(rows, columns, device="cuda") if rows_first else torch.randn(columns, rows, device="cuda").T
    return x.to(dtype)


def right() -> list[str]:
    """Against float64, and the same bits each time."""
    bad = []
    kinds = ((torch.bfloat16, 8e-3), (torch.float16, 2e-3), (torch.float8_e4m3fn, 8e-3), (torch.float32, 1.5e-3))
    for m, n, k in ((512, 512, 8192), (200, 328, 4112), (64, 4096, 2064), (5, 1000, 4096), (1, 136, 1040)):
        for dtype, bound in kinds:
            a, b = matrix(m, k, dtype), matrix(k, n, dtype, False)
            want = a.double() @ b.double()
            for ctas in (2, 4, 8):
                outs = [matmul_streamk(a, b, ctas=ctas) for _ in range(3)]
                torch.cuda.synchronize()
                error, label = rel_error(outs[0], want), f"{dtype} {m}x{n}x{k} over {ctas} CTAs"
                bad += [f"{label}: {error:.2e}"] if not error <= bound else []
                bad += [f"{label}: bits differ"] if not all(bool((x == outs[0]).all()) for x in outs) else []
    for rows, columns in ((7, 5000), (64, 32768), (3, 100000)):
        x = matrix(rows, columns, torch.float32)
        for ctas in (2, 4, 8):
            error = rel_error(cluster_softmax(x, torch.full_like(x, float("nan")), ctas), torch.softmax(x.double(), 1))
            bad += [f"softmax {rows}x{columns} over {ctas} CTAs: {error:.2e}"] if not error <= 2e-5 else []
    return bad


def cluster_softmax(x: Any, out: Any, ctas: int) -> Any:
    """Every row in the registers of a cluster."""
    n, columns = x.shape
    block = next_power_of_2(columns)
    softmax_kernel[(n,)](x, out, columns, columns, columns, BLOCK=block, num_ctas=ctas,
                         num_warps=max(4, min(16, block // ctas // 1024)))
    return out


def products() -> list[dict[str, Any]]:
    """Parts that meet in shared memory (2, 4, 8 CTAs), in memory (1), and what torch does."""
    table = []
    for m, n, k in SHAPES:
        a, b = matrix(m, k, torch.bfloat16), matrix(k, n, torch.bfloat16, False)
        out, want = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), torch.empty(m, n, device="cuda").bfloat16()
        times = {}
        for ctas in (None, *CTAS):
            run = partial(matmul_streamk, a, b, out=out, ctas=ctas)
            times[str(ctas or "chosen")] = 1e3 * do_bench(run, return_mode="median")
        times["cublas"] = 1e3 * do_bench(lambda: torch.matmul(a, b, out=want), return_mode="median")
        table += show(f"{m}x{n}x{k}", "bf16", times)
    return table


def rows() -> list[dict[str, Any]]:
    """A row in the registers of 2, 4 or 8 CTAs, and in blocks by one."""
    table = []
    for n, columns in ROWS:
        x = matrix(n, columns, torch.float32)
        out = torch.empty_like(x)
        times = {"chosen": 1e3 * do_bench(lambda: kernels.softmax(x, out), return_mode="median")}
        for ctas in (2, 4, 8):
            if next_power_of_2(columns) // ctas <= 16384:
                times[str(ctas)] = 1e3 * do_bench(partial(cluster_softmax, x, out, ctas), return_mode="median")
        times["torch"] = 1e3 * do_bench(lambda: torch.softmax(x, 1), return_mode="median")
        table += show(f"softmax {n}x{columns}", "fp32", times)
    return table


def show(case: str, dtype: str, times: dict[str, float]) -> list[dict[str, Any]]:
    """Print one case; its records."""
    print(f"{case:24} " + "  ".join(f"{name} {t:8.1f}" for name, t in times.items()), flush=True)
    mine = times["chosen"]
    return [row("clusters", case, dtype, mine, name, t, "us", t / mine, (t / mine, t / mine)) for name, t in times.items()
            if name != "chosen"]


def main() -> int:
    """The parts asked for; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="right,products,rows")
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    parts = args.only.split(",")
    bad = right() if "right" in parts else []
    print("\n".join(bad) or "right")
    table = (products() if "products" in parts else []) + (rows() if "rows" in parts else [])
    if table:
        record("clusters", table, args.out)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
