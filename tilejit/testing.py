"""Measuring and comparing: benchmarks in interleaved pairs, errors against a reference, and result records."""
from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
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

    As Triton's: `warmup` and `rep` are milliseconds to spend; the result is the mean, or what `return_mode` says
    (mean, median, min, max, all), or the `quantiles`. Two functions are compared in turns."""
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
    scratch = torch.empty(256 << 20, dtype=torch.int8, device="cuda")       # several times an H200's 50 MB of L2
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


def pair_ratio(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and quartiles of peer/ours over the pairs; above 1 means that ours is faster."""
    ratios = sorted(p / o for o, p in zip(ours, peer))
    quarter = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return statistics.median(ratios), (quarter[0], quarter[2])


def environment() -> dict[str, Any]:
    """Where a measurement was made: date, GPU, driver, versions, commit. Empty text for what is not there."""
    from tilejit.runtime import driver, ptxas

    versions = {"python": platform.python_version(), "numpy": np.__version__, "assembler": ptxas.version()}
    for name in ("torch", "triton", "jax"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    smi = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {"date": datetime.date.today().isoformat(),
            "gpu": driver.current_device().name if driver.available() else "", "driver": smi.split("\n")[0],
            "versions": versions, "commit": commit()}


def commit() -> str:
    """The short name of the commit that tilejit was checked out at; empty text outside a checkout."""
    return _output("git", "-C", str(Path(__file__).resolve().parent.parent), "rev-parse", "--short", "HEAD")


def _output(*command: str) -> str:
    """What a command prints, or an empty text if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def row(bench: str, case: str, dtype: str, ours: float, peer: str, peer_value: float, unit: str, ratio: float,
        spread: tuple[float, float]) -> dict[str, Any]:
    """One record: a case against one peer; `ratio` above 1 means that tilejit is better."""
    return {"bench": bench, "case": case, "dtype": dtype, "ours": round(ours, 4), "peer": peer,
            "peer_value": round(peer_value, 4), "unit": unit, "ratio": round(ratio, 4),
            "spread": [round(x, 4) for x in spread]}


def record(bench: str, rows: list[dict[str, Any]], folder: str | Path = "benchmarks/results",
           where: dict[str, Any] | None = None) -> Path:
    """Append rows, with the environment (or `where`), to `folder`/`bench`.json: a JSON list, one row a line."""
    path = Path(folder, f"{bench}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    where = environment() if where is None else where
    old = json.loads(path.read_text()) if path.exists() else []
    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in old + [{**r, **where} for r in rows]) + "\n]\n")
    return path
