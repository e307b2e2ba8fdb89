"""The fresh-machine test: the wheel alone in new environments, and the README's first command from an empty folder.

    python benchmarks/fresh.py [--pythons python3.10,python3.13] [--extra ptxas] [--out benchmarks/results]

Builds the wheel, which has to stay under 1,000,000 bytes; for each Python makes a virtual environment, installs the wheel
with what it depends on (no compiler, no torch), and runs `python -m tilejit demo` twice in an empty folder with an
empty cache: the first time includes what numba compiles of the emulator where there is no GPU. Prints seconds, and those
of a processor, which other work on the machine changes less. Uses pip as it is set up; Pythons that are not there are
said and left out.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = "python3.10,python3.11,python3.12,python3.13,python3.14"
LIMIT = 1_000_000


class Took(NamedTuple):
    """A command's seconds, of the clock and of processors, and its output."""

    clock: float
    processor: float
    text: str

    def __str__(self) -> str:
        return f"{self.clock:.1f} s ({self.processor:.1f})"


def timed(command: list[str], **options: object) -> Took:
    """Run a command. Raises SystemExit with its last lines if it fails."""
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(time.perf_counter() - start, processor, done.stdout)


def wheel(folder: str) -> Path:
    """The wheel of this tree."""
    copy = Path(folder, "tree")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "*.egg-info", "build", "results"))
    timed([sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "-q", "-w", folder])
    return next(Path(folder).glob("tilejit-*.whl"))


def found(python: str) -> str | None:
    """A Python's path: in PATH, or installed by pyenv."""
    version = python.removeprefix("python")
    here = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if here:
        return str(here[-1])
    path = shutil.which(python)
    works = path and not subprocess.run([path, "-c", ""], capture_output=True).returncode
    return path if works else None


def fresh(path: str, built: Path, extra: str) -> dict[str, object]:
    """Seconds of installing and of the demo in a new environment."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
        env.pop("TILEJIT_CACHE_DIR", None)
        timed([path, "-m", "venv", f"{folder}/v"], env=env)
        python = f"{folder}/v/bin/python"
        what = f"{built}[{extra}]" if extra else str(built)
        install = timed([python, "-m", "pip", "install", "-q", what], env=env)
        env |= {"XDG_CACHE_HOME": str(Path(folder, "cache")), "HOME": folder}
        empty = Path(folder, "empty")
        empty.mkdir()
        first = timed([python, "-m", "tilejit", "demo"], cwd=empty, env=env)
        second = timed([python, "-m", "tilejit", "demo"], cwd=empty, env=env)
        timed([python, "-c", "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ['torch', 'triton'])))"], env=env)
        version = timed([python, "-c", "import sys; print(sys.version.split()[0])"]).text.strip()
    line = next(x for x in second.text.splitlines() if "matmul" in x)
    print(f"  Python {version}: installed in {install}, demo {first}, again {second}: {line}", flush=True)
    return {"python": version, **{f"{what}_{unit}": round(x, 2) for what, took in (
        ("install", install), ("first", first), ("second", second)) for unit, x in zip(("s", "processor_s"), took)}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default=PYTHONS)
    parser.add_argument("--extra", default="", help="an extra of the package, as ptxas")
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = wheel(folder)
        size = built.stat().st_size
        print(f"  {built.name}: {size} bytes{'' if size < LIMIT else ': MORE THAN A MEGABYTE'}", flush=True)
        rows = []
        for python in args.pythons.split(","):
            path = found(python)
            if path is None:
                print(f"  no {python} here", flush=True)
                continue
            rows.append({"bench": "fresh", "wheel_bytes": size, **fresh(path, built, args.extra)})
    out = Path(args.out, "fresh.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return int(size >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
