"""The library's row kernels on one GPU, forward and backward: bytes that must move over the time, as a share of a copy.

    PYTHONPATH=. python benchmarks/row_kernels.py [--kernels softmax,rmsnorm,...] [--columns 1024,4096,...] [--mebibytes 128]
        [--dtype bf16] [--ways tilejit,torch,compile,liger,quack] [--seconds 80] [--out FOLDER] [--check [--rows 64]]

Each is a call of torch tensors; the backward pass is that of autograd, alone. Everyone's results and gradients are
compared with torch's in fp64 on the same inputs before they are timed; who fails, or is not installed, is named and
left out (quack needs `nvidia-cutlass-dsl`). Times are medians of interleaved short bursts. Launches of the backward passes include autograd's own work.
With --check nothing is timed: every case is compared, and what is wrong ends the command with 1. Of more --rows (40960
of 65536 columns are 5 GB) the first, those of the 2^31st element and the last are compared, where rows are results of
their own.
"""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from bursts import bench_group, gpu_burst
from records import record, row

COLUMNS = (1024, 4096, 16384, 65536)
WAYS = ("tilejit", "torch", "compile", "liger", "quack")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: Rows that are compared.
COMPARED = 64
#: Cases whose rows have more to do with one another than gradients of weights.
TOGETHER = ("cross_entropy", "rope", "transpose")
#: What a peer makes of the module's name: a function of the inputs.
Maker = Callable[[], Callable[..., Any]]


@dataclass(frozen=True)
class Case:
    """One kernel: its inputs for (rows, columns, dtype), of which the first `leaves` get gradients; torch's function; other
    peers'; how many arrays of rows x columns move forward and backward (None: there is no backward)."""

    inputs: Callable[..., tuple[Any, ...]]
    leaves: int
    torch: Callable[..., Any]
    tilejit: Maker
    forward: float
    backward: float | None
    liger: Maker | None = None
    quack: Maker | None = None


def _randn(*shape: int, dtype: Any) -> Any:
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def matrices(count: int, vectors: int = 0) -> Callable[..., tuple[Any, ...]]:
    """Inputs: so many matrices, and vectors of a row's length."""
    def made(rows: int, columns: int, dtype: Any) -> tuple[Any, ...]:
        return (*(_randn(rows, columns, dtype=dtype) for _ in range(count)),
                *(_randn(columns, dtype=dtype) for _ in range(vectors)))

    return made


def labelled(rows: int, columns: int, dtype: Any) -> tuple[Any, ...]:
    """Logits and targets."""
    import torch

    return _randn(rows, columns, dtype=dtype), torch.randint(0, columns, (rows,), device="cuda")


def heads(rows: int, columns: int, dtype: Any) -> tuple[Any, ...]:
    """x [1, rows, columns / 128, 128], and cosines and sines of its positions."""
    import torch

    angles = torch.randn(rows, 64, device="cuda")
    return _randn(1, rows, max(1, columns // 128), 128, dtype=dtype), torch.cos(angles), torch.sin(angles)


def _ours(name: str, *more: Any) -> Maker:
    def made() -> Callable[..., Any]:
        from tilejit import kernels

        f = getattr(kernels, name)
        return lambda *args: f(*args, *more)

    return made


def _liger(module: str, name: str, *more: Any, first: bool = False) -> Maker:
    """A Function of liger_kernel.ops, applied; `first` of its results."""
    def made() -> Callable[..., Any]:
        import importlib

        f = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply
        return (lambda *args: f(*args, *more)[0]) if first else lambda *args: f(*args, *more)

    return made


def _quack(module: str, name: str) -> Maker:
    def made() -> Callable[..., Any]:
        import importlib

        return getattr(importlib.import_module(f"quack.{module}"), name)  # type: ignore[no-any-return]

    return made


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    a, b = x.chunk(2, -1)
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


@lru_cache
def cases() -> dict[str, Case]:
    """All of them by name."""
    from torch.nn import functional as F

    def norm(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, *w: f(x, x.shape[-1:], *w)

    return {
        "softmax": Case(matrices(1), 1, lambda x: F.softmax(x, -1), _ours("softmax"), 2, 3,
                        _liger("softmax", "LigerSoftmaxFunction"), _quack("softmax", "softmax")),
        "log_softmax": Case(matrices(1), 1, lambda x: F.log_softmax(x, -1), _ours("log_softmax"), 2, 3),
        "rmsnorm": Case(matrices(1, 1), 2, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), _ours("rmsnorm"), 2, 3,
                        _liger("rms_norm", "LigerRMSNormFunction", 1e-6, 0.0, "llama", False),
                        _quack("rmsnorm", "rmsnorm")),
        "layernorm": Case(matrices(1, 2), 3, norm(F.layer_norm), _ours("layernorm"), 2, 3,
                          _liger("layer_norm", "LigerLayerNormFunction", 1e-5)),
        "add_rmsnorm": Case(matrices(2, 1), 3, lambda x, r, w: (F.rms_norm(x + r, x.shape[-1:], w, 1e-6), x + r),
                            _ours("add_rmsnorm"), 4, 4),
        "cross_entropy": Case(labelled, 1, F.cross_entropy, _ours("cross_entropy"), 1, 2,
                              _liger("cross_entropy", "LigerCrossEntropyFunction", None, first=True),
                              _quack("cross_entropy", "cross_entropy")),
        "swiglu": Case(matrices(2), 2, lambda a, b: F.silu(a) * b, _ours("glu"), 3, 5,
                       _liger("swiglu", "LigerSiLUMulFunction")),
        "geglu": Case(matrices(2), 2, lambda a, b: F.gelu(a, approximate="tanh") * b, _ours("glu", "gelu_tanh"), 3, 5,
                      _liger("geglu", "LigerGELUMulFunction")),
        "relu_squared": Case(matrices(1), 1, lambda x: F.relu(x) ** 2, _ours("relu_squared"), 2, 3),
        "rope": Case(heads, 1, _rotated, _ours("rope"), 2, 2, None, _quack("rotary", "apply_rotary_emb")),
        "dropout": Case(matrices(1), 1, lambda x: x, _ours("dropout", 0.0, 7), 2, 2),
        "sum": Case(matrices(1), 1, lambda x: x.sum(-1), _ours("sum"), 1, 1),
        "cumsum": Case(matrices(1), 1, lambda x: x.cumsum(-1), _ours("cumsum"), 2, 2),
        "argmax": Case(matrices(1), 0, lambda x: x.max(-1)[0], lambda: lambda x: _ours("argmax")()(x)[0], 1, None),
        "topk 8": Case(matrices(1), 0, lambda x: x.topk(8)[0], lambda: lambda x: _ours("topk", 8)()(x)[0], 1, None),
        "transpose": Case(matrices(1), 1, lambda x: x.T.contiguous(), _ours("transpose"), 2, 2),
        "quantise rows": Case(matrices(1), 0, lambda x: x.abs().amax(-1, keepdim=True) / 448,
                              lambda: lambda x: _ours("quantise", "row", "fp8e4nv")()(x)[1], 1.5, None),
        "quantise blocks": Case(matrices(1), 0, lambda x: x.unflatten(-1, (-1, 128)).abs().amax(-1) / 448,
                                lambda: lambda x: _ours("quantise", "block", "fp8e4nv")()(x)[1], 1.5, None),
        "kl_divergence": Case(matrices(2), 1,
                              lambda x, y: F.kl_div(x, y, reduction="none", log_target=True).sum(-1),
                              _ours("kl_divergence", True), 2, 2)}


def several(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def made_for(case: Case, way: str) -> Callable[..., Any] | None:
    """A contender's function of the inputs, None where it has none. Raises ImportError if it is not installed."""
    import torch

    if way == "torch":
        return case.torch
    if way == "compile":
        torch.compiler.reset()
        return torch.compile(case.torch, dynamic=False)
    maker: Maker | None = getattr(case, way)
    return None if maker is None else maker()


def evaluated(f: Callable[..., Any], case: Case, inputs: Sequence[Any], double: bool,
              grads: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """Results and gradients on copies of inputs (in fp64, if double), for the results' gradients, or some that are the
    same for everyone."""
    import torch

    xs = [x.detach().clone().to(torch.float64 if double and x.is_floating_point() else x.dtype)
          .requires_grad_(i < case.leaves and case.backward is not None) for i, x in enumerate(inputs)]
    out = several(f(*xs))
    found = [o.detach() for o in out]
    if case.backward is not None:
        torch.manual_seed(1)
        grads = grads or [torch.randn(o.shape, device=o.device).to(inputs[0].dtype) for o in out]
        found += torch.autograd.grad(out, xs[:case.leaves], [g.to(o.dtype) for g, o in zip(grads, out)])
    return tuple(found)


def agrees(found: tuple[Any, ...], wanted: tuple[Any, ...], dtype: Any) -> None:
    """Raises ArithmeticError where results are not what they should be."""
    for a, b in zip(found, wanted, strict=True):
        error = float((a.double() - b.double()).norm() / max(1e-30, float(b.double().norm())))
        if not error < (2e-2 if dtype.itemsize == 2 else 1e-4):
            raise ArithmeticError(f"relative error {error:.2g}")


def check(name: str, columns: int, kind: str, ways: list[str]) -> list[str]:
    """What is wrong with a kernel of this width, a line each: results and gradients against torch's in fp64."""
    import torch

    case, dtype, found = cases()[name], getattr(torch, DTYPES[kind]), []
    if columns % 128 and name in ("quantise blocks", "rope") or columns < 8 and name == "topk 8":
        return []
    torch.manual_seed(0)
    inputs = case.inputs(COMPARED, columns, dtype)
    wanted = evaluated(case.torch, case, inputs, True)
    for way in ways:
        try:
            if (f := made_for(case, way)) is not None:
                agrees(evaluated(f, case, inputs, False), wanted, dtype)
        except Exception as why:
            found.append(f"{way} {name} of {COMPARED} x {columns} {kind}: {type(why).__name__} {str(why)[:300]}")
    return found


def check_many(name: str, rows: int, columns: int, kind: str) -> list[str]:
    """The same of tilejit's kernel of so many rows, of which some are compared."""
    import torch

    case, dtype, found = cases()[name], getattr(torch, DTYPES[kind]), []
    torch.manual_seed(0)
    inputs = case.inputs(rows, columns, dtype)
    f = case.tilejit()
    with torch.no_grad():
        grads = [torch.randn_like(o).to(dtype) for o in several(f(*inputs))]
    ours = evaluated(f, case, inputs, False, grads)
    middle = min(rows - 1, (1 << 31) // columns)
    for first in (0, max(0, middle - 4), rows - 8):
        def part(x: Any, first: int = first) -> Any:
            return x[first:first + 8] if x.shape[0] == rows else x

        wanted = evaluated(case.torch, case, [part(x) for x in inputs], True, [part(g) for g in grads])
        try:
            agrees(*zip(*((part(a), b) for a, b in zip(ours, wanted, strict=True) if a.shape[0] == rows)), dtype)
        except ArithmeticError as why:
            found.append(f"tilejit {name} of {rows} x {columns} {kind}, rows {first}..: {why}")
    return found


def measure(name: str, columns: int, size: int, kind: str, ways: list[str], rounds: int) -> list[dict[str, Any]]:
    """Rows of the record for one kernel and width."""
    import torch

    case, dtype = cases()[name], getattr(torch, DTYPES[kind])
    rows = max(1, size // (columns * dtype.itemsize))
    torch.manual_seed(0)
    inputs = [x.requires_grad_(i < case.leaves) if x.dtype.is_floating_point else x
              for i, x in enumerate(case.inputs(rows, columns, dtype))]
    leaves = inputs[:case.leaves]
    torch.manual_seed(0)                     # compared on few rows, which nobody changes in place
    at = case.inputs(min(rows, COMPARED), columns, dtype)
    wanted = evaluated(case.torch, case, at, True)
    other, source = torch.empty_like(inputs[0]), inputs[0].detach()
    bursts = {"copy": gpu_burst(lambda: other.detach().copy_(source))}
    for way in ways:
        try:
            f = made_for(case, way)
            if f is None:
                continue
            agrees(evaluated(f, case, at, False), wanted, dtype)
            bursts[f"{way} forward"] = gpu_burst(lambda f=f: f(*[x.detach() for x in inputs]))
            if case.backward is not None:
                out = [o for o in several(f(*inputs)) if o.requires_grad]
                grads = [torch.randn_like(o) for o in out]
                bursts[f"{way} backward"] = gpu_burst(
                    lambda out=out, grads=grads: torch.autograd.grad(out, leaves, grads, retain_graph=True))
                bursts[f"{way} backward"](1)
        except ImportError as why:
            print(f"no {way}: {why}")
        except Exception as why:
            if way == "tilejit":
                raise
            bursts = {k: b for k, b in bursts.items() if not k.startswith(way)}
            print(f"{way} {name} of {rows} x {columns} {kind}: {type(why).__name__} {str(why)[:120]}")
    times = bench_group(bursts, rounds, burst_ms=2.0, rest=1.0)
    bytes_each = rows * columns * dtype.itemsize / 1e6
    found = []
    for key in bursts:
        if key == "copy":
            continue
        way, direction = key.split()
        moved = bytes_each * float(getattr(case, direction) or 0)
        mine, copy = np.array(times[key]), np.array(times["copy"])
        share = np.sort(moved / mine / (2 * bytes_each / copy))
        if np.median(share) > 2:             # a view, or what was there already: nothing has moved
            continue
        found.append(row("row_kernels", f"{name} {direction} {rows}x{columns}: {way}", kind, moved / np.median(mine), "copy",
                         2 * bytes_each / np.median(copy), "GB/s", float(np.median(share)),
                         (float(share[0]), float(share[-1]))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", default="")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--mebibytes", type=int, default=128)
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=80, help="stop after so long")
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--check", action="store_true", help="compare, and time nothing")
    parser.add_argument("--rows", type=int, default=COMPARED, help="of what is compared; tilejit alone, if more than that")
    options = parser.parse_args()
    try:
        import torch._functorch.config

        torch._functorch.config.donated_buffer = False          # backward passes are run again and again
    except ImportError:
        print("needs torch")
        return 1
    until, rows = time.monotonic() + options.seconds, []
    names, widths = options.kernels.split(",") if options.kernels else list(cases()), list(map(int, options.columns.split(",")))
    if options.check:
        many = options.rows > COMPARED
        names = [n for n in names if not many or n not in TOGETHER]
        wrong = [line for n in names for w in widths for line in (check_many(n, options.rows, w, options.dtype) if many else
                                                                  check(n, w, options.dtype, options.ways.split(",")))]
        print("\n".join(wrong) or f"right: {', '.join(names)} at {options.columns} {options.dtype}")
        return bool(wrong)
    for name in names:
        for columns in widths:
            if time.monotonic() > until:
                print(f"stopped after {options.seconds} s")
                record("row_kernels", rows, Path(options.out))
                return 0
            found = measure(name, columns, options.mebibytes << 20, options.dtype, options.ways.split(","), options.rounds)
            rows += found
            for direction in ("forward", "backward"):
                said = [f"{r['case'].split(': ')[1]} {r['ratio']:.3f}" for r in found if f" {direction} " in r["case"]]
                if said:
                    print(f"{name} {direction} {columns}: of a copy " + ", ".join(said), flush=True)
    record("row_kernels", rows, Path(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
