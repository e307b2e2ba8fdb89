"""Measuring and comparing: times of calls, and errors against a reference."""
from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilejit.runtime.arrays import DeviceArray


def rel_error(out: Any, ref: Any) -> float:
    """||out - ref|| / ||ref|| in float64 (Frobenius norm); infinite if `out` has a NaN. Torch, numpy or our arrays.

    Raises ValueError for two shapes."""
    if tuple(out.shape) != tuple(ref.shape):
        raise ValueError(f"rel_error: shapes {tuple(out.shape)} and {tuple(ref.shape)} differ")
    if hasattr(out, "double"):
        o, r = out.double(), ref.double().to(out.device)
        top, bottom = float((o - r).norm()), float(r.norm())
    else:
        o, r = (np.asarray(x.numpy() if isinstance(x, DeviceArray) else x).astype(np.float64) for x in (out, ref))
        top, bottom = float(np.linalg.norm(o - r)), float(np.linalg.norm(r))
    return float("inf") if top != top else top / bottom if bottom else top


def assert_close(out: Any, ref: Any, bound: float, what: str = "result") -> None:
    """Raise AssertionError if the relative error is above `bound`."""
    error = rel_error(out, ref)
    assert error <= bound, f"{what}: relative error {error:.3e} is above {bound:.1e}"


def do_bench(fn: Callable[[], Any], warmup: float = 25, rep: float = 100, grad_to_none: Any = None,
             quantiles: Sequence[float] | None = None, return_mode: str = "mean") -> Any:
    """Time of one call in milliseconds, by CUDA events, with the L2 cache overwritten before each (needs torch).

    As Triton's: `warmup` and `rep` are milliseconds to spend; returns the mean, or by `return_mode` (median, min, max,
    all), or `quantiles`. Two functions are compared in turns.
    """
    import torch

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    def timed(cold: bool) -> tuple[Any, Any]:
        for x in grad_to_none or ():
            x.grad = None
        if cold:
            scratch.zero_()
        start, end = event(), event()
        start.record()
        fn()
        end.record()
        return start, end

    fn()
    torch.cuda.synchronize()
    scratch = torch.empty(256 << 20, dtype=torch.int8, device="cuda")  # several times an H200's 50 MB of L2
    probes = [timed(True) for _ in range(5)]
    torch.cuda.synchronize()
    estimate = max(1e-3, sum(s.elapsed_time(e) for s, e in probes) / len(probes))
    for _ in range(max(1, int(warmup / estimate))):
        fn()
    events = [timed(True) for _ in range(max(1, int(rep / estimate)))]
    torch.cuda.synchronize()
    times = sorted(s.elapsed_time(e) for s, e in events)
    if quantiles is not None:
        found = [float(np.quantile(times, q)) for q in quantiles]
        return found[0] if len(found) == 1 else found
    modes: dict[str, Callable[[list[float]], Any]] = {
        "mean": statistics.fmean, "median": statistics.median, "min": min, "max": max, "all": list}
    if return_mode not in modes:
        raise ValueError(f"return_mode {return_mode!r} is not one of {', '.join(modes)}")
    return modes[return_mode](times)
