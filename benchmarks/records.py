"""Records of measurements, with where they were made, and ratios of pairs."""
from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


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
    """The short name of the commit that is checked out; empty text outside a checkout."""
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
