"""Measuring and comparing: benchmarks in interleaved pairs, errors against a reference, and result records."""
from __future__ import annotations

import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def rel_error(out: Any, ref: Any) -> float:
    """||out - ref|| / ||ref|| in float64 (Frobenius norm); infinite if `out` has a NaN. Torch or numpy."""
    if hasattr(out, "double"):
        o, r = out.double(), ref.double().to(out.device)
        top, bottom = float((o - r).norm()), float(r.norm())
    else:
        o, r = np.asarray(out).astype(np.float64), np.asarray(ref).astype(np.float64)
        top, bottom = float(np.linalg.norm(o - r)), float(np.linalg.norm(r))
    return float("inf") if top != top else top / bottom if bottom else top


def assert_close(out: Any, ref: Any, bound: float, what: str = "result") -> None:
    """Raise AssertionError if the relative error is above `bound`."""
    error = rel_error(out, ref)
    assert error <= bound, f"{what}: relative error {error:.3e} is above {bound:.1e}"


def do_bench(fn: Callable[[], Any], warmup: int = 3, repeat: int = 20) -> float:
    """Median time of one call in milliseconds, by CUDA events (needs torch)."""
    import torch

    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        fn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


@dataclass(frozen=True)
class Pairs:
    """Interleaved measurements of ours and a peer: milliseconds a call, and peer/ours per pair."""

    ours_ms: float
    peer_ms: float
    ratio: float
    quartiles: tuple[float, float]


def bench_pairs(ours: Callable[[], Any], peer: Callable[[], Any], rounds: int = 7, burst: int = 8,
                idle: float = 0.35) -> Pairs:
    """Time `burst` calls of each in turn, every burst after `idle` seconds of rest; medians over the pairs.

    Under sustained load the chip is power-limited and its clock wanders; short bursts from a rested chip
    repeat within a percent, and pairing cancels what drift is left. A ratio above 1 means ours is faster."""
    import torch

    def one(fn: Callable[[], Any]) -> float:
        time.sleep(idle)
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(burst):
            fn()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / burst

    for fn in (ours, peer):
        fn()
        one(fn)
    pairs = [(one(ours), one(peer)) for _ in range(rounds)]
    ratios = sorted(p / o for o, p in pairs)
    quarter = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return Pairs(statistics.median(o for o, _ in pairs), statistics.median(p for _, p in pairs),
                 statistics.median(ratios), (quarter[0], quarter[2]))


def environment() -> dict[str, Any]:
    """Where a measurement was made: GPU, driver, versions, commit, date."""
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "numpy"):
        try:
            versions[name] = __import__(name).__version__
        except ImportError:
            continue
    from tilejit.runtime import ptxas

    versions["assembler"] = ptxas.version()
    smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                         text=True)
    root = Path(__file__).resolve().parent.parent
    commit = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(0),
            "driver": smi.stdout.strip().split("\n")[0], "versions": versions, "commit": commit.stdout.strip()}


def row(bench: str, case: str, dtype: str, ours: float, peer: str, peer_value: float, unit: str, ratio: float,
        spread: tuple[float, float]) -> dict[str, Any]:
    """One record: a case against one peer; `ratio` above 1 means that tilejit is better."""
    return {"bench": bench, "case": case, "dtype": dtype, "ours": round(ours, 4), "peer": peer,
            "peer_value": round(peer_value, 4), "unit": unit, "ratio": round(ratio, 4),
            "spread": [round(x, 4) for x in spread]}


def record(bench: str, rows: list[dict[str, Any]], folder: str | Path = "benchmarks/results") -> Path:
    """Append rows, with the environment, to `folder`/`bench`.json."""
    path = Path(folder, f"{bench}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    where = environment()
    old = json.loads(path.read_text()) if path.exists() else []
    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in old + [{**r, **where} for r in rows]) + "\n]\n")
    return path
