"""Triton's own unit tests, run with tilejit as their Triton: counts by file, and failures grouped by message.

    python benchmarks/triton_tests.py FOLDER/python/test/unit [language/test_core.py ...] [--sample 30] [--seed 2]
                                      [--workers 16] [--limit 20] [--seconds N] [--failures FILE] [--record]

None of the tests is here; pytest and pytest-xdist run them where they lie. `--sample` takes so many cases, drawn at
random, of each test function. Without a GPU kernels run in the emulator, on host tensors that answer as if they were a
GPU's. `--record` appends the counts to benchmarks/results/triton_tests.json. (This file is the plugin of pytest too.)

What fails is of these kinds: Triton's own intermediate text is looked for (`asm["ttir"]`, `asm["ttgir"]`,
`asm["llir"]`, remarks of its passes) or compiled; PTX of its forms (`tensormap.cp_fenceproxy` where descriptors are made
on the host here); its private modules (`triton._C`, instrumentation); a refusal of what tilejit runs (small products,
`return` in loops, tensors that TMA cannot read); a GPU where there is none; time. tilejit refuses what ends nowhere (a
loop) or in nothing (a helper's value on some paths only). The rest is ours to mend. Of 650 cases
(seed 112849) 81 failed: for texts 49, private modules 6, refusals 5, no GPU 10, time 3, refused here 2; fp8 conversions
on sm_80, the place of an error; and 4 that have been mended since.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
#: the marks of Triton's tests
MARKS = ("interpreter", "enable_warmup", "disable_warmup")
#: files that run where the whole suite is asked for
FILES = ("language", "cuda", "runtime", "test_debuginfo.py", "test_knobs.py", "test_perf_warning.py",
         "test_stages_inspection.py", "test_utils.py")


# -- the plugin ---------------------------------------------------------------------------------------------------
def pytest_addoption(parser: Any) -> None:
    parser.addoption("--sample", type=int, default=0)
    parser.addoption("--seed", type=int, default=0)
    parser.addoption("--limit", type=int, default=20)
    parser.addoption("--seconds", type=float, default=0)
    parser.addoption("--rows", default="")


def pytest_configure(config: Any) -> None:
    import torch

    if not torch.cuda.is_available():
        import compat_host

        compat_host.pretend()
    from tilejit.compat.triton import install

    install()
    if config.option.seconds and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Budget(config.option.seconds))
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep a sample of each function's cases, the same ones in every worker."""
    count, seed = config.option.sample, config.option.seed
    cases = defaultdict(list)
    for item in sorted(items, key=lambda i: i.nodeid):
        cases[item.nodeid.split("[")[0]].append(item)
    kept = {id(x) for name, found in cases.items()
            for x in random.Random(f"{seed}{name}").sample(found, min(count or len(found), len(found)))}
    items[:] = [x for x in items if id(x) in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError("longer than the limit")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(item.config.option.limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)


_ROWS: list[dict[str, Any]] = []
_BEGAN = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if report.failed and call.excinfo is not None:
        report.sections.append(("what", f"{call.excinfo.type.__name__}: {call.excinfo.value}"[:2000]))
    return report


class Budget:
    """Ends the session when its seconds are over; what was run by then counts."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def pytest_runtest_logfinish(self) -> None:
        if time.monotonic() - _BEGAN > self.seconds:
            pytest.exit(f"{self.seconds:.0f} seconds are over")


def pytest_runtest_logreport(report: Any) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or not (report.when == "call" or report.failed or report.skipped):
        return
    outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
    said = next((text for name, text in report.sections if name == "what"), "")
    _ROWS.append({"test": report.nodeid, "outcome": outcome, "said": said})


def pytest_sessionfinish(session: Any) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and session.config.option.rows:
        Path(session.config.option.rows).write_text(json.dumps(_ROWS))


# -- what Triton's conftest has -----------------------------------------------------------------------------------
@pytest.fixture
def device() -> str:
    """Where tensors lie."""
    return "cuda"


def _fresh(skipped: set[str]) -> Iterator[Any]:
    from triton._internal_testing import _fresh_knobs_impl

    fresh, reset = _fresh_knobs_impl(skipped_attr=skipped)
    try:
        yield fresh()
    finally:
        reset()


@pytest.fixture
def fresh_knobs() -> Iterator[Any]:
    """`triton.knobs` without settings."""
    yield from _fresh({"build", "nvidia", "amd"})


@pytest.fixture
def fresh_knobs_including_libraries() -> Iterator[Any]:
    """All of them."""
    yield from _fresh(set())


@pytest.fixture
def fresh_compilation_knobs() -> Iterator[Any]:
    """Settings of the compiler, put back."""
    from triton import knobs

    with knobs.compilation.scope():
        yield knobs


@pytest.fixture
def fresh_triton_cache(tmp_path: Path) -> Iterator[str]:
    """An empty cache."""
    from triton import knobs

    with knobs.cache.scope(), knobs.runtime.scope():
        knobs.cache.dir = str(tmp_path)
        yield str(tmp_path)


@pytest.fixture
def fresh_triton_cache_scope() -> Any:
    """Compiles anew inside of a `with`."""
    from triton import knobs

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with knobs.compilation.scope(), knobs.runtime.scope():
            knobs.compilation.always_compile = True
            yield

    return scope


@pytest.fixture
def process_pool() -> None:
    """Processes that are ready for `run_in_process`, which starts its own here."""


@pytest.fixture
def with_allocator() -> None:
    """Memory for descriptors, which tilejit does not need."""


# -- the command ----------------------------------------------------------------------------------------------------
def grouped(rows: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Failures by message, numbers left out, the commonest first."""
    found = defaultdict(list)
    for r in rows:
        if r["outcome"] == "failed":
            found[re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", r["said"].partition("\n")[0])[:160]].append(r["test"])
    return sorted(found.items(), key=lambda kv: -len(kv[1]))


def counts(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Outcomes by file."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        found[r["test"].split("::")[0].rsplit("/", 1)[-1]][r["outcome"]] += 1
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Triton's python/test/unit")
    parser.add_argument("files", nargs="*", default=[], help="files or folders in it (default: all that can run here)")
    parser.add_argument("--sample", type=int, default=30, help="cases of each function (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes (pytest-xdist)")
    parser.add_argument("--limit", type=int, default=20, help="seconds for a test")
    parser.add_argument("--seconds", type=float, default=0, help="seconds for all (0: as long as it takes)")
    parser.add_argument("--failures", type=Path, help="write them there, with their whole messages")
    parser.add_argument("--record", action="store_true", help="append the counts to the results")
    options = parser.parse_args()
    rows_at = Path(os.environ.get("TMPDIR", "/tmp"), f"triton_tests.{os.getpid()}.json")
    path = [str(HERE), str(HERE.parent), str(options.folder / "language"), os.environ.get("PYTHONPATH", "")]
    site = tempfile.TemporaryDirectory()        # what a test starts, as a script of its own, has tilejit as its Triton too
    Path(site.name, "sitecustomize.py").write_text("from tilejit.compat.triton import install\n\ninstall()\n")
    path.insert(0, site.name)
    workers = ["-n", str(options.workers), "--dist", "worksteal"] if options.workers else []
    subprocess.run([sys.executable, "-m", "pytest", "-p", "triton_tests", "-c", os.devnull, "--rootdir",
                    str(options.folder), "-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "--continue-on-collection-errors", *workers,
                    *(f"--{k}={getattr(options, k)}" for k in ("sample", "seed", "limit", "seconds")), f"--rows={rows_at}",
                    *(str(options.folder / f) for f in options.files or FILES if (options.folder / f.partition("::")[0]).exists())],
                   env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")},    # we may be a worker
                        "PYTHONPATH": os.pathsep.join(path)})
    rows = json.loads(rows_at.read_text())
    rows_at.unlink()
    total: Counter[str] = Counter()
    for file, found in counts(rows).items():
        total.update(found)
        print(f"{file:36} {'  '.join(f'{k} {v}' for k, v in sorted(found.items()))}")
    print(f"{'all':36} {'  '.join(f'{k} {v}' for k, v in sorted(total.items()))}\n")
    for message, tests in grouped(rows):
        print(f"{len(tests):5} x {message}\n        {', '.join(t.rsplit('::', 1)[-1] for t in tests[:4])}")
    if options.failures:
        options.failures.write_text(json.dumps([r for r in rows if r["outcome"] == "failed"], indent=0))
    if options.record:
        from records import record

        record("triton_tests", [{"bench": "triton_tests", "case": file, "sample": options.sample, "seed": options.seed,
                                 **found} for file, found in counts(rows).items()])


if __name__ == "__main__":
    main()
