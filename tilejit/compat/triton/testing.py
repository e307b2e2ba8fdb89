from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilejit import testing as _testing
from tilejit.compat.triton import runtime as runtime
from tilejit.compat.triton.runtime.driver import driver
from tilejit.runtime.arrays import as_dtype
from tilejit.runtime.target import default_target

_MODES: dict[str, Callable[[list[float]], Any]] = {
    "mean": statistics.fmean, "median": statistics.median, "min": min, "max": max, "all": list}


def do_bench(fn: Callable[[], Any], warmup: float = 25, rep: float = 100, grad_to_none: Any = None,
             quantiles: Sequence[float] | None = None, return_mode: str = "mean") -> Any:
    """See `tilejit.testing.do_bench`. On the CPU: one call, by the clock on the wall."""
    if default_target() == "cuda":
        return _testing.do_bench(fn, warmup, rep, grad_to_none, quantiles, return_mode)
    began = time.perf_counter()
    fn()
    return _summary([(time.perf_counter() - began) * 1e3], quantiles, return_mode)


def do_bench_cudagraph(fn: Callable[[], Any], rep: float = 20, grad_to_none: Any = None,
                       quantiles: Sequence[float] | None = None, return_mode: str = "mean") -> Any:
    if default_target() != "cuda":
        return do_bench(fn, quantiles=quantiles, return_mode=return_mode)
    import torch

    def replayed(graph: Any) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def captured(calls: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with cuda_graph_without_gc(graph):
            for _ in range(calls):
                for x in grad_to_none or ():
                    x.grad = None
                fn()
        torch.cuda.synchronize()
        return graph

    with torch.cuda.stream(torch.cuda.Stream()):
        fn()
        probe = captured(5)
        replayed(probe)
        calls = max(1, int(rep / max(replayed(probe) / 5, 1e-4)))
        graph = captured(calls)
        return _summary([replayed(graph) / calls for _ in range(10)], quantiles, return_mode)


@contextmanager
def cuda_graph_without_gc(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """`torch.cuda.graph(...)`, while which no garbage is collected: unloading a kernel would break the capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with sys.modules["torch"].cuda.graph(*args, **kwargs) as graph:
            yield graph
    finally:
        if collecting:
            gc.enable()


def _summary(times: list[float], quantiles: Sequence[float] | None, mode: str) -> Any:
    if quantiles is not None:
        found = [float(np.quantile(times, q)) for q in quantiles]
        return found[0] if len(found) == 1 else found
    if mode not in _MODES:
        raise ValueError(f"return_mode {mode!r} is not one of {', '.join(_MODES)}")
    return _MODES[mode](times)


def assert_close(x: Any, y: Any, atol: float | None = None, rtol: float | None = None, err_msg: str = "") -> None:
    """Every element of x must be within `atol` + `rtol` * |y| of y's; NaNs match NaNs."""
    a, b = (np.asarray(v.detach().cpu().float().numpy() if hasattr(v, "detach") else v) for v in (x, y))
    np.testing.assert_allclose(a, b, atol=_bound(atol, a), rtol=_bound(rtol, a, 0.0), equal_nan=True, err_msg=err_msg)


def _bound(given: Any, x: np.ndarray, default: float = 1e-2) -> float:
    return float(default if given is None else given(x.dtype) if callable(given) else given)


class Benchmark:
    def __init__(self, x_names: Sequence[str], x_vals: Sequence[Any], line_arg: str, line_vals: Sequence[Any],
                 line_names: Sequence[str], plot_name: str, args: dict[str, Any], xlabel: str = "", ylabel: str = "",
                 x_log: bool = False, y_log: bool = False, styles: Any = None):
        self.x_names, self.x_vals, self.line_arg, self.line_vals = list(x_names), list(x_vals), line_arg, line_vals
        self.line_names, self.plot_name, self.args, self.styles = list(line_names), plot_name, args, styles
        self.xlabel, self.ylabel, self.x_log, self.y_log = xlabel, ylabel, x_log, y_log


class Mark:
    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | Sequence[Benchmark]):
        self.fn, self.benchmarks = fn, benchmarks

    def run(self, show_plots: bool = False, print_data: bool = False, save_path: str = "", return_df: bool = False,
            **kwargs: Any) -> Any:
        single = isinstance(self.benchmarks, Benchmark)
        found = [self._run(b, show_plots, print_data, save_path, kwargs)
                 for b in ([self.benchmarks] if isinstance(self.benchmarks, Benchmark) else self.benchmarks)]
        return (found[0] if single else found) if return_df else None

    def _run(self, b: Benchmark, show: bool, table: bool, folder: str, kwargs: dict[str, Any]) -> Any:
        header = [*b.x_names, *b.line_names]
        rows: list[list[Any]] = []
        for x in b.x_vals:
            sizes = list(x) if isinstance(x, (tuple, list)) else [x] * len(b.x_names)
            values = [self.fn(**dict(zip(b.x_names, sizes)), **{b.line_arg: v}, **b.args, **kwargs)
                      for v in b.line_vals]
            rows.append([*sizes, *(v[0] if isinstance(v, (tuple, list)) else v for v in values)])
        if table:
            print(f"{b.plot_name}:")
            for line in [header, *rows]:
                print("  ".join(f"{v:>14.6f}" if isinstance(v, float) else f"{v!s:>14}" for v in line))
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            lines = [",".join(map(str, line)) for line in [header, *rows]]
            Path(folder, f"{b.plot_name}.csv").write_text("\n".join(lines) + "\n")
        if b.plot_name and (show or folder):
            _plot(b, rows, show, folder)
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows, columns=header)


def _plot(b: Benchmark, rows: list[list[Any]], show: bool, folder: str) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots()
    for i, name in enumerate(b.line_names, len(b.x_names)):
        style = b.styles[i - len(b.x_names)] if b.styles else (None, None)
        axes.plot([r[0] for r in rows], [r[i] for r in rows], label=name, color=style[0], ls=style[1])
    axes.set(xlabel=b.xlabel or b.x_names[0], ylabel=b.ylabel, xscale="log" if b.x_log else "linear",
             yscale="log" if b.y_log else "linear")
    axes.legend()
    if folder:
        figure.savefig(Path(folder, f"{b.plot_name}.png"))
    if show:
        plt.show()
    plt.close(figure)


def perf_report(benchmarks: Benchmark | Sequence[Benchmark]) -> Callable[[Callable[..., Any]], Mark]:
    return lambda fn: Mark(fn, benchmarks)


def get_dram_gbps(device: int | None = None) -> float:
    """Peak bandwidth of the GPU's memory in GB/s, from its clock and bus."""
    facts = driver.active.utils.get_device_properties(device or driver.active.get_current_device())
    return facts["mem_clock_rate"] * facts["mem_bus_width"] * 2 / 1e6 / 8


def nvsmi(attrs: Sequence[str]) -> list[int]:
    import subprocess

    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(attrs)}", "--format=csv,noheader,nounits"]
    return [int(x) for x in subprocess.check_output(command, text=True).strip().split(",")]


#: operations of one multiprocessor and cycle on Hopper: by tensor cores (bits of an element -> operations), by
#: multiply-adds (CUDA C++ Programming Guide, arithmetic instructions)
_TENSOR_CORE = {8: 8192, 16: 4096, 32: 2048}
_MULTIPLY_ADD = {16: 512, 32: 256, 64: 128}


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Of the tensor cores on elements of `dtype` (torch's or ours) at `clock_rate` kHz."""
    return _peak(_TENSOR_CORE, dtype, clock_rate, device)


def get_max_simd_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Of multiply-adds on elements of `dtype` (torch's or ours) at `clock_rate` kHz."""
    return _peak(_MULTIPLY_ADD, dtype, clock_rate, device)


def _peak(rates: dict[int, int], dtype: Any, clock_rate: float, device: int | None) -> float:
    bits = as_dtype(dtype).bits
    if bits not in rates:
        raise RuntimeError(f"dtype not supported: {dtype}")
    facts = driver.active.utils.get_device_properties(device or driver.active.get_current_device())
    return float(facts["multiprocessor_count"] * clock_rate * rates[bits] * 1e-9)
