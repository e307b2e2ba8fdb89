"""The best of many ways to run the library's matmul kernel: what its choice for a shape is held against.

Every tile that the library knows, with other numbers of tile rows walked together, stages and consumer groups, and the
likeliest divisions of the result between launches. All are compiled at once (the assembler is a process of its own), each
is looked at once, and the best few race.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from contender import Absent, Contender, race

import tilejit
from tilejit.kernels import planning, steps
from tilejit.kernels import way as library
from tilejit.kernels.chip import current
from tilejit.kernels.problem import Problem
from tilejit.kernels.product import matmul_kernel, streamk_kernel
from tilejit.testing import Burst


@dataclass(frozen=True)
class Way:
    """A block of the result, bytes of K in a block, and launch options; None leaves an option to the compiler.
    stream: tiles that are shared out by blocks of K (`kernels.streamk`). columns: what the CTAs divide, instead of rows.
    turned: the block is one of the result's transpose."""

    m: int
    n: int
    warps: int
    ctas: int = 1
    group: int = 16
    k_bytes: int = 128
    stages: int | None = None
    turns: int | None = None
    stream: int = 0
    columns: bool = False
    turned: bool = False

    @property
    def label(self) -> str:
        """Short text for tables."""
        marks = [f"{self.m}x{self.n}x{self.k_bytes}B", f"w{self.warps}", f"g{self.group}"]
        marks += [f"c{self.ctas}{'n' * self.columns}"] * (self.ctas > 1) + [f"s{self.stages}"] * (self.stages is not None)
        marks += [f"t{self.turns}"] * (self.turns is not None)
        return " ".join(marks + ["streamed"] * (self.stream > 0) + ["turned"] * self.turned)


#: Rows and columns of a part of the result, or of its transpose: from row m0 and column n0, to row m1 and column n1.
Part = tuple[int, int, int, int]
#: How a result is computed: one launch for each part.
Plan = tuple[tuple[Way, Part], ...]
#: Tiles that large results may have.
TILES = (*planning.LARGE, library.Way(128, 128, 4), library.Way(64, 256, 4), library.Way(64, 128, 4), library.Way(64, 64, 4))


def of_tiles(t: library.Way, group: int, stream: int = 0, turned: bool = False) -> Way:
    """The library's tiles, `group` rows of them walked together, the first `stream` streamed."""
    return Way(t.m, t.n, t.warps, t.ctas, group, t.k_bytes, turns=t.options.get("num_consumer_groups"), stream=stream,
               columns=t.columns, turned=turned)


def ways(m: int, n: int, blocks: int) -> list[Way]:
    """What is tried for a whole m x n result of so many blocks of K: the library's tiles, with its own number of rows walked
    together, half and twice as many, and turned; other pipelines of the larger ones."""
    found = []
    for t in TILES:
        group = t.group(m, blocks)
        found += [of_tiles(t, g) for g in (group, group // 2, 2 * group)]
        found.append(of_tiles(t, t.group(n, blocks), turned=True))
    found += [Way(128, 256, 8, stages=3), Way(128, 256, 8, k_bytes=64), Way(256, 128, 8), Way(256, 128, 8, group=8),
              Way(128, 128, 8), Way(128, 128, 8, k_bytes=256), Way(128, 128, 4, turns=1), Way(64, 256, 4, turns=1),
              Way(256, 128, 8, 2, 8), Way(128, 256, 4, 2, 8)]
    return list(dict.fromkeys(found))


def divisions(problem: Problem) -> list[Plan]:
    """The likeliest result whose first part is made of whole tiles or whole waves and whose rest is in strips."""
    found = planning.divided(problem, current(), float("inf"))
    return [] if found is None else [plan_of(found.parts, problem)]


def plan_of(parts: Sequence[library.Part], problem: Problem) -> Plan:
    """The library's parts as launches."""
    return tuple((of_tiles(p.way, p.way.group(p.m1 - p.m0, tilejit.cdiv(problem.k_bytes, 128)), p.way.stream, p.way.swap),
                  p[:4]) for p in parts)


def name_of(plan: Plan) -> str:
    """Short text for tables: the ways, with the last row and column of the parts but the last."""
    last = len(plan) - 1
    return " + ".join(f"{way.label}{'' if i == last else f' to {part[2]},{part[3]}'}" for i, (way, part) in enumerate(plan))


def problem_of(m: int, n: int, k: int, size: int) -> Problem:
    """A product with K contiguous in operands of `size` bytes an element, and a result of 16 bits."""
    return Problem(m, n, k, size, True, False, (k * size, k * size, 2 * n))


def chosen(m: int, n: int, k: int, size: int) -> str:
    """The library's own plan, as in notes."""
    problem = problem_of(m, n, k, size)
    return name_of(plan_of(planning.choose(problem, current()).parts, problem))


def plans(m: int, n: int, k: int, size: int) -> dict[str, Plan]:
    """Everything that is tried for a product, by name."""
    problem = problem_of(m, n, k, size)
    found: list[Plan] = [((way, (0, 0, n, m) if way.turned else (0, 0, m, n)),)
                         for way in ways(m, n, tilejit.cdiv(problem.k_bytes, 128))]
    found += [*divisions(problem), plan_of(planning.choose(problem, current()).parts, problem)]
    return {name_of(p): p for p in found}


@dataclass(frozen=True)
class Launch:
    """A launch of one of the library's kernels: grid, arguments, options."""

    kernel: tilejit.Kernel
    grid: tuple[int]
    args: tuple[Any, ...]
    options: dict[str, Any]


def launch_of(a: Any, b: Any, out: Any, way: Way, part: Part) -> Launch:
    """How `way` multiplies a [M, K] row-major with b [K, N] column-major into a part of out [M, N]."""
    size, (m0, n0, m1, n1) = tilejit.array_info(a).dtype.bytes, part
    a, b = (b.T, a.T) if way.turned else (a, b)
    bk, block = way.k_bytes // size, (way.n, way.m) if way.turned else (way.m, way.n)
    d = tilejit.TensorDescriptor.from_tensor
    count = tilejit.cdiv(m1 - m0, way.m) * tilejit.cdiv(n1 - n0, way.n)
    options = {"num_warps": way.warps, "num_ctas": way.ctas, "num_stages": way.stages, "num_consumer_groups": way.turns,
               "cluster_split": "N" if way.columns else None}
    options = {o: v for o, v in options.items() if v is not None}
    options |= {"BM": way.m, "BN": way.n, "BK": bk, "GROUP": way.group, "A_ROWS": True, "B_ROWS": False,
                "C_ROWS": not way.turned, "ACTIVATION": None}
    programs, descs = min(tilejit.multiprocessors() // way.ctas, count), (d(a, (way.m, bk)), d(b.T, (way.n, bk)),
                                                                          d(out, block))
    if way.stream:
        config = library.Way(way.m, way.n, way.warps, way.ctas, programs=programs, stream=way.stream)
        args = (*descs, *steps.meeting("tuning", a, config, None), None, m1, n1, a.shape[1], way.stream)
        options |= {"ADD": False, "ORDERED": True}
        return Launch(streamk_kernel, (programs,), args, options)
    return Launch(matmul_kernel, (programs,), (*descs, None, m1, n1, a.shape[1]), {**options, "M0": m0, "N0": n0})


def prepared(launches: dict[str, list[Launch]]) -> dict[str, str]:
    """Compile all of them, side by side; why some cannot be."""
    def one(parts: list[Launch]) -> str:
        try:
            for x in parts:
                x.kernel.prepare(*x.args, **x.options)()
            return ""
        except tilejit.TileJitError as error:
            return str(error).split("\n")[0]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return {name: why for name, why in zip(launches, pool.map(one, launches.values())) if why}


def best(a: Any, b: Any, out: Any, others: dict[str, Callable[[], Any]], burst: Callable[[Callable[[], Any]], Burst],
         choice: dict[str, Plan] | None = None) -> Contender:
    """The fastest of all plans, and of `others` (calls that write `out`), as a contender whose note names it.

    Raises Absent if none works."""
    size = tilejit.array_info(a).dtype.bytes
    choice = choice or plans(a.shape[0], b.shape[1], a.shape[1], size)
    launches = {name: [launch_of(a, b, out, *step) for step in plan] for name, plan in choice.items()}
    failed = prepared(launches)

    def caller(parts: list[Launch]) -> Callable[[], Any]:
        def call() -> None:
            for x in parts:
                x.kernel[x.grid](*x.args, **x.options)

        return call

    calls = {**{name: caller(parts) for name, parts in launches.items() if name not in failed}, **others}
    found = race({name: (lambda call=call: burst(call)) for name, call in calls.items()})
    if not found.order:
        raise Absent(f"no way works; {next(iter({**failed, **found.failed}.items()), '')}")
    name = found.order[0]

    def call() -> Any:
        calls[name]()
        return out

    return Contender(call, out, note=f"{name}, best of {len(calls) - len(found.failed)}")
