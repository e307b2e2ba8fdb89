"""Speed of the emulator on this machine's CPU: kernels, start-up, growth with the grid.

    PYTHONPATH=. python benchmarks/emulator.py [--rounds 3] [--out benchmarks/results]

Prints a table, draws the growth, appends the rows to emulator.json. Each figure stands beside the limit that it must
keep on two cores; the exit status says if all do. Wall times need an idle machine (the load is printed and recorded); CPU
times are less sensitive.
"""
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FIRST_USE = """
import sys, time
import numpy as np
import tilejit
from tilejit import kernels
from tilejit.emulator import cache
start = time.perf_counter(), time.process_time()
cache.load_machine()
loaded = time.perf_counter() - start[0], time.process_time() - start[1]
kernels.add(np.ones(32, np.float32), np.ones(32, np.float32))
print(*loaded, time.time() - float(sys.argv[1]), time.process_time())
"""
#: CTAs of the growth measurement: rows of a softmax.
GRIDS = (32, 64, 128, 256, 512, 1024)


def child(cache: str) -> list[float]:
    """A process of its own with this cache: seconds to load the virtual machine, CPU seconds of that, and seconds and
    CPU seconds from the start of the process to the end of its first launch."""
    env = {**os.environ, "TILEJIT_CACHE_DIR": cache, "TILEJIT_TARGET": "emulator"}
    done = subprocess.run([sys.executable, "-c", FIRST_USE, str(time.time())], env=env, capture_output=True, text=True,
                          timeout=600)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [float(v) for v in done.stdout.split()]


def repeat(run: Any, rounds: int) -> list[float]:
    """Seconds of each of some runs."""
    out = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        out.append(time.perf_counter() - start)
    return out


def reports(kernel: Any) -> Any:
    """The report of a kernel's last new signature."""
    return list(kernel.entries.values())[-1].report


def measure(rounds: int) -> tuple[list[dict[str, Any]], list[tuple[int, float]]]:
    """The rows of the table, and (CTAs, seconds) of the growth."""
    import ml_dtypes

    from tilejit import kernels
    from tilejit.kernels.rows.softmax import softmax_kernel
    from tilejit.testing import rel_error

    rows = []
    with tempfile.TemporaryDirectory() as cache:
        wall, cpu, *_ = child(cache)
        rows.append(line("first use of the virtual machine", [wall], 30, "s"))
        rows.append(line("first use of the virtual machine, CPU time", [cpu], 30, "s"))
        later = [child(cache)[2:] for _ in range(rounds)]
        rows.append(line("later process to the end of its first launch", [v[0] for v in later], 1, "s"))
        rows.append(line("later process to the end of its first launch, CPU time", [v[1] for v in later], 1, "s"))

    rng = np.random.default_rng()
    a, b = (rng.standard_normal((1024, 1024)).astype(ml_dtypes.bfloat16) for _ in range(2))
    x = rng.standard_normal((GRIDS[-1], 4096)).astype(ml_dtypes.bfloat16)
    kernels.matmul(a[:128], b)                              # compile, load
    out = kernels.matmul(a, b)
    assert rel_error(out, a.astype(np.float32) @ b.astype(np.float32)) < 8e-3
    seconds = repeat(lambda: kernels.matmul(a, b), rounds)
    rows.append(line("matmul 1024x1024x1024", seconds, 20, "s"))
    rows.append(rate("matmul 1024x1024x1024", reports(kernels.matmul_kernel).instructions, seconds))
    kernels.softmax(x[:32])
    seconds = repeat(lambda: kernels.softmax(x[:256]), rounds)
    rows.append(line("softmax 256x4096", seconds, 5, "s"))
    rows.append(rate("softmax 256x4096", reports(softmax_kernel).instructions, seconds))
    growth = [(n, min(repeat(lambda: kernels.softmax(x[:n]), rounds))) for n in GRIDS]
    return rows, growth


def line(case: str, seconds: list[float], limit: float, unit: str) -> dict[str, Any]:
    """A figure against its limit; ratio above 1: within it."""
    from records import row

    value = statistics.median(seconds)
    quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [value] * 3
    return row("emulator", case, "bf16", value, "limit", limit, unit, limit / value,
               (limit / quarters[2], limit / quarters[0]))


def rate(case: str, instructions: int, seconds: list[float]) -> dict[str, Any]:
    """Warp instructions a second; no peer."""
    from records import row

    return row("emulator", f"{case}: warp instructions/s", "bf16", instructions / statistics.median(seconds), "none", 0,
               "1/s", 1, (1, 1))


def fit(growth: list[tuple[int, float]]) -> tuple[float, float, float, dict[str, Any]]:
    """seconds = fixed + each * CTAs by least squares (relative errors), the largest deviation, and the record."""
    from records import row

    n, t = (np.array(v, float) for v in zip(*growth))
    design = np.stack([1 / t, n / t], 1)
    (fixed, each), *_ = np.linalg.lstsq(design, np.ones(len(n)), rcond=None)
    off = float(np.max(np.abs((fixed + each * n) / t - 1)))
    return fixed, each, off, row("emulator", f"growth over {GRIDS[0]}..{GRIDS[-1]} CTAs: largest deviation from a line",
                                 "bf16", 100 * off, "limit", 25, "%", 25 / max(100 * off, 1e-9), (1, 1))


def main() -> int:
    """Measure, print, draw, record."""
    from records import record

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    os.environ["TILEJIT_TARGET"] = "emulator"
    before = os.getloadavg()[0]
    rows, growth = measure(args.rounds)
    fixed, each, off, grown = fit(growth)
    rows.append(grown)
    for r in rows:
        limit = f"limit {r['peer_value']:g} {r['unit']}" if r["peer"] == "limit" else ""
        verdict = "" if not limit else "ok" if r["ratio"] >= 1 else "MISSED"
        print(f"{r['case']:60s} {r['ours']:14,.2f} {r['unit']:4s} {limit:14s} {verdict}")
    print("growth: " + ", ".join(f"{n} CTAs {t:.2f} s" for n, t in growth))
    print(f"growth: {1000 * fixed:.1f} ms + {1000 * each:.3f} ms a CTA, within {100 * off:.1f} %")
    print(f"load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores")
    busy = [{**r, "load": round(before, 1), "cores": os.cpu_count()} for r in rows]
    print(f"recorded in {record('emulator', busy, args.out)}")
    draw(growth, fixed, each, Path(args.out, "emulator.png"))
    return int(any(r["ratio"] < 1 for r in rows))


def draw(growth: list[tuple[int, float]], fixed: float, each: float, path: Path) -> None:
    """The measured times and the line."""
    from matplotlib.figure import Figure

    n, t = zip(*growth)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.loglog(n, t, "o", label="measured", base=2)
    axes.loglog(n, [fixed + each * i for i in n], label=f"{1000 * fixed:.0f} ms + {1000 * each:.2f} ms a CTA", base=2)
    axes.set(xlabel="CTAs (rows of a softmax of 4096 columns)", ylabel="seconds", title="The emulator's time grows linearly")
    axes.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    sys.exit(main())
