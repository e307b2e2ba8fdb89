"""What starting costs: imports, the first launch of a process (compiling, and from the disk cache), and many processes
that start at once.

    PYTHONPATH=. python benchmarks/start.py [--only imports,first,together,disk] [--processes 64] [--out benchmarks/results]

imports: milliseconds beyond numpy, the best of ten processes. first: the first `kernels.matmul` of a process, launched
where there is a GPU and only compiled elsewhere; the best of three with an empty cache (and how much of it is ptxas, in
which the GPU is opened), of twelve with a full one. Modules come as bytecode, as they do from an installed wheel.
together: so many processes run the same ten kernels over one empty cache, one of which a dead process was compiling;
each kernel may be compiled twice. disk: a folder that is read-only, and a disk that takes no byte more: everything
runs, and says so once a process.
"""
from __future__ import annotations

import argparse
import atexit
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Where the first process that imports a module leaves its bytecode for all others.
BYTECODE = tempfile.mkdtemp(prefix="bytecode-")
IMPORTS = {"import tilejit": "import tilejit", "from tilejit import kernels": "from tilejit import kernels",
           "a kernel of rows": "from tilejit.kernels import softmax", "matmul": "from tilejit.kernels import matmul",
           "all ready kernels": "from tilejit.kernels import *", "the language": "import tilejit.language"}
TIMED = "import time, numpy\nt = time.perf_counter()\n{}\nprint((time.perf_counter() - t) * 1e3)"
#: The first launch; prints milliseconds, those of ptxas among them, and whether the compiler was loaded.
FIRST = """
import sys, time
import numpy
from tilejit.kernels import matmul
from tilejit.runtime import driver, ptxas
import tilejit
assemble, assembling = ptxas.assemble, []
def timed(*args):
    t = time.perf_counter()
    made = assemble(*args)
    assembling.append(time.perf_counter() - t)
    return made
ptxas.assemble = timed
if driver.available():
    a, b = (tilejit.to_device(numpy.zeros((512, 512), numpy.float16)) for _ in range(2))
    first = lambda: (matmul(a, b), driver.current_device().synchronize())
else:
    from tilejit.kernels import matmul_kernel as kernel
    first = lambda: kernel.compile("desc<bf16[128x64]>", "desc<bf16[256x64]>", "desc<bf16[128x256]>", None, 4096, 4096,
                                   4096, BM=128, BN=256, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False, ACTIVATION=None,
                                   num_warps=8)
t = time.perf_counter()
first()
print((time.perf_counter() - t) * 1e3, sum(assembling) * 1e3, "tilejit.passes" in sys.modules)
"""
#: Ten kernels, compiled and, where there is a GPU, launched; prints what was compiled, and how long it all took.
TEN = """
import json, sys, time
import numpy, tilejit
from tilejit.runtime import compile as line, driver
made, real = [], line._compiled
line._compiled = lambda source, args, options, *more: made.append(str(sorted(
    (n, str(getattr(a, "value", a))) for n, a in args.items()))) or real(source, args, options, *more)
t = time.perf_counter()
from tilejit.kernels.add import add_kernel
x = tilejit.to_device(numpy.ones(1024, numpy.float32)) if driver.available() else None
for block in [16 << i for i in range(10)]:
    if x is None:
        add_kernel.compile("*fp32", "*fp32", "*fp32", "int32", BLOCK=block)
    else:
        add_kernel[(1,)](x, x, x, 1001, BLOCK=block)
if x is not None:
    driver.current_device().synchronize()
print(json.dumps([made, time.perf_counter() - t]))
"""
#: A process that dies while it compiles the first of these.
DYING = "import os\nfrom tilejit.runtime import compile as line\nline._compiled = lambda *a: os._exit(9)\n"


def run(text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A Python process that runs a text."""
    return subprocess.run([sys.executable, "-c", text], env=environment(**env), capture_output=True, text=True,
                          timeout=300)


def environment(**env: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": BYTECODE, **env}


def imports() -> list[tuple[str, float, float]]:
    """Case, milliseconds, goal (0: none)."""
    found = []
    for name, text in IMPORTS.items():
        if "*" in text:
            text = "from tilejit import kernels\n[getattr(kernels, n) for n in kernels.__all__]"
        times = [float(run(TIMED.format(text)).stdout) for _ in range(10)]
        found.append((name, min(times), 60.0 if name in ("import tilejit", "from tilejit import kernels") else 0.0))
    return found


def first() -> list[tuple[str, float, float]]:
    """The first matmul of a process."""
    cold: list[tuple[float, float]] = []
    warm: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(FIRST, TILEJIT_CACHE_DIR=folder)                # leaves bytecode
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            done = run(FIRST, TILEJIT_CACHE_DIR=folder)
            assert done.returncode == 0, done.stderr
            ms, assembling, _ = done.stdout.split()
            cold.append((float(ms), float(assembling)))
            for _ in range(4):
                ms, _, compiler = run(FIRST, TILEJIT_CACHE_DIR=folder).stdout.split()
                assert compiler == "False", "the compiler was loaded"
                warm.append(float(ms))
    return [("first matmul, compiled", min(cold)[0], 200.0), ("of that, ptxas", min(cold)[1], 0.0),
            ("first matmul, from disk", min(warm), 12.0)]


def together(count: int) -> list[tuple[str, float, float]]:
    """Processes that start at once; the seconds until all are through, and compilations of one kernel at most."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(TILEJIT_CACHE_DIR=folder)
        died = subprocess.run([sys.executable, "-c", DYING + TEN.replace("line._compiled =", "_ =")], env=env,
                              capture_output=True)
        assert died.returncode == 9
        start = time.perf_counter()
        workers = [subprocess.Popen([sys.executable, "-c", TEN], env=env, stdout=subprocess.PIPE, text=True)
                   for _ in range(count)]
        results = [json.loads(w.communicate(timeout=600)[0]) for w in workers]
        took = time.perf_counter() - start
        assert not list(Path(folder).glob("*.tmp")), "temporary files were left"
    made = Counter(kernel for kernels, _ in results for kernel in kernels)
    alone = statistics.median(seconds for _, seconds in results)
    print(f"  {count} processes: {took:.1f} s in all, {alone:.1f} s in the median; {len(made)} kernels, compiled "
          f"{sum(made.values())} times, one at most {max(made.values())} times")
    return [(f"{count} processes: compilations of a kernel", float(max(made.values())), 2.0)]


def disk() -> list[tuple[str, float, float]]:
    """Lines on stderr of a process with a cache folder that it cannot use."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        closed = Path(folder, "closed")
        closed.mkdir(mode=0o700)
        cases = [("full disk", limited + TEN, str(Path(folder, "full")))]
        if os.geteuid():                                # root may write everywhere
            closed.chmod(0o500)
            cases.append(("read-only folder", TEN, str(closed)))
        else:
            Path(folder, "file").write_text("")
            cases.append(("folder that cannot be made", TEN, str(Path(folder, "file", "below"))))
        for name, text, where in cases:
            done = run(text, TILEJIT_CACHE_DIR=where, TILEJIT_PTXAS="driver")
            assert done.returncode == 0, done.stderr
            assert len(json.loads(done.stdout)[0]) == 10, "everything is compiled"
            lines = [line for line in done.stderr.splitlines() if line.startswith("tilejit:")]
            found.append((f"{name}: times that it is said", float(len(lines)), 1.0))
        closed.chmod(0o700)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="imports,first,together,disk")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    atexit.register(shutil.rmtree, BYTECODE, True)
    from records import record, row

    parts = {"imports": imports, "first": first, "together": lambda: together(args.processes), "disk": disk}
    rows, status = [], 0
    for part in args.only.split(","):
        print(f"== {part}", flush=True)
        for name, value, goal in parts[part]():
            missed = goal and value > goal
            status |= bool(missed)
            print(f"  {name:44s} {value:8.1f}" + (f"   goal {goal:.0f}{' MISSED' if missed else ''}" if goal else ""),
                  flush=True)
            unit = "ms" if part in ("imports", "first") else "times"
            ratio = goal / value if goal and value else 0.0
            rows.append(row("start", name, "", value, "goal", goal, unit, ratio, (ratio, ratio)))
    record("start", rows, args.out)
    print(f"  peak memory of a process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024} MB")
    return status


if __name__ == "__main__":
    sys.exit(main())
