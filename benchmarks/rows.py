"""Row kernels on one GPU: bytes that must move over the time, as a share of a copy measured in the same round.

    PYTHONPATH=. python benchmarks/rows.py [--columns 64,1024,...] [--mebibytes 512] [--dtype bf16] [--seconds 200]
        [--ways ready,plain,torch,triton,compile,quack,liger] [--begin 0] [--out FOLDER]

softmax, rmsnorm and layernorm forward: the ready kernels, the plain forms of `rows_plain.py` (one row a program), and
whichever peers are asked for and can be imported (quack needs `nvidia-cutlass-dsl`). Each result is checked against
float64 on sampled rows, in an output that held NaN before. Times are medians of interleaved short bursts. `--begin` 1:
rows of a view that leaves out the first column, so that they start anywhere.
"""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import rows_plain
from bursts import bench_group, gpu_burst
from peers import triton_twin
from records import record, row

COLUMNS = (64, 128, 1000, 1024, 4096, 5120, 8192, 16384, 32768, 65536, 131072, 262144)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
WAYS = ("ready", "plain", "torch", "triton", "compile", "quack", "liger")
Calls = dict[str, Callable[[], Any]]


def references(x: Any, w: Any) -> dict[str, Callable[[Any], Any]]:
    """name -> its value of float64 rows."""
    import torch
    from torch.nn import functional as F

    n = (x.shape[1],)
    return {"softmax": lambda v: torch.softmax(v, 1), "rmsnorm": lambda v: F.rms_norm(v, n, w.double(), 1e-6),
            "layernorm": lambda v: F.layer_norm(v, n, w.double(), w.double())}


@lru_cache
def twins() -> dict[str, Any]:
    """The plain forms as Triton's kernels, by name; empty where Triton is missing."""
    return {n: t for n, k in rows_plain.OURS.items() if (t := triton_twin(k)) is not None}


def compiled() -> Any:
    """torch's functions under torch.compile, by name, of (x, w); for this width alone, as many are forgotten."""
    import torch
    from torch.nn import functional as F

    torch.compiler.reset()
    return {"softmax": torch.compile(lambda x, w: torch.softmax(x, 1), dynamic=False),
            "rmsnorm": torch.compile(lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), dynamic=False),
            "layernorm": torch.compile(lambda x, w: F.layer_norm(x, w.shape, w, w), dynamic=False)}


def ready(x: Any, w: Any, out: Any) -> Calls:
    """tilejit's kernels into `out`."""
    from tilejit import kernels

    return {"softmax": lambda: kernels.softmax(x, out=out), "rmsnorm": lambda: kernels.rmsnorm(x, w, out=out),
            "layernorm": lambda: kernels.layernorm(x, w, w, out=out)}


def in_torch(x: Any, w: Any, out: Any) -> Calls:
    """torch's operators; softmax into `out`, as it can be asked to."""
    import torch
    from torch.nn import functional as F

    n = (x.shape[1],)
    return {"softmax": lambda: torch.softmax(x, 1), "rmsnorm": lambda: F.rms_norm(x, n, w, 1e-6),
            "layernorm": lambda: F.layer_norm(x, n, w, w)}


def quack(x: Any, w: Any, out: Any) -> Calls:
    """quack's kernels; layernorm takes weights and bias in fp32."""
    from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd
    from quack.softmax import softmax_fwd

    w32 = w.float()
    return {"softmax": lambda: softmax_fwd(x), "rmsnorm": lambda: rmsnorm_fwd(x, w)[0],
            "layernorm": lambda: layernorm_fwd(x, w32, w32)}


def liger(x: Any, w: Any, out: Any) -> Calls:
    """Liger-Kernel's."""
    from liger_kernel.ops.layer_norm import layer_norm_forward
    from liger_kernel.ops.rms_norm import rms_norm_forward
    from liger_kernel.ops.softmax import _softmax_forward

    return {"softmax": lambda: _softmax_forward(x)[0],
            "rmsnorm": lambda: rms_norm_forward(x, w, 1e-6, 0.0, "llama", None)[0],
            "layernorm": lambda: layer_norm_forward(x, w, w, 1e-5)[0]}


#: way -> its calls for (x, w, out): by kernel's name, whatever they return is a result or has been put into `out`.
MADE: dict[str, Callable[[Any, Any, Any], Calls]] = {
    "ready": ready, "torch": in_torch, "quack": quack, "liger": liger,
    "plain": lambda x, w, out: rows_plain.calls(x, w, out, rows_plain.OURS),
    "triton": lambda x, w, out: rows_plain.calls(x, w, out, twins()),
    "compile": lambda x, w, out: {n: (lambda f=f: f(x, w)) for n, f in compiled().items()}}


def measure(columns: int, size: int, dtype: str, rounds: int, ways: list[str], names: list[str],
            begin: int) -> list[dict[str, Any]]:
    """Rows of the record for one width: GB/s of every way and of a copy; a peer that fails is left out."""
    import torch

    kind = getattr(torch, DTYPES[dtype])
    count = max(1, size // (columns * torch.empty(0, dtype=kind).element_size()))
    x = torch.randn(count, columns + begin, device="cuda").to(kind)[:, begin:]
    w, out, other = torch.randn(columns, device="cuda").to(kind), *(torch.empty(x.shape, dtype=kind, device="cuda") for _ in "oo")
    flat = torch.empty_like(out)
    moved = 2 * x.numel() * x.element_size() / 1e6
    bursts = {"copy": gpu_burst(lambda: other.copy_(flat))}
    sample = torch.randint(0, count, (16,), device="cuda")
    wanted = {n: f(x[sample].double()) for n, f in references(x, w).items()}
    for way in ways:
        try:
            calls = MADE[way](x, w, out)
        except ImportError as why:
            print(f"no {way}: {why}")
            continue
        for name in names:
            out.fill_(float("nan"))
            try:
                result = calls[name]()
                result = out if way in ("ready", "plain", "triton") else result
                error = float((result[sample].double() - wanted[name]).norm() / wanted[name].norm())
                if not error < 1e-2 or bool(result.isnan().any()):
                    raise ArithmeticError(f"relative error {error}")
            except Exception as why:
                if way in ("ready", "plain"):
                    raise ArithmeticError(f"{way} {name} of {count} x {columns} {dtype}: {why}") from why
                print(f"{way} {name} of {count} x {columns} {dtype}: {type(why).__name__} {str(why)[:120]}")
                continue
            bursts[f"{name} {way}"] = gpu_burst(calls[name])
    times = bench_group(bursts, rounds, burst_ms=2.0, rest=2.0)
    made = []
    for key in bursts:
        if key == "copy":
            continue
        mine, copy = np.array(times[key]), np.array(times["copy"])
        share = np.sort(copy / mine)
        name, way = key.split()
        where = f" from column {begin}" if begin else ""
        made.append(row("rows", f"{name} {count}x{columns}{where}: {way}", dtype, moved / np.median(mine), "copy",
                        moved / np.median(copy), "GB/s", float(np.median(share)), (float(share[0]), float(share[-1]))))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--ways", default="ready,plain,torch")
    parser.add_argument("--kernels", default="softmax,rmsnorm,layernorm")
    parser.add_argument("--begin", type=int, default=0, help="the first column of the view that is x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200, help="stop after so long")
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    ways, names = options.ways.split(","), options.kernels.split(",")
    if set(ways) - set(WAYS):
        parser.error(f"--ways: expected some of {', '.join(WAYS)}")
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.seconds
    for columns in map(int, options.columns.split(",")):
        if time.monotonic() > until:
            print(f"stopped after {options.seconds} s")
            break
        found = measure(columns, options.mebibytes << 20, options.dtype, options.rounds, ways, names, options.begin)
        rows += found
        for name in names:
            print(f"{columns:7d} {options.dtype} {name:9s} of copy ({found[0]['peer_value']:.0f} GB/s): " + ", ".join(
                f"{r['case'].rsplit(' ', 1)[1]} {r['ratio']:.3f}" for r in found if r["case"].startswith(name + " ")),
                flush=True)
    record("rows", rows, Path(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
