"""Differential fuzzing: random tile programs, each run in several ways that must agree.

    python benchmarks/fuzz.py --minutes 10                 evaluator and emulator (sanitized, other options, chunks)
    python benchmarks/fuzz.py --minutes 10 --gpu --jobs 8  evaluator, tilejit on the GPU (twice), and Triton

Prints each finding with its program made small; adds the run to benchmarks/results/fuzz.json (findings that are Triton's
alone too, each with its program). Exit status 1 if any program differs, crashes or is refused by tilejit.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fuzz_programs import program
from fuzz_run import outcome, runners, show, shrink
from records import environment

RESULTS = Path(__file__).parent / "results" / "fuzz.json"


def work(minutes: float, first: int, step: int, gpu: bool, most: int) -> dict[str, Any]:
    """Run programs of seeds first, first + step, ... until the time is over."""
    ways, end, seed = runners(gpu), time.monotonic() + 60 * minutes, first
    found: list[dict[str, Any]] = []
    programs = 0
    while time.monotonic() < end:
        case = program(seed)
        wrong = outcome(case, ways)
        programs += 1
        seed += step
        if not wrong:
            continue
        name = next(iter(wrong))
        small = shrink(case, ways, name) if len(found) < most and time.monotonic() < end else case
        found.append({"seed": case.seed, "wrong": wrong, "program": small.text})
        print(show(small, wrong), flush=True)
    return {"programs": programs, "ways": list(ways), "findings": found}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first program")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, against Triton where it is installed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shrink", type=int, default=8, help="findings that are made small, in each process")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is not None:
        part = work(args.minutes, args.seed + args.part, args.jobs, args.gpu, args.shrink)
        print("\x00" + json.dumps(part))
        return 0
    command = [sys.executable, __file__, *sys.argv[1:]]
    processes = [subprocess.Popen([*command, "--part", str(i)], stdout=subprocess.PIPE, text=True)
                 for i in range(args.jobs)]
    parts: list[dict[str, Any]] = []
    died = 0
    for p in processes:
        text, _, result = (p.communicate()[0] or "").partition("\x00")
        print(text, end="")
        if result:
            parts.append(json.loads(result))
        died += not result
    findings = [f for p in parts for f in p["findings"]]
    ours = [f for f in findings if any(n != "triton" for n in f["wrong"])]
    record = {**environment(), "minutes": args.minutes, "gpu": args.gpu, "seed": args.seed, "programs": sum(p["programs"] for p in parts),
              "ways": parts[0]["ways"] if parts else [], "findings": findings}
    RESULTS.parent.mkdir(exist_ok=True)
    runs = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*runs, record], indent=1) + "\n")
    print(f"{record['programs']} programs, {len(findings)} with a finding, {len(ours)} of them not Triton's alone"
          + (f"; {died} processes died" if died else ""))
    return 1 if ours or died else 0


if __name__ == "__main__":
    sys.exit(main())
