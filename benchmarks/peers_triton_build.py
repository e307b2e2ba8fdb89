"""Gets Triton's configurations ready before anything is timed, each in a process of its own, all side by side.

Such a process compiles one configuration without touching the GPU, into Triton's cache on disk (whose key knows dtypes
and orders, not shapes), then runs it on two small problems and checks the results. One that compiles for too long,
hangs, crashes or is wrong costs its own process and is named; the others are used. What was found is kept in the notes
of `peers_triton`, so that it is found out once.

    python benchmarks/peers_triton_build.py [bf16|fp8]      all configurations, a line each; without a GPU compiles only
"""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peers_triton
from matmul_cases import Case
from peers_triton import Config, configs, recipe

#: Seconds for one process: importing torch beside fifteen others, compiling; and for its two runs, launchers included.
LIMIT, RUN_LIMIT = 120.0, 40
#: Triton's name of the chip that the benchmark is for.
CAPABILITY = 90
DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
#: m, n, k of what is tried: fewer tiles than multiprocessors, and several tiles for each.
TRIALS = ((512, 512, 512), (3072, 3072, 256))
FEW_TRIALS = ((16, 1024, 1024), (128, 16384, 512))


@dataclass(frozen=True)
class Recipe:
    """One thing to compile: a configuration for operands of a dtype, for `few` rows or many."""

    config: Config
    dtype: str
    few: bool

    @property
    def scaled(self) -> bool:
        """Whether results are scaled: fp8 ones are."""
        return self.dtype == "fp8"

    @property
    def label(self) -> str:
        """The name under which the notes know it."""
        return recipe(self.config, self.dtype, self.scaled)


def recipes(cases: Iterable[Case]) -> list[Recipe]:
    """What the Triton peer of these cases may use, each once."""
    wanted = [Recipe(c, case.dtype, case.m <= 128) for case in cases
              if case.set in ("bf16", "fp8", "decode", "rows", "splitk")
              for c in configs(case.m, 1 if case.dtype == "fp8" else 2)]
    return list({r.label: r for r in wanted}.values())


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status (None: it was stopped at the limit), what it wrote, and its seconds."""

    status: int | None
    output: str
    seconds: float


def side_by_side(commands: Mapping[str, Sequence[str]], workers: int, limit: float) -> dict[str, Ended]:
    """Run every command as a process, `workers` at a time, each for `limit` seconds at most."""
    waiting, running, ended = list(commands), {}, {}
    with tempfile.TemporaryDirectory(prefix="tilejit-side-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < max(1, workers):
                    name = waiting.pop(0)
                    path = Path(folder, str(len(waiting)))
                    with path.open("w") as out:
                        process = subprocess.Popen(commands[name], stdout=out, stderr=subprocess.DEVNULL,
                                                   stdin=subprocess.DEVNULL, start_new_session=True)
                    running[name] = process, path, time.monotonic()
                for name, (process, path, began) in list(running.items()):
                    took = time.monotonic() - began
                    status = process.poll()
                    if status is None and took > limit:
                        stop(process)
                    elif status is None:
                        continue
                    ended[name] = Ended(status, path.read_text(), took)
                    del running[name]
                time.sleep(0.02)
        finally:
            for process, _, _ in running.values():
                stop(process)
    return ended


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def verdict(e: Ended, limit: float = LIMIT) -> str:
    """What is wrong with a configuration, from how its process ended; empty text if nothing is."""
    lines = [json.loads(x) for x in e.output.splitlines() if x.startswith("{")]
    told = {k: v for line in lines for k, v in line.items()}
    stage = "when run" if "compiled" in told else "when compiled"
    if e.status == -signal.SIGALRM and "launching" in told:
        return f"hangs when run (stopped after {RUN_LIMIT} s)"
    if e.status in (None, -signal.SIGALRM):
        return f"{'not ready to run' if 'compiled' in told else 'not compiled'} after {limit:.0f} s"
    if "failed" in told:
        return f"{stage}: {told['failed']}"
    return f"{stage}: the process ended with status {e.status}" if e.status else ""


def ready(cases: Iterable[Case], limit: float = LIMIT, folder: Path | None = None) -> str:
    """Try out every configuration that these cases may use and that the notes do not know; says in a line or more
    what was found (empty text: nothing to do)."""
    if peers_triton.triton is None:
        return ""
    known = peers_triton.notes(folder)
    new = [r for r in recipes(cases) if r.label not in known.tried]
    if not new:
        return ""
    began = time.monotonic()
    commands = {r.label: [sys.executable, __file__, "--one", json.dumps(asdict(r)), str(limit)] for r in new}
    found = {name: verdict(e, limit) for name, e in side_by_side(commands, os.cpu_count() or 1, limit).items()}
    known.tried.update(found)
    known.save()
    bad = [f"  triton without {name}: {why}" for name, why in found.items() if why]
    verb = "work" if on_gpu() else "compile"
    return "\n".join([f"  triton: {len(found) - len(bad)} of {len(found)} configurations {verb}, "
                      f"{time.monotonic() - began:.0f} s", *bad])


class Numbers:
    """A matrix that is not there: what Triton asks of a tensor when it compiles. Strides in elements."""

    class Type:
        """A dtype by torch's name."""

        def __init__(self, name: str, itemsize: int):
            self.name, self.itemsize = name, itemsize

        def __str__(self) -> str:
            return f"torch.{self.name}"

        __repr__ = __str__

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Type):
        self.shape, self.strides, self.dtype = shape, strides, dtype

    def stride(self, axis: int | None = None) -> Any:
        """All strides, or one."""
        return self.strides if axis is None else self.strides[axis]

    def data_ptr(self) -> int:
        """An address that is a multiple of 16."""
        return 0

    @property
    def T(self) -> Numbers:
        """The transpose."""
        return Numbers(self.shape[::-1], self.strides[::-1], self.dtype)


def compile_only(r: Recipe) -> Any:
    """Compile for the benchmark's chip, wherever this runs; returns Triton's compiled kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Chip:
        """Stands for the driver as far as compiling asks it."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", CAPABILITY, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    m, n, k = 4096, 4096, 4096
    narrow = Numbers.Type(DTYPES[r.dtype], 1 if r.dtype == "fp8" else 2)
    a, b = Numbers((m, k), (k, 1), narrow), Numbers((k, n), (1, k), narrow)
    out = Numbers((m, n), (n, 1), Numbers.Type("bfloat16", 2))
    scale = Numbers((1,), (1,), Numbers.Type("float32", 4)) if r.scaled else None
    args, options = peers_triton.call_of(a, b, out, scale, r.config)
    driver.set_active(Chip())
    try:
        return peers_triton.KERNEL.warmup(*args, grid=(1,), **options)
    finally:
        driver._active = None                                # reset_active would look for a GPU, which may be missing


def run_small(r: Recipe) -> str:
    """Run on small problems on the GPU and compare with torch; what is wrong, or empty text."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    print(json.dumps({"launching": True}), flush=True)
    signal.alarm(RUN_LIMIT)
    for m, n, k in FEW_TRIALS if r.few else TRIALS:
        a, b = (torch.randn(rows, k, device="cuda").to(getattr(torch, DTYPES[r.dtype])) for rows in (m, n))
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        scale = torch.full((1,), 0.5, device="cuda") if r.scaled else None
        peers_triton.launcher(a, b.T, out, scale, r.config)()
        wanted = a.float() @ b.float().T * (0.5 if r.scaled else 1.0)
        error = float((out.float() - wanted).norm() / wanted.norm())
        if not error < 2e-2:
            return f"wrong result at {m}x{n}x{k}: error {error:.1e}"
    return ""


def on_gpu() -> bool:
    """Whether this machine has a GPU to try kernels on."""
    return Path("/dev/nvidiactl").exists()


def one(r: Recipe, limit: float) -> None:
    """The process of one configuration: writes {"compiled": seconds}, {"launching": true}, then {"ran": seconds} or
    {"failed": reason}."""
    signal.alarm(int(limit) + 5)                       # its default action ends the process, whatever it waits for
    began = time.monotonic()
    try:
        compile_only(r)
        print(json.dumps({"compiled": round(time.monotonic() - began, 2)}), flush=True)
        if on_gpu():
            wrong = run_small(r)
            print(json.dumps({"failed": wrong} if wrong else {"ran": round(time.monotonic() - began, 2)}), flush=True)
    except Exception as error:
        text = " ".join(str(error).split())
        print(json.dumps({"failed": f"{type(error).__name__}: {text[:120]}"}), flush=True)


def main(argv: Sequence[str]) -> int:
    """The command line; see the module's first lines."""
    if argv[:1] == ["--one"]:
        given = json.loads(argv[1])
        one(Recipe(Config(**given["config"]), given["dtype"], given["few"]), float(argv[2]))
        return 0
    peers_triton.present()
    cases = [Case(d, m, 4096, 4096, dtype=d) for d in argv or DTYPES for m in (64, 4096)]
    with tempfile.TemporaryDirectory() as folder:
        print(ready(cases, folder=Path(folder)))
        for name, why in peers_triton.notes(Path(folder)).tried.items():
            print(f"  {name}: {why or ('works' if on_gpu() else 'compiles')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
