"""A compiled kernel, ready to run on a GPU, in the emulator, or in the evaluator."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilejit.errors import LaunchError
from tilejit.ir.target import target_named
from tilejit.ptx.metadata import PROGRAMS, KernelMetadata
from tilejit.runtime import driver
from tilejit.runtime.arrays import (
    ArrayInfo,
    DeviceArray,
    array_info,
    describe,
    extent,
    is_address,
    is_torch,
    numpy_dtype,
)
from tilejit.runtime.bound import repeated
from tilejit.runtime.compile import CompiledKernel, compile_kernel, tile_ir
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.occupancy import check_room, resident
from tilejit.runtime.params import Frame, NotForTMA, Packer, Reader
from tilejit.runtime.pointed import pointed_at
from tilejit.runtime.progress import Progress
from tilejit.runtime.ptxas import Resources
from tilejit.runtime.signature import device_of

if TYPE_CHECKING:
    from tilejit.emulator.report import Report

Grid = tuple[int, int, int]
#: Programs along a grid's first axis from which on small ones are merged: two waves on a GPU, which starts no more at
#: once.
MANY = 4224


class Entry(Protocol):
    compiled: CompiledKernel
    nvtx: bool  # whether launches are ranges in a profiler's timeline

    def launch(self, grid: Grid, flat: tuple, stream: Any) -> None:
        """Run on a grid of blocks; `stream` None is the current one."""

    def for_grid(self, grid: Grid, flat: tuple, stream: Any) -> Any:
        """The entry for such a grid: this one, or one of merged programs."""


def without_maps(k: CompiledKernel) -> CompiledKernel:
    return compile_kernel(k.kernel, k.args, {**k.options, "pointer_tma": False, "refused": True})


def merged(k: CompiledKernel) -> CompiledKernel:
    return compile_kernel(k.kernel, k.args, {**k.options, "programs_per_cta": k.metadata.mergeable})


def spanned(k: CompiledKernel, n: int) -> tuple[int, int] | None:
    """Between which lengths the kernel keeps a row like one of n elements in registers, or None."""
    from tilejit.passes.odd_rows import span

    return None if k.metadata.spanned is None else span(n, *k.metadata.spanned[1:])


def of_length(k: CompiledKernel, between: tuple[int, int]) -> CompiledKernel:
    return compile_kernel(k.kernel, k.args, {**k.options, "row_span": between})


class Another:
    """Another entry for the same signature, compiled once, at need, by `make(compiled, flat, stream)`."""

    def __init__(self, change: Callable[[CompiledKernel], CompiledKernel], compiled: CompiledKernel,
                 make: Callable[[CompiledKernel, tuple, Any], Any]):
        self.change, self.compiled, self.make, self.lock = change, compiled, make, threading.Lock()
        self.entry: Any = None

    def __call__(self, flat: tuple, stream: Any) -> Any:
        with self.lock:
            if self.entry is None:
                self.entry = self.make(self.change(self.compiled), flat, stream)
        return self.entry


class Variants:
    """Other entries."""

    compiled: CompiledKernel
    at: Mapping[str, int]

    def vary(self, make: Callable[[CompiledKernel, tuple, Any], Any]) -> None:
        self.exact = Another(without_maps, self.compiled, make)
        self.merged = Another(merged, self.compiled, make)
        self.lengths: dict[tuple[int, int], Another] = {}
        self.make = make

    def for_length(self, flat: tuple) -> Another | None:
        assert self.compiled.metadata.spanned is not None
        between = spanned(self.compiled, int(flat[self.at[self.compiled.metadata.spanned[0]]]))
        if between is None:
            return None
        change = partial(of_length, between=between)
        return self.lengths.setdefault(between, Another(change, self.compiled, self.make))

    def for_grid(self, grid: Grid, flat: tuple, stream: Any) -> Any:
        """See `Entry`. While a CUDA graph is captured nothing is loaded."""
        another = self.merged if self.compiled.metadata.mergeable > 1 and grid[0] >= MANY else \
            self.for_length(flat) if self.compiled.metadata.spanned else None
        if another is None or another.entry is None and self.captured(flat, stream):
            return self
        return another(flat, stream)

    def captured(self, flat: tuple, stream: Any) -> bool:
        return False


def told(meta: KernelMetadata, grid: Grid, flat: tuple) -> tuple:
    return (*flat, grid[0]) if meta.programs > 1 or meta.walks else flat


def addresses(flat: tuple) -> dict[int, Reader]:
    return {i: _address(i, x) for i, x in enumerate(flat) if device_of(x) is not None}


def _address(i: int, x: Any) -> Reader:
    if isinstance(x, (DeviceArray, TensorDescriptor)):
        return lambda flat: flat[i].address
    if is_torch(x):
        return lambda flat: flat[i].data_ptr()
    return lambda flat: array_info(flat[i]).address


class DeviceEntry(Variants):
    def __init__(self, compiled: CompiledKernel, at: Mapping[str, int], flat: tuple, index: int | None,
                 stream: Any, blocking: bool, nvtx: bool = False):
        dev = driver.current_device() if index is None else driver.device(index)
        dev.activate()  # threads of autograd come without a context
        self.compiled, self.index, self.blocking, self.nvtx = compiled, dev.index, blocking, nvtx
        self.at = at
        if self.captured(flat, stream):
            raise LaunchError(f"{compiled.name} is not loaded yet and a CUDA graph is being captured: call it once, or "
                              ".warmup(...), before the capture")
        meta = compiled.metadata
        self.vary(lambda k, flat, stream: DeviceEntry(k, at, flat, index, stream, blocking, nvtx))
        target, cubin = target_named(meta.target), compiled.cubin
        if dev.capability[0] != target.sm // 10:
            cubin = None  # a cubin runs on its own generation only, the PTX on later ones too
        self.loaded = driver.LoadedKernel(dev, cubin or compiled.ptx.encode(), meta.name, meta.num_threads,
                                          meta.shared_bytes, meta.cluster, meta.pdl, target, meta.cooperative,
                                          meta.programs, meta.walks)
        if cubin is None:
            local = self.loaded.attribute("LOCAL_SIZE_BYTES")
            compiled.resources = Resources(self.loaded.attribute("NUM_REGS"), stack=local)
        self.packer = Packer(meta.params, {**at, PROGRAMS[1]: len(flat)}, addresses(flat), driver.encode_tensor_map)
        self.current_stream = driver.stream_getter()

    def captured(self, flat: tuple, stream: Any) -> bool:
        return driver.capturing(driver.stream_getter(flat)(self.index) if stream is None
                                else driver.stream_handle(stream))

    def frame(self, grid: Grid, flat: tuple) -> Frame:
        return self.packer.frame(told(self.compiled.metadata, grid, flat))

    def launch(self, grid: Grid, flat: tuple, stream: Any) -> None:
        packer = self.packer
        try:
            frame = self.frame(grid, flat)
        except NotForTMA:
            return self.exact(flat, stream).launch(grid, flat, stream)
        if stream is None:
            stream = (driver.stream_getter(flat) if "cupy" in sys.modules else self.current_stream)(self.index)
        elif type(stream) is not int:
            stream = driver.stream_handle(stream)
        self.loaded.launch(grid, stream, frame.address)
        packer.free.append(frame)  # the driver has copied the parameters
        if self.blocking:
            self.loaded.device.synchronize(stream)

    def repeated(self, grid: Grid, flat: tuple, stream: Any = None, keep: tuple = ()) -> Callable[[], None]:
        """A function that launches with these values, on the stream (None: the current one); `keep` stays alive as
        long."""
        try:
            frame = self.frame(grid, flat)
        except NotForTMA:
            return self.exact(flat, stream).repeated(grid, flat, stream, keep)
        fixed = None if stream is None else driver.stream_handle(stream)
        return repeated(self.loaded, grid, frame.address, driver.stream_getter(flat), fixed, (keep, frame))


class EmulatorEntry(Variants):
    """Runs the PTX on the CPU; `report` is the last launch's."""

    nvtx = False

    def __init__(self, compiled: CompiledKernel, at: Mapping[str, int], flat: tuple):
        from tilejit.emulator import Program, encode_tensor_map

        self.compiled, self.at, meta = compiled, at, compiled.metadata
        self.vary(lambda k, flat, stream: EmulatorEntry(k, at, flat))
        self.program = Program(compiled.ptx)
        self.packer = Packer(meta.params, {**at, PROGRAMS[1]: len(flat)}, addresses(flat), encode_tensor_map)
        self.report: Report | None = None

    def launch(self, grid: Grid, flat: tuple, stream: Any) -> None:
        """Raises EmulatorError with every rule that the run broke."""
        with Progress(self.compiled.name) as progress:
            self.report = self.run(grid, flat, progress=progress)
        self.report.check()

    def run(self, grid: Grid, flat: tuple, **options: Any) -> Report:
        meta: KernelMetadata = self.compiled.metadata
        if meta.cooperative:
            r = self.compiled.resources
            check_room(meta.name, grid, resident(meta, r.registers if r else 0), meta.num_threads, meta.shared_bytes,
                       meta.cluster[0])
        try:
            params = self.packer.as_bytes(told(meta, grid, flat))
        except NotForTMA:
            found: Report = self.exact(flat, None).run(grid, flat, **options)
            return found
        return self.program.launch(meta.blocks(grid), meta.num_threads, params, meta.shared_bytes, meta.cluster,
                                   host_memory(flat, follow=True), **options)


class EvaluatorEntry:
    """Runs the tile IR in numpy."""

    nvtx = False

    def __init__(self, compiled: CompiledKernel, at: Mapping[str, int]):
        self.compiled, self.at = compiled, at
        self.fn = tile_ir(compiled.kernel, compiled.args, compiled.options)

    def for_grid(self, grid: Grid, flat: tuple, stream: Any) -> EvaluatorEntry:
        return self

    def launch(self, grid: Grid, flat: tuple, stream: Any) -> None:
        """Raises EvaluationError for what a GPU would do wrong silently."""
        if self.compiled.metadata.cooperative and prod(grid) > 1:
            raise LaunchError(f"{self.compiled.name}: launch_cooperative_grid needs all programs at once, the "
                              "evaluator runs one after another: use the emulator (TILEJIT_TARGET=emulator)")
        from tilejit.ir.evaluate import evaluate
        from tilejit.runtime.assembly import run_assembly

        names = {a.name for a in self.fn.body.args}
        evaluate(self.fn, grid, {n: _as_numpy(flat[i]) for n, i in self.at.items() if n in names},
                 run_assembly, cache(partial(host_memory, flat, True)))


def _as_numpy(x: Any) -> Any:
    if isinstance(x, TensorDescriptor):
        base = _as_numpy(x.base)
        return x if base is x.base else _HostDescriptor(base, x)
    if isinstance(x, np.ndarray) or isinstance(x, (bool, int, float, str, tuple, type(None))):
        return x
    info = describe(x)
    if info is None:
        return x
    low, high = info.span()
    strides = tuple(s * info.dtype.bytes for s in info.strides)
    return np.ndarray(info.shape, numpy_dtype(info.dtype), _bytes(low, high), info.address - low, strides)


class _HostDescriptor:
    def __init__(self, base: np.ndarray, d: TensorDescriptor):
        self.base, self.shape, self.strides = base, d.shape, d.strides
        self.block_shape, self.padding = d.block_shape, d.padding


def host_arrays(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    views = {name: _as_numpy(getattr(x, "base", x) if isinstance(x, TensorDescriptor) else x)
             for name, x in arguments.items()}
    return {name: v for name, v in views.items() if isinstance(v, np.ndarray)}


def host_memory(flat: tuple, follow: bool = False) -> list[np.ndarray]:
    """Byte arrays over the memory of all array arguments, overlapping ones as one. `follow`: and what addresses in
    them point to."""
    bases = [x.base if isinstance(x, TensorDescriptor) else x for x in flat]
    found = [(x, info) for x in bases if (info := _memory_of(x)) is not None and 0 not in info.shape]
    spans = [extent(x, info) for x, info in found if not is_address(x)]
    if follow:
        numbers = [info.address for x, info in found if is_address(x)]
        spans += pointed_at([info for _, info in found], numbers + [x for x in flat if isinstance(x, int) and x >> 32])
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return [_bytes(low, high) for low, high in merged]


def _memory_of(x: Any) -> ArrayInfo | None:
    if isinstance(x, (bool, int, float, str, tuple, type(None))):
        return None
    return describe(x)


def _bytes(low: int, high: int) -> np.ndarray:
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * (high - low)).from_address(low), np.uint8)
