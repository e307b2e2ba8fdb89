"""Matrix products with fused epilogues: scale, bias, activation, gate, residual, a second output, row reductions."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Launch, Work, called, given, infos_of
from tilejit.kernels._operands import DTYPES, Matrix, check_dense, check_one_of, check_operands, new, operand, result
from tilejit.kernels._operator import Array, DType, function
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.copy import brought, k_first
from tilejit.kernels.launches import add, multiply, whole
from tilejit.kernels.matmul import matmul
from tilejit.kernels.planning import choose, table
from tilejit.kernels.problem import Call, Problem, facts
from tilejit.kernels.product import epilogues, loads, steps
from tilejit.kernels.product.epilogues import Extras
from tilejit.kernels.product.sums import end_kernel
from tilejit.kernels.way import Way

#: Largest first. 128x128 by two warpgroups at once: slower in the loop than by two in turn.
TILES = Way(256, 256, 8, 2), Way(128, 256, 8), Way(128, 128, 8), Way(64, 64, 4)
#: As tiles of the product, which is twice as wide as the result.
GATED_TILES = (*(Way(256, n, 8, 2, "N") for n in (384, 320)), *(Way(256, n, 8, 2) for n in (256, 224)),
               Way(128, 256, 8), Way(64, 128, 4))
#: Rows or columns up to which sums in memory may be finished by a launch of their own: those measured.
FEW = 1024
#: Of a launch that finishes sums: least and most elements of a program, programs that are enough, columns of a program
#: of several rows.
LEAST, MOST, PROGRAMS, WIDE = 512, 2048, 1024, 128
REDUCTIONS = (None, "sum", "squares", "max")
_INPUTS = (*DTYPES, "int8", "uint8")


def fitting(gated: bool, per_column: bool = False, arrays: bool = False, narrow: bool = False, reduction: bool = False,
            ctas: int = 2) -> tuple[Way, ...]:
    """The tiles with up to so many CTAs that have registers for an epilogue."""
    tiles = (GATED_TILES[-1:] if narrow else GATED_TILES) if gated else TILES[(3 if reduction else 2) * narrow:]
    fits = [not gated or (t.n & t.n - 1 == 0 or not arrays) and (t.roomy(4) or not per_column) for t in tiles]
    return tuple(t for t, fit in zip(tiles, fits) if fit and t.ctas <= (1 if reduction else ctas))


@function(new)
def fused_matmul(a: Array, b: Array, *, scale_a: Array | None = None, scale_b: Array | None = None,
                 bias: Array | None = None, activation: str | None = None, residual: Array | None = None, z: Any = None,
                 reduction: str | None = None, reduced: Any = None, out: Any = None,
                 out_dtype: DType | None = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) + residual, in one kernel (or with few rows two).

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products), fp8 or 8-bit integers (int32 sums), copied first where TMA
    does not read them as they lie. scale_a: fp32 [1], or [M, 1] for a number per row; scale_b: fp32 [1], or [1, N] for
    one per column. bias [N]. residual [M, N] with contiguous rows. z: an array [M, N] that receives the activation's
    argument. reduction: "sum", "squares" or "max" of each row of the result, before rounding, is combined into reduced
    (fp32 [M], which holds what to begin with). The result has the inputs' dtype (bf16 for 8-bit ones) unless `out` or
    `out_dtype` says otherwise; an int32 result is the exact sum of integer products, without anything else. With no
    more than a number for each operand, a bias and an activation it is `matmul`. Raises LaunchError for what does not
    fit."""
    if residual is z is reduction is reduced is None and _simple(a, scale_a, scale_b, out, out_dtype):
        return matmul(a, b, bias, activation, out, out_dtype, scale_a=scale_a, scale_b=scale_b)
    return _run("fused_matmul", a, b, (scale_a, scale_b, bias, residual, z, reduced), activation, reduction, out,
                out_dtype)


def _simple(a: Any, scale_a: Any, scale_b: Any, out: Any, out_dtype: Any) -> bool:
    ia, *scales, io = infos_of(a, scale_a, scale_b, out)
    kind = out_dtype if io is None else io.dtype
    return str(ia.dtype) in DTYPES and all(i is None or prod(i.shape) == 1 for i in scales) and \
        (kind is None or kind.is_float)


@function(new)
def gated_matmul(a: Array, b: Array, *, scale_a: Array | None = None, scale_b: Array | None = None,
                 bias: Array | None = None, activation: str | None = "silu", residual: Array | None = None,
                 z: Any = None, reduction: str | None = None, reduced: Any = None, out: Any = None,
                 out_dtype: DType | None = None) -> Any:
    """activation(a @ b[0]) * (a @ b[1]): SwiGLU (arXiv 2002.05202) with "silu", GeGLU with "gelu"; in one kernel (or
    with few rows two).

    a [M, K]; b [2, K, N]: the gate's matrix and the other, at any distance in memory, copied first unless K is
    contiguous. A merged weight [2 N, K] is `w.reshape(2, N, K).transpose(1, 2)`. scale_b: fp32 [1] or [2, N]; bias
    [2, N]; z [2, M, N] receives both products; all else as for `fused_matmul`."""
    return _run("gated_matmul", a, b, (scale_a, scale_b, bias, residual, z, reduced), activation, reduction, out,
                out_dtype)


@function(partial(new, beside=2))
def swiglu(a: Array, b: Array, *, scale_a: Array | None = None, scale_b: Array | None = None, bias: Array | None = None,
           residual: Array | None = None, z: Any = None, out: Any = None, out_dtype: DType | None = None) -> Any:
    """silu(a @ gate) * (a @ up) for b [K, 2 N] = [gate | up]; all else as for `gated_matmul`."""
    return _run("swiglu", a, b, (scale_a, scale_b, bias, residual, z, None), "silu", None, out, out_dtype)


def _run(what: str, a: Any, b: Any, extras: tuple[Any, ...], activation: str | None, reduction: str | None, out: Any,
         out_dtype: Any) -> Any:
    out = new(a, b, out_dtype, 2 if what == "swiglu" else 1) if out is None else out
    called(_work, (a, b, out, *extras), what, activation, reduction)
    return out


def _operands(what: str, gated: bool, work: Work, a: ArrayInfo, b: ArrayInfo) -> tuple[Matrix, Matrix]:
    """That TMA reads, of gated products b as [2, K, N]."""
    ma, beside = operand(what, "a", a, 0), gated and len(b.shape) == 2 and what == "swiglu"
    mb = operand(what, "b", b, 1, 3 if gated and not beside else 2)
    if mb.shape[-1] % 2 if beside else gated and mb.shape[0] != 2:
        raise tilejit.LaunchError(f"{what}: b must be {'[K, 2 N]' if beside else '[2, K, N]'}, found shape "
                                  f"{list(mb.shape)}")
    check_operands(what, ma, mb, _INPUTS)
    ma, mb = brought(work, (ma, k_first(ma, True)), (mb, False if gated else k_first(mb, False)))
    if beside:
        k, n = mb.shape[0], mb.shape[1] // 2
        mb = mb.viewed((2, k, n), (n * mb.strides[1], *mb.strides))
    return ma, mb


def _end(what: str, gated: bool, infos: tuple[Any, ...], shape: tuple[int, ...], activation: str | None,
         reduction: str | None) -> Extras:
    """What follows the sums, in pointers, checked."""
    scale_a, scale_b, bias, residual, z, reduced = infos[3:]
    m, n = shape
    check_one_of(what, "activation", activation, ACTIVATIONS)
    check_one_of(what, "reduction", reduction, REDUCTIONS)
    kind_a = _scale_kind(what, "scale_a", scale_a, (m, 1), "rows")
    kind_b = _scale_kind(what, "scale_b", scale_b, (2 if gated else 1, n), "columns")
    check_dense(what, "bias", bias, *(2,) * gated, n)
    check_dense(what, "reduced", reduced, m)
    if (reduction is None) != (reduced is None):
        raise tilejit.LaunchError(f"{what}: reduction and reduced go together")
    if reduced is not None and reduced.dtype != tl.float32:
        raise tilejit.LaunchError(f"{what}: reduced must be fp32, found {reduced.dtype}")
    stride = 0 if residual is None else result(what, residual, shape, 6, "residual").strides[0]
    side = (8 if n % 8 == 0 else 1) if gated else 0
    return Extras(At(2), given(7, z), given(3, scale_a), given(4, scale_b), given(5, bias), given(6, residual),
                  given(8, reduced), stride, n, kind_a, kind_b, activation, reduction, tl.constexpr(side))


@lru_cache(maxsize=1024)
def _work(infos: tuple[Any, ...], what: str, activation: str | None, reduction: str | None, multiprocessors: int,
          knobs: Any) -> Work:
    gated, (a, b, out, *extras) = what != "fused_matmul", infos
    work, chip = Work(9), current(a.device, multiprocessors)
    ma, mb = _operands(what, gated, work, a, b)
    m, n = shape = ma.shape[0], mb.shape[-1]
    end = _end(what, gated, infos, shape, activation, reduction)
    mc, residual, z = result(what, out, shape, 2), extras[3], extras[4]
    mz = None if z is None else result(what, z, (2, *shape) if gated else shape, 7, "z")
    if mc.dtype == tl.int32 and (gated or ma.dtype.is_float or activation or any(x is not None for x in extras)):
        raise tilejit.LaunchError(f"{what}: an int32 result is the sum of integer products, without anything else")
    if 0 in shape:
        return work
    narrow = residual is not None and 0 != n % 16 + end.stride % 16 + residual.address % 16
    narrow |= not (mc.in_reach and (mz is None or mz.in_reach))
    tiles = fitting(gated, end.bias is not None or end.SCALE_B == "columns", (residual, z) != (None, None), narrow,
                    reduction is not None, 2 if chip.hopper and multiprocessors > 1 else 1)
    # Of a gated product's two results one is stored, and has a residual.
    moved = sum(x.dtype.bytes for x in (out, residual) if x is not None) / (1 + gated)
    moved += 0 if z is None else z.dtype.bytes
    problem = facts(ma, mb, mc, n=n * (1 + gated), out_bytes=moved, activated=activation in ("gelu", "silu"))
    call = Call(ma, mb, mc, problem, chip)
    t, ns = choose(call.problem, chip, split=1, tiles=table(tiles))
    if not _few(work, call, _merged(mb) if gated else mb, mz, end, ns):
        _whole(work, call, t, mz, end)
    return work


def _few(work: Work, call: Call, b: Matrix | None, z: Matrix | None, end: Extras, ns: float) -> bool:
    """Add the launches of a product by any way, into fp32 sums, and of what ends them, if they take less than `ns`."""
    a, _, c, problem, chip, _ = call
    if b is None or str(a.dtype) not in DTYPES or min(problem.m, problem.n) > FEW or not problem.k:
        return False
    shape, pitch = (problem.m, problem.n), tilejit.cdiv(problem.n, 4) * 4
    sums = Matrix(ArrayInfo(0, tl.float32, shape, (pitch, 1), a.info.device), at=work.arrays + len(work.memory))
    product = facts(a, b, sums)
    way, product_ns = choose(product, chip)
    if not _apart(product_ns, problem, ns, chip):
        return False
    work.new((problem.m, pitch), tl.float32)
    add(work, Call(a, b, sums, product, chip), way)
    work.launches.append(_ended(sums, c, z, end))
    return True


def _whole(work: Work, call: Call, t: Way, z: Matrix | None, end: Extras) -> None:
    """Add the launch of whole tiles."""
    a, b, c, p, _, _ = call
    t, bk, gated = replace(t, single=False), t.step(p.size), bool(end.SIDE)
    columns = t.n // 2 if gated else t.n
    of_b = (loads.pair_rows, (_interleaved(b, columns, bk, end.SIDE.value), end.SIDE)) if gated else None
    end = end._replace(out=c.descriptor(t.m, columns if gated else min(columns, 128)),
                       z=z and z.descriptor(t.m, min(columns, 64 if gated else 128)))
    multiply(work, call, t, b=of_b, walk=whole(t.group(p.m, p.n, tilejit.cdiv(p.k, bk))),
             step=(steps.accumulate, steps.SUMS if a.dtype.is_float else (tl.int32, tl.constexpr(0))),
             last=(epilogues.gated if gated else epilogues.fused, end))


def _apart(product_ns: float, problem: Problem, ns: float, chip: Chip) -> bool:
    """Whether a product of such a time, and a launch that finishes its sums, take less than ns."""
    return product_ns + chip.second + 8 * problem.m * problem.n / (chip.part * chip.multiprocessors) < ns


def _ended(sums: Matrix, out: Matrix, z: Matrix | None, end: Extras) -> Launch:
    m, n = out.shape
    elements = min(max(LEAST, tilejit.next_power_of_2(tilejit.cdiv(m * n, PROGRAMS))), MOST)
    bm = min(tilejit.next_power_of_2(m), elements // WIDE)
    bn = elements // bm
    return Launch(end_kernel.partial(BM=bm, BN=bn, launch_pdl=True), (tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn),), (
        At(sums.at), end, m, sums.strides[0], out.strides[0], z.strides[-2] if z else 0, z.strides[0] if z else 0))


def _merged(b: Matrix) -> Matrix | None:
    """The two matrices [2, K, N] as one, [K, 2 N], if they lie so."""
    (_, k, n), (apart, across, down) = b.shape, b.strides
    return b.viewed((k, 2 * n), (across, down)) if apart == n * down else None


def _interleaved(b: Matrix, columns: int, bk: int, g: int) -> At:
    """Two matrices [2, K, N] as [N / g, 2, g, K]: blocks of g columns of both; with 8 a thread holds columns of one
    and the same of the other."""
    (_, k, n), (apart, _, _) = b.shape, b.strides
    return b.seen((n // g, 2, g, k), (g * b.pitch, apart, b.pitch, 1), (columns // g, 2, g, bk))


def _scale_kind(what: str, name: str, info: ArrayInfo | None, shape: tuple[int, int], kind: str) -> str | None:
    if info is None:
        return None
    if info.dtype != tl.float32 or info.shape not in ((), (1,), shape):
        raise tilejit.LaunchError(f"{what}: {name} must be fp32 [1] or {list(shape)}, found {info.dtype} "
                                  f"{list(info.shape)}")
    check_dense(what, name, info, *info.shape)
    return kind if info.shape == shape else "one"
