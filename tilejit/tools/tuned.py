"""Results of autotuning on disk: one small JSON file for each kernel, key and choice."""
from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilejit.runtime import cache, driver, ptxas
from tilejit.runtime.compile import compiler_hash
from tilejit.runtime.jit import Kernel
from tilejit.runtime.target import default_target


def key(kernel: Kernel, values: str, configs: list[str]) -> dict[str, Any]:
    gpu = f"{driver.current_device().name}, driver {driver.driver_version()}" if default_target() == "cuda" else \
        default_target()
    return {"kernel": kernel.__name__, "source": kernel.source.fingerprint(), "compiler": compiler_hash(),
            "assembler": ptxas.version(), "gpu": gpu, "values": values, "configs": configs}


def _path(of: dict[str, Any]) -> Path | None:
    base = cache.folder()
    return base and base / (hashlib.sha256(cache.key_text(of).encode()).hexdigest() + cache.TUNED)


def read(of: dict[str, Any]) -> dict[str, float] | None:
    path = _path(of)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
        count = len(of["configs"])
        if found["key"] == of and found["costs"] and all(0 <= int(i) < count for i in found["costs"]):
            return {i: float(t) for i, t in found["costs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def write(of: dict[str, Any], costs: dict[str, float]) -> None:
    path = _path(of)
    if path is None:
        return
    with contextlib.suppress(OSError):
        cache.put(path, json.dumps({"key": of, "costs": costs}).encode())


def fastest(kernel: Kernel, values: str, calls: Mapping[str, Callable[[], Any]],
            bench: Callable[[Callable[[], Any]], float] | None = None) -> str:
    """The name of the call that takes the least time: measured once for a kernel and `values`, and kept on disk.
    Without a GPU, and a `bench` that gives a number for a call: the first."""
    names = list(calls)
    if bench is None:
        if default_target() != "cuda":
            return names[0]
        from tilejit.testing import do_bench

        def bench(call: Callable[[], Any]) -> float:
            return float(do_bench(call, warmup=5, rep=20, return_mode="median"))
    of = key(kernel, values, names)
    costs = read(of)
    if costs is None:
        costs = {str(i): bench(call) for i, call in enumerate(calls.values())}
        write(of, costs)
    return names[int(min(costs, key=lambda i: costs[i]))]
