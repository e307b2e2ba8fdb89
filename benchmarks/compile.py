"""What compiling costs: from source to PTX, stage by stage, for the package's kernels on one core.

    PYTHONPATH=. python benchmarks/compile.py [--family fused] [--every 40] [--rounds 5] [--out benchmarks/results]

A row a kernel that a configuration of `family.py` (every 40th, and all tiles of the fullest epilogue) or of
`family_rows.py` (all) compiles: instructions, CPU milliseconds of the frontend, the passes, the schedule and the emitter
(the best of some rounds, so other work on the machine matters little), their sum, microseconds and calls of Python
functions an instruction; `first`: the milliseconds of the first compilation of that kernel. Then a line through the
sums of one kernel over its tiles: its slope is the cost of an instruction, its height that of a kernel. The exit status
says if every sum is below 60 ms, of kernels that memory bounds below 30 ms. With --out also a plot against instructions.
"""
from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from pathlib import Path
from typing import Any

import family
import family_rows
import numpy as np

import tilejit
from tilejit import passes
from tilejit.frontend import build
from tilejit.runtime import compile as line

STAGES = ("frontend", "passes", "schedule", "emit")
#: milliseconds
LIMIT, MEMORY_LIMIT = 60.0, 30.0


def instructions(ptx: str) -> int:
    """Instructions of a PTX text."""
    return sum(x.endswith(";") and not x.lstrip().startswith(".") for x in ptx.splitlines())


def timed(kernel: Any) -> tuple[list[float], str]:
    """CPU milliseconds of every stage of one compilation, and the PTX."""
    with line.collector_paused():
        marks = [time.process_time()]
        fn = build(kernel.kernel, dict(kernel.args), dict(kernel.options))
        marks.append(time.process_time())
        fn = passes.run(fn)
        marks.append(time.process_time())
        fn = line.schedule(fn)
        marks.append(time.process_time())
        ptx, _ = line.emit(fn)
        marks.append(time.process_time())
    return [1e3 * (b - a) for a, b in zip(marks, marks[1:])], ptx


def calls(kernel: Any) -> int:
    """Calls of Python functions in one compilation."""
    profile = cProfile.Profile()
    profile.runcall(timed, kernel)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def measured(kernel: Any, rounds: int) -> dict[str, Any]:
    """One row."""
    first, ptx = timed(kernel)
    best = min((timed(kernel)[0] for _ in range(rounds)), key=sum)
    count = instructions(ptx)
    return {"instructions": count, **dict(zip(STAGES, best)), "ms": sum(best), "us_each": 1e3 * sum(best) / count,
            "calls_each": calls(kernel) / count, "first": sum(first)}


def launched(configuration: Any) -> list[Any]:
    """What a configuration compiles; nothing runs."""
    found: list[Any] = []
    with family.launches_replaced(lambda entry, grid, flat: found.append(entry.compiled)):
        configuration.run()
    return found


def chosen(word: str, every: int) -> list[family.Configuration]:
    """Configurations whose names contain a word: all of those of rows and attention, and a sample of the products'."""
    products = [c for c in family.configurations() if word in str(c)]
    full = [c for c in products if c.family in ("fused", "gated")
            and all(w in c.name for w in ("bfloat16 NT", "reduction=max", "residual z", "gelu"))]
    rows = [c for c in family_rows.configurations() if word in str(c)]
    return list({str(c): c for c in (*rows, *products[::every], *full)}.values())


def fit(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Microseconds an instruction, milliseconds a kernel, and the greatest deviation from that line in per cent."""
    n, ms = (np.array([r[k] for r in rows]) for k in ("instructions", "ms"))
    slope, height = np.polyfit(n, ms, 1)
    return 1e3 * slope, height, 100 * float(np.max(np.abs(slope * n + height - ms) / ms))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds against instructions (left out where matplotlib is missing)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no matplotlib: no plot")
        return
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(r["family"] for r in rows):
        mine = [r for r in rows if r["family"] == name]
        axes.plot([r["instructions"] for r in mine], [r["ms"] for r in mine], ".", label=name)
    axes.set(xlabel="instructions of the PTX", ylabel="CPU milliseconds from source to PTX", xlim=0, ylim=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def report(rows: list[dict[str, Any]]) -> bool:
    """Print lines through kernels and what is slowest of its limit; whether all keep theirs."""
    for name in dict.fromkeys(r["kernel"] for r in rows):
        mine = [r for r in rows if r["kernel"] == name]
        if len({r["instructions"] for r in mine}) > 2:
            slope, height, worst = fit(mine)
            print(f"{name}: {height:.1f} ms + {slope:.2f} us an instruction (within {worst:.0f}%)")
    for r in rows:
        if r["ms"] > r["limit"]:
            print(f"over its limit: {r['ms']:.1f} ms of {r['limit']:.0f}, {r['kernel']} of {r['configuration']}")
    slowest = max(rows, key=lambda r: r["ms"] / r["limit"])
    print(f"slowest: {slowest['ms']:.1f} ms of {slowest['limit']:.0f}, {slowest['configuration']}; most calls an "
          f"instruction where there are 1000: {max((r['calls_each'] for r in rows if r['instructions'] >= 1000), default=0):.0f}")
    return bool(slowest["ms"] <= slowest["limit"])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="only configurations whose name contains this")
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'kernel':24} {'configuration':64} {'instr':>6} {'front':>6} {'passes':>6} {'sched':>6} {'emit':>6} {'ms':>6} "
          f"{'us/i':>5} {'calls':>5} {'first':>6}")
    seen: set[Any] = set()
    for c in chosen(args.family, args.every):
        for kernel in launched(c):
            key = (kernel.name, kernel.ptx)
            if key in seen:                                   # another call compiles the same
                continue
            seen.add(key)
            row = {"configuration": str(c), "family": c.family, "limit": MEMORY_LIMIT if c.family == "memory" else LIMIT,
                   "kernel": kernel.name, **measured(kernel, args.rounds)}
            rows.append(row)
            print(f"{kernel.name:24.24} {str(c):64.64} {row['instructions']:6} " + " ".join(f"{row[s]:6.1f}" for s in STAGES)
                  + f" {row['ms']:6.1f} {row['us_each']:5.1f} {row['calls_each']:5.0f} {row['first']:6.1f}", flush=True)
    if not rows:
        parser.error(f"no configuration's name contains {args.family!r}")
    kept = report(rows)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "compile.json").write_text(json.dumps({"version": tilejit.__version__, "rows": rows}, indent=1) + "\n")
        plot(rows, args.out / "compile.png")
    return int(not kept)


if __name__ == "__main__":
    raise SystemExit(main())
