"""The process that runs configurations for autotuning (`trials.py`): what hangs or faults ends with it."""
from __future__ import annotations

import ctypes
import mmap
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tilejit.ir.target import target_named
from tilejit.runtime import driver

#: Seconds after which an idle process ends.
IDLE = 10.0
#: Bytes written before each timed launch, so that it finds none of its arrays in L2.
SCRATCH = 256 << 20
#: A configuration whose first launches take so many times as long as the best is not timed further.
HOPELESS = 3.0


@dataclass(frozen=True)
class Task:
    """Code, how to launch it, its parameters; arrays (numbers) restored before each launch; those asked for;
    milliseconds."""

    cubin: bytes | None
    ptx: str
    name: str
    threads: int
    shared: int
    cluster: tuple[int, int, int]
    pdl: bool | str
    cooperative: bool
    walks: int
    target: str
    grid: tuple[int, int, int]
    params: tuple[bytes, ...]
    restored: tuple[int, ...]
    outputs: tuple[int, ...]
    warmup: float
    rep: float
    best: float | None


class Runner:
    def __init__(self, index: int):
        self.device = driver.device(index)
        self.device.activate()
        self.memory: list[tuple[int, int, int]] = []  # address of an allocation, offset in it, bytes
        self.saved: dict[int, int] = {}  # array -> address of a copy of its first contents
        self.places: list[int] = []  # where each array lies in the file
        self.file: Any = None
        self.scratch = 0

    def arrays(self, path: str, size: int, spans: list[tuple[int, int, int]]) -> list[int]:
        """Allocate arrays of (bytes, offset from 512, place in the file) with the file's contents; their addresses."""
        self.release()
        with open(path, "r+b") as file:
            self.file = mmap.mmap(file.fileno(), size)
        for nbytes, offset, place in spans:
            self.memory.append((self.device.malloc(nbytes + offset), offset, nbytes))
            self.places.append(place)
        self.fill(range(len(spans)))
        self.scratch = self.device.malloc(SCRATCH)
        return [base + offset for base, offset, _ in self.memory]

    def fill(self, numbers: Any) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.file))
        for i in numbers:
            base, offset, nbytes = self.memory[i]
            self.device.to_device(base + offset, start + self.places[i], nbytes)
            if i in self.saved:
                self._copy(self.saved[i], base + offset, nbytes)

    def run(self, task: Task, after: int) -> float:
        """Launch and time; outputs are left in the file `after` so many bytes behind the arrays' own places."""
        target = target_named(task.target)
        cubin = task.cubin if self.device.capability[0] == target.sm // 10 else None
        loaded = driver.LoadedKernel(self.device, cubin or task.ptx.encode(), task.name, task.threads, task.shared,
                                     task.cluster, task.pdl, target, task.cooperative, walks=task.walks)
        for i in task.restored:
            if i not in self.saved:
                base, offset, nbytes = self.memory[i]
                self.saved[i] = self.device.malloc(nbytes)
                self._copy(self.saved[i], base + offset, nbytes)
        frame = Parameters(task.params)

        def launch() -> None:
            loaded.launch(task.grid, 0, frame.address)

        try:
            self._restore(task)
            launch()
            self.device.synchronize()
            start = ctypes.addressof(ctypes.c_char.from_buffer(self.file))
            for i in task.outputs:
                base, offset, nbytes = self.memory[i]
                self.device.to_host(start + after + self.places[i], base + offset, nbytes)
            return self._timed(task, launch)
        finally:
            if not self.device.lost:
                self._restore(task)
                self.device.synchronize()
                driver.api().cuModuleUnload(loaded.module)

    def release(self) -> None:
        for address in (*[base for base, _, _ in self.memory], *self.saved.values(), self.scratch):
            if address:
                self.device.free(address)
        self.memory, self.saved, self.places, self.file, self.scratch = [], {}, [], None, 0

    def _copy(self, dst: int, src: int, nbytes: int) -> None:
        self.device.check(driver.api().cuMemcpyDtoDAsync(dst, src, nbytes, 0), "copying arrays")

    def _restore(self, task: Task) -> None:
        for i in task.restored:
            base, offset, nbytes = self.memory[i]
            self._copy(base + offset, self.saved[i], nbytes)

    def _timed(self, task: Task, launch: Callable[[], None]) -> float:
        api, check = driver.api(), self.device.check
        events: list[tuple[Any, Any]] = []

        def burst(count: int) -> list[float]:
            while len(events) < count:
                first, second = (check(api.cuEventCreate(0), "cuEventCreate") for _ in range(2))
                events.append((first, second))
            for first, second in events[:count]:
                self._restore(task)
                check(api.cuMemsetD8Async(self.scratch, 0, SCRATCH, 0), "clearing L2")
                check(api.cuEventRecord(first, 0), "cuEventRecord")
                launch()
                check(api.cuEventRecord(second, 0), "cuEventRecord")
            self.device.synchronize()
            return [float(check(api.cuEventElapsedTime(a, b), "cuEventElapsedTime")) for a, b in events[:count]]

        def all_of(count: int) -> list[float]:
            found: list[float] = []
            while len(found) < count:
                found += burst(min(100, count - len(found)))
            return found

        try:
            probes = burst(5)
            estimate = max(1e-3, statistics.median(probes))
            if task.best is not None and estimate > HOPELESS * task.best:
                return estimate
            step = estimate + 0.1 + 0.1 * len(task.restored)  # clearing L2 takes about 0.1 ms
            all_of(max(1, int(task.warmup / step)))
            return statistics.median(all_of(max(5, int(task.rep / step))))
        finally:
            if not self.device.lost:
                for pair in events:
                    for event in pair:
                        api.cuEventDestroy(event)


class Parameters:
    def __init__(self, params: tuple[bytes, ...]):
        self.memory = ctypes.create_string_buffer(64 + 128 * max(1, len(params)))
        start = -(-ctypes.addressof(self.memory) // 64) * 64
        for i, p in enumerate(params):
            ctypes.memmove(start + 128 * i, p, len(p))
        self.pointers = (ctypes.c_uint64 * max(1, len(params)))(*[start + 128 * i for i in range(len(params))])
        self.address = ctypes.addressof(self.pointers)


def serve(read: int, write: int, index: int) -> None:
    """Carry out requests (method, arguments) until the other end closes, or nothing was asked for IDLE seconds."""
    requests, replies = Connection(read, writable=False), Connection(write, readable=False)
    runner: Runner | None = None
    while requests.poll(IDLE if runner else None):
        try:
            method, arguments = requests.recv()
        except EOFError:
            return
        try:
            runner = runner or Runner(index)
            replies.send(("done", getattr(runner, method)(*arguments)))
        except Exception as error:
            lost = runner is not None and bool(runner.device.lost)
            replies.send(("failed", f"{type(error).__name__}: {error}", lost))
            if lost:
                return
