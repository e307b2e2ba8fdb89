"""Matrix products of any shape: C = act(scale * A @ B + bias), or what a function of the caller's makes of the sums."""
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import tilejit
from tilejit.kernels._calls import Work, known_of, place
from tilejit.kernels._operands import new
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.fp8 import check_recipe, narrowed
from tilejit.kernels.planning import SHORT, brief, choose, described, likeliest
from tilejit.kernels.problem import Call, call_of
from tilejit.kernels.product.kernel import product_kernel
from tilejit.kernels.routes import PIECE, Route, routed, routes, shortest, strewn

_WHAT = "matmul"
#: a, b, bias, result, both scales, arguments of an end.
_ARRAYS = 7
_TUNED = 8
#: The fastest plan of a call, by its facts.
_tuned: dict[tuple[Any, ...], str] = {}


@function(new)
def matmul(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, out: Any = None,
           out_dtype: DType | None = None, *, scale_a: Array | None = None, scale_b: Array | None = None,
           recipe: str | None = None, end: Any = None, end_args: tuple[Any, ...] = (), autotune: bool = False) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). scale_a, scale_b: arrays of one fp32 number, 1
    without (`fused_matmul` takes one per row and column). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Arrays whose rows do not start at multiples of 16
    bytes, of other strides, and fp8 or fp32 without contiguous K, are copied first, or by threads in pieces of 4 or 8
    bytes (of any where K is short). Sums have a fixed order.

    recipe: "fp8": a and b become e4m3 first, and in the gradient dC e5m2, with a scale each.

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
    if recipe is not None:
        check_recipe(recipe, scale_a, scale_b)
        (a, scale_a), (b, scale_b) = narrowed(a), narrowed(b)
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
    found = shortest(_routes(call))
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
    return call_of(_WHAT, infos, activation, multiprocessors, own)


@lru_cache(maxsize=1024)
def _work(*key: Any) -> Work:
    call = _call(*key)
    return Work(_ARRAYS) if 0 in call.c.shape else routed(Work(_ARRAYS), call, shortest(_routes(call)))


@lru_cache(maxsize=1024)
def _plans(*key: Any) -> dict[str, Work]:
    call = _call(*key)
    if 0 in call.c.shape or not call.problem.k:
        return {}
    found = [*_routes(call)]
    most = max(1, _TUNED // len(found))
    routes = [route._replace(plan=plan, ns=route.ns - route.plan.ns + plan.ns) for route in found
              for plan in likeliest(route.call.problem, call.chip, most)]
    return {str(r): routed(Work(_ARRAYS), call, r) for r in sorted(routes, key=lambda r: r.ns)[:_TUNED]}


def _routes(call: Call) -> Iterator[Route]:
    p, chip = call.problem, call.chip
    short, slow = brief(p, chip), strewn(call.a, True) or strewn(call.b, False)
    straight = short or p.k_bytes <= (2 * SHORT if slow else SHORT // 2)
    return routes(call, lambda problem: choose(problem, chip), straight, 1 if short else PIECE)
