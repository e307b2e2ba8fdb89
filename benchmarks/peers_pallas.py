"""Pallas Mosaic GPU's Hopper matmul, as JAX ships it, as a peer.

JAX runs on streams of its own, so torch's events cannot time it: CUPTI does, through JAX's own profiler module,
which leaves out the gaps between launches (about a microsecond a call, in Pallas' favour); without CUPTI the host's
clock around a burst does.
"""
from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from contender import Absent, Contender

#: Fields of its TuningConfig, by name; those that an installed JAX does not know are left out. The first two come
#: out best on big shapes there, the others are tried only when time is no matter.
CONFIGS: tuple[dict[str, Any], ...] = (
    dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, grid_minor_dim="M", grid_tile_width=8,
         wg_dimension="N"),
    dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, grid_minor_dim="N", grid_tile_width=8,
         wg_dimension="M"),
    dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, grid_minor_dim="M", grid_tile_width=16,
         wg_dimension="N"),
    dict(tile_m=64, tile_n=128, tile_k=64, max_concurrent_steps=6, grid_minor_dim="M", grid_tile_width=8,
         wg_dimension="M"),
)
#: Calls under CUPTI at most: it keeps all their results. Earlier calls of a long burst are load only.
KEPT = 32
MODULE = "jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu"


@functools.lru_cache(maxsize=1)
def shipped() -> Any:
    """JAX's module with the kernel. Raises Absent where it is missing or cannot be imported."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return importlib.import_module(MODULE)
    except Exception as error:
        raise Absent(f"{MODULE}: {type(error).__name__}: {str(error)[:100]}") from None


def configured(module: Any, fields: dict[str, Any]) -> Any:
    """A TuningConfig of the installed JAX from the fields that it knows."""
    known = {f.name for f in dataclasses.fields(module.TuningConfig)}
    sides = {side.name: side for side in module.MatmulDimension}
    return module.TuningConfig(**{k: sides.get(v, v) if isinstance(v, str) else v
                                  for k, v in fields.items() if k in known})


def entry(module: Any, config: Any) -> Callable[[Any, Any], Any]:
    """The product of two arrays, whatever this JAX calls it: matmul(a, b, c, config) or matmul_kernel(a, b, config)."""
    fn = getattr(module, "matmul", None) or getattr(module, "matmul_kernel", None)
    if fn is None:
        raise Absent(f"{MODULE} has neither matmul nor matmul_kernel")
    takes_c = len(inspect.signature(fn).parameters) == 4
    return (lambda a, b: fn(a, b, None, config)) if takes_c else (lambda a, b: fn(a, b, config))


def cupti_burst(fn: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[int], float]:
    """Milliseconds of a call: kernel times as CUPTI sees them, after a call that does not count."""
    from jax.experimental.mosaic.gpu import profiler

    def run(calls: int) -> float:
        for _ in range(calls - KEPT):
            fn(*arrays)
        _, times = profiler.measure(fn, iterations=min(calls, KEPT))(*arrays)
        if times is None:
            raise RuntimeError("CUPTI saw no kernel")
        return statistics.fmean(times if isinstance(times, list) else [times])

    return run


def clock_burst(fn: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[int], float]:
    """Milliseconds of a call by the host's clock around a burst of calls."""
    def run(calls: int) -> float:
        began = time.perf_counter()
        results = [fn(*arrays) for _ in range(calls)]
        results[-1].block_until_ready()
        return (time.perf_counter() - began) * 1e3 / calls

    return run


def matmul(a: Any, b: Any, tries: int = 2) -> Contender:
    """a [M, K] @ b [K, N], both row-major torch tensors, in the fastest of the first `tries` configurations.

    Raises Absent for what JAX does not ship or the kernel does not take (sizes must be multiples of its tiles)."""
    import torch

    module = shipped()
    import jax  # after `shipped`, which makes its settings

    torch.cuda.synchronize()
    x, y = jax.dlpack.from_dlpack(a), jax.dlpack.from_dlpack(b)

    def compiled(fields: dict[str, Any]) -> Any:
        try:
            return jax.jit(entry(module, configured(module, fields))).lower(x, y).compile()
        except Exception as error:                                           # sizes that do not fit, shared memory
            return error

    with ThreadPoolExecutor(tries) as pool:
        results = list(pool.map(compiled, CONFIGS[:tries]))
    if all(isinstance(fn, Exception) for fn in results):                     # perhaps this JAX dislikes threads
        results = [compiled(fields) for fields in CONFIGS[:tries]]
    found = []
    for fields, fn in zip(CONFIGS, results):
        if isinstance(fn, Exception):
            continue
        fn(x, y).block_until_ready()
        burst, timer = cupti_burst(fn, (x, y)), "CUPTI"
        try:
            took = burst(2)
        except Exception:       # CUPTI fails in ways of its own; the timer is named in the record
            burst, timer = clock_burst(fn, (x, y)), "host clock"
            took = burst(4)
        label = f"{fields['tile_m']}x{fields['tile_n']} wg {fields['wg_dimension']} minor {fields['grid_minor_dim']}"
        found.append((took, label, fn, burst, timer))
    if not found:
        raise Absent(f"no configuration works; {type(results[0]).__name__}: {str(results[0])[:100]}")
    _, label, fn, burst, timer = min(found, key=lambda f: f[0])

    def call() -> Any:
        return torch.from_dlpack(fn(x, y).block_until_ready())

    return Contender(call, burst=burst, note=f"{label} f{fields['grid_tile_width']}, {timer}")
