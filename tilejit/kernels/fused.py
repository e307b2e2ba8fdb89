"""Matrix products with fused epilogues: scale, bias, activation, gate, residual, a second output, row reductions."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Launch, facts_of, infos_of, place
from tilejit.kernels._operands import (
    DTYPES,
    K_BYTES,
    Matrix,
    check_operands,
    check_vector,
    new,
    operand,
    require_tma,
    result,
)
from tilejit.kernels.activations import ACTIVATIONS, activate
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.ends import Ended, ended, pitch
from tilejit.kernels.epilogues import beside, fold_rows, halves, pair_scaled_biased, scaled_biased, with_residual
from tilejit.kernels.estimate import one
from tilejit.kernels.matmul import matmul, product_ns
from tilejit.kernels.order import tile_at
from tilejit.kernels.planning import best
from tilejit.kernels.problem import Problem, facts
from tilejit.kernels.way import Way


@tilejit.kernel
def finish(acc, c_desc, z_desc, scale_a, scale_b, bias, residual, reduced, m, n, M, N, residual_stride,
           BM: tl.constexpr, BN: tl.constexpr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, ACTIVATION: tl.constexpr,
           REDUCE: tl.constexpr):
    """Everything that follows the product of one tile [BM, BN] (at most 128 columns) at (m, n), and its stores."""
    z = scaled_biased(acc, scale_a, scale_b, bias, m, n, M, N, BM, BN, SCALE_A, SCALE_B)
    if z_desc is not None:
        z_desc.store([m, n], z.to(z_desc.dtype))
    y = activate(z, ACTIVATION, c_desc.dtype)
    store_rows(y, c_desc, residual, reduced, m, n, M, N, residual_stride, BM, BN, REDUCE)


@tilejit.kernel
def gated(gate, up, z_desc, scale_a, scale_b, bias, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr,
          SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr):
    """act(gate) * up of a tile [BM, BN] (at most 64 columns) at (m, n), both scaled, biased and stored as z first."""
    gate, up = pair_scaled_biased(gate, up, scale_a, scale_b, bias, m, n, M, N, BM, BN, SCALE_A, SCALE_B)
    if z_desc is not None:
        z_desc.store([0, m, n], gate.to(z_desc.dtype).reshape(1, BM, BN))
        z_desc.store([1, m, n], up.to(z_desc.dtype).reshape(1, BM, BN))
    return activate(gate, ACTIVATION, DTYPE) * up


@tilejit.kernel
def store_rows(y, c_desc, residual, reduced, m, n, M, N, residual_stride, BM: tl.constexpr, BN: tl.constexpr,
               REDUCE: tl.constexpr):
    """Add the residual, fold the rows, store."""
    if residual is not None:
        y = with_residual(y, residual, m, n, M, N, residual_stride, BM, BN)
    fold_rows(y, reduced, m, n, M, N, BM, BN, REDUCE)
    c_desc.store([m, n], y.to(c_desc.dtype))


@tilejit.kernel(do_not_specialize=("M", "K"))
def fused_kernel(a_desc, b_desc, c_desc, z_desc, scale_a, scale_b, bias, residual, reduced, M, N, K, residual_stride,
                 BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_ROWS: tl.constexpr,
                 B_ROWS: tl.constexpr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, ACTIVATION: tl.constexpr,
                 GATED: tl.constexpr, REDUCE: tl.constexpr):
    """z = scale_a * scale_b * (A @ B) + bias; y = act(z) + residual, or GATED: act(z[0]) * z[1] + residual; C = y.

    Integers are summed in int32, and stored so if C has that type; nothing else happens then. SCALE_A, SCALE_B: kinds
    of `scaled`. GATED: as many columns of one matrix as lie beside as many of the other in a product (0: B is one
    matrix); b_desc sees both as [N / GATED, 2, GATED, K] in blocks [BN / GATED, 2, GATED, BK], so that whoever has
    columns of a product has what goes together. c_desc and z_desc have blocks of at most 128 columns; if GATED c_desc
    of BN and z_desc of 64. z_desc, if there: z is stored as well (gated: as [2, M, N] in blocks [1, BM, .]). REDUCE:
    "sum", "squares" or "max" of each row of y is combined into reduced[row] (fp32)."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        acc = tl.zeros((BM, 2 * BN if GATED else BN), tl.int32 if a_desc.dtype in (tl.int8, tl.uint8) else tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            if A_ROWS:
                a = a_desc.load([m, k * BK])
            else:
                a = a_desc.load([k * BK, m]).T
            if GATED:
                b = b_desc.load([n // GATED, 0, 0, k * BK]).reshape(2 * BN, BK).T
            elif B_ROWS:
                b = b_desc.load([k * BK, n])
            else:
                b = b_desc.load([n, k * BK]).T
            acc = tl.dot(a, b, acc)
        if c_desc.dtype == tl.int32:
            if BN > 128:
                left, right = halves(acc, BM, BN)
                c_desc.store([m, n], left)
                c_desc.store([m, n + BN // 2], right)
            else:
                c_desc.store([m, n], acc)
        elif GATED:
            gate, up = acc.reshape(BM, BN // GATED, 2, GATED).permute(0, 1, 3, 2).split()
            gate = gate.reshape(BM, BN)
            up = up.reshape(BM, BN)
            if BN == 128 and (z_desc is not None or residual is not None or REDUCE is not None):
                # Half after half: what else these need does not fit the registers.
                gate, more_gate = halves(gate, BM, BN)
                up, more_up = halves(up, BM, BN)
                left = gated(gate, up, z_desc, scale_a, scale_b, bias, m, n, M, N, BM, BN // 2, SCALE_A, SCALE_B,
                             ACTIVATION, c_desc.dtype)
                right = gated(more_gate, more_up, z_desc, scale_a, scale_b, bias, m, n + BN // 2, M, N, BM, BN // 2,
                              SCALE_A, SCALE_B, ACTIVATION, c_desc.dtype)
                y = beside(left, right, BM, BN)
            else:
                y = gated(gate, up, z_desc, scale_a, scale_b, bias, m, n, M, N, BM, BN, SCALE_A, SCALE_B, ACTIVATION,
                          c_desc.dtype)
            store_rows(y, c_desc, residual, reduced, m, n, M, N, residual_stride, BM, BN, REDUCE)
        elif BN > 128:
            # Half after half: a whole tile's scales and sums together do not fit the registers.
            left, right = halves(acc, BM, BN)
            finish(left, c_desc, z_desc, scale_a, scale_b, bias, residual, reduced, m, n, M, N, residual_stride, BM,
                   BN // 2, SCALE_A, SCALE_B, ACTIVATION, REDUCE)
            finish(right, c_desc, z_desc, scale_a, scale_b, bias, residual, reduced, m, n + BN // 2, M, N,
                   residual_stride, BM, BN // 2, SCALE_A, SCALE_B, ACTIVATION, REDUCE)
        else:
            finish(acc, c_desc, z_desc, scale_a, scale_b, bias, residual, reduced, m, n, M, N, residual_stride, BM, BN,
                   SCALE_A, SCALE_B, ACTIVATION, REDUCE)


#: Largest first. 128x128 by two warpgroups at once: slower in the loop than by two in turn.
TILES = Way(256, 256, 8, 2), Way(128, 256, 8), Way(128, 128, 8), Way(64, 64, 4)
#: As tiles of the product, which is twice as wide as the result.
GATED_TILES = (*(Way(256, n, 8, 2, "N") for n in (384, 320)), *(Way(256, n, 8, 2) for n in (256, 224)),
               Way(128, 256, 8), Way(64, 128, 4))
#: Rows or columns up to which sums in memory may be finished by a launch of their own: those measured.
FEW = 1024
#: Slots of rings: without and with a residual or a second output. (Of others as many as fit.)
STAGES = {(256, 256): (4, 3), (128, 256): (4, 3), (128, 128): (5, 4), (64, 128): (6, 5), (64, 64): (6, 6)}
REDUCTIONS = (None, "sum", "squares", "max")
_INPUTS = (*DTYPES, "int8", "uint8")


def fitting(gated: bool, per_column: bool = False, arrays: bool = False, narrow: bool = False, reduction: bool = False,
            ctas: int = 2) -> tuple[Way, ...]:
    """The tiles with up to so many CTAs that have registers for an epilogue.

    per_column: with a bias or a scale for each column. arrays: with a residual or a second output, 64 columns of which
    are dealt with at a time. narrow: with a residual whose rows cannot be read 16 bytes at a time. reduction: with a
    number for each row of the result, which pairs of CTAs do not combine in memory."""
    if gated:
        found = GATED_TILES[-1:] if narrow else GATED_TILES
    else:
        found = TILES[(3 if reduction else 2) * narrow:]
    if gated and arrays:
        found = tuple(t for t in found if t.n & t.n - 1 == 0)
    if gated and per_column:
        found = tuple(t for t in found if t.roomy(4))
    return tuple(t for t in found if t.ctas <= (1 if reduction else ctas))


@tilejit.replayed
def fused_matmul(a: Any, b: Any, *, scale_a: Any = None, scale_b: Any = None, bias: Any = None,
                 activation: str | None = None, residual: Any = None, z: Any = None, reduction: str | None = None,
                 reduced: Any = None, out: Any = None, out_dtype: Any = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) + residual, in one kernel (or with few rows two).

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products), fp8 or 8-bit integers (int32 sums), each row- or column-major
    (8 and 32 bits: a row-major, b column-major); strides and addresses multiples of 16 bytes. scale_a: fp32 [1], or
    [M, 1] for a number per row; scale_b: fp32 [1], or [1, N] for one per column. bias [N]. residual [M, N] with
    contiguous rows. z: an array [M, N] that receives the activation's argument. reduction: "sum", "squares" or "max"
    of each row of the result, before rounding, is combined into reduced (fp32 [M], which holds what to begin with).
    The result has the inputs' dtype (bf16 for 8-bit ones) unless `out` or `out_dtype` says otherwise; an int32 result
    is the exact sum of integer products, without anything else. With no more than a number for each operand, a bias and
    an activation it is `matmul`. Raises LaunchError for what does not fit."""
    if residual is z is reduction is reduced is None and _simple(a, scale_a, scale_b, out, out_dtype):
        return matmul(a, b, bias, activation, out, out_dtype, scale_a=scale_a, scale_b=scale_b)
    return _run("fused_matmul", False, a, b, (scale_a, scale_b, bias, residual, z, reduced), activation, reduction, out,
                out_dtype)


def _simple(a: Any, scale_a: Any, scale_b: Any, out: Any, out_dtype: Any) -> bool:
    """Whether `matmul` multiplies such operands, with such scales, for such a result."""
    ia, *scales, io = infos_of(a, scale_a, scale_b, out)
    kind = out_dtype if io is None else io.dtype
    return str(ia.dtype) in DTYPES and all(i is None or prod(i.shape) == 1 for i in scales) and \
        (kind is None or kind.is_float)


@tilejit.replayed
def gated_matmul(a: Any, b: Any, *, scale_a: Any = None, scale_b: Any = None, bias: Any = None,
                 activation: str | None = "silu", residual: Any = None, z: Any = None, reduction: str | None = None,
                 reduced: Any = None, out: Any = None, out_dtype: Any = None) -> Any:
    """activation(a @ b[0]) * (a @ b[1]): SwiGLU (arXiv 2002.05202) with "silu", GeGLU with "gelu"; in one kernel (or
    with few rows two).

    a [M, K]; b [2, K, N] with K contiguous: the gate's matrix and the other, at any distance in memory. A merged
    weight [2 N, K] is `w.reshape(2, N, K).transpose(1, 2)`. scale_b: fp32 [1] or [2, N]; bias [2, N]; z [2, M,
    N] receives both products; all else as for `fused_matmul`."""
    return _run("gated_matmul", True, a, b, (scale_a, scale_b, bias, residual, z, reduced), activation, reduction, out,
                out_dtype)


@tilejit.replayed
def swiglu(a: Any, b: Any, *, scale_a: Any = None, scale_b: Any = None, bias: Any = None, residual: Any = None,
           z: Any = None, out: Any = None, out_dtype: Any = None) -> Any:
    """silu(a @ gate) * (a @ up) for b [K, 2 N] = [gate | up], column-major; all else as for `gated_matmul`."""
    return _run("swiglu", True, a, b, (scale_a, scale_b, bias, residual, z, None), "silu", None, out, out_dtype)


def _run(what: str, gated: bool, a: Any, b: Any, extras: tuple[Any, ...], activation: str | None,
         reduction: str | None, out: Any, out_dtype: Any) -> Any:
    ia, ib, *others = infos_of(a, b, *extras)
    if out is None:
        shape = _checked(what, gated, *facts_of(ia, ib))
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, ia.dtype)
    io = tilejit.array_info(out)
    plan = _plan(what, gated, *facts_of(ia, ib, io), facts_of(*others), activation, reduction, *place(ia))
    if isinstance(plan, Ended):
        plan.run((a, b, out), (ia, ib, io), extras)
    elif plan is not None:
        *numbers, z, reduced = extras
        over = ((a, b, out), (ia, ib, io), None) if z is None else ((a, b, out, z), (ia, ib, io, others[-2]))
        plan(*over, *numbers, reduced)
    return out


def _operands(what: str, gated: bool, a: ArrayInfo, b: ArrayInfo) -> tuple[Matrix, Matrix]:
    """Both operands; b of a gated product as [2, K, N]."""
    ma, beside = operand(what, "a", a), gated and len(b.shape) == 2 and what == "swiglu"
    mb = operand(what, "b", b, 3 if gated and not beside else 2)
    if beside:
        if mb.rows_first or mb.shape[1] % 2:
            raise tilejit.LaunchError(f"{what}: b must be a column-major [K, 2 N] matrix, found shape "
                                      f"{list(mb.shape)} and strides {list(mb.strides)}")
        k, n = mb.shape[0], mb.shape[1] // 2
        mb = replace(mb, shape=(2, k, n), strides=(n * mb.strides[1], *mb.strides))
    elif gated and (mb.shape[0] != 2 or mb.rows_first):
        raise tilejit.LaunchError(f"{what}: b must be [2, K, N] with K contiguous, found shape {list(mb.shape)} and "
                                  f"strides {list(mb.strides)}")
    check_operands(what, ma, mb, _INPUTS)
    return ma, mb


@lru_cache(maxsize=1024)
def _checked(what: str, gated: bool, a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = _operands(what, gated, a, b)
    return ma.shape[0], mb.shape[-1]


@lru_cache(maxsize=1024)
def _plan(what: str, gated: bool, a: ArrayInfo, b: ArrayInfo, out: ArrayInfo, extras: tuple[ArrayInfo | None, ...],
          activation: str | None, reduction: str | None, multiprocessors: int,
          knobs: Any) -> Launch | Ended | None:
    """The launch for a, b, out and, where it is, z; or a product and its end; None where the result is empty."""
    scale_a, scale_b, bias, residual, z, reduced = extras
    m, n = _checked(what, gated, a, b)
    ma, mb = _operands(what, gated, a, b)
    for name, value, legal in (("activation", activation, ACTIVATIONS), ("reduction", reduction, REDUCTIONS)):
        if value not in legal:
            raise tilejit.LaunchError(f"{what}: {name} {value!r} is not one of {legal}")
    kind_a = _scale_kind(what, "scale_a", scale_a, (m, 1), "rows")
    kind_b = _scale_kind(what, "scale_b", scale_b, (2 if gated else 1, n), "columns")
    if gated and bias is not None:
        _whole(what, "bias", bias, (2, n))
    elif not gated:
        check_vector(what, "bias", bias, n)
    check_vector(what, "reduced", reduced, m)
    if (reduction is None) != (reduced is None):
        raise tilejit.LaunchError(f"{what}: reduction and reduced go together")
    if reduced is not None and reduced.dtype != tl.float32:
        raise tilejit.LaunchError(f"{what}: reduced must be fp32, found {reduced.dtype}")
    mc = result(what, out, (m, n))
    if mc.dtype == tl.int32 and (gated or ma.dtype.is_float or activation or any(x is not None for x in extras)):
        raise tilejit.LaunchError(f"{what}: an int32 result is the sum of integer products, without anything else")
    if 0 in (m, n):
        return None
    stride, narrow = 0, False
    if residual is not None:
        stride = result(what, residual, (m, n), "residual").strides[0]
        narrow = n % 16 != 0 or stride % 16 != 0 or residual.address % 16 != 0
    pairs = tilejit.chip() == "sm_90a" and multiprocessors > 1
    tiles = fitting(gated, bias is not None or kind_b == "columns", residual is not None or z is not None, narrow,
                    reduction is not None, 2 if pairs else 1)
    bk = K_BYTES // ma.dtype.bytes
    blocks = tilejit.cdiv(ma.shape[1], bk)
    problem, chip = facts(ma, mb, out), current(a.device, multiprocessors)
    if gated:
        problem = replace(problem, n=2 * n)
    t = best(problem, chip, tiles)
    scales: dict[str, Any] = dict(SCALE_A=kind_a, SCALE_B=kind_b, ACTIVATION=activation, REDUCE=reduction,
                                  residual_stride=stride)
    merged = _merged(mb) if gated else b
    if merged is not None and _ended(a, merged, problem, t, chip):
        return ended(m, n, merged, out, z, GATED=gated, **scales)
    columns = t.n // 2 if gated else t.n
    interleave = (8 if n % 8 == 0 else 1) if gated else 0
    descriptors = {"a": ma.descriptor(t.m, bk),
                   "b": _interleaved(mb, columns, bk, interleave) if gated else mb.descriptor(bk, columns),
                   "out": mc.descriptor(t.m, columns if gated else min(columns, 128))}
    if z is not None:
        mz = result(what, z, (2, m, n) if gated else (m, n), "z")
        descriptors["z"] = mz.descriptor(t.m, min(columns, 64 if gated else 128))
    require_tma(what, **descriptors)
    stages = STAGES.get((t.m, t.n), (None, None))[residual is not None or z is not None]
    grid = min(t.room(multiprocessors), tilejit.cdiv(m, t.m) * tilejit.cdiv(n, columns))
    kernel = fused_kernel.partial(
        M=m, N=n, K=ma.shape[1], BM=t.m, BN=columns, BK=bk, GROUP=t.group(m, blocks), A_ROWS=ma.rows_first,
        B_ROWS=mb.rows_first, GATED=interleave, num_stages=stages, **scales, **t.options)
    return Launch(kernel, (grid,), tuple(descriptors.values()))


def _ended(a: ArrayInfo, b: ArrayInfo, problem: Problem, t: Way, chip: Chip) -> bool:
    """Whether `matmul`, and a launch that finishes its sums, are faster for a and b than such tiles."""
    m, columns = problem.m, problem.n
    if str(a.dtype) not in DTYPES or min(m, columns) > FEW:
        return False
    sums = ArrayInfo(0, tl.float32, (m, columns), (pitch(columns), 1), a.device)
    product = product_ns(operand("", "a", a), operand("", "b", b), Matrix(sums, sums.shape, sums.strides, True), chip)
    passed = 2 * sums.dtype.bytes * m * columns / (chip.part * chip.multiprocessors)
    return product + chip.second + passed < one(problem, t, chip)


def _merged(b: Matrix) -> ArrayInfo | None:
    """The two matrices [2, K, N] of a gated product as one, [K, 2 N], if they lie so in memory."""
    (_, k, n), (apart, across, down) = b.shape, b.strides
    return b.info._replace(shape=(k, 2 * n), strides=(across, down)) if apart == n * down else None


def _interleaved(b: Matrix, columns: int, bk: int, g: int) -> tilejit.TensorDescriptor:
    """Two matrices [2, K, N] as [N / g, 2, g, K], in blocks of so many columns of both: g of one beside g of the other.

    Where g is 8 the columns that a thread holds of a product are those of one matrix and the same of the other."""
    one = b.descriptor(bk, columns)
    (_, n, k), (apart, down, _) = one.shape, one.strides
    return tilejit.TensorDescriptor.template(b.info, (n // g, 2, g, k), (g * down, apart, down, 1),
                                             (columns // g, 2, g, bk))


def _whole(what: str, name: str, info: ArrayInfo, shape: tuple[int, ...]) -> None:
    """A contiguous array of a shape."""
    expected = [prod(shape[i + 1:]) for i in range(len(shape))]
    if info.shape != shape or any(s != e for s, e, n in zip(info.strides, expected, shape) if n > 1):
        raise tilejit.LaunchError(f"{what}: {name} must be a contiguous {list(shape)} array, found shape "
                                  f"{list(info.shape)} and strides {list(info.strides)}")


def _scale_kind(what: str, name: str, info: ArrayInfo | None, shape: tuple[int, int], kind: str) -> str | None:
    """How a scale applies, by its shape."""
    if info is None:
        return None
    if info.dtype != tl.float32 or info.shape not in ((), (1,), shape):
        raise tilejit.LaunchError(f"{what}: {name} must be fp32 [1] or {list(shape)}, found {info.dtype} "
                                  f"{list(info.shape)}")
    _whole(what, name, info, info.shape)
    return kind if info.shape == shape else "one"
