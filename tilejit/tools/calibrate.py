"""The rates of a chip (`kernels/chips/*.json`), from measured times of many ways to compute random products."""
from __future__ import annotations

import json
import math
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import tilejit
from tilejit.kernels import launches, planning
from tilejit.kernels._calls import Work
from tilejit.kernels._operands import Matrix
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.estimate import Table, estimate
from tilejit.kernels.problem import Call, Problem, facts
from tilejit.kernels.way import Way

FITTED = ("launch", "second", "cluster", "tensor", "load", "l2", "memory", "resident", "latency", "block", "sector",
          "ragged", "line", "store", "stored", "part", "exchange", "outside", "pair", "behind", "within", "neighbour")
#: Where a fit starts with terms that a chip's numbers leave out.
STARTS = {"outside": 1.0, "pair": 0.1, "behind": 2.0, "within": 0.1, "neighbour": 0.2}
#: How much what a product's estimates have in common counts, which no choice depends on.
COMMON = 0.1
#: How firmly rates stay near those that a fit starts with.
PRIOR = 0.3
#: The likeliest ways that are measured of a product, and others that should take at most so much longer.
LIKELY, OTHERS, WITHIN = 14, 8, 2.5
#: At most: M and N, K, multiplications, elements of both operands.
LARGEST, LONGEST, PRODUCTS, ELEMENTS = 2 ** 14, 2 ** 17, 2 ** 36, 2 ** 28
#: Products whose kernels are compiled ahead.
AHEAD = 3
#: A product, and the nanoseconds that ways of it take.
Times = tuple[Problem, list[tuple[Way, float]]]


def problems(rng: random.Random) -> Iterator[tuple[Problem, str]]:
    """Sizes are log-uniform; half of the products have rows in whole lines of L2, others in sectors, or begin anywhere
    that TMA reads."""
    i = 0
    while True:
        m, n, k = (max(1, round(math.exp(rng.uniform(0, math.log(most))))) for most in (LARGEST, LARGEST, LONGEST))
        unit, dtype = (64, 8, 64, 16, 64, 16, 64, 16)[i % 8], "fp8e4nv" if i % 4 == 3 else "bf16"
        n, k = -(-n // unit) * unit, -(-k // unit) * unit
        if not 2 ** 14 <= m * n * k <= PRODUCTS or i % 3 == 0 and m * n * k < 2 ** 30 or (m + n) * k > ELEMENTS:
            continue
        yield facts(*matrices(m, n, k, dtype, i % 8 < 4 and dtype == "bf16")), dtype
        i += 1


def matrices(m: int, n: int, k: int, dtype: str, b_rows: bool) -> tuple[Matrix, Matrix, Matrix]:
    def matrix(kind: str, m: int, n: int, rows: bool) -> Matrix:
        strides = (n, 1) if rows else (1, m)
        info = tilejit.ArrayInfo(0, getattr(tilejit.language, kind), (m, n), strides, 0)
        return Matrix(info, rows)

    kind = {"bf16": "bfloat16", "fp8e4nv": "float8e4nv"}[dtype]
    return matrix(kind, m, k, True), matrix(kind, k, n, b_rows), matrix("bfloat16", m, n, True)


def picked(problem: Problem, chip: Chip, rng: random.Random) -> list[Way]:
    """The ways that are measured."""
    ways = [*planning.ordered(problem, chip)]
    near = [way for way, ns in ways if ns < WITHIN * ways[0][1]]
    return list(dict.fromkeys(near[:LIKELY] + rng.sample(near[LIKELY:], min(OTHERS, max(0, len(near) - LIKELY)))))


def work_of(problem: Problem, way: Way, chip: Chip, dtype: str) -> Work:
    a, b, c = matrices(problem.m, problem.n, problem.k, dtype, problem.b_rows)
    work = Work(3)
    launches.add(work, Call(a, replace(b, at=1), replace(c, at=2), problem, chip), way)
    return work


def compiled(job: tuple[Problem, Way, Chip, str]) -> str:
    """Compile into the disk cache, in a process of its own; why it cannot be, or an empty text."""
    try:
        launch = work_of(*job).launches[0]
        launch.kernel.kernel.prepare(*described(launch.arguments), **launch.kernel.given)()
    except tilejit.TileJitError as error:
        return str(error).split("\n")[0]
    return ""


def described(x: Any) -> Any:
    return tuple(map(described, x)) if isinstance(x, tuple) else getattr(x, "descriptor", x)


def measure(seconds: float, seed: int, chip: Chip, into: Callable[[Times], Any],
            say: Callable[[str], Any] = print) -> None:
    until, rng, count = time.monotonic() + seconds, random.Random(seed), 0
    source = problems(rng)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        def begun() -> tuple[Problem, str, dict[Way, Future[str]]]:
            problem, dtype = next(source)
            return problem, dtype, {w: pool.submit(compiled, (problem, w, chip, dtype))
                                    for w in picked(problem, chip, rng)}

        waiting = deque(begun() for _ in range(AHEAD))
        while time.monotonic() < until:
            waiting.append(begun())
            problem, dtype, ways = waiting.popleft()
            for way, why in ((w, x.result()) for w, x in ways.items()):
                if why:
                    say(f"{problem} {way}: {why}")
            into((problem, measured(problem, dtype, chip, [w for w, x in ways.items() if not x.result()], say)))
            count += 1
        for _, _, ways in waiting:
            for job in ways.values():
                job.cancel()
    say(f"{count} products")


def measured(problem: Problem, dtype: str, chip: Chip, ways: Sequence[Way],
             say: Callable[[str], Any] = print) -> list[tuple[Way, float]]:
    """In nanoseconds."""
    import torch

    p, kind = problem, {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}[dtype]
    a = torch.randn(p.m, p.k, device="cuda").to(kind)
    b = torch.randn(*((p.k, p.n) if p.b_rows else (p.n, p.k)), device="cuda").to(kind)
    b, c = b if p.b_rows else b.T, torch.empty(p.m, p.n, device="cuda", dtype=torch.bfloat16)
    want, found = a[:8].double() @ b.double(), []
    for w in ways:
        graph = captured(work_of(p, w, chip, dtype), a, b, c, max(2, min(12, int(5e10 / (p.m * p.n * p.k)))))
        error = float((c[:8].double() - want).norm() / want.norm())
        if not error < 1e-2:
            say(f"{p} {w}: WRONG, relative error {error:.1e}")
            continue
        found.append((w, graph))
    times = raced([g for _, g in found])
    return [(w, t) for (w, _), t in zip(found, times)]


def captured(work: Work, a: Any, b: Any, c: Any, count: int) -> tuple[Any, int]:
    import torch

    c.fill_(float("nan"))
    work.run(a, b, c)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            work.run(a, b, c)
    return graph, count


def raced(graphs: Sequence[tuple[Any, int]], rounds: int = 4) -> list[float]:
    import torch

    times: list[list[float]] = [[] for _ in graphs]
    for i in range(rounds):
        for found, (graph, count) in zip(times, graphs):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            graph.replay()
            start.record()
            graph.replay()
            graph.replay()
            end.record()
            end.synchronize()
            if i:
                found.append(start.elapsed_time(end) * 1e6 / (2 * count))
    return [statistics.median(t) for t in times]


def fit(times: Sequence[Times], chip: Chip, rounds: int = 30) -> Chip:
    """The chip with numbers of `FITTED` that fit ratios of a product's ways best (Levenberg-Marquardt, logarithms)."""
    tables = [(p, Table(tuple(w for w, _ in rows)), np.array([t for _, t in rows])) for p, rows in times if rows]
    weights = [(t.min() / t) ** 1.5 for _, _, t in tables]

    def made(v: Any) -> Chip:
        rates: dict[str, Any] = {n: float(x) for n, x in zip(FITTED, np.exp(v))}
        return replace(chip, **rates)

    def off(v: Any) -> Any:
        c = made(v)
        errors = [np.log(estimate(p, table, c) / t) for p, table, t in tables]
        means = [np.average(e, weights=w) for e, w in zip(errors, weights)]
        near = [(e - mean) * w for e, mean, w in zip(errors, means, weights)]
        common = [COMMON * len(e) ** 0.5 * mean for e, mean in zip(errors, means)]
        return np.concatenate([*near, common, PRIOR * (v - start)])

    start = v = np.log([max(STARTS.get(n, 1e-6), getattr(chip, n)) for n in FITTED])
    r, damping = off(v), 1e-2
    for _ in range(rounds):
        slope = np.stack([(off(v + 1e-4 * e) - r) / 1e-4 for e in np.eye(len(v))], 1)
        normal, gradient = slope.T @ slope, slope.T @ r
        for _ in range(8):
            change = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            tried = v + np.clip(change, -0.7, 0.7)
            left = off(tried)
            if left @ left < r @ r:
                break
            damping *= 4
        else:
            break
        done = r @ r - left @ left < 1e-6 * (r @ r)
        v, r, damping = tried, left, damping / 5
        if done:
            break
    return made(v)


def judged(times: Sequence[Times], chip: Chip) -> dict[str, float]:
    """The error of estimates of ways within 1.3 times the best, and how much longer the chosen way takes than the
    best measured."""
    errors, longer = [], []
    for p, rows in times:
        if not rows:
            continue
        t = np.array([x for _, x in rows])
        e = estimate(p, Table(tuple(w for w, _ in rows)), chip)
        errors += list(np.log(e / t)[t < 1.3 * t.min()])
        longer.append(t[int(np.argmin(e))] / t.min())
    return {"products": len(longer), "ways": sum(len(rows) for _, rows in times),
            "error": round(float(np.std(errors)), 4), "choice": round(math.exp(float(np.mean(np.log(longer)))), 4),
            "within 5%": round(float(np.mean(np.array(longer) < 1.05)), 3)}


def read(path: Path) -> list[Times]:
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        problem = Problem(**{**row["problem"], "pitches": tuple(row["problem"]["pitches"])})
        found.append((problem, [(Way(**w), t) for w, t in row["times"]]))
    return found


def calibrate(seconds: float, seed: int | None, times: Path | None, out: Path | None) -> int:
    chip = current()
    seed = random.SystemRandom().randrange(10 ** 6) if seed is None else seed
    rows = read(times) if times is not None and times.exists() else []
    if seconds > 0:
        with (times or Path(os.devnull)).open("a") as file:
            def keep(found: Times) -> None:
                rows.append(found)
                ways = [(asdict(w), t) for w, t in found[1]]
                file.write(json.dumps({"problem": asdict(found[0]), "times": ways}) + "\n")
                file.flush()

            measure(seconds, seed, chip, keep)
    seen, held = [r for i, r in enumerate(rows) if i % 3], rows[::3]
    fitted = fit(seen, chip)
    origin = {"gpu": tilejit.device_name(), "seed": seed, "fitted": judged(seen, fitted),
              "held out": judged(held, fitted), "held out, before": judged(held, chip)}
    print(json.dumps(origin))
    if out is not None:
        write(replace(fitted, name=tilejit.device_name() or chip.name, origin=origin), out)
    return 0


def write(chip: Chip, path: Path) -> None:
    def short(x: Any) -> Any:
        return float(f"{x:.4g}") if isinstance(x, float) else x

    path.write_text(json.dumps({k: short(v) for k, v in asdict(chip).items() if k != "hopper"}, indent=1) + "\n")

