"""Products of shapes that nobody chose, against cuBLAS: M, N, K log-uniform, a third of them not multiples of 8.

    PYTHONPATH=. python benchmarks/holdout.py [--count 300] [--seed N] [--dtype bf16,fp8,batched,grouped] [--seconds 400]
                                              [--best] [--out FOLDER]
    PYTHONPATH=. python benchmarks/holdout.py --shapes 4x200x14118,19x21x13779
    PYTHONPATH=. python benchmarks/holdout.py --dtype batched --shapes 8x591x8x2064

`batched`: up to 64 products of bf16 at once; `grouped`: M rows in up to 32 groups of random sizes; how many comes before
M, N and K in the record (not in those before 2026-11-28). `--best` also measures
the likeliest ways of each bf16 and fp8 product whose lines TMA reads, and says how far the choice is from the best.

The seed is fresh at each run, and printed. Every result is checked against a float64 product of sampled rows, in an
output that held NaN before. Times are those of the device alone (CUDA graphs of several calls, replays of ours and of
cuBLAS interleaved, the median of the ratios of pairs). Needs torch and a GPU.
"""
from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bursts import bench_group, graph_burst
from records import pair_ratio, record, row

#: M, N and K lie between 1 and LARGEST, with at most PRODUCTS multiplications and BYTES of operands and result.
LARGEST, PRODUCTS = 16384, 2 ** 36
#: Seconds of work before a product is timed: while its kernels are compiled clocks go down.
AWAKE = 0.1
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
Shape = tuple[int, ...]


def shapes(count: int, rng: random.Random) -> list[Shape]:
    """(M, N, K), log-uniform; two thirds are rounded up to multiples of 8."""
    made: list[Shape] = []
    while len(made) < count:
        m, n, k = (max(1, round(math.exp(rng.uniform(0, math.log(LARGEST))))) for _ in range(3))
        if len(made) % 3:
            m, n, k = (-(-x // 8) * 8 for x in (m, n, k))
        if m * n * k <= PRODUCTS:
            made.append((m, n, k))
    return made


def operands(shape: Shape, dtype: str) -> tuple[Any, Any]:
    """a [M, K] row-major; b [K, N], row-major too, or column-major for fp8 (the only order that cuBLAS has)."""
    import torch

    (m, n, k), kind = shape, getattr(torch, DTYPES[dtype])
    a = torch.randn(m, k, device="cuda")
    b = torch.randn(n, k, device="cuda").T if dtype == "fp8" else torch.randn(k, n, device="cuda")
    return a.to(kind), b.to(kind)


def wrong(out: Any, a: Any, b: Any, rng: random.Random) -> float:
    """The relative error of sampled rows against float64; NaN where one was left."""
    at = sorted(rng.sample(range(a.shape[0]), min(16, a.shape[0])))
    want = a[at].double() @ b.double()
    return float((out[at].double() - want).norm() / want.norm().clamp(min=1e-30))


def several(shape: Shape, dtype: str, rng: random.Random) -> tuple[Any, Any, Callable[[], Any], Callable[[], Any], Any]:
    """Operands of (how many) batched or grouped products, our call and torch's, and where ours goes."""
    import torch

    from tilejit.kernels import batched_matmul, grouped_matmul

    count, m, n, k = shape
    if dtype == "batched":
        a, b = (torch.randn(count, *s, device="cuda").bfloat16() for s in ((m, k), (k, n)))
        out, peer = (torch.full((count, m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return a, b, lambda: batched_matmul(a, b, out=out), lambda: torch.bmm(a, b, out=peer), out
    ends = sorted(rng.randrange(m + 1) for _ in range(count - 1))
    offsets = torch.tensor([0, *ends, m], device="cuda", dtype=torch.int32)
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(count, n, k, device="cuda").bfloat16().transpose(1, 2)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    return (a, b, lambda: grouped_matmul(a, b, offsets, out=out),
            lambda: torch._grouped_mm(a, b, offs=offsets[1:], out_dtype=torch.bfloat16), out)


def measure_several(shape: Shape, dtype: str, rng: random.Random, rounds: int) -> dict[str, Any]:
    """One row of the record, of batched or grouped products (so many, or any); torch's grouped ones are in whole units
    of 16 bytes."""
    *count, m, n, k = (*shape[:-2], *(-(-x // 8) * 8 for x in shape[-2:])) if dtype == "grouped" else shape
    if not count and dtype == "batched":
        count = [min(rng.choice((2, 8, 32, 64)), max(1, PRODUCTS // (m * n * k)))]
    shape = (*(count or [rng.choice((2, 8, 32))]), m, n, k)
    a, b, ours, theirs, out = several(shape, dtype, rng)
    ours()
    want = theirs().double()
    error = float((out.double() - want).norm() / want.norm().clamp(min=1e-30))
    if not error < 1e-2:
        raise ArithmeticError(f"{dtype} {shape}: relative error {error}")
    return against(shape, dtype, ours, theirs, rounds)


def against(shape: Shape, dtype: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Interleaved replays of both."""
    calls = max(2, min(20, int(2e11 / (2.0 * math.prod(shape)))))
    bursts, until = {"ours": graph_burst(ours, calls), "cublas": graph_burst(theirs, calls)}, time.monotonic() + AWAKE
    while time.monotonic() < until:
        for burst in bursts.values():
            burst(2)
    times = bench_group(bursts, rounds, burst_ms=1.0, rest=1.0)
    ratio, spread = pair_ratio(times["ours"], times["cublas"])
    mine, peers = (1e3 * float(np.median(times[x])) for x in ("ours", "cublas"))
    return row("matmul_holdout", "x".join(map(str, shape)), dtype, mine, "cuBLAS", peers, "us", ratio, spread)


def choice(shape: Shape, dtype: str, pool: Executor) -> dict[str, Any]:
    """How much longer the chosen way takes than the best of the likeliest, which the pool compiles; empty where TMA does
    not read the operands."""
    from tilejit.kernels.chip import current
    from tilejit.kernels.planning import choose
    from tilejit.tools import calibrate

    m, n, k = shape
    unit, kind = (16, "fp8e4nv") if dtype == "fp8" else (8, "bf16")
    if n % unit or k % unit or dtype not in DTYPES:
        return {}
    chip = current()
    problem = calibrate.facts(*calibrate.matrices(m, n, k, kind, dtype != "fp8"))
    chosen = choose(problem, chip).way
    ways = list(dict.fromkeys((chosen, *calibrate.picked(problem, chip, random.Random(0)))))
    failed = pool.map(calibrate.compiled, [(problem, way, chip, kind) for way in ways])
    times = dict(calibrate.measured(problem, kind, chip, [way for way, why in zip(ways, failed) if not why]))
    return {"choice": round(times[chosen] / min(times.values()), 4)} if chosen in times else {}


def measure(shape: Shape, dtype: str, rng: random.Random, rounds: int) -> dict[str, Any]:
    """One row of the record: microseconds of ours and of cuBLAS, and their ratio (above 1: ours is faster)."""
    import torch

    from tilejit.kernels import matmul

    if dtype not in DTYPES:
        return measure_several(shape, dtype, rng, rounds)
    a, b = operands(shape, dtype)
    out = torch.full((shape[0], shape[1]), float("nan"), device="cuda", dtype=torch.bfloat16 if dtype == "fp8" else a.dtype)
    matmul(a, b, out=out)
    error = wrong(out, a, b, rng)
    if not error < 1e-2:
        raise ArithmeticError(f"{dtype} {shape}: relative error {error}")
    peer = torch.empty_like(out)
    one = torch.ones((), device="cuda")

    def theirs() -> Any:
        if dtype == "fp8":
            return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        return torch.matmul(a, b, out=peer)

    return against(shape, dtype, lambda: matmul(a, b, out=out), theirs, rounds)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Geometric means over all, aligned, ragged shapes and by rows; the worst ten."""
    def line(what: str, some: list[dict[str, Any]]) -> str:
        ratios = [r["ratio"] for r in some]
        if not ratios:
            return f"{what}: none"
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        return f"{what}: {len(some)} shapes, geomean {mean:.3f}, least {min(ratios):.3f}, {sum(r < 0.9 for r in ratios)} under 0.9"

    def sizes(r: dict[str, Any]) -> list[int]:
        return [int(x) for x in r["case"].split("x")[-3:]]

    ragged = [r for r in rows if any(x % 8 for x in sizes(r))]
    out = [line("all", rows), line("ragged", ragged), line("aligned", [r for r in rows if r not in ragged])]
    for low, high in ((1, 64), (65, 512), (513, LARGEST)):
        out.append(line(f"rows {low} to {high}", [r for r in rows if low <= sizes(r)[0] <= high]))
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        out.append(line(dtype, [r for r in rows if r["dtype"] == dtype]))
    chosen = [r["choice"] for r in rows if "choice" in r]
    if chosen:
        out.append(f"choice: {math.exp(sum(map(math.log, chosen)) / len(chosen)):.3f} of the best way's time at "
                   f"{len(chosen)} shapes, within 5% for {sum(x < 1.05 for x in chosen) / len(chosen):.0%}")
    for r in sorted(rows, key=lambda r: r["ratio"])[:12]:
        out.append(f"  {r['dtype']} {r['case']}: {r['ours']:.1f} us, cuBLAS {r['peer_value']:.1f}, {r['ratio']:.3f}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--dtype", default="bf16", help="comma-separated: " + ", ".join((*DTYPES, "batched", "grouped")))
    parser.add_argument("--best", action="store_true", help="measure the likeliest ways of each product, too")
    parser.add_argument("--shapes", help="MxNxK,... instead of random ones")
    parser.add_argument("--seconds", type=float, default=400, help="stop after so long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10 ** 6) if options.seed is None else options.seed
    print(f"seed {seed}")
    rng, until, rows = random.Random(seed), time.monotonic() + options.seconds, []
    chosen = [tuple(int(x) for x in s.split("x")) for s in options.shapes.split(",")] if options.shapes else None
    dtypes = options.dtype.split(",")
    pool = ProcessPoolExecutor(mp_context=get_context("spawn")) if options.best else None
    for i, shape in enumerate(chosen or shapes(options.count, rng)):
        dtype = dtypes[i % len(dtypes)]
        if dtype == "fp8":                    # all that torch's operator takes
            shape = (shape[0], *(-(-x // 16) * 16 for x in shape[1:]))
        if time.monotonic() > until:
            print(f"stopped after {options.seconds} s: {len(rows)} shapes")
            break
        rows.append(measure(shape, dtype, rng, options.rounds) | (choice(shape, dtype, pool) if pool else {}))
        if chosen:
            print(json.dumps(rows[-1]))
    print("\n".join(summary(rows)))
    if not chosen:
        record("matmul_holdout", [{**r, "seed": seed} for r in rows], Path(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
