"""Other people's kernels, run through `tilejit.compat.triton`: kernel by kernel, whether it runs, whether the results
that it has a part in are right, and on a GPU its speed against Triton on the same source.

    python benchmarks/compat.py [--only WORD ...] [--part I/N] [--large] [--unchecked] [--configs N] [--json FILE]
    python benchmarks/compat.py --speed [--seconds N] [--jobs N] ...

The kernels are those of installed packages (Liger-Kernel, flash-linear-attention) and of Triton's tutorials
(--tutorials FOLDER); none of their code is here. What is right is told by formulas in torch, or by a package's own
reference in Python. Without a GPU everything runs in the emulator, at small sizes. `--speed` compares the times of
single launches, and samples of the results, with Triton's (`compat_speed.py`). Cases run in an order in which the most
different ones come first; `--part 1/3` takes every third of them.
"""
from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
#: modules of cases, each with CASES: name -> function(Sizes) -> Check
FAMILIES = ("compat_liger", "compat_fla", "compat_tutorials")


@dataclass
class Sizes:
    """How large the inputs of a case are, and where they lie."""

    device: str
    large: bool
    tutorials: Path
    dtype: torch.dtype = torch.float32
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(7)

    def pick(self, small: int, large: int) -> int:
        """One of two sizes."""
        return large if self.large else small

    def randn(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers."""
        return (torch.randn(shape, generator=self.generator, device=self.device) * scale).to(self.dtype)

    def rand(self, *shape: int) -> torch.Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(shape, generator=self.generator, device=self.device).to(self.dtype)

    def randint(self, high: int, *shape: int) -> torch.Tensor:
        """Integers below `high`."""
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)


@dataclass
class Check:
    """What a case computes and what it should: `ours` and `reference` take `inputs`; with `grads`, the gradients of the
    floating inputs are compared as well."""

    ours: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple
    tolerance: float = 2e-3
    grads: bool = True
    exact: bool = False                 # the reference runs in the inputs' own type


def results(function: Callable[..., Any], inputs: tuple, grads: bool, wide: bool) -> list[torch.Tensor]:
    """What a function returns, and the gradients of its floating inputs for fixed cotangents."""
    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        x = x.detach().clone()
        if x.is_floating_point():
            x = (x.double() if wide else x).requires_grad_(grads)
        return x

    leaves = [leaf(x) for x in inputs]
    made = function(*leaves)
    outs = [x for x in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(x, torch.Tensor)]
    found = [o.detach().clone() for o in outs]
    if grads:
        roots = [o for o in outs if o.requires_grad]
        wave = torch.Generator(roots[0].device if roots else "cpu").manual_seed(1)
        into = [torch.randn(o.shape, generator=wave, device=o.device).to(o.dtype) for o in roots]
        torch.autograd.backward(roots, into)
        found += [x.grad for x in leaves if isinstance(x, torch.Tensor) and x.grad is not None]
    return found


def worst(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest relative error (Frobenius norm) of any tensor."""
    if len(ours) != len(theirs):
        return math.inf
    errors = []
    for a, b in zip(ours, theirs):
        if a.shape != b.shape:
            return math.inf
        a, b = a.double(), b.double()
        scale = float(b.norm()) or 1.0
        gap = float((a - b).norm()) / scale
        errors.append(math.inf if math.isnan(gap) else gap)
    return max(errors, default=math.inf)


class Recorder:
    """Notes every kernel that is launched, and the arguments of its first launch."""

    def __init__(self, triton: Any):
        self.found: dict[str, tuple[Any, Any, tuple, dict]] = {}
        kind = triton.runtime.jit.JITFunction
        if hasattr(kind, "_run"):
            run = kind._run

            def noted(fn: Any, grid: Any, warmup: bool, /, *args: Any, **kwargs: Any) -> Any:
                made = run(fn, grid, warmup, *args, **kwargs)
                if not warmup:
                    self.note(fn, grid, args, kwargs)
                return made

            kind._run = noted
        else:
            launch = kind.run

            def seen(fn: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
                made = launch(fn, *args, grid=grid, warmup=warmup, **kwargs)
                if not warmup:
                    self.note(fn, grid, args, kwargs)
                return made

            kind.run = seen

    def note(self, fn: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        """Remember a launch."""
        self.found.setdefault(f"{fn.fn.__module__.split('.')[0]}:{fn.__name__}", (fn, grid, args, dict(kwargs)))


def fewer_configurations(count: int) -> None:
    """Autotuners take the first `count` configurations: in the emulator nobody waits for the best of forty."""
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__

    def init(self: Any, fn: Any, names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        make(self, fn, names, list(configs)[:count], *args, **kwargs)

    Autotuner.__init__ = init


def opened(options: argparse.Namespace, triton: bool) -> tuple[bool, dict[str, Callable[[Sizes], Check]], Recorder]:
    """Make this process one of tilejit's or of Triton's: whether there is a GPU, the cases, and who notes launches."""
    gpu = torch.cuda.is_available() and not options.spills
    sys.path.insert(0, str(HERE))
    if not gpu:
        importlib.import_module("compat_host").pretend()
        if triton:
            importlib.import_module("compat_spills").hopper()
    if not triton:
        importlib.import_module("tilejit.compat.triton").install()
    import triton as package

    if options.configs or not gpu:
        fewer_configurations(options.configs or 1)
    return gpu, chosen(options), Recorder(package)


def apart(index: int) -> float:
    """Numbers whose every beginning is spread evenly between 0 and 1 (van der Corput's sequence)."""
    bits = f"{index:b}"[::-1]
    return int(bits, 2) / (1 << len(bits))


def chosen(options: argparse.Namespace) -> dict[str, Callable[[Sizes], Check]]:
    """The cases asked for. Cases beside each other in a family's file are alike, so the order goes by steps."""
    ordered: list[tuple[int, str, Callable[[Sizes], Check]]] = []
    for family in FAMILIES:
        try:
            cases = importlib.import_module(family).CASES
        except ImportError as error:
            print(f"{family}: left out ({error})", file=sys.stderr, flush=True)
            continue
        names = list(cases)
        steps = [int(apart(i) * len(names)) for i in range(1 << len(names).bit_length())]
        ordered += [(rank, f"{family.removeprefix('compat_')}.{names[i]}", cases[names[i]])
                    for rank, i in enumerate(dict.fromkeys(steps))]
    ordered.sort(key=lambda found: found[0])
    found = {name: make for _, name, make in ordered if not options.only or any(w in name for w in options.only)}
    part, parts = map(int, options.part.split("/"))
    return dict(list(found.items())[part - 1::parts])


def work(options: argparse.Namespace) -> None:
    """Run cases in this process; each row goes to the file at once. Ends where a case has broken the GPU's context."""
    gpu, cases, recorder = opened(options, options.triton)
    done = {json.loads(line)["case"] for line in options.work.read_text().splitlines()}
    for name, make in cases.items():
        if name in done:
            continue
        sizes = sizes_of(options, gpu)
        row = compiled(name, make, sizes, options) if options.spills else one(name, make, sizes, recorder, options)
        with options.work.open("a") as file:
            file.write(json.dumps(row) + "\n")
        right = "" if (options.unchecked or options.spills) and row["runs"] else "right" if row["right"] else "WRONG"
        print(f"{name:38} {'runs' if row['runs'] else 'FAILS':6} {right:6}{row['error']:10.2e}  "
              f"{len(row['kernels']):2} kernels {row['seconds']:6.1f} s  {row['why']}", flush=True)
        if gpu:
            try:
                torch.cuda.synchronize()
            except RuntimeError:                     # torch says so of a context that a kernel broke
                print("the GPU's context is broken: a new process goes on", flush=True)
                os._exit(3)


def sizes_of(options: argparse.Namespace, gpu: bool) -> Sizes:
    """New sizes, with a new generator, for a case."""
    return Sizes("cuda" if gpu else "cpu", options.large, options.tutorials,
                 torch.bfloat16 if options.large else torch.float32)


def collect(triton: bool) -> list[dict[str, Any]]:
    """Rows of all cases, by as many processes as it takes: one that breaks off is followed by another."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.jsonl")
        rows.write_text("")
        count = -1
        while len(rows.read_text().splitlines()) > count:
            count = len(rows.read_text().splitlines())
            if subprocess.run(command(triton, rows), check=False).returncode == 0:
                break
        return [json.loads(line) for line in rows.read_text().splitlines()]


def command(triton: bool, rows: Path) -> list[str]:
    """This program again, as a process that runs cases and appends to `rows`."""
    given = [a for a in sys.argv[1:] if a != "--triton"]
    return [sys.executable, __file__, *given, *(["--triton"] if triton else []), "--work", str(rows)]


def one(name: str, make: Callable[[Sizes], Check], sizes: Sizes, recorder: Recorder,
        options: argparse.Namespace) -> dict[str, Any]:
    """One case: does it run, is it right."""
    def late(*_: Any) -> None:
        raise TimeoutError(f"over {options.limit} s")

    row: dict[str, Any] = {"case": name, "runs": False, "right": False, "error": math.inf, "why": ""}
    recorder.found.clear()
    began = time.perf_counter()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(options.limit)
    try:
        check = make(sizes)
        ours = results(check.ours, check.inputs, check.grads, False)
        row["runs"] = True
        if not options.unchecked:
            theirs = results(check.reference, check.inputs, check.grads, not check.exact)
            row["error"] = worst(ours, theirs)
            row["right"] = row["error"] <= (max(check.tolerance, 3e-2) if sizes.large else check.tolerance)
    except Exception as error:
        row["why"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]
        if options.verbose:
            traceback.print_exc()
    finally:
        signal.alarm(0)
    row["kernels"] = sorted(recorder.found)
    row["seconds"] = time.perf_counter() - began
    return row


def compiled(name: str, make: Callable[[Sizes], Check], sizes: Sizes, options: argparse.Namespace) -> dict[str, Any]:
    """One case whose launches only compile: the resources of its kernels."""
    import compat_spills

    row: dict[str, Any] = {"case": name, "runs": False, "right": False, "error": math.inf, "why": "", "resources": {}}
    began = time.perf_counter()
    try:
        with (compat_spills.theirs if options.triton else compat_spills.ours)(row["resources"]):
            check = make(sizes)
            results(check.ours, check.inputs, check.grads, False)
        row["runs"] = True
    except Exception as error:
        row["why"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]
        if options.verbose:
            traceback.print_exc()
    row["kernels"] = sorted(row["resources"])
    row["seconds"] = time.perf_counter() - began
    return row


def table(rows: list[dict[str, Any]]) -> None:
    """Kernel by kernel: whether every case that launches it is right."""
    seen: dict[str, bool] = {}
    for r in rows:
        for k in r["kernels"]:
            seen[k] = seen.get(k, True) and r["right"]
    print(f"\n{'kernel':56} right")
    for k, right in sorted(seen.items()):
        print(f"{k:56} {'yes' if right else 'NO'}")
    print(f"\n{len(seen)} kernels ran, {sum(seen.values())} of them in right results only; "
          f"{sum(r['right'] for r in rows)} of {len(rows)} cases are right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases whose names contain one of these words")
    parser.add_argument("--large", action="store_true", help="sizes of real use, in bf16 (a GPU is needed)")
    parser.add_argument("--part", default="1/1", help="part I of N of the cases")
    parser.add_argument("--speed", action="store_true", help="time each kernel, under Triton too")
    parser.add_argument("--seconds", type=float, default=600, help="seconds that --speed may take: half of them to compile")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile before --speed times")
    parser.add_argument("--spills", action="store_true", help="what is assembled at sizes of real use, beside Triton's")
    parser.add_argument("--unchecked", action="store_true", help="no references: they take long at large sizes")
    parser.add_argument("--configs", type=int, help="autotuners take so many of their configurations (CPU: 1)")
    parser.add_argument("--triton", action="store_true", help="run under Triton itself")
    parser.add_argument("--tutorials", type=Path, default=Path("tutorials"), help="folder of Triton's tutorials")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a case")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--verbose", action="store_true", help="print tracebacks")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.large |= options.spills
    if options.work:
        return work(options)
    if options.speed:
        import compat_speed

        return compat_speed.compare(options)
    rows = collect(options.triton)
    theirs = collect(True) if options.spills and not options.triton else None
    if options.json:
        options.json.write_text(json.dumps([rows, theirs]))
    if options.spills:
        import compat_spills

        return compat_spills.table(rows, theirs)
    table(rows)


if __name__ == "__main__":
    main()
