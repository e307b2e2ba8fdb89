"""Ordinary kernels at random small sizes: every one is right in the emulator."""
from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def want(kernel: str, args: tuple[Any, ...], out: Any) -> Any:
    """What a kernel computes, in float64."""
    x, y = (a.double() if isinstance(a, torch.Tensor) else a for a in args[:2])
    if kernel == "softmax":
        return y.softmax(1)
    if kernel == "layernorm":
        return torch.nn.functional.layer_norm(y, y.shape[1:], args[2].double(), args[3].double(), args[7])
    if kernel == "gelu_add":
        return torch.nn.functional.gelu(x + y)
    if kernel in ("matmul", "gemv"):
        return x @ y
    if kernel == "colsum":
        return x.sum(0)
    if kernel == "transpose":
        return x.T
    if kernel == "embed":
        return y[args[0].long()]
    if kernel == "conv":
        padded = torch.cat([x.new_zeros(3, x.shape[1]), x])
        return torch.nn.functional.silu(sum(padded[j:j + len(x)] * y[:, j] for j in range(4)))
    if kernel == "swiglu":
        a, b = x.chunk(2, 1)
        return torch.nn.functional.silu(a) * b
    if kernel == "cumsum":
        return x.cumsum(1)
    if kernel == "argmax":
        return x.gather(1, out.long()[:, None])[:, 0], x.max(1).values
    if kernel == "count":
        return torch.bincount(args[0], minlength=len(out))
    return None


@pytest.mark.remarks("spills", "stack", reason="tiles of the pointer product are drawn, some with too many sums for 4 warps")
@pytest.mark.parametrize("name", ["softmax", "layernorm", "gelu_add", "matmul", "colsum", "transpose", "embed", "conv",
                                  "gemv", "swiglu", "cumsum", "argmax", "count"])
def test_ordinary_kernels(name: str, folder: Any) -> None:
    import ordinary
    import ordinary_kernels

    draw = ordinary.Draw(random.Random(), 2.0 ** 14, "cpu")
    call = next(c for c in draw.calls() if c.kernel == name)
    args = call.args(call.out)
    getattr(ordinary_kernels, name)[call.grid](*args, **call.options)
    found, wanted = call.out.double(), want(name, args, call.out)
    if isinstance(wanted, tuple):
        found, wanted = wanted
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max(), call.case


def test_a_summary_has_the_worst_case_first(folder: Any) -> None:
    import ordinary

    rows = [{"case": f"{k} 3x4", "ratio": r, "ours": 5.0} for k, r in (("a", 2.0), ("b", 0.5), ("b", 2.0))]
    assert ordinary.summary(rows) == [
        "0.50 5 us b 3x4", "2.00 5 us a 3x4", "2.00 5 us b 3x4", "a: 2.000 of Triton's speed in 1 cases, least 2.00, 0 below 0.9",
        "b: 1.000 of Triton's speed in 2 cases, least 0.50, 1 below 0.9",
        "all: 1.260 of Triton's speed in 3 cases, least 0.50, 1 below 0.9"]
