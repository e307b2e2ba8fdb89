"""Matrix products of any shape: C = act(scale * A @ B + bias), or what a function of the caller's makes of the sums."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Call, facts_of, infos_of, place, run
from tilejit.kernels._operands import DTYPES, Matrix, check_operands, check_vector, in_reach, order_of, tensor_scales
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.copy import Copy, copy_matrices, pitched, pitched_facts
from tilejit.kernels.planning import Plan, choose, described, in_parts, likeliest
from tilejit.kernels.problem import Problem, facts
from tilejit.kernels.product import matmul_kernel
from tilejit.kernels.steps import POINTERS, Step, meeting, step
from tilejit.kernels.way import Part

__all__ = ["matmul", "matmul_kernel", "plan"]
_WHAT = "matmul"
#: Tiles of numbers that pass through registers which a multiprocessor has at once: they wait a lot.
_AT_ONCE = 2
#: Plans that autotuning measures.
_TUNED = 8


def _empty(a: Any, b: Any, dtype: Any = None) -> Any:
    """An array for a result of the inputs' dtype (bf16 for fp8), or another one."""
    ia, ib = infos_of(a, b)
    if len(ia.shape) != 2 or len(ib.shape) != 2:
        raise tilejit.LaunchError(f"matmul: a and b must be matrices, found shapes {ia.shape} and {ib.shape}")
    return tilejit.empty_like(a, (ia.shape[0], ib.shape[1]), dtype or (tl.bfloat16 if ia.dtype.is_fp8() else ia.dtype))


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
    bytes, and fp8 or fp32 without contiguous K, are copied first (small ones pass through registers instead).
    Sums have a fixed order.

    end: a kernel function that makes of the (scaled) fp32 sums what is stored, instead of a bias and an activation:

        @tilejit.kernel
        def end(sums, rows, columns, row_count, column_count, args): ...

    rows and columns are the result's, shaped so that they broadcast against the sums of a tile, or of its transpose, or
    of some elements; what it loads it masks by their counts. end_args: arrays and numbers, its `args`. It has no
    gradient. autotune: the likeliest eight ways are measured once, and the fastest is remembered on disk, where there
    is a GPU. Raises LaunchError for what does not fit."""
    ia, ib, ibias = infos_of(a, b, bias)
    if out is None:
        out = _empty(a, b, out_dtype)
    ic = tilejit.array_info(out)
    named = tensor_scales("matmul", scale_a, scale_b)
    if end is not None:
        if bias is not None or activation is not None:
            raise tilejit.LaunchError("matmul: an end takes the place of a bias and an activation: leave those out")
        named["end_args"] = end_args
    found = None
    if autotune:
        found = _tuned((a, b, bias, out), (ia, ib, ibias, ic), activation, end, named)
    found = found or launches((a, b, bias, out), (ia, ib, ibias, ic), activation, end, **named)
    if found is None:
        _copied((a, b, bias, out), (ia, ib, ibias, ic), activation, end, named)
        return out
    run(*found)
    return out


def plan(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
         out_dtype: Any = None) -> str:
    """How `matmul` of these arrays is planned, to be printed: the likeliest of the ways considered, with their
    estimates, and the choice. Raises LaunchError as `matmul` does."""
    ia, ib, ibias = infos_of(a, b, bias)
    io = tilejit.array_info(_empty(a, b, out_dtype) if out is None else out)
    ma, mb, mc = _matrices(*facts_of(ia, ib, ibias, io), activation)
    chip, text = current(ia.device), ""
    sms, knobs = place(ia)
    if _plan(*facts_of(ia, ib, ibias, io), activation, False, sms, knobs) is None:
        ma, mb, mc = (_readable(x, k) for x, k in ((ma, True), (mb, False), (mc, True)))
        text = "copies of what TMA cannot read or write, and:\n"
    elif not _direct(ma, mb, mc):
        return f"{facts(ma, mb, mc.info)}: tiles of {POINTERS}, whose numbers come one by one"
    return text + described(facts(ma, mb, mc.info, bias is not None, activation), chip, _hopper())


def launches(arrays: tuple[Any, ...], infos: tuple[ArrayInfo | None, ...], activation: str | None,
             end: Any = None, **named: Any) -> list[Call] | None:
    """What `matmul` of a, b, bias (or None) and out, of which `infos` says what they are, and of `tensor_scales` and
    end_args launches. None where an array is copied first."""
    (a, b, bias, out), (ia, ib, _, io) = arrays, infos
    assert ia is not None and ib is not None and io is not None
    steps = _plan(*facts_of(*infos), activation, "scale_a" in named or "scale_b" in named, *place(ia), end)
    return None if steps is None else [
        c for s in steps for c in s.calls((a, b, out), (ia, ib, io), bias, named, meeting(_WHAT, a, s.way, None))]


def _tuned(arrays: tuple[Any, ...], infos: tuple[Any, ...], activation: str | None, end: Any,
           named: dict[str, Any]) -> list[Call] | None:
    """The launches of the fastest of the likeliest plans; None where an array is copied first."""
    (a, b, bias, out), (ia, ib, _, io) = arrays, infos
    given = *facts_of(*infos), activation, "scale_a" in named or "scale_b" in named, *place(ia), end
    plans = _plans(*given)

    def calls(steps: tuple[Step, ...]) -> list[Call]:
        return [c for s in steps for c in s.calls((a, b, out), (ia, ib, io), bias, named,
                                                  meeting(_WHAT, a, s.way, None))]

    if given not in _fastest and plans:
        _fastest[given] = tilejit.fastest(matmul_kernel, f"{given[:4]} {activation} {end}", {
            name: partial(_launch, calls, steps) for name, steps in plans.items()})
    return calls(plans[_fastest[given]]) if plans else None


def _launch(calls: Callable[[tuple[Step, ...]], list[Call]], steps: tuple[Step, ...]) -> None:
    run(*calls(steps))


#: What was found to be the fastest plan of a call, by its facts.
_fastest: dict[tuple[Any, ...], str] = {}


@lru_cache(maxsize=1024)
def _plans(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, activation: str | None, scaled: bool,
           sms: int, knobs: Any, end: Any) -> dict[str, tuple[Step, ...]]:
    """The launches of the likeliest plans, by name; none where something is copied first."""
    ma, mb, mc = _matrices(a, b, bias, c, activation)
    if 0 in c.shape or not _direct(ma, mb, mc):
        return {}
    problem, chip = facts(ma, mb, c, bias is not None or end is not None, activation, scaled), current(a.device, sms)
    return {" + ".join(str(p.way) for p in plan.parts): tuple(
        step(problem, p, ma, mb, mc, activation, chip, end=end) for p in plan.parts)
        for plan in likeliest(problem, chip, _hopper(), _TUNED)}


def _copied(arrays: tuple[Any, ...], infos: tuple[Any, ...], activation: str | None, end: Any,
            named: dict[str, Any]) -> None:
    """The product of copies of what TMA cannot read, or into what is copied to a result that it cannot write."""
    (a, b, bias, out), (ia, ib, ibias, io) = arrays, infos
    ma, mb, _ = _matrices(*facts_of(*infos), activation)
    copies: list[Copy] = []
    made = []
    for x, info, matrix, k_last in ((a, ia, ma, True), (b, ib, mb, False)):
        if not _as_is(matrix, k_last):
            base, copy = pitched(x, info, _copy_order(matrix, k_last))
            copies.append((x, info, base, copy))
            x, info = base, copy
        made.append((x, info))
    if copies:
        copy_matrices(*copies)
    (a, ia), (b, ib) = made
    target, into = out, io
    found = launches((a, b, bias, out), (ia, ib, ibias, io), activation, end, **named)
    if found is None:
        target, into = pitched(out, io, True)
        found = launches((a, b, bias, target), (ia, ib, ibias, into._replace(spare=True)), activation, end,
                         **named)
        assert found is not None
    run(*found)
    if target is not out:
        copy_matrices((target, into, out, io))


@lru_cache(maxsize=1024)
def _matrices(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo,
              activation: str | None) -> tuple[Matrix, Matrix, Matrix]:
    """Operands and result. Raises LaunchError for arrays that do not go together."""
    ma, mb = _matrix("a", a), _matrix("b", b)
    check_operands(_WHAT, ma, mb, DTYPES, in_place=False)
    m, n = a.shape[0], b.shape[1]
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"matmul: activation {activation!r} is not one of {ACTIVATIONS}")
    check_vector(_WHAT, "bias", bias, n)
    if c.shape != (m, n) or c.strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {c.shape}")
    return ma, mb, Matrix(c, c.shape, c.strides, True)


def _matrix(name: str, x: ArrayInfo) -> Matrix:
    """An operand of any unit stride."""
    if len(x.shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {x.shape}")
    order = order_of(x)
    if order is None:
        if x.strides[1] != 1 and x.shape[1] != 1:
            raise tilejit.LaunchError(f"matmul: {name} has strides {x.strides}: one of them must be 1")
        order = True
    return Matrix(x, x.shape, x.strides, order)


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, activation: str | None, scaled: bool,
          sms: int, knobs: Any, end: Any = None) -> tuple[Step, ...] | None:
    """The launches of a product, or None where what TMA cannot read or write is copied. Raises LaunchError for arrays
    that do not go together."""
    ma, mb, mc = _matrices(a, b, bias, c, activation)
    problem, chip = facts(ma, mb, c, bias is not None or end is not None, activation, scaled), current(a.device, sms)
    if 0 in c.shape:
        return ()
    if _as_is(ma, True) and _as_is(mb, False):
        chosen: Plan | None = choose(problem, chip, _hopper())
        if not in_reach(c):              # the sum of parts is stored through pointers, other results are copied to it
            parts = in_parts(problem, chip, _hopper())
            copied = chip.second + problem.m * problem.n * problem.out_bytes / (chip.copy * chip.multiprocessors)
            chosen = parts if parts is not None and chosen is not None and parts.ns < chosen.ns + copied else None
        if chosen is not None:
            return tuple(step(problem, p, ma, mb, mc, activation, chip, end=end) for p in chosen.parts)
    if _worth_copying(ma, mb, mc, problem, chip):
        return None
    return (step(problem, Part(0, 0, problem.m, problem.n, POINTERS), ma, mb, mc, activation, chip, end=end),)


def _hopper() -> bool:
    return bool(tilejit.chip() == "sm_90a")


def _direct(a: Matrix, b: Matrix, c: Matrix) -> bool:
    """Whether TMA reads and writes all three as they are."""
    return _as_is(a, True) and _as_is(b, False) and in_reach(c.info)


def _worth_copying(a: Matrix, b: Matrix, c: Matrix, problem: Problem, chip: Chip) -> bool:
    """Whether copies of what TMA cannot read or write, and the product of those, take less than pointer tiles, whose
    blocks of K come one after another."""
    p, t = problem, POINTERS
    if not p.k:
        return False
    read = sum(p.k * (p.m if x is a else p.n) * p.size for x, k in ((a, True), (b, False)) if not _as_is(x, k))
    written = 0 if in_reach(c.info) else p.m * p.n * p.out_bytes
    tiles = tilejit.cdiv(p.m, t.m) * tilejit.cdiv(p.n, t.n)
    pointers = tilejit.cdiv(tiles, _AT_ONCE * chip.multiprocessors) * (
        chip.scalar_tile + tilejit.cdiv(p.k_bytes, t.k_bytes) * chip.scalar)
    copied = ((read > 0) + (written > 0)) * chip.second + (read + written) / (chip.copy * chip.multiprocessors)
    return copied < pointers and copied + product_ns(
        _readable(a, True), _readable(b, False), _readable(c, True), chip) < pointers


def product_ns(a: Matrix, b: Matrix, c: Matrix, chip: Chip) -> float:
    """Nanoseconds that a @ b is estimated to take where all three matrices are read and written in place, else
    infinite."""
    if 0 in (*a.shape, *c.shape) or not _direct(a, b, c):
        return inf
    found: Plan = choose(facts(a, b, c.info), chip, _hopper())
    return found.ns


def _readable(x: Matrix, k_last: bool) -> Matrix:
    """The matrix, or its copy in lines that TMA reads and writes."""
    if _as_is(x, k_last):
        return x
    info = pitched_facts(x.info, _copy_order(x, k_last))
    return Matrix(info, info.shape, info.strides, _copy_order(x, k_last))


def _as_is(x: Matrix, k_last: bool) -> bool:
    """Whether the tensor cores read an operand through TMA as it is: 16-bit ones in either order, others with K
    contiguous."""
    return in_reach(x.info) and (x.dtype.bytes == 2 or x.rows_first == k_last)


def _copy_order(x: Matrix, k_last: bool) -> bool:
    """Whether a copy of an operand is row-major: as it was, but with K contiguous for what is not 16 bits wide."""
    return x.rows_first if x.dtype.bytes == 2 else k_last
