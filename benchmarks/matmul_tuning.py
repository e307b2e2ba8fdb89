"""The best of many ways to run the library's product kernel: what its choice for a shape is held against.

The likeliest plans by the library's own estimate. All are
compiled at once (the assembler is a process of its own), each is looked at once, and the best few race.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bursts import Burst
from contender import Absent, Contender, race

import tilejit
from tilejit.kernels import launches, planning
from tilejit.kernels._calls import Work
from tilejit.kernels.chip import current
from tilejit.kernels.problem import Problem, call_of
from tilejit.kernels.way import Way
from tilejit.tools.calibrate import described

#: Plans that are tried for a product.
PLANS = 60


def facts(m: int, n: int, k: int, size: int) -> Problem:
    """A product with K contiguous in operands of `size` bytes an element, and a result of 16 bits."""
    return Problem(m, n, k, size, True, False, (k * size, k * size, 2 * n))


def chosen(m: int, n: int, k: int, size: int) -> str:
    """The library's own plan, as in notes."""
    return str(planning.choose(facts(m, n, k, size), current()).way)


def plans(m: int, n: int, k: int, size: int) -> dict[str, Way]:
    """Everything that is tried for a product, by name."""
    return {str(p.way): p.way for p in planning.likeliest(facts(m, n, k, size), current(), PLANS)}


def work_of(a: Any, b: Any, out: Any, way: Way) -> Work:
    """The launches of a way for a, b and out."""
    work, infos = Work(4), [tilejit.array_info(x) for x in (a, b, out)]
    launches.add(work, call_of("tuning", (*infos[:2], None, infos[2]), None, current().multiprocessors), way)
    return work


def prepared(works: dict[str, Work]) -> dict[str, str]:
    """Compile the products of all of them, side by side; why some cannot be."""
    def one(work: Work) -> str:
        try:
            for x in work.launches:
                if x.kernel.kernel is launches.product_kernel:
                    x.kernel.kernel.prepare(*described(x.arguments), **x.kernel.given)()
            return ""
        except tilejit.TileJitError as error:
            return str(error).split("\n")[0]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return {name: why for name, why in zip(works, pool.map(one, works.values())) if why}


def best(a: Any, b: Any, out: Any, others: dict[str, Callable[[], Any]], burst: Callable[[Callable[[], Any]], Burst],
         choice: dict[str, Way] | None = None) -> Contender:
    """The fastest of all plans, and of `others` (calls that write `out`), as a contender whose note names it.

    Raises Absent if none works."""
    size = tilejit.array_info(a).dtype.bytes
    works = {name: work_of(a, b, out, p)
             for name, p in (choice or plans(a.shape[0], b.shape[1], a.shape[1], size)).items()}
    failed = prepared(works)
    calls = {**{name: partial(work.run, a, b, None, out) for name, work in works.items() if name not in failed}, **others}
    found = race({name: (lambda call=call: burst(call)) for name, call in calls.items()})
    if not found.order:
        raise Absent(f"no way works; {next(iter({**failed, **found.failed}.items()), '')}")
    name = found.order[0]

    def call() -> Any:
        calls[name]()
        return out

    return Contender(call, out, note=f"{name}, best of {len(calls) - len(found.failed)}")
