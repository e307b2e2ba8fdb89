"""Matrix products of any shape: C = act(scale * A @ B + bias), or what a function of the caller's makes of the sums."""
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import tilejit
from tilejit.kernels._calls import Work, known_of, place
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.chip import Chip
from tilejit.kernels.copy import LINE, NEW, copy, made, pitched, time
from tilejit.kernels.launches import add
from tilejit.kernels.planning import SHORT, Plan, brief, choose, described, likeliest
from tilejit.kernels.problem import Call, call_of, facts
from tilejit.kernels.product.kernel import product_kernel
from tilejit.kernels.way import Way

_WHAT = "matmul"
#: a, b, bias, result, both scales, arguments of an end.
_ARRAYS = 7
_EMPTY = Way(64, 64, 4)
#: Bytes that threads copy into shared memory at once, at least, where K is long.
_PIECE = 4
_TUNED = 8
#: The fastest plan of a call, by its facts.
_tuned: dict[tuple[Any, ...], str] = {}


@function(new)
def matmul(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, out: Any = None,
           out_dtype: DType | None = None, *, scale_a: Array | None = None, scale_b: Array | None = None,
           end: Any = None, end_args: tuple[Any, ...] = (), autotune: bool = False) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). scale_a, scale_b: arrays of one fp32 number, 1
    without (`fused_matmul` takes one per row and column). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Arrays whose rows do not start at multiples of 16
    bytes, and fp8 or fp32 without contiguous K, are copied first, or by threads in pieces of 4 or 8 bytes (of any where
    K is short).
    Sums have a fixed order.

    end: a kernel function that makes of the (scaled) fp32 sums what is stored, instead of a bias and an activation:

        @tilejit.kernel
        def end(sums, rows, columns, row_count, column_count, args): ...

    rows and columns are the result's, shaped so that they broadcast against the sums of a tile, or of its transpose, or
    of some elements; what it loads it masks by their counts. end_args: arrays and numbers, its `args`. It has no
    gradient. autotune: the likeliest eight ways are measured once, and the fastest is remembered on disk, where there
    is a GPU. Raises LaunchError for what does not fit."""
    out = new(a, b, out_dtype) if out is None else out
    if end is not None and (bias is not None or activation is not None):
        raise tilejit.LaunchError("matmul: an end takes the place of a bias and an activation: leave those out")
    arrays = a, b, bias, out, scale_a, scale_b
    known = known_of(*arrays)
    key = known, activation, *place(known[0]), end
    work = _work(*key) if not autotune else _fastest((*arrays, end_args), key)
    work.run(*arrays, end_args)
    return out


def plan(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
         out_dtype: Any = None) -> str:
    """How `matmul` of these arrays is planned, to be printed: the likeliest of the ways considered, with their
    estimates, and the choice. Raises LaunchError as `matmul` does."""
    known = known_of(a, b, bias, new(a, b, out_dtype) if out is None else out)
    call = _call(known, activation, *place(known[0]), None)
    if 0 in call.c.shape or not call.problem.k:
        return f"{call.problem}: nothing to {'sum' if 0 not in call.c.shape else 'compute'}"
    found = _route(call)
    told = f"{', '.join(found.told())}, and:\n" if found.told() else ""
    return told + described(found.call.problem, call.chip)


def _fastest(arrays: tuple[Any, ...], key: tuple[Any, ...]) -> Work:
    """Or where nothing is summed the launches of `_work`."""
    plans = _plans(*key)
    if not plans:
        return _work(*key)
    if key not in _tuned:
        _tuned[key] = tilejit.fastest(product_kernel, f"{key[0]} {key[1]} {key[-1]}", {
            name: partial(work.run, *arrays) for name, work in plans.items()})
    return plans[_tuned[key]]


def _call(infos: tuple[Any, ...], activation: str | None, multiprocessors: int, knobs: Any, own: Any) -> Call:
    """Raises LaunchError for arrays that do not go together."""
    return call_of(_WHAT, infos, activation, multiprocessors, own, in_place=False)


@lru_cache(maxsize=1024)
def _work(*key: Any) -> Work:
    call = _call(*key)
    return Work(_ARRAYS) if 0 in call.c.shape else routed(call, _route(call))


@lru_cache(maxsize=1024)
def _plans(*key: Any) -> dict[str, Work]:
    call = _call(*key)
    if 0 in call.c.shape or not call.problem.k:
        return {}
    found = [*_routes(call)]
    most = max(1, _TUNED // len(found))
    routes = [route._replace(plan=plan, ns=route.ns - route.plan.ns + plan.ns) for route in found
              for plan in likeliest(route.call.problem, call.chip, most)]
    return {str(r): routed(call, r) for r in sorted(routes, key=lambda r: r.ns)[:_TUNED]}


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


def routed(call: Call, found: Route) -> Work:
    """Copies, the product, and a copy of its result."""
    work = Work(_ARRAYS)
    a, b, c = (made(work, x) if x.at == NEW else x for x in found.call[:3])
    pairs = [(x, y) for x, y in ((call.a, a), (call.b, b)) if x is not y]
    if pairs:
        work.launches.append(copy(*pairs))
    add(work, found.call._replace(a=a, b=b, c=c), found.plan.way)
    if c is not call.c:
        work.launches.append(copy((c, call.c)))
    return work


def _route(call: Call) -> Route:
    return min(_routes(call), key=lambda r: r.ns)


def _routes(call: Call) -> Iterator[Route]:
    """What TMA does not read is copied first, or by threads into the blocks; what it does not write is stored
    through pointers, or copied."""
    a, b, c, p, chip, end = call
    if not p.k:
        yield Route(call, Plan(_EMPTY, 0.0), 0.0)
        return
    short = brief(p, chip)
    results = [c] if c.in_reach else [c, pitched(c, True, spare=True)]
    straight = short or p.k_bytes <= (2 * SHORT if strewn(a, True) or strewn(b, False) else SHORT // 2)
    how = straight, 1 if short else _PIECE, chip
    for (x, of_x), (y, of_y), z in product(_choices(a, True, *how), _choices(b, False, *how), results):
        if z is not c and (of_x or of_y):
            continue
        ns = chip.second * ((x is not a or y is not b) + (z is not c))
        ns += sum(time(v, w, chip) for v, w in ((a, x), (b, y), (z, c)) if w is not v)
        # The first block by TMA waits for its tensor map.
        ns += chip.latency * (short and not (of_x and of_y))
        problem = facts(x, y, z, end, units=(of_x, of_y))
        plan = choose(problem, chip)
        yield Route(call._replace(a=x, b=y, c=z, problem=problem), plan, ns + plan.ns)


def strewn(x: Matrix, k_last: bool) -> bool:
    """Whether lines are across K, several to one of L2: TMA asks for each."""
    return x.rows_first != k_last and x.lines[1] * x.dtype.bytes < LINE // 2


def _choices(x: Matrix, k_last: bool, straight: bool, least: int, chip: Chip) -> Iterator[tuple[Matrix, int]]:
    """An operand, or a copy of it, and in what units threads read it (0: TMA does); straight: though TMA can; least:
    bytes of a unit."""
    along, narrow = x.rows_first == k_last, x.lines[1] * x.dtype.bytes < LINE
    turned = x.dtype.bytes == 2 or along
    as_is, size = x.in_reach and turned, x.unit * x.dtype.bytes
    if not as_is or narrow and not along:
        yield pitched(x, k_last if not turned or narrow else x.rows_first), 0
    if as_is:
        yield x, 0
    if turned and chip.hopper and (straight or strewn(x, k_last) or not as_is) and size >= least:
        yield x, size
