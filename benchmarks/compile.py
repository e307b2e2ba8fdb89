"""What compiling costs: from source to PTX, stage by stage, for kernels of the matrix family on one core.

    PYTHONPATH=. python benchmarks/compile.py [--family fused] [--every 40] [--rounds 5] [--out benchmarks/results]

A row a configuration of `family.py` (every 40th, and all tiles of the fullest epilogue): instructions, CPU milliseconds
of the frontend, the passes, the schedule and the emitter (the best of some rounds, so other work on the machine matters
little), their sum, and microseconds an instruction; `first`: the same in the first compilation of that kernel. Then a
line through the sums of one kernel over its tiles: its slope is the cost of an instruction, its height that of a kernel.
Before them the memory-bound kernels of the package at some widths. The exit status says if every sum is below 50 ms, of
those that memory bounds below 30 ms.
"""
from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import family
import numpy as np

import tilejit
import tilejit.kernels
from tilejit import passes
from tilejit.frontend import build
from tilejit.runtime import compile as line

STAGES = ("frontend", "passes", "schedule", "emit")
LIMIT_MS = 50.0
MEMORY_LIMIT_MS = 30.0
WIDTHS = (1024, 8192, 32768)


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


def measured(kernel: Any, rounds: int) -> dict[str, Any]:
    """One row."""
    first, ptx = timed(kernel)
    best = min((timed(kernel)[0] for _ in range(rounds)), key=sum)
    count = instructions(ptx)
    return {"instructions": count, **dict(zip(STAGES, best)), "ms": sum(best), "us_each": 1e3 * sum(best) / count,
            "first": sum(first)}


@dataclass(frozen=True)
class Rows:
    """A memory-bound kernel on a matrix of rows of one width."""

    name: str
    width: int
    family: str = "memory"

    def __str__(self) -> str:
        return f"memory: {self.name} of rows of {self.width} numbers"

    def run(self) -> None:
        x, w = np.zeros((8, self.width), np.float16), np.ones(self.width, np.float16)
        more = {"layernorm": (w, w), "rmsnorm": (w,), "add": (x,)}.get(self.name, ())
        getattr(tilejit.kernels, self.name)(x, *more)


def launched(configuration: Any) -> list[Any]:
    """What a configuration compiles; nothing runs."""
    found: list[Any] = []
    with family.launches_replaced(lambda entry, grid, flat: found.append(entry.compiled)):
        configuration.run()
    return found


def fit(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Microseconds an instruction, milliseconds a kernel, and the greatest deviation from that line in per cent."""
    n, ms = (np.array([r[k] for r in rows]) for k in ("instructions", "ms"))
    slope, height = np.polyfit(n, ms, 1)
    return 1e3 * slope, height, 100 * float(np.max(np.abs(slope * n + height - ms) / ms))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="only configurations whose name contains this")
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    every = [c for c in family.configurations() if args.family in str(c)]
    full = [c for c in every if c.family in ("fused", "gated") and all(w in c.name for w in ("bfloat16 NT", "reduction=max",
                                                                                             "residual z", "gelu"))]
    memory = [Rows(name, width) for name in ("add", "softmax", "layernorm", "rmsnorm") for width in WIDTHS]
    chosen = list(dict.fromkeys([*(r for r in memory if args.family in str(r)), *every[::args.every], *full]))
    rows = []
    print(f"{'configuration':88} {'instr':>6} {'front':>6} {'passes':>6} {'sched':>6} {'emit':>6} {'ms':>6} {'us/i':>5} "
          f"{'first':>6}")
    for c in chosen:
        for kernel in launched(c):
            row = {"configuration": str(c), "limit": MEMORY_LIMIT_MS if c.family == "memory" else LIMIT_MS, "kernel": kernel.name, **measured(kernel, args.rounds)}
            rows.append(row)
            print(f"{str(c):88.88} {row['instructions']:6} " + " ".join(f"{row[s]:6.1f}" for s in STAGES)
                  + f" {row['ms']:6.1f} {row['us_each']:5.1f} {row['first']:6.1f}", flush=True)
    for name in dict.fromkeys(r["kernel"] for r in rows):
        mine = [r for r in rows if r["kernel"] == name]
        if len({r["instructions"] for r in mine}) > 2:
            slope, height, worst = fit(mine)
            print(f"{name}: {height:.1f} ms + {slope:.2f} us an instruction (within {worst:.0f}%)")
    slowest = max(rows, key=lambda r: r["ms"] / r["limit"])
    print(f"slowest: {slowest['ms']:.1f} ms of {slowest['limit']:.0f}, {slowest['configuration']}")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "compile.json").write_text(json.dumps({"version": tilejit.__version__, "rows": rows}, indent=1) + "\n")
    return int(slowest["ms"] > slowest["limit"])


if __name__ == "__main__":
    raise SystemExit(main())
