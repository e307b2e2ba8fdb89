"""The other side of the benchmarks: our kernels' own sources under Triton, and comparisons that become records."""
from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bursts import bench_pairs
from records import row

from tilejit.frontend.captures import reached

#: name, function, and what one call of it does (bytes or floating-point operations)
Peer = tuple[str, Callable[[], Any], float]
#: unit -> what is divided by the milliseconds of a call to get it
PER_MS = {"GB/s": 1e6, "TFLOP/s": 1e9}


def triton_twin(kernel: Any, do_not_specialize: tuple[str, ...] = ()) -> Any:
    """The same source as a Triton kernel, with the kernels that it calls; None where Triton is missing."""
    if importlib.util.find_spec("triton") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tilejit-twin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{kernel.__name__}.py"
    path.write_text(twin_source(kernel, do_not_specialize))
    spec = importlib.util.spec_from_file_location(f"twin_{kernel.__name__}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kernel.__name__)


def twin_source(kernel: Any, do_not_specialize: tuple[str, ...]) -> str:
    """The text of a module with that kernel, those it calls, and the constants that they read."""
    text = ["import triton\nimport triton.language as tl"]
    constants: dict[str, Any] = {}
    for source, read in reversed(reached(kernel.source)):
        constants |= {c.name: getattr(c.value, "value", c.value) for c in read if not c.sources and "." not in c.name}
        options = f"(do_not_specialize={list(do_not_specialize)})" if source is kernel.source else ""
        text.append(f"@triton.jit{options}\n{source.normalised()}")
    text[1:1] = [f"{name} = tl.constexpr({value!r})" for name, value in constants.items()]
    return "\n\n\n".join(text) + "\n"


def runs(name: str, peer: Callable[[], Any]) -> bool:
    """Whether a peer works here; says so if it does not (a peer's failure is not ours)."""
    import torch

    try:
        peer()
        torch.cuda.synchronize()
        return True
    except Exception as error:
        print(f"  no {name}: {repr(error)[:200]}", flush=True)
        return False


def compare(bench: str, case: str, dtype: str, unit: str, ours: Callable[[], Any], work: float, peers: list[Peer],
            rounds: int = 7) -> list[dict[str, Any]]:
    """Print and return one row per peer: rates in `unit`, ratio of the rates as the median of interleaved pairs."""
    rows = []
    for name, fn, peer_work in peers:
        if not runs(name, fn):
            continue
        p = bench_pairs(ours, fn, rounds=rounds)
        scale = work / peer_work
        mine, theirs = work / p.ours_ms / PER_MS[unit], peer_work / p.peer_ms / PER_MS[unit]
        ratio, low, high = (r * scale for r in (p.ratio, *p.quartiles))
        rows.append(row(bench, case, dtype, mine, name, theirs, unit, ratio, (low, high)))
        print(f"  {case:24s} {dtype:5s} ours {mine:6.0f}  {name:7s} {theirs:6.0f} {unit}  ratio {ratio:.3f} "
              f"({low:.3f}..{high:.3f})", flush=True)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The ratio of every row, as a bar chart (said and skipped where matplotlib is missing)."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("  no matplotlib: no plot")
        return
    fig, ax = plt.subplots(figsize=(8, 0.4 * len(rows) + 1.5))
    ratios = [r["ratio"] for r in rows]
    spread = [[max(0.0, r["ratio"] - r["spread"][0]) for r in rows],
              [max(0.0, r["spread"][1] - r["ratio"]) for r in rows]]
    ax.barh([f"{r['case']} {r['dtype']} / {r['peer']}" for r in rows], ratios, xerr=spread, color="#4477aa")
    ax.axvline(1.0, color="black", linewidth=1)
    ax.set_xlabel("tilejit / peer (above 1: tilejit is better), quartiles of interleaved pairs")
    ax.invert_yaxis()
    fig.tight_layout()
    fig.savefig(path, dpi=120)
