"""tilejit's matrix products against cuBLAS, Triton and Pallas on one GPU, in one command.

    PYTHONPATH=. python benchmarks/matmul.py [--set bf16,fp8,...] [--shapes 4096^3,...] [--quick] [--budget SECONDS]

Every result is checked (fresh random inputs, outputs that hold NaN before, float64 reference on sampled rows). Times
are medians of interleaved short bursts from a rested chip; a second column is under unbroken load. Tables go to
stdout, records and plots to `--out`. Measuring happens in a process of its own: a crash or a hang costs one case.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matmul_report as report
from matmul_cases import SETS, Case, cases_of, parse_shapes, quick, with_shapes
from matmul_run import OURS, Options, absent, dry_device, run, writer

from tilejit.testing import environment, record

#: Seconds a set may take; a set that needs less takes less.
SECONDS = {"bf16": 90, "fp8": 75, "fp8-block": 60, "decode": 60, "splitk": 15, "batched": 8, "grouped": 25, "majors": 15,
           "fused": 15, "ablation": 45, "tuning": 60}
Plan = dict[str, tuple[Case, ...]]


class Board:
    """Receives the events of the worker: prints a line a case, and a table, records and plots a set."""

    def __init__(self, plan: Plan, out: Path, where: dict[str, Any] | None = None):
        self.plan, self.out, self.where = plan, out, where
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in plan}
        self.left = [c for cases in plan.values() for c in cases]
        self.building = ""
        self.began = time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        if "where" in event:
            self.where = event["where"]
        elif "building" in event:
            self.building = event["building"]
        elif "rows" in event:
            self.building = ""
            self.done(event["rows"])

    def done(self, rows: list[dict[str, Any]]) -> None:
        """The next case is done."""
        case = self.left.pop(0)
        self.rows[case.set] += rows
        best = next((r for r in rows if r.get("best") and r["ratio"] is not None), None)
        text = f"{best['ours']:.0f} TFLOP/s, {best['ratio']:.3f} of {best['peer']}" if best else \
            "; ".join(f"{r['peer']}: {r['absent']}" for r in rows if "absent" in r and r["peer"] in (OURS, "all"))
        print(f"  {case.set} {case.label}: {text}", flush=True)
        if not any(c.set == case.set for c in self.left):
            self.finish(case.set)

    def finish(self, name: str) -> None:
        """A set is complete: show it, keep it, draw it."""
        rows = self.rows[name]
        report.show(name, rows)
        print(f"  {name}: {time.monotonic() - self.began:.0f} s since the start", flush=True)
        record(f"matmul_{name}", rows, self.out, self.where)
        try:
            report.plot_ratios(rows, self.out / f"matmul_{name}.png")
            report.plot_roofline([r for x in self.rows.values() for r in x], self.out / "matmul_roofline.png")
        except ImportError:
            print("  no matplotlib: no plots")

    def failed(self, why: str) -> str:
        """The worker ended in the middle of a case; the peer that it was building, if it was one."""
        name = self.building
        rows = [absent(self.left[0], name or "all", f"{why}{' here' if name else ' while measuring'}")]
        self.building = ""
        self.done(rows)
        return "" if name == OURS else name


def measure(board: Board, options: Options, seconds: dict[str, float]) -> int:
    """Run what is left in worker processes, a new one after each that ends early; 1 if none even starts."""
    spent = dict.fromkeys(seconds, 0.0)
    without = list(options.without)
    with tempfile.TemporaryDirectory(prefix="tilejit-bench-") as folder:
        while board.left:
            job, progress, before = Path(folder, "job.json"), Path(folder, "progress.jsonl"), len(board.left)
            progress.write_text("")
            job.write_text(json.dumps({
                "cases": [asdict(c) for c in board.left], "options": {**asdict(options), "without": without},
                "seconds": {n: max(5.0, seconds[n] - spent[n]) for n in seconds}}))
            worker = subprocess.Popen([sys.executable, __file__, "--worker", str(job), str(progress)])
            read, started = 0, False
            while True:
                code, began = worker.poll(), time.monotonic()
                lines = progress.read_text().split("\n")[read:-1]
                read += len(lines)
                for line in lines:
                    started = started or "start" in json.loads(line)
                    board(json.loads(line))
                if code is not None:
                    break
                time.sleep(0.2)
                if board.left and started:
                    spent[board.left[0].set] += time.monotonic() - began
            if code == 0:
                break
            if not started and before == len(board.left):
                print(f"the worker ended with status {code} before its first case", flush=True)
                return 1
            if board.left:
                peer = board.failed(f"the process ended with status {code}")
                without += [peer] if peer else []
    return 0


def worker(job: Path, progress: Path) -> int:
    """Measure the cases of a job file; events go to the progress file."""
    from matmul_work import device

    given = json.loads(job.read_text())
    emit, gpu = writer(progress), device()
    emit({"where": environment()})
    cases = [Case(**{**c, "rows": tuple(c["rows"])}) for c in given["cases"]]
    options = Options(**{**given["options"], "peers": tuple(given["options"]["peers"]),
                         "without": tuple(given["options"]["without"])})
    for name in dict.fromkeys(c.set for c in cases):
        run([c for c in cases if c.set == name], gpu, options, given["seconds"][name], emit)
    return 0


def planned(args: argparse.Namespace) -> Plan:
    """The cases of every set asked for."""
    shapes = parse_shapes(args.shapes) if args.shapes else ()
    plan = {}
    for name in args.set.split(","):
        cases = with_shapes(name, shapes) if shapes else cases_of(name)
        plan[name] = quick(cases) if args.quick and not shapes else cases
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; status 1 if nothing could be measured or one of our results was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default=",".join(s for s in SETS if s != "tuning"),
                        help="sets to run, separated by commas: %(default)s; and tuning, the library's own choices")
    parser.add_argument("--shapes", help="other shapes for these sets, MxNxK or S^3, separated by commas")
    parser.add_argument("--peers", default="", help="only peers whose names begin so, separated by commas")
    parser.add_argument("--without", default="", help="leave out peers whose names begin so, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a third of the cases, fewer rounds, no sustained load")
    parser.add_argument("--rounds", type=int, help="interleaved rounds of bursts")
    parser.add_argument("--budget", type=float, help="seconds for all sets together, shared out as they need")
    parser.add_argument("--out", help="folder for records and plots: benchmarks/results, a temporary one for --dry")
    parser.add_argument("--dry", action="store_true", help="made-up times, no GPU: tries the command itself")
    parser.add_argument("--worker", nargs=2, metavar=("JOB", "PROGRESS"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return worker(Path(args.worker[0]), Path(args.worker[1]))
    try:
        plan = planned(args)
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    seconds = {n: float(SECONDS[n]) * (0.5 if args.quick else 1.0) for n in plan}
    if args.budget:
        seconds = {n: s * args.budget / sum(seconds.values()) for n, s in seconds.items()}
    options = Options(rounds=args.rounds or (3 if args.quick else 5), sustained=not args.quick,
                      peers=tuple(filter(None, args.peers.split(","))),
                      without=tuple(filter(None, args.without.split(","))))
    out = args.out or (tempfile.mkdtemp(prefix="tilejit-dry-") if args.dry else "benchmarks/results")
    board = Board(plan, Path(out), {"dry": True} if args.dry else None)
    board.out.mkdir(parents=True, exist_ok=True)
    if args.dry:
        print(f"DRY RUN: every time below is made up; written to {out}")
        for name, cases in plan.items():
            run(cases, dry_device(), Options(options.rounds, rest=0.0, peers=options.peers, without=options.without),
                seconds[name], board)
        status = 0
    else:
        status = measure(board, options, seconds)
    wrong = [r for rows in board.rows.values() for r in rows
             if r["peer"] == OURS and "wrong result" in r.get("absent", "")]
    return 1 if wrong else status


if __name__ == "__main__":
    sys.exit(main())
