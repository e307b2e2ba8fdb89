"""For compat.py --speed: how fast each kernel is beside Triton's on the same source, within a budget of seconds.

First `--jobs` processes run every case once, of either side, so that what is timed comes from the caches on disk; a
case that is not compiled within `--limit` seconds, or in half the budget, is named and left out. Then two processes
hold the kernels of a case, one each side, and short bursts of launches are timed by turns. Rows are printed, and the
JSON written, as they are found. Without a GPU launches only compile: the flow, and times that mean nothing.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: the sides, by whether they are Triton's
NAMES = {False: "tilejit", True: "Triton"}
#: seconds that a process may take to start, and a burst of launches
START, BURST = 90.0, 15.0
#: pairs of bursts; launches in one, and the microseconds after which it has enough; how many numbers of a result are
#: compared
PAIRS, LAUNCHES, ENOUGH, SAMPLE = 7, 20, 3000.0, 4096
#: rows, and the cases left out with the reasons
Measured = tuple[list[dict[str, Any]], dict[str, str]]


class Failed(Exception):
    """A process says why it has no answer, or did not answer in time."""


class Timed:
    """A launch, recorded as a graph of many."""

    def __init__(self, fn: Any, grid: Any, args: tuple, kwargs: dict):
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        fn[grid](*args, **kwargs)
        once = self.elapsed(lambda: fn[grid](*args, **kwargs))
        self.launches = int(min(max(ENOUGH / once, 1), LAUNCHES))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.launches):
                fn[grid](*args, **kwargs)
        self.graph.replay()

    def elapsed(self, work: Callable[[], Any]) -> float:
        """Microseconds of the GPU for what `work` launches."""
        start, end = self.events
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def burst(self) -> float:
        """Microseconds a launch."""
        return self.elapsed(self.graph.replay) / self.launches


class Host:
    """What a process of one side answers: the cases' names, what a case computed, and how long its kernels take."""

    def __init__(self, options: argparse.Namespace, triton: bool):
        import compat
        import compat_spills
        import torch

        self.compat, self.options = compat, options
        self.only_compiles = contextlib.ExitStack()
        if not torch.cuda.is_available():
            self.only_compiles.enter_context((compat_spills.theirs if triton else compat_spills.ours)({}))
        self.gpu, self.cases, self.recorder = compat.opened(options, triton)
        self.timed: dict[str, Any] = {}
        self.kept: list[Any] = []           # what a case works on: kernels may have no more than addresses of it

    def names(self) -> list[str]:
        """The cases, in their order."""
        return list(self.cases)

    def case(self, name: str) -> tuple[list[str], list[list[float]]]:
        """Run a case: the kernels that it launched, and a sample of each of its results."""
        self.timed.clear()
        self.recorder.found.clear()
        self.kept.clear()
        check = self.cases[name](self.compat.sizes_of(self.options, self.gpu))

        def ours(*given: Any) -> Any:
            made = check.ours(*given)
            self.kept += [given, made]
            return made

        made = self.compat.results(ours, check.inputs, check.grads, False)
        steps = [x.flatten()[::max(1, x.numel() // SAMPLE)][:SAMPLE] for x in made]
        return sorted(self.recorder.found), [x.double().cpu().tolist() for x in steps]

    def burst(self, kernel: str) -> float:
        """Microseconds of a launch of one of the case's kernels."""
        if not self.gpu:
            fn, grid, args, kwargs = self.recorder.found[kernel]
            began = time.perf_counter()
            fn[grid](*args, **kwargs)
            return (time.perf_counter() - began) * 1e6
        if kernel not in self.timed:
            self.timed[kernel] = Timed(*self.recorder.found[kernel])
        return float(self.timed[kernel].burst())

    def sound(self) -> bool:
        """Whether the GPU still answers."""
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:                         # torch says so of a context that a kernel broke
            return False
        return True


def serve(pipe: Any, options: argparse.Namespace, triton: bool) -> None:
    """A process of one side: (method of Host, arguments) in; (True, answer), (False, why not) or, if it ends now because
    the GPU no longer answers, (None, why) out."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.stdout = open(os.devnull, "w")                  # noqa: SIM115  (the cases' prints)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    host = Host(options, triton)
    while (request := pipe.recv()) is not None:
        method, *given = request
        try:
            pipe.send((True, getattr(host, method)(*given)))
        except Exception as error:
            text = str(error).strip()
            sound = host.sound()
            pipe.send((False if sound else None, f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:160]))
            if not sound:
                os._exit(3)


class Side:
    """A process of one side, started when it is asked something and again after it failed: `serve(pipe, *given)`."""

    def __init__(self, serve: Callable[..., None], *given: Any):
        self.serve, self.given = serve, given
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, limit: float, *request: Any) -> Any:
        """An answer within `limit` seconds. Raises Failed."""
        if self.process is None:
            spawn = multiprocessing.get_context("spawn")
            self.pipe, other = spawn.Pipe()
            self.process = spawn.Process(target=self.serve, args=(other, *self.given), daemon=True)
            self.process.start()
            other.close()
        try:
            self.pipe.send(request)
            if not self.pipe.poll(max(limit, 0)):
                raise Failed(f"over {limit:.0f} s")
            well, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            raise Failed("the process broke off") from None
        except Failed:
            self.end()
            raise
        if well is None:
            self.end()
        if not well:
            raise Failed(answer)
        return answer

    def end(self) -> None:
        """Stop the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None


class Clock:
    """What is left of a budget of seconds."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()


def compile_cases(names: list[str], jobs: int, limit: float, clock: Clock,
                  make: Callable[[bool], Any]) -> dict[tuple[bool, str], str]:
    """Every case once on either side, by `jobs` processes: "" where it ran, else why it did not."""
    waiting = {triton: list(names) for triton in (False, True)}
    found = {(triton, name): "not compiled in time" for triton in waiting for name in names}
    lock = threading.Lock()

    def run(triton: bool) -> None:
        for kind in (triton, not triton):
            side = make(kind)
            ready = False
            while clock.left() > 0:
                with lock:
                    if not waiting[kind]:
                        break
                    name = waiting[kind].pop(0)
                try:
                    if not ready:
                        side.ask(min(START, clock.left()), "names")
                    side.ask(min(limit, clock.left()), "case", name)
                    ready, found[kind, name] = True, ""
                except Failed as error:
                    ready, found[kind, name] = side.process is not None, str(error)
            side.end()

    # Triton takes about four times as long to compile
    threads = [threading.Thread(target=run, args=(i >= max(1, jobs // 5),)) for i in range(max(jobs, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def gap(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """The largest relative distance (Frobenius norm) of two samples of results."""
    if [len(x) for x in ours] != [len(x) for x in theirs]:
        return math.inf
    worst = 0.0
    for a, b in zip(ours, theirs):
        pairs = [(x, y) for x, y in zip(a, b) if not (x == y or x != x and y != y)]
        if not all(math.isfinite(x) and math.isfinite(y) for x, y in pairs):
            return math.inf
        scale = math.sqrt(sum(y * y for y in b if math.isfinite(y))) or 1.0
        worst = max(worst, math.sqrt(sum((x - y) ** 2 for x, y in pairs)) / scale)
    return worst


def time_case(name: str, sides: dict[bool, Any], clock: Clock, limit: float) -> list[dict[str, Any]]:
    """A row for each kernel that both sides launch: medians of bursts by turns. Raises Failed."""
    made: dict[bool, Any] = {}

    def ask(triton: bool) -> None:
        try:
            made[triton] = sides[triton].ask(min(limit, clock.left()), "case", name)
        except Failed as error:
            made[triton] = error

    both = [threading.Thread(target=ask, args=(triton,)) for triton in sides]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for triton, answer in made.items():
        if isinstance(answer, Failed):
            raise Failed(f"{NAMES[triton]}: {answer}")
    apart = gap(made[False][1], made[True][1])
    rows = []
    for kernel in made[False][0]:
        if kernel not in made[True][0]:
            continue
        row: dict[str, Any] = {"case": name, "kernel": kernel, "gap": apart}
        try:
            pairs = [[sides[triton].ask(min(BURST, max(clock.left(), 1)), "burst", kernel) for triton in sides]
                     for _ in range(PAIRS)]
            row["us"], row["triton_us"] = (sorted(x)[PAIRS // 2] for x in zip(*pairs))
            row["speed"] = sorted(theirs / ours for ours, theirs in pairs)[PAIRS // 2]
        except Failed as error:
            row["why"] = str(error)
        rows.append(row)
        if any(side.process is None for side in sides.values()):
            break
    return rows


def summary(rows: list[dict[str, Any]], left_out: dict[str, str]) -> str:
    """The geomean, the slow ones, and what was not measured."""
    timed = [row for row in rows if "speed" in row]
    lines = [f"left out: {name}: {why}" for name, why in left_out.items()]
    if timed:
        mean = math.exp(sum(math.log(row["speed"]) for row in timed) / len(timed))
        slow = sorted((row for row in timed if row["speed"] < 0.9), key=lambda row: row["speed"])
        lines += [f"under 0.9: {row['speed']:.2f} {row['case']} {row['kernel']}" for row in slow]
        lines.append(f"{len(timed)} kernels of {len({row['case'] for row in timed})} cases timed, {len(left_out)} cases "
                     f"left out; geomean of speed {mean:.3f}, {len(slow)} under 0.9")
    return "\n".join(lines)


def measure(names: list[str], sides: dict[bool, Any], compiled: dict[tuple[bool, str], str], clock: Clock,
            limit: float, note: Callable[[list[dict[str, Any]], dict[str, str]], None]) -> Measured:
    """Time every case that both sides compiled, as long as there is time; `note` gets all rows, and the cases left out
    with the reasons, after each case."""
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for name in names:
        late = [f"{NAMES[triton]}: {compiled[triton, name]}" for triton in sides if compiled[triton, name]]
        if late or clock.left() < 2:
            left_out[name] = "; ".join(late) or "no time left"
        else:
            try:
                rows += time_case(name, sides, clock, limit)
            except Failed as error:
                left_out[name] = str(error)
        note(rows, left_out)
    return rows, left_out


def compare(options: argparse.Namespace) -> None:
    """The whole measurement; at its end the summary."""
    clock = Clock(options.seconds - 3)
    sides = {triton: Side(serve, options, triton) for triton in (False, True)}
    names = sides[False].ask(START, "names")
    print(f"{len(names)} cases; {options.jobs} processes compile", flush=True)
    compiled = compile_cases(names, options.jobs, options.limit, Clock(clock.left() / 2),
                             lambda triton: Side(serve, options, triton))
    print(f"{sum(not why for why in compiled.values())} of {len(compiled)} compiled, {clock.left():.0f} s left", flush=True)
    print(f"{'case':38} {'kernel':46} {'us':>9} {'Triton':>9} {'speed':>6} {'apart':>9}", flush=True)
    shown = 0

    def note(rows: list[dict[str, Any]], left_out: dict[str, str]) -> None:
        nonlocal shown
        for row in rows[shown:]:
            figures = f"{row['us']:9.1f} {row['triton_us']:9.1f} {row['speed']:6.2f}" if "us" in row else row["why"]
            print(f"{row['case']:38} {row['kernel'].split(':')[-1]:46} {figures} {row['gap']:9.1e}", flush=True)
        shown = len(rows)
        if options.json:
            options.json.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1))

    try:
        print(summary(*measure(names, sides, compiled, clock, options.limit, note)), flush=True)
    finally:
        for side in sides.values():
            side.end()
