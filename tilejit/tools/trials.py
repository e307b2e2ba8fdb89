"""Measuring configurations in a process of their own (`trial.py`), while later ones are still being compiled
(docs/runtime.md, "Autotuning")."""
from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tilejit.errors import AutotuneError, CompilationError, LaunchError
from tilejit.ptx.metadata import PROGRAMS
from tilejit.runtime import driver
from tilejit.runtime.arrays import ArrayInfo, array_info, describe_as, numpy_dtype
from tilejit.runtime.compile import CompiledKernel, changed_by
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.jit import Kernel
from tilejit.runtime.launch import MANY, Grid, addresses, merged, of_length, spanned, told, without_maps
from tilejit.runtime.params import NotForTMA, Packer
from tilejit.runtime.signature import device_of
from tilejit.runtime.tuples import Spread
from tilejit.tools.agreement import Agreement
from tilejit.tools.trial import Task

#: Arrays of more bytes are not copied: the program itself measures.
MOST = 32 << 30
#: Seconds for a process to start, and for its arrays to be copied.
START = 120.0


#: kernel, grid, positional and keyword arguments
Launched = tuple[Kernel, Any, tuple, dict[str, Any]]


class NotApart(LaunchError):
    """Why these configurations cannot be measured in a process of their own."""


class Hung(AutotuneError):
    """No answer in time."""


class Moved:
    def __init__(self, info: ArrayInfo):
        self.info = info
        self.shape, self.strides, self.dtype = info.shape, info.strides, info.dtype


describe_as(Moved, lambda x: x.info)


class Child:
    """The other process."""

    def __init__(self, index: int):
        root = str(Path(__file__).resolve().parents[2])
        ours, theirs = os.pipe(), os.pipe()
        code = (f"import sys; sys.path.insert(0, {root!r})\n"
                f"from tilejit.tools.trial import serve\nserve({theirs[0]}, {ours[1]}, {index})")
        try:
            self.process = subprocess.Popen([sys.executable, "-c", code], pass_fds=(theirs[0], ours[1]),
                                            stdin=subprocess.DEVNULL)
        except OSError as error:
            raise NotApart(f"no process can be started: {error}") from None
        finally:
            os.close(theirs[0])
            os.close(ours[1])
        self.replies, self.requests = Connection(ours[0], writable=False), Connection(theirs[1], readable=False)
        self.index = index

    def ask(self, method: str, *arguments: Any, within: float) -> Any:
        """Raises Hung if there is no reply in time, AutotuneError for a failure there; after a failure that ended the
        process `alive` is False."""
        try:
            self.requests.send((method, arguments))
            if not self.replies.poll(within):
                self.end()
                raise Hung(f"hung: no end within {within:g} s; its process was ended")
            reply = self.replies.recv()
        except (EOFError, OSError):
            self.end()
            raise AutotuneError(f"faulted: its process ended with code {self.process.returncode}") from None
        if reply[0] == "done":
            return reply[1]
        if reply[2]:
            self.end()
        raise AutotuneError(("faulted: " if reply[2] else "") + reply[1])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None and not self.requests.closed

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.requests.close()
        self.replies.close()


_lock = threading.Lock()
_idle: list[Child] = []


def take(index: int) -> Child:
    with _lock:
        mine = [c for c in _idle if c.index == index]
        _idle[:] = [c for c in _idle if c.index != index]
    for child in mine:
        try:
            child.ask("release", within=START)
            return child
        except AutotuneError:
            child.end()
    return Child(index)


def give_back(child: Child) -> None:
    if not child.alive:
        return
    try:
        child.ask("release", within=START)
    except AutotuneError:
        return
    with _lock:
        _idle.append(child)


class Shared:
    """The memory of a call's arrays, overlaps merged, in a shared file: first contents, then what a configuration
    left."""

    def __init__(self, infos: Iterable[ArrayInfo], index: int):
        spans: list[tuple[int, int]] = []
        for low, high in sorted(info.span() for info in infos):
            if spans and low < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(high, spans[-1][1]))
            elif high > low:
                spans.append((low, high))
        self.spans, self.places, self.size = spans, [], 0
        for low, high in spans:
            self.places.append(self.size)
            self.size += -(-(high - low) // 4096) * 4096
        if self.size > MOST:
            raise NotApart(f"the arrays have {self.size >> 30} GiB")
        self.device = driver.device(index)
        self.file = os.memfd_create("tilejit-autotune")
        os.truncate(self.file, max(1, 2 * self.size))
        self.map = mmap.mmap(self.file, max(1, 2 * self.size))
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.moved: list[int] = []
        self.device.activate()
        self.device.synchronize()
        self.read(range(len(spans)))

    def read(self, numbers: Iterable[int]) -> None:
        for i in numbers:
            low, high = self.spans[i]
            self.device.to_host(self.start + self.places[i], low, high - low)

    def open(self, child: Child) -> None:
        spans = [(high - low, low % 512, place) for (low, high), place in zip(self.spans, self.places)]
        path = f"/proc/{os.getpid()}/fd/{self.file}"
        try:
            self.moved = child.ask("arrays", path, max(1, 2 * self.size), spans, within=START)
        except AutotuneError as error:
            raise NotApart(str(error)) from None

    def number(self, info: ArrayInfo) -> int:
        low, high = info.span()
        for i, (first, last) in enumerate(self.spans):
            if first <= low and high <= last:
                return i
        raise NotApart("configurations have arrays of their own")

    def there(self, x: Any) -> Any:
        if device_of(x) is None:
            return x
        info = array_info(x.base if isinstance(x, TensorDescriptor) else x)
        if 0 in info.shape:
            moved = Moved(info)
        else:
            i = self.number(info)
            moved = Moved(info._replace(address=info.address - self.spans[i][0] + self.moved[i]))
        return x.over(moved) if isinstance(x, TensorDescriptor) else moved

    def left_in(self, info: ArrayInfo) -> np.ndarray:
        i = self.number(info)
        offset = self.size + self.places[i] + info.address - self.spans[i][0]
        strides = tuple(s * info.dtype.bytes for s in info.strides)
        return np.ndarray(info.shape, numpy_dtype(info.dtype), self.map, offset, strides).copy()

    def close(self) -> None:
        os.close(self.file)


class Bound:
    """Arguments in the flat tuple of the kernel's signature, and the arrays that it writes."""

    def __init__(self, kernel: Kernel, grid: Any, args: tuple, kwargs: dict[str, Any]):
        plan, flat = kernel._bound(args, {k: v for k, v in kwargs.items() if k != "stream" or k in kernel.keys})
        self.kernel, self.described, self.options = kernel, kernel.describe(plan, flat), kernel.options(plan, flat)
        self.grid: Grid = kernel.grid(grid, plan, flat)
        spread = Spread(self.described, plan.at, flat)
        self.at, self.flat = spread.at, spread(flat)
        names = {n: self.flat[i] for n, i in self.at.items()}
        self.arrays: dict[str, ArrayInfo] = {
            n: array_info(x.base if isinstance(x, TensorDescriptor) else x) for n, x in names.items()
            if device_of(x) is not None}

    def changed(self) -> list[str]:
        found = changed_by(self.kernel.source, self.described, self.options)
        if found is None:
            raise NotApart("the kernel follows addresses that lie in arrays")
        return [n for n in self.arrays if n in found]

    def index(self) -> int:
        places = {info.device for info in self.arrays.values()}
        if len(places) != 1 or min(places) < 0:
            raise NotApart("there are no arrays on one GPU")
        return places.pop()

    def task(self, compiled: CompiledKernel, shared: Shared, **more: Any) -> Task:
        flat, m, first = tuple(map(shared.there, self.flat)), compiled.metadata, self.grid[0]
        if m.mergeable > 1 and first >= MANY:
            return self.task(merged(compiled), shared, **more)
        if m.spanned and (between := spanned(compiled, flat[self.at[m.spanned[0]]])):
            return self.task(of_length(compiled, between), shared, **more)
        params = Packer(m.params, {**self.at, PROGRAMS[1]: len(flat)}, addresses(flat), driver.encode_tensor_map)
        try:
            packed = params.as_bytes(told(m, self.grid, flat))
        except NotForTMA:
            return self.task(without_maps(compiled), shared, **more)
        return Task(compiled.cubin, compiled.ptx, m.name, m.num_threads, m.shared_bytes, m.cluster, m.pdl,
                    m.cooperative, m.walks, m.target, (-(-first // m.programs), *self.grid[1:]), tuple(packed), **more)


class Trials:
    """Configurations of one call, measured one after another in the other process; see `measure`."""

    def __init__(self, bind: Callable[[Any], Launched], bound: Bound, hooked: bool,
                 named: Sequence[str], within: float, spend: tuple[float, float], outputs: bool):
        if not hasattr(os, "memfd_create") or not sys.executable:
            raise NotApart("this system lacks memfd_create, or this Python its own program")
        self.bind, self.hooked, self.named, self.within, self.spend = bind, hooked, named, within, spend
        index, self.changed, self.outputs = bound.index(), bound.changed(), outputs
        self.child = take(index)  # starts while the arrays are read
        self.shared = Shared(bound.arrays.values(), index)
        self.best: float | None = None
        self.started = False

    def _ready(self) -> None:
        if not self.child.alive:
            self.child = take(self.child.index)
            self.started = False
        if not self.started:
            self.shared.open(self.child)
            self.started = True

    def measure(self, config: Any, compiled: CompiledKernel) -> tuple[float, dict[str, np.ndarray]]:
        """Milliseconds of a launch, and what the first one left in the arrays that it writes (if asked for)."""
        bound = Bound(*self.bind(config))
        self._ready()
        numbers = {n: self.shared.number(info) for n, info in bound.arrays.items() if 0 not in info.shape}
        again = (*self.changed, *self.named) if self.hooked or self.named or self.outputs else ()
        kept = {numbers[n] for n in again if n in numbers}
        if self.hooked:
            self.shared.device.synchronize()
            self.shared.read(kept)
            self.child.ask("fill", sorted(kept), within=START)
        outputs = {numbers[n] for n in self.changed if n in numbers} if self.outputs else set()
        task = bound.task(compiled, self.shared, restored=tuple(sorted(kept)), outputs=tuple(sorted(outputs)),
                          warmup=self.spend[0], rep=self.spend[1], best=self.best)
        time = float(self.child.ask("run", task, self.shared.size, within=self.within))
        self.best = time if self.best is None else min(time, self.best)
        left = {n: self.shared.left_in(bound.arrays[n]) for n in self.changed if n in numbers} if self.outputs else {}
        return time, left

    def close(self) -> None:
        self.shared.close()
        give_back(self.child)


@contextmanager
def compiling(jobs: Mapping[Any, Callable[[], CompiledKernel]]) -> Iterator[dict[Any, Future[CompiledKernel]]]:
    """Compile side by side in threads, in order. What was not begun when the `with` ends is not compiled."""
    pool = ThreadPoolExecutor(min(32, os.cpu_count() or 1))
    try:
        yield {config: pool.submit(copy_context().run, job) for config, job in jobs.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def measure(jobs: Mapping[Any, Callable[[], CompiledKernel]], bind: Callable[[Any], Launched], hooked: bool,
            named: Sequence[str], within: float, spend: tuple[float, float], agreement: Agreement | None = None,
            told: Callable[[Any, Exception | None], None] = lambda config, error: None) -> tuple[
                dict[Any, float], dict[Any, Exception]]:
    """Milliseconds of the configurations that work, and the errors of the others."""
    times: dict[Any, float] = {}
    failures: dict[Any, Exception] = {}
    if not jobs:
        return times, failures
    trials: Trials | None = None
    with compiling(jobs) as made:
        try:
            for config, future in made.items():
                error: Exception | None = None
                try:
                    compiled = future.result()
                    if trials is None:
                        trials = Trials(bind, Bound(*bind(config)), hooked, named, within, spend, agreement is not None)
                    time, outputs = trials.measure(config, compiled)
                    problem = agreement.problem(outputs) if agreement else ""
                    if problem:
                        raise AutotuneError(problem)
                    times[config] = time
                except NotApart:
                    raise
                except (CompilationError, LaunchError) as found:
                    failures[config] = error = found
                told(config, error)
        finally:
            if trials is not None:
                trials.close()
    return times, failures
