"""Matrix products of any shape: C = act(scale * A @ B + bias), or what a function of the caller's makes of the sums."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import inf
from typing import Any

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, given, infos_of, known_of, place
from tilejit.kernels._operands import (
    DTYPES,
    Matrix,
    check_one_of,
    check_operands,
    check_scale,
    check_vector,
    in_reach,
    new,
    order_of,
    unit,
)
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.copy import LINE, copy, made, pitched, time
from tilejit.kernels.launches import End, add
from tilejit.kernels.planning import Plan, brief, choose, described, likeliest
from tilejit.kernels.problem import Problem, facts
from tilejit.kernels.product.kernel import product_kernel
from tilejit.kernels.way import Part, Way

_WHAT = "matmul"
#: Arrays of a call: a, b, bias, result, both scales, arguments of an end.
_ARRAYS = 7
#: The tile where there is nothing to sum.
_EMPTY = Way(64, 64, 4)
#: Bytes that threads copy into shared memory at once, at least.
_PIECE = 4
#: Plans that autotuning measures.
_TUNED = 8
#: What was found to be the fastest plan of a call, by its facts.
_tuned: dict[tuple[Any, ...], str] = {}


def _empty(a: Any, b: Any, dtype: Any = None) -> Any:
    """An array for a result of the inputs' dtype (bf16 for fp8), or another one."""
    ia, ib = infos_of(a, b)
    if len(ia.shape) != 2 or len(ib.shape) != 2:
        raise tilejit.LaunchError(f"matmul: a and b must be matrices, found shapes {ia.shape} and {ib.shape}")
    return new(a, (ia.shape[0], ib.shape[1]), dtype)


@tilejit.torch_op("tilejit::matmul", "(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, ScalarType? "
                  "out_dtype=None, Tensor? scale_a=None, Tensor? scale_b=None) -> Tensor",
                  fake=lambda a, b, bias=None, activation=None, out_dtype=None, **scales: _empty(a, b, out_dtype),
                  replay=True)
def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None, out_dtype: Any = None, *,
           scale_a: Any = None, scale_b: Any = None, end: Any = None, end_args: tuple[Any, ...] = (),
           autotune: bool = False) -> Any:
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
    out = _empty(a, b, out_dtype) if out is None else out
    if end is not None and (bias is not None or activation is not None):
        raise tilejit.LaunchError("matmul: an end takes the place of a bias and an activation: leave those out")
    arrays = a, b, bias, out, scale_a, scale_b
    known = known_of(*arrays)
    options = activation, *place(known[0]), end
    work = _work(*known, *options) if not autotune else _fastest((*arrays, end_args), known, options)
    work.run(*arrays, end_args)
    return out


def plan(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
         out_dtype: Any = None) -> str:
    """How `matmul` of these arrays is planned, to be printed: the likeliest of the ways considered, with their
    estimates, and the choice. Raises LaunchError as `matmul` does."""
    known = known_of(a, b, bias, _empty(a, b, out_dtype) if out is None else out)
    ma, mb, mc = _matrices(*known, activation)
    chip, problem = current(known[0].device), facts(ma, mb, mc.info, bias is not None, activation)
    if 0 in mc.shape:
        return f"{problem}: nothing to compute"
    found = _route(ma, mb, mc, problem, chip)
    if found is None:
        return f"{problem}: nothing to sum"
    told = f"{', '.join(found.told())}, and:\n" if found.told() else ""
    return told + described(found.problem, chip, _hopper())


def _fastest(arrays: tuple[Any, ...], known: tuple[Any, ...], options: tuple[Any, ...]) -> Work:
    """The launches of the fastest of the likeliest plans, or where something is copied first those of `_work`."""
    plans = _plans(*known, *options)
    if not plans:
        return _work(*known, *options)
    key = *known, *options
    if key not in _tuned:
        _tuned[key] = tilejit.fastest(product_kernel, f"{known} {options[0]} {options[3]}", {
            name: partial(work.run, *arrays) for name, work in plans.items()})
    return plans[_tuned[key]]


@lru_cache(maxsize=1024)
def _plans(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, scale_a: ArrayInfo | None,
           scale_b: ArrayInfo | None, activation: str | None, sms: int, knobs: Any, own: Any) -> dict[str, Work]:
    """The launches of the likeliest plans, by name; where TMA does not read or write all arrays, of every route."""
    ma, mb, mc = _matrices(a, b, bias, c, activation)
    if 0 in c.shape or not ma.shape[1]:
        return {}
    end, problem, chip = _end(ma, mb, bias, c, scale_a, scale_b, activation, sms, own)
    found = [*_routes(ma, mb, mc, problem, chip)]
    most = max(1, _TUNED // len(found))
    routes = {str(r): r for route in found for r in _likeliest(route, chip, most)}
    return {str(r): _routed(Work(_ARRAYS), r, ma, mb, mc, chip, end)
            for r in sorted(routes.values(), key=lambda r: r.ns)[:_TUNED]}


def _likeliest(route: Route, chip: Chip, most: int) -> list[Route]:
    """The route with its likeliest plans."""
    return [replace(route, plan=plan, ns=route.ns - route.plan.ns + plan.ns)
            for plan in likeliest(route.problem, chip, _hopper(), most)]


def _end(a: Matrix, b: Matrix, bias: ArrayInfo | None, c: ArrayInfo, scale_a: ArrayInfo | None,
         scale_b: ArrayInfo | None, activation: str | None, sms: int, own: Any) -> tuple[End, Problem, Chip]:
    """What follows the sums, and what they are to be planned by."""
    for name, info in (("scale_a", scale_a), ("scale_b", scale_b)):
        check_scale(_WHAT, name, info)
    scaled = scale_a is not None or scale_b is not None
    return (End(given(2, bias), given(4, scale_a), given(5, scale_b), activation, own, None if own is None else At(6)),
            facts(a, b, c, bias is not None or own is not None, activation, scaled), current(a.info.device, sms))


def _planned(work: Work, plan: Plan, problem: Problem, a: Matrix, b: Matrix, c: Matrix, chip: Chip,
             end: End = End()) -> Work:
    for part in plan.parts:
        add(work, problem, part, a, b, c, chip, end)
    return work


def into_sums(work: Work, a: Matrix, b: Matrix, c: Matrix, chip: Chip) -> None:
    """Add the launches of c = a @ b, all of which TMA reads and writes."""
    problem = facts(a, b, c.info)
    _planned(work, choose(problem, chip, _hopper()), problem, a, b, c, chip)


@lru_cache(maxsize=1024)
def _matrices(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo,
              activation: str | None) -> tuple[Matrix, Matrix, Matrix]:
    """Operands and result. Raises LaunchError for arrays that do not go together."""
    ma, mb = _matrix("a", a, 0), _matrix("b", b, 1)
    check_operands(_WHAT, ma, mb, DTYPES, in_place=False)
    m, n = a.shape[0], b.shape[1]
    check_one_of(_WHAT, "activation", activation, ACTIVATIONS)
    check_vector(_WHAT, "bias", bias, n)
    if c.shape != (m, n) or c.strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {c.shape}")
    return ma, mb, Matrix(c, c.shape, c.strides, True, 3)


def _matrix(name: str, x: ArrayInfo, at: int) -> Matrix:
    """An operand of any unit stride."""
    if len(x.shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {x.shape}")
    order = order_of(x)
    if order is None:
        if x.strides[1] != 1 and x.shape[1] != 1 and 0 not in x.shape:
            raise tilejit.LaunchError(f"matmul: {name} has strides {x.strides}: one of them must be 1")
        order = True
    return Matrix(x, x.shape, x.strides, order, at)


@lru_cache(maxsize=1024)
def _work(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, scale_a: ArrayInfo | None,
          scale_b: ArrayInfo | None, activation: str | None, sms: int, knobs: Any, own: Any) -> Work:
    """The launches of a product. Raises LaunchError for arrays that do not go together."""
    work, (ma, mb, mc) = Work(_ARRAYS), _matrices(a, b, bias, c, activation)
    end, problem, chip = _end(ma, mb, bias, c, scale_a, scale_b, activation, sms, own)
    if 0 in c.shape:
        return work
    found = _route(ma, mb, mc, problem, chip)
    if found is None:
        return _planned(work, Plan((Part(0, 0, c.shape[0], c.shape[1], _EMPTY),), 0.0), problem, ma, mb, mc, chip, end)
    return _routed(work, found, ma, mb, mc, chip, end)


def _routed(work: Work, found: Route, ma: Matrix, mb: Matrix, mc: Matrix, chip: Chip, end: End) -> Work:
    """Add the launches of a route: copies, the product, and a copy of its result."""
    pairs = [(x, made(work, x, _copy_order(x, k_last)))
             for x, k_last, copied in zip((ma, mb), (True, False), found.copied) if copied]
    if pairs:
        work.launches.append(copy(*pairs))
    ma, mb = (dict(pairs).get(x, x) for x in (ma, mb))
    target = made(work, mc, True, spare=True) if found.copied[2] else mc
    _planned(work, found.plan, found.problem, ma, mb, target, chip, end)
    if target is not mc:
        work.launches.append(copy((target, mc)))
    return work


@dataclass(frozen=True)
class Route:
    """Which of a, b and the result are copied (to or from lines that TMA reads and writes), the problem that is left,
    its plan, and what all of that should take, in nanoseconds."""

    copied: tuple[bool, ...]
    problem: Problem
    plan: Plan
    ns: float

    def told(self) -> list[str]:
        """What TMA does not do."""
        pieces = ["pieces of a", "pieces of b"], [unit > 0 for unit in self.problem.units]
        copies = ["a copied", "b copied", "result copied"], self.copied
        stored = ["result through pointers"], [self.problem.stores > 0]
        return [name for names, there in (copies, pieces, stored) for name, is_so in zip(names, there) if is_so]

    def __str__(self) -> str:
        return ", ".join([*self.told(), " + ".join(str(p.way) for p in self.plan.parts)])


def _route(a: Matrix, b: Matrix, c: Matrix, problem: Problem, chip: Chip) -> Route | None:
    """The fastest; None where there is nothing to sum."""
    return min(_routes(a, b, c, problem, chip), key=lambda r: r.ns) if problem.k else None


def _routes(a: Matrix, b: Matrix, c: Matrix, problem: Problem, chip: Chip) -> Iterator[Route]:
    """All that there are: what TMA does not read is copied first, or by threads in pieces, straight into the blocks."""
    def choices(x: Matrix, k_last: bool) -> Iterator[tuple[bool, int]]:
        as_is, size = _as_is(x, k_last), unit(x) * x.dtype.bytes
        if not as_is or _narrow(x, k_last):
            yield True, 0
        if as_is:
            yield False, 0
        straight = (x.dtype.bytes == 2 or x.rows_first == k_last) and _hopper()
        if straight and (brief(problem, chip) or not as_is and size >= _PIECE):
            yield False, size

    for one, other in product(choices(a, True), choices(b, False)):
        yield from _with_copies(a, b, c, (one[0], other[0]), (one[1], other[1]), problem, chip)


def _with_copies(a: Matrix, b: Matrix, c: Matrix, copied: tuple[bool, ...], units: tuple[int, int], problem: Problem,
                 chip: Chip) -> Iterator[Route]:
    """The routes that copy these operands, and read others in such units; where TMA does not write the result, that is
    stored through pointers, or copied."""
    x, y = (pitched(x, _copy_order(x, k)) if do else x for x, k, do in zip((a, b), (True, False), copied))
    before = chip.second * any(copied) + sum(time(v, w, chip) for v, w in ((a, x), (b, y)) if w is not v)
    # The first block by TMA waits for its tensor map, which other blocks hide where there are some.
    before += chip.latency * (brief(problem, chip) and not all(units))

    def known(result: Matrix) -> Problem:
        p = problem
        return replace(facts(x, y, result.info), ended=p.ended, scaled=p.scaled, activated=p.activated, units=units)

    there = known(c)
    plan = choose(there, chip, _hopper())
    yield Route((*copied, False), there, plan, before + plan.ns)
    if in_reach(c) or any(there.units):
        return
    target = pitched(c, True)
    there = known(target)
    plan = choose(there, chip, _hopper())
    yield Route((*copied, True), there, plan, before + plan.ns + chip.second + time(target, c, chip))


def _hopper() -> bool:
    return bool(tilejit.chip() == "sm_90a")


def _direct(a: Matrix, b: Matrix, c: Matrix) -> bool:
    """Whether TMA reads and writes all three as they are."""
    return _as_is(a, True) and _as_is(b, False) and in_reach(c)


def product_ns(a: Matrix, b: Matrix, c: Matrix, chip: Chip) -> float:
    """Nanoseconds that a @ b is estimated to take where all three matrices are read and written in place, else
    infinite."""
    if 0 in (*a.shape, *c.shape) or not _direct(a, b, c):
        return inf
    found: Plan = choose(facts(a, b, c.info), chip, _hopper())
    return found.ns


def _as_is(x: Matrix, k_last: bool) -> bool:
    """Whether the tensor cores read an operand through TMA as it is: 16-bit ones in either order, others with K
    contiguous."""
    return in_reach(x) and (x.dtype.bytes == 2 or x.rows_first == k_last)


def _copy_order(x: Matrix, k_last: bool) -> bool:
    """Whether a copy of an operand is row-major: as it was, but with K contiguous for what is not 16 bits wide, or is
    narrow."""
    return k_last if x.dtype.bytes != 2 or _narrow(x, k_last) else x.rows_first


def _narrow(x: Matrix, k_last: bool) -> bool:
    """Whether lines across K are shorter than those of L2: TMA asks for each, so blocks take as long as wide ones."""
    m, n = x.shape
    return x.rows_first != k_last and (n if x.rows_first else m) * x.dtype.bytes < LINE
