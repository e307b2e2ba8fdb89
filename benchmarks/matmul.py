"""tilejit's matrix products against cuBLAS, Triton and Pallas on one GPU, in one command.

    PYTHONPATH=. python benchmarks/matmul.py [--set bf16,fp8,...] [--shapes 4096^3,...] [--quick] [--budget SECONDS]
    PYTHONPATH=. python benchmarks/matmul.py --resume     what today's records of this commit lack
    PYTHONPATH=. python benchmarks/matmul.py --draw       tables and plots of the records, nothing is measured

Every result is checked (fresh random inputs, outputs that hold NaN before, float64 reference on sampled rows). Times
are medians of interleaved short bursts from a rested chip; a second column is under unbroken load. Tables go to
stdout, records (after every case) and plots to `--out`. Measuring happens in a process of its own: a crash or a hang
costs the case, or the peer that caused it its place from there on; tables say who is missing where and why.
"""
from __future__ import annotations

import argparse
import datetime
import json
import signal
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
from records import commit, environment, record

#: Seconds a set may take; a set that needs less takes less. What Triton's tuning adds comes on top.
SECONDS = {"bf16": 60, "fp8": 45, "fp8-block": 60, "decode": 60, "rows": 60, "few": 60, "splitk": 15, "batched": 8, "grouped": 25,
           "majors": 15, "orders": 20, "fused": 15, "ablation": 45, "tuning": 60}
TRITON_SECONDS = {"bf16": 25, "fp8": 20, "decode": 40, "rows": 40, "splitk": 5}
Plan = dict[str, tuple[Case, ...]]


class Board:
    """Receives the events of the worker: prints a line a case, and a table, records and plots a set."""

    def __init__(self, plan: Plan, out: Path, where: dict[str, Any] | None = None,
                 earlier: dict[str, list[dict[str, Any]]] | None = None):
        """`earlier` are records that are kept already and belong into the same tables and plots."""
        self.plan, self.out, self.where = plan, out, where
        self.rows: dict[str, list[dict[str, Any]]] = {name: list((earlier or {}).get(name, ())) for name in plan}
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
        """The next case is done: keep its records."""
        case = self.left.pop(0)
        self.rows[case.set] += rows
        record(f"matmul_{case.set}", rows, self.out, self.where)
        best = next((r for r in rows if r.get("best") and r["ratio"] is not None), None)
        text = f"{best['ours']:.0f} TFLOP/s, {best['ratio']:.3f} of {best['peer']}" if best else \
            "; ".join(f"{r['peer']}: {r['absent']}" for r in rows if "absent" in r and r["peer"] in (OURS, "all"))
        print(f"  {case.set} {case.label}: {text}", flush=True)
        if not any(c.set == case.set for c in self.left):
            self.finish(case.set)

    def finish(self, name: str) -> None:
        """A set is complete: show it, draw it."""
        rows = self.rows[name]
        report.show(name, rows)
        print(f"  {name}: {time.monotonic() - self.began:.0f} s since the start", flush=True)
        try:
            report.plot_ratios(rows, self.out / f"matmul_{name}.png")
            report.plot_roofline([r for x in self.rows.values() for r in x], self.out / "matmul_roofline.png")
        except ImportError:
            print("  no matplotlib: no plots")

    def failed(self, why: str) -> dict[str, str]:
        """The worker ended in the middle of a case. If it was building a peer, that peer and why it is left out from
        here on: the case is measured again without it. Else the case is done."""
        name, self.building = self.building, ""
        if name not in ("", OURS):
            return {name: f"{why} at {self.left[0].label}"}
        self.done([absent(self.left[0], name or "all", f"{why}{' here' if name else ' while measuring'}")])
        return {}


def measure(board: Board, options: Options, seconds: dict[str, float]) -> int:
    """Run what is left in worker processes, a new one after each that ends early; 1 if none even starts."""
    spent = dict.fromkeys(seconds, 0.0)
    without = dict(options.without)
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
                without |= board.failed(ending(code))
    return 0


def ending(code: int) -> str:
    """How a worker ended, in words."""
    return "the time limit ended the process" if code == -signal.SIGALRM else f"the process ended with status {code}"


def worker(job: Path, progress: Path) -> int:
    """Measure the cases of a job file; events go to the progress file."""
    from matmul_work import device

    given = json.loads(job.read_text())
    emit, gpu = writer(progress), device()
    emit({"where": environment()})
    cases = [Case(**{**c, "rows": tuple(c["rows"])}) for c in given["cases"]]
    options = Options(**{**given["options"], "peers": tuple(given["options"]["peers"])})
    said = "" if options.unwanted("triton") else gpu.ready(cases)
    if said:
        print(said, flush=True)
    for name in dict.fromkeys(c.set for c in cases):
        run([c for c in cases if c.set == name], gpu, options, given["seconds"][name], emit)
    return 0


def planned(args: argparse.Namespace, earlier: dict[str, list[dict[str, Any]]]) -> Plan:
    """The cases of every set asked for, without those that earlier records have a ratio or a wrong result of."""
    shapes = parse_shapes(args.shapes) if args.shapes else ()
    plan = {}
    for name in args.set.split(","):
        cases = with_shapes(name, shapes) if shapes else cases_of(name)
        cases = quick(cases) if args.quick and not shapes else cases
        known = {r["case"] for r in earlier.get(name, ()) if r.get("ratio") is not None}
        plan[name] = tuple(c for c in cases if c.label not in known)
    return plan


def kept(names: Sequence[str], out: Path, today: bool) -> dict[str, list[dict[str, Any]]]:
    """Records of sets: `today` those of this day and commit that hold numbers, else each case's latest."""
    found = {}
    for name in names:
        path = out / f"matmul_{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        if today:
            here = datetime.date.today().isoformat(), commit()
            rows = [r for r in rows if (r.get("date"), r.get("commit")) == here and "absent" not in r]
        found[name] = report.latest(rows)
    return found


def draw(args: argparse.Namespace, out: Path) -> int:
    """Tables and plots of what is recorded; 1 if nothing is."""
    rows = kept(args.set.split(","), out, False)
    board = Board({}, out)
    board.rows = {name: found for name, found in rows.items() if found}
    for name in board.rows:
        board.finish(name)
    return 0 if board.rows else 1


def allowed(plan: Plan, budget: float | None, part: float, triton: bool) -> dict[str, float]:
    """Seconds of each set: `part` of what its whole takes for as many of its cases as there are, or shares of a budget
    in that proportion."""
    whole = {n: SECONDS[n] + (TRITON_SECONDS.get(n, 0) if triton else 0) for n in plan}
    seconds = {n: part * whole[n] * max(1.0, len(c) / len(cases_of(n))) for n, c in plan.items()}
    return {n: s * budget / sum(seconds.values()) for n, s in seconds.items()} if budget else seconds


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; status 1 if nothing could be measured or one of our results was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", "--only", default=",".join(s for s in SETS if s != "tuning"),
                        help="sets to run, separated by commas: %(default)s; and tuning, the library's own choices")
    parser.add_argument("--shapes", help="other shapes for these sets, MxNxK or S^3, separated by commas")
    parser.add_argument("--peers", default="", help="only peers whose names begin so, separated by commas")
    parser.add_argument("--without", default="", help="leave out peers whose names begin so, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a third of the cases, fewer rounds, no sustained load")
    parser.add_argument("--rounds", type=int, help="interleaved rounds of bursts")
    parser.add_argument("--budget", type=float, help="seconds for all sets together, shared out as they need")
    parser.add_argument("--resume", action="store_true", help="only cases that today's records of this commit lack")
    parser.add_argument("--draw", action="store_true", help="show and draw the records, measure nothing")
    parser.add_argument("--out", help="folder for records and plots: benchmarks/results, a temporary one for --dry")
    parser.add_argument("--dry", action="store_true", help="made-up times, no GPU: tries the command itself")
    parser.add_argument("--worker", nargs=2, metavar=("JOB", "PROGRESS"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return worker(Path(args.worker[0]), Path(args.worker[1]))
    out = Path(args.out or (tempfile.mkdtemp(prefix="tilejit-dry-") if args.dry else "benchmarks/results"))
    if args.draw:
        return draw(args, out)
    earlier = kept(args.set.split(","), out, True) if args.resume else {}
    try:
        plan = planned(args, earlier)
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    options = Options(rounds=args.rounds or (3 if args.quick else 5), sustained=not args.quick,
                      peers=tuple(filter(None, args.peers.split(","))),
                      without=dict.fromkeys(filter(None, args.without.split(",")), "left out (--without)"))
    seconds = allowed(plan, args.budget, 0.5 if args.quick else 1.0, not options.unwanted("triton"))
    board = Board(plan, out, {"dry": True} if args.dry else None, earlier)
    board.out.mkdir(parents=True, exist_ok=True)
    if args.dry:
        print(f"DRY RUN: every time below is made up; written to {out}")
        for name, cases in plan.items():
            run(cases, dry_device(), Options(options.rounds, rest=0.0, peers=options.peers, without=options.without),
                seconds[name], board)
        status = 0
    else:
        status = measure(board, options, seconds)
    for name in (n for n, cases in plan.items() if not cases):
        board.finish(name)
    wrong = [r for rows in board.rows.values() for r in rows
             if r["peer"] == OURS and "wrong result" in r.get("absent", "")]
    return 1 if wrong else status


if __name__ == "__main__":
    sys.exit(main())
