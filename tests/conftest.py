"""What every test gets: a cache of its own, gpu tests left out where there is no GPU, the GPU's memory given back, and a
look at every kernel that it compiles.

A kernel that a test compiles (or takes from the cache) is assembled where ptxas is there; spills, a stack frame and
every C75xx remark fail that test, unless it names them:

    @pytest.mark.remarks("spills", "stack", reason="every thread holds a pointer per element")

With `--schedules 5` every launch in the emulator is eleven: each policy with five seeds, sanitized, with equal results;
launches that have less to gain from that are fewer (`differing`), tests that have nothing to gain are left out
(`one_schedule`, the evaluator's, and those that a run before with the same `--idle FILE` found to launch nothing).
"""
from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

#: How long an example takes depends on what else the machine does, and on what ran before.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
#: A process a core, whose products are small: threads of BLAS would only wait for one another. (numpy is not loaded yet.)
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
#: JAX would take three quarters of the GPU's free memory when it is first used, and other processes test there too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def cuda_device() -> bool:
    """Whether the driver is installed and sees a device. (ctypes: collecting tests must not load the bindings.)"""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what this machine cannot run, and what the options leave out."""
    schedules, idle = config.getoption("--schedules"), config.getoption("--idle")
    known = set(Path(idle).read_text().split("\n")) if schedules and idle else set()
    no_gpu = any(item.get_closest_marker("gpu") for item in items) and not cuda_device()

    def left_out(item: Any) -> bool:
        evaluated = hasattr(item, "callspec") and item.callspec.params.get("target") == "evaluator"
        return bool(no_gpu and item.get_closest_marker("gpu")
                    or schedules and (evaluated or item.get_closest_marker("one_schedule") or item.nodeid in known))

    kept = [item for item in items if not left_out(item)]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """What collecting has made stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that puts every launch under many schedules."""
    parser.addoption("--schedules", type=int, default=0, metavar="SEEDS",
                     help="launch in the emulator under every policy with this many seeds, with the sanitizer")
    parser.addoption("--idle", metavar="FILE", help="note here which tests launch nothing in the emulator; with "
                     "--schedules: leave these out")


class Idle:
    """Tests that passed without a launch in the emulator which schedules could change."""

    def __init__(self, file: str) -> None:
        self.file, self.found = Path(file), []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and ("launched", True) not in map(tuple, report.user_properties):
            self.found.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.file.write_text("\n".join(self.found))


def pytest_configure(config: pytest.Config) -> None:
    """The process that hears of all tests notes the idle ones."""
    if config.getoption("--idle") and not config.getoption("--schedules") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Idle(config.getoption("--idle")))


#: Instructions outside of the virtual machine at which warps meet, or which only order: the same under every schedule.
MEETING = frozenset({"bar.sync", "barrier.sync", "bar.red.popc.u32", "bar.red.pred", "bar.warp.sync", "membar", "fence",
                     "griddepcontrol"})
#: Instructions of all warps of a launch, loops once, from which on it has turns enough for one seed.
LONG = 16_000


def differing(entry: Any, grid: Any, seeds: int, test: str) -> tuple[tuple[str, ...], Sequence[int]]:
    """The policies and seeds by which runs of a launch can differ.

    Where nothing is asynchronous and no access is an atomic, acquire, release or volatile one, all that a schedule
    decides is the order of warps between two barriers: forwards and backwards has both orders of any two accesses.
    A long launch has one of the seeds, by the test's name, so that tests of one kernel have all of them.
    """
    from tilejit.emulator.policy import POLICIES
    from tilejit.emulator.sanitizer.strong import Instructions

    program, meta = entry.program, entry.compiled.metadata
    warps, known = meta.num_threads // 32, Instructions(program)
    lines = range(len(program.entry.instructions))
    if meta.num_ctas == 1 and all(e.form.name in MEETING for e in program.decoded.externals.values()) and \
            not any(known.strong(pc)[0] for pc in lines):
        return ("round_robin", "adversarial")[:warps], [0]
    long = len(lines) * warps * prod(meta.blocks(grid)) >= LONG
    return POLICIES, [crc32(test.encode()) % seeds] if long else range(seeds)


@pytest.fixture(autouse=True)
def schedules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches in the emulator explore schedules, if the option says so. Float sums may differ by rounding."""
    seeds = request.config.getoption("--schedules")
    if not seeds and not request.config.getoption("--idle"):
        return
    from tilejit.emulator import Sanitizer, explore
    from tilejit.runtime.launch import EmulatorEntry, host_arrays, host_memory

    once = EmulatorEntry.launch

    def noted(self: Any, grid: Any, flat: tuple, stream: Any) -> None:
        request.node.user_properties.append(("launched", True))
        once(self, grid, flat, stream)

    def launch(self: Any, grid: Any, flat: tuple, stream: Any) -> None:
        def run(policy: str, seed: int, listener: Any) -> Any:
            return self.run(grid, flat, policy=policy, seed=seed, listener=listener)

        ways = differing(self, grid, seeds, request.node.nodeid)
        found = explore(self.compiled.name, run, host_memory(flat),
                        host_arrays({n: flat[i] for n, i in self.at.items()}), *ways, Sanitizer, 1e-5)
        self.report = found.runs[0].report
        found.check()

    monkeypatch.setattr(EmulatorEntry, "launch", launch if seeds else noted)


@pytest.fixture(autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test on the GPU gives back what torch keeps for the next one: processes share the GPU."""
    yield
    torch = sys.modules.get("torch")
    if request.node.get_closest_marker("gpu") and torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def remarks_of(resources: Any) -> set[str]:
    """What the assembler's log says against a kernel: `spills`, `stack` and the codes of its messages."""
    found = {m.code for m in resources.messages}
    if resources.spill_stores or resources.spill_loads:
        found.add("spills")
    if resources.stack:
        found.add("stack")
    return found


@pytest.fixture(autouse=True)
def assembled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The kernels that the test compiled so far; at its end all of them must be free of remarks it does not name."""
    from tilejit.runtime.compile import CompiledKernel

    kernels: list[Any] = []
    construct = CompiledKernel.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        kernels.append(self)

    monkeypatch.setattr(CompiledKernel, "__init__", noted)
    yield kernels
    named = {name for mark in request.node.iter_markers("remarks") for name in mark.args}
    bad = [f"{k.name}: {sorted(found)} {[str(m) for m in k.resources.messages]} {k.resources}"
           for k in kernels if k.resources is not None and (found := remarks_of(k.resources) - named)]
    if bad:
        pytest.fail("ptxas had remarks on kernels of this test:\n" + "\n".join(bad), pytrace=False)
