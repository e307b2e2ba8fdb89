"""Ordinary kernels (`ordinary_kernels.py`) at random sizes, beside Triton on the same source.

    PYTHONPATH=. python benchmarks/ordinary.py [--seconds 70] [--seed N] [--kernels softmax,colsum] [--out DIR]

Sizes, dtypes, tiles, warps and offsets are drawn afresh at each run, from what their authors would take; rows need not
start at multiples of 16 bytes. Results of both must agree. Prints a line a case, worst first, and means by kernel;
`--check` draws small sizes and compares only, on whatever target there is, with Triton left out where it is missing.
"""
from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ordinary_kernels
from bursts import bench_group, gpu_burst
from peers import triton_twin
from records import pair_ratio, record, row

from tilejit import cdiv, next_power_of_2


class Call(NamedTuple):
    """One launch: `args(out)` are its arguments."""

    kernel: str
    case: str
    grid: tuple[int, ...]
    args: Callable[[Any], tuple[Any, ...]]
    options: dict[str, int]
    out: Any


class Draw:
    """Random cases. scale: elements that most kernels move."""

    def __init__(self, rng: random.Random, scale: float, device: str) -> None:
        import torch

        self.torch, self.rng, self.scale, self.device = torch, rng, scale, device

    def size(self, low: float, high: float) -> int:
        """Log-uniform, from 2^low to 2^high."""
        return int(2 ** self.rng.uniform(low, high))

    def rows(self, columns: int) -> int:
        return max(1, int(self.scale * self.rng.uniform(0.4, 1) / columns))

    def new(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.randn(*shape, device=self.device).to(dtype or self.torch.bfloat16)

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.zeros(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)

    def matrix(self, low: float, high: float) -> tuple[Any, int, int, str]:
        """Of bf16 or fp32: itself, its rows and columns, and a text."""
        n, dtype = self.size(low, high), self.rng.choice([self.torch.bfloat16, self.torch.float32])
        x = self.new(self.rows(n), n, dtype=dtype)
        return x, *x.shape, f"{x.shape[0]}x{n} {str(dtype)[6:]}"

    def calls(self) -> Iterator[Call]:
        """One case of each kernel."""
        torch, rng = self.torch, self.rng
        x, m, n, text = self.matrix(5, 15.5)
        yield Call("softmax", text, (m,), lambda o, x=x, n=n: (o, x, n, n, n),
                   dict(BLOCK=next_power_of_2(n), num_warps=max(1, min(16, next_power_of_2(n) // 512))),
                   torch.zeros_like(x))
        n, m = (n := self.size(8, 14.5)), self.rows(n)
        x, w, b = self.new(m, n), self.new(n), self.new(n)
        yield Call("layernorm", f"{m}x{n}", (m,), lambda o, x=x, n=n: (o, x, w, b, n, n, n, 1e-5),
                   dict(BLOCK=min(next_power_of_2(n), rng.choice([1024, 2048, 8192])), num_warps=8), torch.zeros_like(x))
        n = int(self.scale * rng.uniform(0.4, 1)) | 1
        x, y = (self.new(n + 8)[rng.randrange(8):][:n] for _ in range(2))
        yield Call("gelu_add", f"{n} from {x.data_ptr() % 16} and {y.data_ptr() % 16}", (cdiv(n, 1024),),
                   lambda o, x=x, y=y, n=n: (x, y, o, n), dict(BLOCK=1024, num_warps=4), self.empty(n))
        yield self.matmul()
        x, m, n, text = self.matrix(5, 13)
        c = rng.choice([32, 64, 128])
        yield Call("colsum", f"{text} of {c}", (cdiv(n, c), max(1, 400 // cdiv(n, c))), lambda o, x=x, m=m, n=n: (
            x, o, m, n), dict(R=32, C=c, num_warps=4), self.empty(n, dtype=torch.float32))
        x, m, n, text = self.matrix(6, 13)
        r, c = rng.choice([(64, 64), (32, 128), (32, 32)])
        yield Call("transpose", f"{text} of {r}x{c}", (cdiv(m, r), cdiv(n, c)), lambda o, x=x, m=m, n=n: (x, o, m, n),
                   dict(R=r, C=c, num_warps=4), self.empty(n, m, dtype=x.dtype))
        d = self.size(6, 12.5)
        m, words = self.rows(d), min(50257, self.rows(d))
        index = torch.randint(0, words, (m,), device=self.device, dtype=rng.choice([torch.int32, torch.int64]))
        yield Call("embed", f"{m}x{d}", (m,), lambda o, w=self.new(words, d), d=d: (index, w, o, d),
                   dict(BLOCK=min(1024, next_power_of_2(d)), num_warps=4), self.empty(m, d))
        d = self.size(6, 12)
        m = self.rows(d)
        yield Call("conv", f"{m}x{d}", (cdiv(m, 32), cdiv(d, 128)), lambda o, x=self.new(m, d), w=self.new(d, 4), m=m,
                   d=d: (x, w, o, m, d), dict(R=32, C=128, num_warps=4), self.empty(m, d))
        n = self.size(7, 14)
        m, (r, c) = self.rows(n), rng.choice([(1, 2048), (4, 512), (16, 128), (8, 256)])
        yield Call("gemv", f"{m}x{n} of {r}x{c}", (cdiv(m, r),), lambda o, a=self.new(m, n), x=self.new(n), m=m, n=n: (
            a, x, o, m, n), dict(R=r, C=c, num_warps=4), self.empty(m, dtype=torch.float32))
        n = rng.choice([64, 128, 256, 512])
        m = self.rows(n)
        yield Call("quant", f"{m}x{n}", (m,), lambda o, x=self.new(m, n), s=self.empty(m, dtype=torch.float32), n=n: (
            x, o, s, n), dict(BLOCK=n, num_warps=1), self.empty(m, n, dtype=torch.float8_e4m3fn))
        d = self.size(6, 14)
        m = self.rows(2 * d)
        yield Call("swiglu", f"{m}x{d}", (m, cdiv(d, 1024)), lambda o, x=self.new(m, 2 * d), d=d: (x, o, 2 * d, d),
                   dict(BLOCK=1024, num_warps=4), self.empty(m, d))
        n = self.size(5, 13)
        x = self.new(self.rows(n), n, dtype=torch.float32)
        yield Call("cumsum", f"{x.shape[0]}x{n}", (x.shape[0],), lambda o, x=x, n=n: (x, o, n), dict(
            BLOCK=next_power_of_2(n), num_warps=max(1, min(8, next_power_of_2(n) // 256))), torch.zeros_like(x))
        n = self.size(8, 12) * 2
        m = cdiv(self.rows(n), 128) * 128
        w = torch.randint(0, 256, (m, n // 2), device=self.device, dtype=torch.uint8)
        yield Call("dequant", f"{m}x{n}", (cdiv(m, 16), cdiv(n, 128)), lambda o, w=w, s=self.new(m // 128, n), m=m,
                   n=n: (w, s, o, m, n), dict(G=128, R=16, C=128, num_warps=4), self.empty(m, n))
        heads, d = rng.choice([4, 7, 8, 32]), rng.choice([64, 128, 256])
        m = self.rows(heads * d)
        x, (cos, sin) = self.new(m, heads, d), (self.new(m, d // 2, dtype=torch.float32) for _ in range(2))
        yield Call("rope", f"{m}x{heads}x{d}", (m,), lambda o, x=x, heads=heads: (x, cos, sin, o, heads),
                   dict(D=d, num_warps=1), torch.zeros_like(x))
        x, m, n, text = self.matrix(5, 14)
        yield Call("argmax", text, (m,), lambda o, x=x, n=n: (x, o, n), dict(
            BLOCK=next_power_of_2(n), num_warps=max(1, min(8, next_power_of_2(n) // 512))),
            self.empty(m, dtype=torch.int32))
        n, bins = self.rows(2), self.size(5, 16)
        index = torch.randint(0, bins, (n,), device=self.device, dtype=torch.int32)
        yield Call("count", f"{n} in {bins}", (cdiv(n, 1024),), lambda o, index=index, n=n: (index, o, n),
                   dict(BLOCK=1024, num_warps=4), self.empty(bins, dtype=torch.int32))

    def matmul(self) -> Call:
        rng, most = self.rng, min(12.8, math.log2(self.scale) / 2)
        m, n, k = self.size(most - 5, most), self.size(most - 5, most), self.size(most - 6, most)
        if rng.random() < 0.5:
            m, n, k = (cdiv(v, 8) * 8 for v in (m, n, k))
        a, b, turned = self.new(m, k), self.new(k, n), rng.random() < 0.5
        b = b.T.contiguous().T if turned else b
        bm, bn, bk, warps = rng.choice([(128, 256, 64, 8), (128, 128, 64, 8), (64, 128, 64, 4), (128, 128, 32, 4),
                                        (64, 64, 32, 4)])
        out = self.empty(m, n)
        return Call("matmul", f"{m}x{n}x{k} {'NT'[turned]} of {bm}x{bn}x{bk}", (cdiv(m, bm) * cdiv(n, bn),), lambda o: (
            a, b, o, m, n, k, *a.stride(), *b.stride(), *out.stride()), dict(
            BM=bm, BN=bn, BK=bk, G=8, num_warps=warps, num_stages=3), out)


def agreement(call: Call, kernels: list[Any]) -> tuple[float, list[Any]]:
    """How far the results of a call are apart, of the greatest, and the launches."""
    outs = [call.out.clone() for _ in kernels]
    launches = [lambda k=k, a=call.args(o): k[call.grid](*a, **call.options) for k, o in zip(kernels, outs)]
    for launch in launches:
        launch()
    first, last = outs[0].float(), outs[-1].float()
    return float((first - last).abs().max() / last.abs().max().clamp(min=1e-6)), launches


def measure(call: Call, twins: dict[str, Any]) -> dict[str, Any] | None:
    """A record of a call beside Triton's, or None where that is missing."""
    kernels = [getattr(ordinary_kernels, call.kernel), twins[call.kernel]]
    apart, launches = agreement(call, kernels if kernels[1] else kernels[:1])
    if apart > 0.02:
        raise AssertionError(f"{call.kernel} {call.case}: results differ by {apart:.3f}")
    if len(launches) < 2:
        return None
    times = bench_group({"ours": gpu_burst(launches[0]), "triton": gpu_burst(launches[1])}, burst_ms=1.5)
    ours, theirs = times["ours"], times["triton"]
    return row("ordinary", f"{call.kernel} {call.case} w{call.options['num_warps']}", "", sorted(ours)[len(ours) // 2] * 1e3,
               "triton", sorted(theirs)[len(theirs) // 2] * 1e3, "us", *pair_ratio(ours, theirs))


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """A line a case, worst first, and one a kernel."""
    def mean(ratios: list[float]) -> str:
        return (f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} of Triton's speed in {len(ratios)} cases, least "
                f"{min(ratios):.2f}, {sum(r < 0.9 for r in ratios)} below 0.9")

    found = defaultdict(list)
    for r in rows:
        found[r["case"].split()[0]].append(r["ratio"])
    return [f"{r['ratio']:.2f} {r['ours']:.0f} us {r['case']}" for r in sorted(rows, key=lambda r: r["ratio"])] + [
        f"{name}: {mean(ratios)}" for name, ratios in found.items()] + [f"all: {mean([r['ratio'] for r in rows])}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=70, help="stop after so long")
    parser.add_argument("--kernels", default="", help="comma-separated; all if empty")
    parser.add_argument("--check", action="store_true", help="compare one small case of each, and time nothing")
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    import torch

    seed = random.SystemRandom().randrange(10 ** 6) if options.seed is None else options.seed
    print(f"seed {seed}")
    draw = Draw(random.Random(seed), 2.0 ** (15 if options.check else 25.5), "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    names = options.kernels.split(",") if options.kernels else None
    twins: dict[str, Any] = {}
    until, rows = time.monotonic() + options.seconds, []
    while time.monotonic() < until:
        for call in draw.calls():
            if names and call.kernel not in names or time.monotonic() > until:
                continue
            if call.kernel not in twins:
                twins[call.kernel] = triton_twin(getattr(ordinary_kernels, call.kernel)) if draw.device == "cuda" else None
            if (found := measure(call, twins)) is not None:
                rows.append({**found, "seed": seed})
        if options.check or draw.device == "cpu":
            return 0
    print("\n".join(summary(rows)))
    record("ordinary", rows, Path(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
