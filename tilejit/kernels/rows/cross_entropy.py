from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import RowLaunch
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.columns import sums_like
from tilejit.kernels.rows.matrices import Matrix, elements, launch_of, matrix, number, result, share, vector
from tilejit.kernels.rows.tiles import (
    element_tile,
    place,
    put,
    put_rows,
    row_ends,
    row_max,
    row_sum,
    row_tile,
    whole_units,
    wide,
    wide_type,
)

REDUCTIONS = ("mean", "sum", "none")
#: Elements of long rows that a program has at a time; those of a CTA of sums of rows' losses, at least and at most, and
#: the most CTAs of such a sum; columns from which on two CTAs read a row of 16 bits.
BLOCK, PART, CTAS, DIVIDED = 4096, (256, 2048), 8, 65536
#: Elements of a warp, and of a program at least, of rows read once; the widest that a program has whole.
WARP, WHOLE = 2048, 16384


@tilejit.kernel
def capped(x, at, cap, inside):
    """The logits there, cap tanh(x / cap) unless the cap is None; -inf outside."""
    v = wide(tl.load(x + at, inside, other=-float("inf")))
    if cap is not None:
        v = tl.where(inside, cap - (2.0 * cap) / (1.0 + tl.exp(v * (2.0 / cap))), -float("inf"))
    return v


@tilejit.kernel
def row_loss(lse, picked, weight_sum, value_sum, own, kept, columns, smoothing, z):
    loss = (lse - picked) * own
    if smoothing is not None:
        loss = loss * (1.0 - smoothing) + (weight_sum * lse - value_sum) * (tl.full((), smoothing, lse.dtype) / columns)
    if z is not None:
        loss += z * lse * lse
    return tl.where(kept, loss, 0.0)


@tilejit.kernel
def slope(p, v, cols, t, w, weight_sum, lse, own, kept, factor, columns, smoothing, z, cap):
    most = own if smoothing is None else own * (1.0 - smoothing)
    total = most if smoothing is None else most + weight_sum * (tl.full((), smoothing, p.dtype) / columns)
    if z is not None:
        total += 2.0 * z * lse
    d = p * total - tl.where(cols == t.to(tl.int32), most, 0.0)
    if smoothing is not None:
        d -= w * (tl.full((), smoothing, p.dtype) / columns)
    if cap is not None:
        d -= d * (v * v) * (1.0 / (cap * cap))
    return tl.where(kept, d * factor, 0.0)


@tilejit.kernel
def target_of(target, row, inside, weight, ignore, columns, TYPE: tl.constexpr):
    t = tl.load(target + row, inside, other=0)
    t = tl.where(inside, t, tl.full((), ignore, t.dtype))
    kept = t != ignore
    valid = (t >= 0) & (t < columns)
    own = tl.where(valid, 1.0, float("nan")).to(TYPE)
    if weight is not None:
        own = own * tl.load(weight + t, inside & kept & valid, other=0.0).to(TYPE)
    return t, kept, own


@tilejit.kernel
def picked_of(x, t, kept, columns, cap):
    inside = kept & (t >= 0) & (t < columns)
    return tl.where(inside, capped(x, t, cap, inside), 0.0)


@tilejit.kernel
def cross_entropy_kernel(x, target, weight, weight_sum, count, loss, lse, dx, n, columns, x_pitch, dx_pitch, ignore,
                         smoothing, z, cap, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = row_tile(n, columns, BLOCK, ROWS)
    t, kept, own = target_of(target, row, row < n, weight, ignore, columns, wide_type(x))
    v = capped(x, row * x_pitch + cols, cap, inside)
    picked = picked_of(x + row * x_pitch, t, kept, columns, cap)
    m = row_max(v, ROWS)
    if dx is not None:  # none has all sums, and writes, before all have read their target's logit
        m = tl.maximum(m, tl.where(kept & (t >= 0) & (t < columns), picked, -float("inf")))
    e = tl.exp(v - m)
    s = row_sum(e, ROWS)
    logarithm = m + tl.log(s)
    w = 1.0
    weights = columns * 1.0
    values = 0.0
    if smoothing is not None:
        if weight is not None:
            weights = tl.load(weight_sum)
            w = tl.load(weight + cols, cols < columns, other=0.0).to(v.dtype)
        values = row_sum(tl.where(inside, v * w, 0.0), ROWS)
    put_rows(loss, row_loss(logarithm, picked, weights, values, own, kept, columns, smoothing, z), row, n, ROWS)
    if lse is not None:
        put_rows(lse, logarithm, row, n, ROWS)
    if dx is not None:
        factor = 1.0 if count is None else 1.0 / tl.load(count)
        d = slope(e / s, v, cols, t, w, weights, logarithm, own, kept, factor, columns, smoothing, z, cap)
        put(dx + row * dx_pitch + cols, d, inside)


@tilejit.kernel
def long_cross_entropy_kernel(x, target, weight, weight_sum, count, loss, lse, dx, n, columns, x_pitch, dx_pitch,
                              ignore, smoothing, z, cap, BLOCK: tl.constexpr, ROWS: tl.constexpr, PER: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    t, kept, own = target_of(target, row, row < n, weight, ignore, columns, wide_type(x))
    x += row * x_pitch
    picked = picked_of(x, t, kept, columns, cap)
    top = tl.full((BLOCK // PER, 1), -float("inf"), wide_type(x))
    total = tl.zeros((BLOCK // PER, 1), wide_type(x))
    values = tl.zeros((BLOCK,), wide_type(x))
    weights = columns * 1.0
    if smoothing is not None and weight is not None:
        weights = tl.load(weight_sum)
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = capped(x, at, cap, at < columns)
        runs = tl.reshape(v, (BLOCK // PER, PER))
        new = tl.maximum(top, tl.max(runs, 1)[:, None])
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(runs - safe), 1)[:, None]
        top = new
        if smoothing is not None:
            if weight is not None:
                v = v * tl.load(weight + at, at < columns, other=0.0).to(v.dtype)
            values += tl.where(at < columns, v, 0.0)
    m = tl.max(tl.max(top, 1), 0)
    logarithm = m + tl.log(tl.sum(tl.sum(total * tl.exp(top - m), 1), 0))
    each = row_loss(logarithm, picked, weights, tl.sum(values, 0), own, kept, columns, smoothing, z)
    put_rows(loss, each, row, n, 1)
    if lse is not None:
        put_rows(lse, logarithm, row, n, 1)
    if dx is not None:
        factor = 1.0 if count is None else 1.0 / tl.load(count)
        for start in range(0, columns, BLOCK):
            at = start + cols
            v = capped(x, at, cap, at < columns)
            w = 1.0
            if smoothing is not None and weight is not None:
                w = tl.load(weight + at, at < columns, other=0.0).to(v.dtype)
            d = slope(tl.exp(v - logarithm), v, at, t, w, weights, logarithm, own, kept, factor, columns, smoothing, z,
                      cap)
            put(dx + row * dx_pitch + at, d, at < columns)


@tilejit.kernel
def cross_entropy_gradient_kernel(grad, x, target, weight, weight_sum, count, lse, dx, n, columns, x_pitch, dx_pitch,
                                  ignore, smoothing, z, cap, EACH: tl.constexpr, BLOCK: tl.constexpr,
                                  ROWS: tl.constexpr, UNIT: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS, x_pitch, UNIT)
    t, kept, own = target_of(target, row, row < n, weight, ignore, columns, wide_type(x))
    logarithm = tl.load(lse + row, row < n, other=0.0)
    factor = tl.load(grad + row, row < n, other=0.0) if EACH else tl.load(grad)
    if count is not None:
        factor = factor / tl.load(count)
    weights = columns * 1.0
    if smoothing is not None and weight is not None:
        weights = tl.load(weight_sum)
    for part in tl.static_range(1 if UNIT == 1 else 2):
        if part == 1:
            begin, whole = whole_units(row, x_pitch, columns, UNIT)
            cols, inside = row_ends(begin, whole, columns, UNIT)
            inside &= tl.program_id(0) % tl.cdiv(columns // UNIT * UNIT, BLOCK) == 0
        v = capped(x, place(row, x_pitch, cols, 1 if part else UNIT), cap, inside)
        w = 1.0
        if smoothing is not None and weight is not None:
            w = tl.load(weight + cols, inside, other=0.0).to(v.dtype)
        d = slope(tl.exp(v - logarithm), v, cols, t, w, weights, logarithm, own, kept, factor, columns, smoothing, z,
                  cap)
        put(dx + place(row, dx_pitch, cols, 1 if part else UNIT), d, inside)


@tilejit.kernel
def total_kernel(x, target, weight, over, out, count, n, columns, ignore, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32 if out is None else wide_type(out))
    counted = tl.zeros((BLOCK,), tl.float32 if count is None else wide_type(count))
    for start in tl.range(0, n, BLOCK, num_stages=4):
        at = start + i
        if out is not None:
            total += tl.load(x + at, at < n, other=0.0).to(total.dtype)
        if count is not None:
            t, kept, own = target_of(target, at, at < n, weight, ignore, columns, wide_type(count))
            counted += tl.where(kept, own, 0.0)
    if count is not None:
        whole = tl.sum(counted, 0)
        tl.store(count, whole)
    if out is not None:
        s = tl.sum(total, 0)
        if count is not None:
            s = s / whole
        elif over is not None:
            s = s / tl.load(over)
        tl.store(out, s)


def _loss(logits: Any, reduction: str) -> Any:
    double = tilejit.array_info(logits).dtype == tl.float64
    return logits, logits.shape[:-1] if reduction == "none" else (), tl.float64 if double else tl.float32


@operator(loss=_loss, lse=lambda logits: _loss(logits, "none"),
          count=lambda logits, reduction: _loss(logits, reduction) if reduction == "mean" else None)
def cross_entropy_forward(loss, lse, count, logits: Array, target: Array, weight: Array | None = None,
                          ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                          softcap: float = 0.0, reduction: str = "mean") -> None:
    """(loss, logarithms of sums of exponentials, what a mean is over if it is one): see `cross_entropy`."""
    call = Call("cross_entropy", logits, target, weight, ignore_index, label_smoothing, z_loss, softcap, reduction)
    rows = loss if reduction == "none" else sums_like(logits, (call.x.n,))
    call.rows(rows, lse, None, None)
    if reduction != "none":
        call.total(loss, rows, count)


@gradient(cross_entropy_forward, "logits")
@operator(dx=lambda logits: logits)
def cross_entropy_gradient(dx, grad_loss: Array, logits: Array, target: Array, weight: Array | None, lse: Array,
                           count: Array, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float,
                           reduction: str) -> None:
    what = "cross_entropy_gradient"
    call = Call(what, logits, target, weight, ignore_index, label_smoothing, z_loss, softcap, reduction)
    x, o = call.x, result(what, dx, "dx")
    if not x.n * x.columns:
        return
    each = reduction == "none"
    grad = vector(what, grad_loss, x.n if each else 1, "grad")
    _, grid, sizes = elements(x, o, flat=False, shifted=True)
    cross_entropy_gradient_kernel[grid](grad, x.array, call.target, call.weight, call.weight_sum(),
                                        count if reduction == "mean" else None, lse, o.array, x.n, x.columns, x.pitch,
                                        o.pitch, *call.numbers, EACH=each, **sizes)


@operator(mutates=["logits"], loss=_loss)
def cross_entropy_(loss, logits: Array, target: Array, weight: Array | None = None, ignore_index: int = -100,
                   label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0,
                   reduction: str = "mean") -> None:
    """The loss as of `cross_entropy`, and in the place of the logits its gradient, in one pass over them."""
    call = Call("cross_entropy_", logits, target, weight, ignore_index, label_smoothing, z_loss, softcap, reduction)
    rows = loss if reduction == "none" else sums_like(logits, (call.x.n,))
    count = sums_like(logits, (1,)) if reduction == "mean" else None
    if count is not None:
        call.total(None, None, count)
    call.rows(rows, None, result("cross_entropy_", logits, "logits"), count)
    if reduction != "none":
        call.total(loss, rows, None, count)


def cross_entropy(logits: Array, target: Array, weight: Array | None = None, ignore_index: int = -100,
                  label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0,
                  reduction: str = "mean") -> Any:
    """Cross-entropy of logits [.., V] and targets [..] (int64 or int32), as torch's for classes in the last dimension.

    weight: [V], of the classes. Rows whose target is `ignore_index` count for nothing; any other target outside of 0 ..
    V - 1 makes the loss NaN. z_loss: this times the square of each row's logarithm is added to its loss. softcap: the
    logits are c tanh(logits / c) first (0: they are not). reduction: "mean" (over the sum of the targets' weights),
    "sum" or "none". The loss is fp32 (fp64 for fp64).
    """
    return cross_entropy_forward(logits, target, weight, ignore_index, label_smoothing, z_loss, softcap, reduction)[0]


class Call:
    def __init__(self, what: str, logits: Any, target: Any, weight: Any, ignore: int, smoothing: float, z: float,
                 cap: float, reduction: str):
        if reduction not in REDUCTIONS:
            raise tilejit.LaunchError(f"{what}: reduction must be one of {', '.join(REDUCTIONS)}, found {reduction!r}")
        self.what, self.x = what, matrix(what, logits, "logits")
        if tuple(target.shape) != tuple(logits.shape[:-1]) or not tilejit.array_info(target).dtype.is_int():
            raise tilejit.LaunchError(f"{what}: the target must be integers of shape {list(logits.shape[:-1])}, found "
                                      f"{tilejit.array_info(target).dtype} {list(target.shape)}")
        self.target = vector(what, target, self.x.n, "target")
        self.weight = vector(what, weight, self.x.columns, "weight")
        self.numbers = int(ignore), *[number(x, logits, 0.0) for x in (smoothing, z, cap)]
        self.ignore = int(ignore)

    def weight_sum(self) -> Any:
        if self.weight is None or self.numbers[1] is None:
            return None
        out, columns = sums_like(self.x.array, (1,)), self.x.columns
        total_of(columns, columns, out, self.weight)
        return out

    def total(self, out: Any, rows: Any, count: Any, over: Any = None) -> None:
        total_of(self.x.n, self.x.columns, out, rows, over, count, self.target, self.weight, self.ignore)

    def rows(self, loss: Any, lse: Any, dx: Matrix | None, count: Any) -> None:
        x = self.x
        if not x.n:
            return
        launch, size, even = launch_of(x, double=1024), tilejit.array_info(x.array).dtype.bytes, x.columns % 16 == 0
        # what smoothing, caps and weights need beside a row is in registers
        spare = even or dx is None and size < 8 and self.weight is None
        scarce = any(self.numbers[1:]) and x.columns > (131072 if spare else 8192)
        if not launch.whole or scarce or dx is None and even and x.columns > WHOLE:
            kernel = long_cross_entropy_kernel
            options = {"BLOCK": BLOCK // share(x.array), "num_warps": 8, "PER": 16 // size if even else 1}
            if dx is None and even and size == 2 and x.columns >= DIVIDED and tilejit.chip() != "sm_80":
                options |= {"BLOCK": 2 * BLOCK, "num_warps": 4, "num_ctas": 2}
            launch = RowLaunch((x.n,), 1, options, False)
        else:
            kernel = cross_entropy_kernel
            block, warp = launch.options["BLOCK"], WARP // share(x.array)
            single = tilejit.array_info(x.array).address % 16 and any(self.numbers[1:])  # elements one by one
            if dx is None and not single and (even or x.columns * size % 16 == 0 or size > 2 and block == WARP // 2):
                many = max(1, min(warp // block, tilejit.next_power_of_2(x.n)))
                options = {"BLOCK": block, "num_warps": max(1, many * block // warp)}
                launch = RowLaunch((tilejit.cdiv(x.n, many),), many, options, True)
        out, pitch = (None, 0) if dx is None else (dx.array, dx.pitch)
        kernel[launch.grid](x.array, self.target, self.weight, self.weight_sum(), count, loss, lse, out, x.n, x.columns,
                            x.pitch, pitch, *self.numbers, ROWS=launch.rows, **launch.options)


def total_of(n: int, columns: int, out: Any, x: Any, over: Any = None, count: Any = None, target: Any = None,
             weight: Any = None, ignore: int = 0) -> None:
    least, most = PART
    ctas = 1 if tilejit.chip() == "sm_80" else min(CTAS, tilejit.next_power_of_2(max(1, n // least)))
    block = min(most * ctas, max(least * ctas, tilejit.next_power_of_2(n)))
    total_kernel[(1,)](x, *((None, None) if count is None else (target, weight)), over, out, count, n, columns, ignore,
                       BLOCK=block, num_warps=8, num_ctas=ctas, launch_pdl=True)
