"""Short bursts of two or several contenders in turn, each from a rested chip: see `bench_pairs`."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from records import pair_ratio

#: Runs that many calls and returns the milliseconds of one.
Burst = Callable[[int], float]


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
    mine, theirs = zip(*pairs)
    return Pairs(statistics.median(mine), statistics.median(theirs), *pair_ratio(mine, theirs))


def gpu_burst(fn: Callable[[], Any]) -> Burst:
    """Times calls on torch's current stream by CUDA events, the host's part hidden (needs torch).

    The calls are enqueued behind a short sleep of the GPU, as long as the host took for the calls before, so that
    a kernel shorter than its launch is timed and not the launch."""
    import torch

    host = 0.0

    def run(calls: int) -> float:
        nonlocal host
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda._sleep(int(min(0.02, 1.5 * host * calls + 5e-5) * 1.9e9))      # cycles, at the highest clock
        start.record()
        began = time.perf_counter()
        for _ in range(calls):
            fn()
        host = (time.perf_counter() - began) / calls
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / calls

    return run


def graph_burst(fn: Callable[[], Any], calls: int = 20) -> Burst:
    """Times replays of a CUDA graph of `calls` calls, so that launching costs the host nothing (needs torch).

    Every kernel has run before. Raises what torch or a kernel raises for calls that cannot be captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    fn()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()

    def run(wanted: int) -> float:
        start, end, replays = torch.cuda.Event(True), torch.cuda.Event(True), max(1, round(wanted / calls))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / (replays * calls)

    return run


def bench_group(bursts: Mapping[str, Burst], rounds: int = 5, burst_ms: float = 5.0, rest: float = 10.0,
                until: float = float("inf")) -> dict[str, list[float]]:
    """Interleaved short bursts of several contenders: milliseconds a call, name -> one number a round.

    A burst lasts about `burst_ms` (2 to 30 calls) and follows a rest `rest` times as long (0.03 to 0.4 s; none for
    0), see `bench_pairs`. Every round runs everyone once, each time from another start, so that numbers of one
    round pair up. Stops early (after one round at least) when time.monotonic() passes `until`."""
    calls = {name: 2 for name in bursts}
    for name, burst in bursts.items():
        burst(2)
        calls[name] = max(2, min(30, round(burst_ms / max(burst(2), 1e-3))))
    found: dict[str, list[float]] = {name: [] for name in bursts}
    names = list(bursts)
    for i in range(rounds):
        if i and time.monotonic() > until:
            break
        for name in names[i % len(names):] + names[:i % len(names)]:
            took = found[name][-1] * calls[name] if found[name] else burst_ms
            time.sleep(min(0.4, max(0.03, rest * took * 1e-3)) if rest else 0)
            found[name].append(bursts[name](calls[name]))
    return found


def bench_sustained(bursts: Mapping[str, Burst], each: float = 0.15, rounds: int = 3,
                    warm: float = 0.3) -> dict[str, list[float]]:
    """The same under unbroken load: after `warm` seconds of it, `each` seconds of every contender in turn."""
    times = {name: max(burst(2), 1e-3) for name, burst in bursts.items()}
    first = next(iter(bursts))
    bursts[first](max(1, int(warm * 1e3 / times[first])))
    found: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(rounds):
        for name, burst in bursts.items():
            found[name].append(burst(max(1, int(each * 1e3 / times[name]))))
    return found
