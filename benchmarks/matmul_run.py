"""Runs cases of the matmul benchmark: builds the contenders, checks their results, measures them, makes records.

A worker process writes one JSON line an event, so that the process that started it knows what a crash or a hang
came from: {"start": label}, {"building": name}, {"rows": [...]}.
"""
from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bursts import Burst, bench_group, bench_sustained
from contender import Absent, Build, Contender, Work, fatal, reason
from matmul_cases import Case
from records import pair_ratio, row

#: unit -> what an amount over milliseconds is divided by
PER_MS = {"TFLOP/s": 1e9, "GB/s": 1e6}
OURS = "tilejit"
#: Seconds after which a contender that is being built, or a case that is being measured, counts as hung.
BUILD_LIMIT, CASE_LIMIT = 60, 60
#: Seconds that a case may measure even where building its contenders took its share.
LEAST = 1.0


@dataclass(frozen=True)
class Device:
    """Where cases run: a GPU, or numbers made up for a dry run."""

    prepare: Callable[[Case], Work]
    poison: Callable[[Any], Any]
    synchronize: Callable[[], Any]
    burst: Callable[[Callable[[], Any]], Burst]
    free: Callable[[], Any]
    #: what can be done for many cases at once, ahead of time; returns what there is to say of it
    ready: Callable[[Sequence[Case]], str] = lambda cases: ""
    #: bursts for unbroken load in which the host's part takes no time; None where one of the calls allows none
    steady: Callable[[Mapping[str, Callable[[], Any]]], dict[str, Burst] | None] = lambda calls: None


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure. `peers` limits the peers to those whose names begin so; `without` leaves some out,
    each for a reason."""

    rounds: int = 5
    burst_ms: float = 5.0
    rest: float = 10.0
    sustained: bool = True
    peers: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)

    def unwanted(self, name: str) -> str:
        """Why a peer takes no part; empty text if it does."""
        for start, why in self.without.items():
            if name.startswith(start):
                return why
        return "" if not self.peers or any(name.startswith(p) for p in self.peers) else "not asked for (--peers)"


Emit = Callable[[dict[str, Any]], None]


def absent(case: Case, name: str, why: str) -> dict[str, Any]:
    """The record of a contender that took no part."""
    return {"bench": f"matmul_{case.set}", "case": case.label, "dtype": case.dtype, "peer": name, "absent": why}


def enter(case: Case, build: Build, work: Work, device: Device) -> tuple[Contender, float]:
    """A contender that computes the right result, and its error. Raises Absent if it does not, or anything it raises."""
    c = build()
    if c.out is not None:
        device.poison(c.out)
    result = c.call()
    device.synchronize()
    if c.amount:
        return c, 0.0
    error = work.error(c.view(result))
    if not error <= work.bound:
        raise Absent(f"wrong result: error {error:.2e}, bound {work.bound:.1e}")
    return c, error


def run_case(case: Case, device: Device, options: Options, until: float, emit: Emit,
             limit: Callable[[int], Any] = lambda seconds: None) -> list[dict[str, Any]]:
    """Measure one case; one record for each peer. Ours missing, the records hold the peers' numbers alone.

    `limit` is told how many seconds the next step may take before the process is better ended."""
    work = device.prepare(case)
    found: dict[str, Contender] = {}
    errors: dict[str, float] = {}
    rows = []
    for name, build in {OURS: work.ours, **work.peers}.items():
        why = "" if name == OURS else options.unwanted(name)
        if why:
            rows.append(absent(case, name, why))
            continue
        emit({"building": name})
        limit(BUILD_LIMIT)
        try:
            found[name], errors[name] = enter(case, build, work, device)
        except Exception as error:
            if fatal(error):
                raise
            rows.append(absent(case, name, reason(error)))
    if not found:
        return rows
    bursts = {name: c.burst or device.burst(c.call) for name, c in found.items()}
    emit({"building": ""})
    limit(CASE_LIMIT)
    until = max(until, time.monotonic() + LEAST)
    times = bench_group(bursts, options.rounds, options.burst_ms, options.rest, until)
    if OURS in found and found[OURS].out is not None:
        after = work.error(found[OURS].view(found[OURS].out))
        if not after <= work.bound:
            rows.append(absent(case, OURS, f"wrong result after the bursts: error {after:.2e}"))
            del found[OURS]
    best = best_peer(found, times)
    kept = {name: bursts[name] for name in (OURS, best) if name in found}
    load: dict[str, list[float]] = {}
    steady = None
    if options.sustained and len(kept) == 2 and time.monotonic() < until:
        steady = None if any(found[name].burst for name in kept) else device.steady({n: found[n].call for n in kept})
        load = bench_sustained(steady or kept, each=0.03 * options.burst_ms, warm=0.06 * options.burst_ms)
    for name in found:
        if name != OURS:
            rows.append(compared(case, name, found, times, errors, load, name == best))
            if "sustained" in rows[-1]:
                rows[-1]["sustained"]["launched by"] = "graph" if steady else "host"
    if OURS in found and len(found) == 1:
        rows.append(absent(case, "all peers", "none ran"))
    return rows


def best_peer(found: dict[str, Contender], times: dict[str, list[float]]) -> str:
    """The judged peer with the least median time; empty text without one."""
    judged = [n for n, c in found.items() if n != OURS and c.judged]
    return min(judged, key=lambda n: statistics.median(times[n]), default="")


def compared(case: Case, name: str, found: dict[str, Contender], times: dict[str, list[float]],
             errors: dict[str, float], load: dict[str, list[float]], best: bool) -> dict[str, Any]:
    """The record of a peer: rates, the ratio of rates by pairs, and under sustained load for the best peer."""
    c = found[name]
    scale = PER_MS[c.unit]
    amount = case.bytes if c.unit == "GB/s" else case.flops
    theirs = c.amount or amount

    def rates(samples: dict[str, list[float]]) -> tuple[float, float, float, tuple[float, float]]:
        ratio, spread = pair_ratio(samples[OURS], samples[name])
        by = amount / theirs
        return (amount / statistics.median(samples[OURS]) / scale, theirs / statistics.median(samples[name]) / scale,
                ratio * by, (spread[0] * by, spread[1] * by))

    if OURS in found:
        ours, peer, ratio, spread = rates(times)
        made = row(f"matmul_{case.set}", case.label, case.dtype, ours, name, peer, c.unit, ratio, spread)
    else:
        made = row(f"matmul_{case.set}", case.label, case.dtype, 0.0, name,
                   theirs / statistics.median(times[name]) / scale, c.unit, 0.0, (0.0, 0.0))
        made["ours"] = made["ratio"] = made["spread"] = None
    made |= {"best": best, "error": float(f"{errors[name]:.2e}"), "rounds": len(times[name]), "note": c.note,
             "flops": case.flops, "bytes": case.bytes}
    if OURS in found:
        made |= {"ours_error": float(f"{errors[OURS]:.2e}"), "ours_note": found[OURS].note}
    if OURS in load and name in load:
        ours, peer, ratio, _ = rates(load)
        made["sustained"] = {"ours": round(ours, 2), "peer": round(peer, 2), "ratio": round(ratio, 4)}
    return made


def run(cases: Sequence[Case], device: Device, options: Options, seconds: float, emit: Emit) -> None:
    """Run cases one after another, within `seconds` as far as their number allows: each may use its share of what is
    left; what does not fit is recorded as absent."""
    deadline = time.monotonic() + seconds
    for i, case in enumerate(cases):
        now = time.monotonic()
        emit({"start": case.label, "set": case.set})
        if now > deadline:
            emit({"rows": [absent(case, "all", "out of time")]})
            continue
        share = (deadline - now) / (len(cases) - i)
        try:
            signal.alarm(CASE_LIMIT)                                         # its default action ends the process
            rows = run_case(case, device, options, now + share, emit, signal.alarm)
        except Exception as error:
            if fatal(error):
                raise
            rows = [absent(case, "all", reason(error))]
        finally:
            signal.alarm(0)
        emit({"rows": rows})
        device.free()


def writer(path: Path) -> Emit:
    """Appends events to a file, one JSON line each, at once."""
    def emit(event: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    return emit


def dry_device(seed: int = 0) -> Device:
    """Made-up times from a roofline with noise: the logic without a GPU. Ours is about 1.02 of the best peer."""
    import random

    rng = random.Random(seed)

    def prepare(case: Case) -> Work:
        peak = {"fp8": 1300e9}.get(case.dtype, 800e9)

        def made(speed: float, **more: Any) -> Contender:
            least = max(case.flops / peak, case.bytes / 4.2e9) / speed
            return Contender(lambda: 0.0, burst=lambda calls: least * rng.uniform(0.99, 1.01), **more)

        def missing() -> Contender:
            raise Absent("this is a dry run")

        peers: dict[str, Build] = {"cublas NT": lambda: made(1.0), "cublas NN": lambda: made(0.98),
                                   "triton": lambda: made(0.95, note="128x256x64"), "pallas": missing}
        if case.set == "decode":
            peers["copy"] = lambda: Contender(lambda: 0.0, burst=lambda calls: 0.5, judged=False, unit="GB/s",
                                              amount=2 * 2.0 ** 30)
        return Work(lambda: made(1.02), peers, lambda result: 1e-3, 1e-2)

    return Device(prepare, lambda x: None, lambda: None, lambda fn: (lambda calls: 1.0), lambda: None)
