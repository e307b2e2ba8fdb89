"""Decoding, one query a sequence, beside a copy of as many bytes as its keys and values have (`attention.py --sets decode
latent`): a table of what each size takes, of what share of the copy's speed that is, and of what bounds it.

Calls and copies go through as many caches as L2 does not hold, one after another, since the layers of a model do; a
copy reads one half of a cache and writes as much elsewhere (within one array halves of 302 MB took half as long again
on an H100). Products bound what takes longer than their flops at cuBLAS's rate.
"""
from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from bursts import bench_group, graph_burst
from records import pair_ratio, row

from tilejit.kernels import attention, latent_attention
from tilejit.testing import rel_error

BATCHES, KEYS = (1, 8, 32, 128), (1024, 4096, 16384, 131072)
#: Bytes of a cache at most; of all caches that take turns at least; and calls of a graph.
MOST, TURNS, CALLS = 9e9, 2.5e8, (4, 64)
#: The share of a copy's speed that is asked for.
GOAL = 0.88
#: Relative error of results against float64 (Frobenius), at most.
BOUND = 5e-3


@dataclass(frozen=True)
class Kind:
    """name, query heads, elements of a key and of a value, heads of keys; 0 heads of keys: `latent_attention`."""

    name: str
    heads: int
    d: int
    dv: int
    shared: int = 0

    @property
    def bytes_a_key(self) -> int:
        return 2 * (self.shared * (self.d + self.dv) or self.d)

    def flops(self, batch: int, keys: int) -> float:
        return 2.0 * batch * keys * self.heads * (self.d + self.dv)


class Caches:
    """As many caches of random numbers as take turns, queries, and a result."""

    def __init__(self, kind: Kind, batch: int, keys: int):
        import torch

        def new(*shape: int) -> Any:
            return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_()

        torch.manual_seed(0)
        self.kind, self.bytes = kind, batch * keys * kind.bytes_a_key
        turns = max(1, min(CALLS[1], int(TURNS / self.bytes)))
        shape = (turns, 2, batch, keys, kind.shared, kind.d) if kind.shared else (turns, batch, keys, kind.d)
        self.all, self.q = new(*shape), new(batch, 1, kind.heads, kind.d)
        self.out = new(batch, 1, kind.heads, kind.dv)
        self.calls = max(turns, CALLS[0])
        self.copied = self.all.new_empty(turns, self.bytes // 4)

    def ours(self, turn: int) -> Any:
        cache = self.all[turn]
        if not self.kind.shared:
            return latent_attention(self.q, cache, out=self.out)
        return attention(self.q, cache[0], cache[1], out=self.out)

    def copy(self, turn: int) -> None:
        self.copied[turn].copy_(self.all[turn].view(2, -1)[0])

    def cudnn(self, turn: int) -> Any:
        from attention_peers import by_torch
        from torch.nn.attention import SDPBackend

        return by_torch(SDPBackend.CUDNN_ATTENTION, False)(self.q, *self.all[turn])

    def error(self) -> float:
        """Of the last sequence's first head."""
        got, cache = self.ours(0)[-1, 0, 0], self.all[0]
        keys, values = (cache[-1], cache[-1][:, :self.kind.dv]) if not self.kind.shared else cache[:, -1, :, 0]
        p = (keys.double() @ self.q[-1, 0, 0].double() * self.kind.d ** -0.5).softmax(0)
        return rel_error(got, p @ values.double())

    def burst(self, call: Callable[[int], Any]) -> Callable[[int], float]:
        turn = cycle(range(len(self.all)))
        return graph_burst(lambda: call(next(turn)), self.calls)


def rate() -> float:
    """TFLOP/s of cuBLAS at 8192^3 in bf16."""
    import torch

    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    burst = graph_burst(lambda: torch.mm(a, b, out=out), 2)
    return 2e-9 * 8192 ** 3 / statistics.median(burst(6) for _ in range(5))


def sizes(kind: Kind, args: Any) -> list[tuple[int, int]]:
    """Batches and lengths, by the bytes of their caches."""
    every = args.contexts or [(b, s) for b in BATCHES for s in KEYS if b * s * kind.bytes_a_key <= MOST]
    return sorted(every, key=lambda size: (size[0], size[1]))


def table(kind: Kind, args: Any) -> Iterator[dict[str, Any]]:
    """Check, measure and print; records beside the copy, and beside cuDNN where it takes part."""
    every, peak = sizes(kind, args), rate()
    with ThreadPoolExecutor(8) as pool:  # the assembler runs beside this process
        list(pool.map(lambda size: Caches(kind, *size).error() if size[0] * size[1] < 1 << 18 else None, every))
    print(f"{kind.name}: share of a copy's speed (products: {peak:.0f} TFLOP/s)\n{'batch':>6}{'keys':>8}{'MB':>8}{'us':>9}{'copy us':>9}{'share':>7}{'GB/s':>7}"
          f"{'TFLOP/s':>9}{'bound us':>9} by      {'cudnn us':>9}", flush=True)
    shares = []
    for batch, keys in every:
        caches = Caches(kind, batch, keys)
        assert (error := caches.error()) <= BOUND, (kind, batch, keys, error)
        bursts = {"tilejit": caches.burst(caches.ours), "copy": caches.burst(caches.copy)}
        if kind.shared and "cudnn" in args.peers:
            with suppress(Exception):  # what cannot be captured is left out
                bursts["cudnn"] = caches.burst(caches.cudnn)
        bench_group({"copy": bursts["copy"]}, rounds=3, burst_ms=20, rest=0)  # clocks are up then
        times = bench_group(bursts, rounds=args.rounds, rest=0)
        us = {name: 1e3 * statistics.median(t) for name, t in times.items()}
        share, flops = us["copy"] / us["tilejit"], kind.flops(batch, keys)
        bounds = {"memory": us["copy"], "products": flops / peak * 1e-6}
        by = max(bounds, key=lambda name: bounds[name])
        print(f"{batch:6}{keys:8}{caches.bytes / 1e6:8.1f}{us['tilejit']:9.1f}{us['copy']:9.1f}{share:7.2f}"
              f"{1e-3 * caches.bytes / us['tilejit']:7.0f}{1e-6 * flops / us['tilejit']:9.0f}{bounds[by]:9.1f} {by:8}"
              + (f"{us['cudnn']:9.1f}" if "cudnn" in us else ""), flush=True)
        shares.append(share)
        for name in list(times)[1:]:
            speeds = [1e-3 * caches.bytes / us[x] for x in ("tilejit", name)]
            yield row("attention", f"{kind.name} B{batch} S{keys}", "bf16", speeds[0], name, speeds[1], "GB/s",
                      *pair_ratio(times["tilejit"], times[name]))
        del caches, bursts
    print(f"{kind.name}: {sum(s >= GOAL for s in shares)} of {len(shares)} sizes at {GOAL} of a copy or more, "
          f"least {min(shares):.2f}", flush=True)


def decoding(args: Any) -> Iterator[dict[str, Any]]:
    """64 query heads that share 8 of keys and values, of 128 elements."""
    yield from table(Kind("decode d128 H64/8", 64, 128, 128, 8), args)


def latent(args: Any) -> Iterator[dict[str, Any]]:
    """16 and 128 heads that share latent vectors of 576 elements, of which 512 are the values."""
    for heads in (16, 128):
        yield from table(Kind(f"latent H{heads}", heads, 576, 512), args)
