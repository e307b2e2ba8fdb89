"""How operands that TMA does not read, and results that it does not write, get to a product and from it."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from tilejit.kernels._calls import Work
from tilejit.kernels._operands import Matrix
from tilejit.kernels.chip import Chip
from tilejit.kernels.copy import LINE, NEW, brought, copy, made, pitched, time
from tilejit.kernels.launches import add
from tilejit.kernels.planning import Plan, brief
from tilejit.kernels.problem import Call, Problem, facts
from tilejit.kernels.way import Way

_EMPTY = Way(64, 64, 4)
#: Bytes that threads copy into shared memory at once, at least, where K is long.
PIECE = 4


class Route(NamedTuple):
    """A call, perhaps of copies, which have no place yet, its plan, and the nanoseconds of both."""

    call: Call
    plan: Plan
    ns: float

    @property
    def copied(self) -> list[bool]:
        return [x.at == NEW for x in self.call[:3]]

    def told(self) -> list[str]:
        """What TMA does not do."""
        p = self.call.problem
        names = "a copied", "b copied", "result copied", "pieces of a", "pieces of b", "result through pointers"
        return [name for name, is_so in zip(names, (*self.copied, *p.units, p.stores)) if is_so]

    def __str__(self) -> str:
        return ", ".join([*self.told(), str(self.plan.way)])


def routed(work: Work, call: Call, found: Route) -> Work:
    """Add copies, what launches the product, and a copy of its result."""
    a, b, c = (made(work, x) if x.at == NEW else x for x in found.call[:3])
    pairs = [(x, y) for x, y in ((call.a, a), (call.b, b)) if x is not y]
    if pairs:
        work.launches.append(copy(*pairs))
    add(work, found.call._replace(a=a, b=b, c=c), found.plan.way)
    if c is not call.c:
        work.launches.append(copy((c, call.c)))
    return work


def reached(work: Work, call: Call, a_rows: bool | None, b_rows: bool | None, **others: Any) -> Call:
    """The call of what is `brought`, and of other facts."""
    a, b = brought(work, (call.a, a_rows), (call.b, b_rows))
    return call._replace(a=a, b=b, problem=facts(a, b, call.c, call.end, **others))


def routes(call: Call, pick: Callable[[Problem], Plan], straight: bool, least: int) -> Iterator[Route]:
    """What TMA does not read is copied first, or by threads into the blocks."""
    a, b, c, p, chip, end = call
    if not p.k:
        yield Route(call, Plan(_EMPTY, 0.0), 0.0)
        return
    short = brief(p, chip)
    results = [c] if c.in_reach else [c, pitched(c, True, spare=True)]
    how = straight, least, chip
    for (x, of_x), (y, of_y), z in product(_choices(a, True, *how), _choices(b, False, *how), results):
        if z is not c and (of_x or of_y):
            continue
        ns = chip.second * ((x is not a or y is not b) + (z is not c))
        ns += sum(time(v, w, chip) for v, w in ((a, x), (b, y), (z, c)) if w is not v)
        # The first block by TMA waits for its tensor map.
        ns += chip.latency * (short and not (of_x and of_y))
        problem = facts(x, y, z, end, units=(of_x, of_y), batches=p.batches)
        plan = pick(problem)
        yield Route(call._replace(a=x, b=y, c=z, problem=problem), plan, ns + plan.ns)


def shortest(found: Iterator[Route]) -> Route:
    return min(found, key=lambda r: r.ns)


def strewn(x: Matrix, k_last: bool) -> bool:
    """Whether lines are across K, several to one of L2: TMA asks for each."""
    return x.rows_first != k_last and x.lines[1] * x.dtype.bytes < LINE // 2


def _choices(x: Matrix, k_last: bool, straight: bool, least: int, chip: Chip) -> Iterator[tuple[Matrix, int]]:
    """An operand, or a copy of it, and in what units threads read it (0: TMA does)."""
    along, narrow = x.rows_first == k_last, x.lines[1] * x.dtype.bytes < LINE
    turned = x.dtype.bytes == 2 or along
    as_is, size = x.in_reach and turned, x.unit * x.dtype.bytes
    if not as_is or narrow and not along:
        yield pitched(x, k_last if not turned or narrow else x.rows_first), 0
    if as_is:
        yield x, 0
    if turned and x.step == 1 and chip.hopper and (straight or strewn(x, k_last) or not as_is) and size >= least:
        yield x, size
