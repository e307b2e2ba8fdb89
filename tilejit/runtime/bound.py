"""Bound launches (`Kernel.bind`)."""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tilejit.runtime import driver
from tilejit.runtime.driver import LoadedKernel, check

Grid = tuple[int, int, int]


def repeated(loaded: LoadedKernel, grid: Grid, params: int, current: Callable[[int], int], fixed: int | None,
             keep: tuple) -> Callable[[], None]:
    """Launches with the parameters at `params`, on the stream `fixed`, or what `current` gives. Threads take turns;
    `keep` stays alive."""
    device = loaded.device
    if loaded.pdl and loaded.pdl != "few":
        return _launching(loaded, grid, params, current, fixed, keep)
    api, lock, index, done = driver.api(), threading.Lock(), device.index, loaded.success
    launch, capturing, free = api.cuGraphLaunch, api.cuStreamIsCapturing, (
        done, api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
    plainly = _launching(loaded, grid, params, current, fixed, keep)
    graph: Any = None

    def repeat() -> None:
        nonlocal graph
        stream = current(index) if fixed is None else fixed
        if device.lost or capturing(stream) != free:
            return plainly()
        with lock:
            if graph is None:
                graph = _graph(loaded, grid, params)
                weakref.finalize(plainly, api.cuGraphExecDestroy, graph).atexit = False  # which lives as long
            device.last = loaded.name
            if launch(graph, stream)[0] is done:
                return None
        return plainly()  # which says what is wrong

    return repeat


def _launching(loaded: LoadedKernel, grid: Grid, params: int, current: Callable[[int], int], fixed: int | None,
               keep: tuple) -> Callable[[], None]:
    device, call, done, function, index = (loaded.device, loaded.call, loaded.success, loaded.function,
                                           loaded.device.index)
    last: tuple[Any, Any] = (None, None)

    def repeat(keep: tuple = keep) -> None:
        nonlocal last
        stream = current(index) if fixed is None else fixed
        known, config = last
        if stream != known or device.lost:
            if device.lost:
                device.raise_lost()
            config = loaded.configure(grid, stream)
            last = stream, config
        device.last = loaded.name
        if call(config, function, params, 0)[0] is not done:
            loaded.launch(grid, stream, params)

    return repeat


def _graph(loaded: LoadedKernel, grid: Grid, params: int) -> Any:
    """A graph of one kernel: a captured launch. The driver copies the parameters."""
    api, doing = driver.api(), f"making a graph of {loaded.name}"
    stream = check(api.cuStreamCreate(api.CUstream_flags.CU_STREAM_NON_BLOCKING), doing)
    try:
        check(api.cuStreamBeginCapture(stream, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), doing)
        loaded.launch(grid, int(stream), params)
        graph = check(api.cuStreamEndCapture(stream), doing)
        try:
            return check(api.cuGraphInstantiate(graph, 0), doing)
        finally:
            api.cuGraphDestroy(graph)
    finally:
        api.cuStreamDestroy(stream)
