from __future__ import annotations

from math import gcd
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import STREAM_BLOCK
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.columns import sum_columns, sum_parts, sums_like
from tilejit.kernels.rows.matrices import Matrix, matrix, number, result, same, share, unit_of
from tilejit.kernels.rows.norms import add_layernorm, add_rmsnorm, layernorm, rmsnorm, weight_at, weights
from tilejit.kernels.rows.tiles import place, put, row_ends, row_sum, whole_units, wide, wide_type

#: Elements of a multiprocessor, CTAs of a row at most, elements of a program at least, slots, and where rows are summed
#: twice by a program that has its multiprocessor alone.
CTA, CTAS, LEAST, STAGES, ALONE = 8192, 16, 2048, 4, 3
#: Elements of a warp; twice as many where warps that meet hold a multiprocessor up.
WARP = 512
#: Steps of a program after which it waits for others that are behind.
EVERY = 8
#: Of a multiprocessor shared memory in bytes, registers, and the least of a thread: of rows in vectors, or by elements.
SHARED, REGISTERS, LEAST_REGISTERS = 227 << 10, 65536, (128, 160)


@tilejit.kernel
def norm_gradient_kernel(x, weight, grad, more, out, dw, db, n, columns, x_pitch, grad_pitch, more_pitch, out_pitch,
                         eps, offset, per, CENTRED: tl.constexpr, HEADS: tl.constexpr, SPAN: tl.constexpr,
                         ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVERY: tl.constexpr,
                         UNIT: tl.constexpr, PARTS: tl.constexpr):
    """Sums for weights and biases go to dw and db [programs * PARTS (of heads: ROWS), columns] (docs/modules.md)."""
    program = tl.program_id(0)
    given = (x, weight, grad, more, out, dw, db, n, columns, x_pitch, grad_pitch, more_pitch, out_pitch, eps, offset,
             per, CENTRED, HEADS, SPAN, ROWS, BLOCK, STAGES)
    if PARTS == 1:
        walk_rows(program * ROWS, n, tl.num_programs(0) * ROWS, program, *given, EVERY, UNIT)
    else:
        for part in range(PARTS):
            first, stop = part_of(program, part, n, UNIT)
            to = program * PARTS + tl.minimum(part, first)  # that is part, but no sum of the step before in registers
            walk_rows(first, stop, UNIT, to, *given, 0, UNIT)


@tilejit.kernel
def part_of(program, part, n, UNIT: tl.constexpr):
    """The first of a part's rows and what is behind the last."""
    alike = tl.cdiv(n, UNIT)
    share = program.to(tl.int64) * alike * UNIT
    begin = (share // tl.num_programs(0)).to(tl.int32)
    end = ((share + alike.to(tl.int64) * UNIT) // tl.num_programs(0)).to(tl.int32)
    late = begin // alike + part
    first = tl.maximum(begin - late * alike, 0)
    last = tl.minimum(end - late * alike, alike)
    return first * UNIT + late, tl.minimum(last * UNIT + late - UNIT + 1, n)


@tilejit.kernel
def walk_rows(first, stop, step, part, x, weight, grad, more, out, dw, db, n, columns, x_pitch, grad_pitch, more_pitch,
              out_pitch, eps, offset, per, CENTRED: tl.constexpr, HEADS: tl.constexpr, SPAN: tl.constexpr,
              ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVERY: tl.constexpr, UNIT: tl.constexpr):
    if ROWS == 1:
        cols, mine = tl.arange(0, BLOCK), first
        inside = cols < columns
    else:
        cols, mine = tl.arange(0, BLOCK)[None, :], first + tl.arange(0, ROWS)[:, None]
    if UNIT > 1:
        begin, whole = whole_units(first, x_pitch, columns, UNIT)
        inside = cols < whole
        cols += begin
        at, apart = row_ends(begin, whole, columns, UNIT)
        dw_ends = tl.zeros((2 * UNIT,), wide_type(x))
        db_ends = tl.zeros((2 * UNIT,), wide_type(x))
    masked = inside if ROWS == 1 else cols < columns
    w = None
    w_ends = None
    if weight is not None:
        w = tl.load(weight + weight_at(mine, cols, per, HEADS, SPAN), masked, other=0.0)
        if UNIT > 1:
            w_ends = tl.load(weight + at, apart, other=0.0)
    share = tl.full((), 1.0, wide_type(x)) / columns
    dw_sum = tl.zeros((BLOCK,) if ROWS == 1 else (ROWS, BLOCK), wide_type(x))
    db_sum = tl.zeros((BLOCK,) if ROWS == 1 else (ROWS, BLOCK), wide_type(x))
    for start in tl.range(first, stop, step, num_stages=STAGES, in_step=EVERY):
        if ROWS == 1:
            row = start.to(tl.int64)
        else:
            row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
            inside = (row < n) & (cols < columns)
        v = wide(tl.load(x + place(row, x_pitch, cols, UNIT), inside, other=0.0))
        grads = wide(tl.load(grad + place(row, grad_pitch, cols, UNIT), inside, other=0.0))
        g = weighted(grads, w, offset)
        if UNIT > 1:
            v_ends, g_ends, m_ends = ends_of(x, grad, more, row, n, x_pitch, grad_pitch, more_pitch, begin, whole,
                                             at, apart, UNIT)
            db_ends += g_ends
            w_g = weighted(g_ends, w_ends, offset)
        level = 0.0
        if CENTRED:
            mean_ends = level_ends = 0.0
            if UNIT > 1:
                mean_ends = tl.sum(v_ends, 0)
                level_ends = tl.sum(w_g, 0)
            level = plus(row_sum(g, ROWS), level_ends, UNIT) * share
            mean = plus(row_sum(v, ROWS), mean_ends, UNIT) * share
            v = tl.where(inside, v - mean, 0.0) if ROWS > 1 else v - tl.where(inside, mean, 0.0)
            if UNIT > 1:
                v_ends -= tl.where(apart, mean, 0.0)
        slope_ends = square_ends = 0.0
        if UNIT > 1:
            slope_ends = tl.sum(w_g * v_ends, 0)
            square_ends = tl.sum(v_ends * v_ends, 0)
        slope = plus(row_sum(g * v, ROWS), slope_ends, UNIT) * share
        r = tl.rsqrt(plus(row_sum(v * v, ROWS), square_ends, UNIT) * share + eps)
        slope *= r * r * r
        level *= r
        if dw is not None:
            dw_sum += grads * (v * r)
        if db is not None:
            db_sum += grads
        d = slope_of(grads, g, w, offset, v, slope, level, r, CENTRED)
        if more is not None:
            d += tl.load(more + place(row, more_pitch, cols, UNIT), inside, other=0.0).to(d.dtype)
        put(out + place(row, out_pitch, cols, UNIT), d, inside)
        if UNIT > 1:
            dw_ends += g_ends * (v_ends * r)
            d = slope_of(g_ends, w_g, w_ends, offset, v_ends, slope, level, r, CENTRED)
            if more is not None:
                d += m_ends.to(d.dtype)
            put(out + row * out_pitch + at, d, apart)
    to = (mine if HEADS > 1 else part).to(tl.int64) * columns
    ends_to = to
    if UNIT > 1:
        to += begin
        cols = tl.arange(0, BLOCK)
    if dw is not None:
        if HEADS == 1 and ROWS > 1:
            dw_sum = tl.sum(dw_sum, 0)[None, :]
        put(dw + to + cols, dw_sum, masked)
        if UNIT > 1:
            put(dw + ends_to + at, dw_ends, apart)
    if db is not None:
        if HEADS == 1 and ROWS > 1:
            db_sum = tl.sum(db_sum, 0)[None, :]
        put(db + to + cols, db_sum, masked)
        if UNIT > 1:
            put(db + ends_to + at, db_ends, apart)


@tilejit.kernel
def ends_of(x, grad, more, row, n, x_pitch, grad_pitch, more_pitch, begin, whole, at, apart, UNIT: tl.constexpr):
    """The elements at the ends of rows; behind the last row nothing may lie."""
    row = tl.where(row < n, row, 0)  # no sum of the step before: addresses have no registers then
    v = units_of(x, row, n, x_pitch, begin, whole, UNIT)
    g = units_of(grad, row, n, grad_pitch, begin, whole, UNIT)
    m = v if more is None else units_of(more, row, n, more_pitch, begin, whole, UNIT)
    if row == n - 1:
        v = wide(tl.load(x + row * x_pitch + at, apart, other=0.0))
        g = wide(tl.load(grad + row * grad_pitch + at, apart, other=0.0))
        if more is not None:
            m = wide(tl.load(more + row * more_pitch + at, apart, other=0.0))
    return tl.where(apart, v, 0.0), tl.where(apart, g, 0.0), m


@tilejit.kernel
def units_of(x, row, n, pitch, begin, whole, UNIT: tl.constexpr):
    lane = tl.arange(0, 2 * UNIT)
    head = tl.load(x + place(row, pitch, begin - UNIT + lane, UNIT), lane < tl.where(begin > 0, UNIT, 0), other=0.0)
    tail = tl.load(x + place(row, pitch, begin + whole - UNIT + lane, UNIT),
                   lane < tl.where(row < n - 1, 2 * UNIT, UNIT), other=0.0)
    return wide(tl.where(lane < UNIT, head, tail))


@tilejit.kernel
def plus(total, ends, UNIT: tl.constexpr):
    return total if UNIT == 1 else total + ends


@tilejit.kernel
def weighted(grads, w, offset):
    if w is None:
        return grads
    w = w.to(grads.dtype)
    return grads * (w if offset is None else w + offset)


@tilejit.kernel
def slope_of(grads, g, w, offset, v, slope, level, r, CENTRED: tl.constexpr):
    less = v * slope
    if CENTRED:
        less += level
    if w is not None and w.dtype.primitive_bitwidth > 16:  # found again: registers are scarce
        w = w.to(v.dtype)
        return grads * ((w if offset is None else w + offset) * r) - less
    return g * r - less


@tilejit.kernel
def long_norm_gradient_kernel(x, weight, grad, more, out, stats, columns, x_pitch, grad_pitch, more_pitch, out_pitch,
                              eps, offset, per, CENTRED: tl.constexpr, HEADS: tl.constexpr, SPAN: tl.constexpr,
                              BLOCK: tl.constexpr):
    """One row a program, in blocks; its mean and reciprocal deviation go to stats [rows, 2]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x += row * x_pitch
    grad += row * grad_pitch
    mean = 0.0
    if CENTRED:
        total = tl.zeros((BLOCK,), wide_type(x))
        for start in range(0, columns, BLOCK):
            total += wide(tl.load(x + start + cols, start + cols < columns, other=0.0))
        mean = tl.sum(total, 0) / columns
    squares = tl.zeros((BLOCK,), wide_type(x))
    products = tl.zeros((BLOCK,), wide_type(x))
    sums = tl.zeros((BLOCK,), wide_type(x))
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = tl.where(at < columns, wide(tl.load(x + at, at < columns, other=0.0)) - mean, 0.0)
        g = weighted_at(grad, weight, offset, at, weight_at(row, at, per, HEADS, SPAN), at < columns)
        squares += v * v
        products += g * v
        sums += g
    r = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    slope = tl.sum(products, 0) / columns * r
    level = tl.sum(sums, 0) / columns if CENTRED else 0.0
    for start in range(0, columns, BLOCK):
        at = start + cols
        v = wide(tl.load(x + at, at < columns, other=0.0)) - mean
        g = weighted_at(grad, weight, offset, at, weight_at(row, at, per, HEADS, SPAN), at < columns)
        d = (g - level - v * r * slope) * r
        if more is not None:
            d += tl.load(more + row * more_pitch + at, at < columns, other=0.0).to(d.dtype)
        put(out + row * out_pitch + at, d, at < columns)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, r)


@tilejit.kernel
def weighted_at(grad, weight, offset, at, weights_at, inside):
    g = wide(tl.load(grad + at, inside, other=0.0))
    return weighted(g, None if weight is None else tl.load(weight + weights_at, inside, other=0.0), offset)


#: What gradients of norms make of weights and biases.
MADE = {"dw": lambda weight, wants_weight: weight if wants_weight else None,
        "db": lambda bias, wants_bias: bias if wants_bias else None}


@gradient(rmsnorm, "x", "weight", "bias")
@operator(dx=lambda x: x, **MADE)
def rmsnorm_gradient(dx, dw, db, grad: Array, x: Array, weight: Array | None, bias: Array | None, eps: float,
                     offset: float, wants_weight: bool, wants_bias: bool) -> None:
    launch_gradient("rmsnorm_gradient", dx, dw, db, grad, x, weight, bias, eps, offset, False)


@gradient(layernorm, "x", "weight", "bias")
@operator(dx=lambda x: x, **MADE)
def layernorm_gradient(dx, dw, db, grad: Array, x: Array, weight: Array | None, bias: Array | None, eps: float,
                       offset: float, wants_weight: bool, wants_bias: bool) -> None:
    launch_gradient("layernorm_gradient", dx, dw, db, grad, x, weight, bias, eps, offset, True)


@gradient(add_rmsnorm, ("x", "residual"), "weight", "bias")
@operator(dx=lambda total: total, **MADE)
def add_rmsnorm_gradient(dx, dw, db, grad_out: Array, grad_total: Array, total: Array, weight: Array | None,
                         bias: Array | None, eps: float, offset: float, wants_weight: bool, wants_bias: bool) -> None:
    launch_gradient("add_rmsnorm_gradient", dx, dw, db, grad_out, total, weight, bias, eps, offset, False, grad_total)


@gradient(add_layernorm, ("x", "residual"), "weight", "bias")
@operator(dx=lambda total: total, **MADE)
def add_layernorm_gradient(dx, dw, db, grad_out: Array, grad_total: Array, total: Array, weight: Array | None,
                           bias: Array | None, eps: float, offset: float, wants_weight: bool, wants_bias: bool) -> None:
    launch_gradient("add_layernorm_gradient", dx, dw, db, grad_out, total, weight, bias, eps, offset, True, grad_total)


def launch_gradient(what: str, dx: Array, dw: Array | None, db: Array | None, grad: Array, x: Array,
                    weight: Array | None, bias: Array | None, eps: float, offset: float, centred: bool,
                    more: Array | None = None) -> None:
    same(what, x, grad, "grad")
    m, g, o = matrix(what, x), matrix(what, grad, "grad"), result(what, dx, "dx")
    p = Matrix(None, 0, 0, 0) if more is None else matrix(what, more, "the total's gradient")
    weight, bias, heads = weights(what, m, x, weight, bias)
    if not m.n * m.columns:
        for out in (dw, db):
            if out is not None:
                sum_columns(out, Matrix(m.array, 0, heads * m.columns, 0))
        return
    pitches = m.pitch, g.pitch, p.pitch, o.pitch
    constants = dict(CENTRED=centred, HEADS=heads, SPAN=1)
    if m.columns <= cta_of(m) * (1 if tilejit.chip() == "sm_80" else CTAS):
        odd = heads > 1 and tilejit.array_info(bias if weight is None else weight).address % 16 > 0
        programs, rows, options = walk(heads, odd, centred, o, m, g, *(() if more is None else (p,)))
        count = programs * (rows if heads > 1 else options["PARTS"])
        parts = [None if out is None else sums_like(m.array, (count, m.columns)) for out in (dw, db)]
        norm_gradient_kernel[(programs,)](m.array, weight, g.array, p.array, o.array, *parts, m.n, m.columns, *pitches,
                                          number(eps, x), number(offset, x, 0.0), m.columns, **constants, **options)
        if sums := [(part, out) for part, out in zip(parts, (dw, db)) if out is not None]:
            sum_parts(sums, count // heads, heads * m.columns)
        return
    scarce = more is not None and tilejit.array_info(m.array).dtype.bytes == 4
    found = sums_like(m.array, (m.n, 2))
    long_norm_gradient_kernel[(m.n,)](m.array, weight, g.array, p.array, o.array, found, m.columns, *pitches,
                                      number(eps, x), number(offset, x, 0.0), m.columns, **constants,
                                      BLOCK=STREAM_BLOCK // share(x),
                                      num_warps=16 if m.columns % 16 or scarce else 8)
    if heads > 1 and (dw is not None or db is not None):
        raise tilejit.LaunchError(f"{what}: heads of {m.columns} columns have no gradient of their weights")
    if dw is not None:
        sum_columns(dw, g, m, found)
    if db is not None:
        sum_columns(db, g)


def cta_of(m: Matrix) -> int:
    size = tilejit.array_info(m.array).dtype.bytes
    return CTA // share(m.array) // (2 if size == 4 and m.columns % 16 else 1)


def walk(heads: int, odd: bool, centred: bool, out: Matrix, *inputs: Matrix) -> tuple[int, int, dict[str, Any]]:
    """How many programs (a number with which rows keep their heads), rows at a time, options."""
    m = inputs[0]
    most = CTAS * CTA // (1 + (centred and len(inputs) > 2))
    apart = heads == 1 and LEAST // 2 < m.columns <= most and tilejit.chip() != "sm_80"
    unit = unit_of(out, *inputs) if apart and not any([_address(x) % 16 for x in (out, *inputs)]) else 1
    programs, rows, options = _walk(heads, odd, centred, unit, out, *inputs)
    rest = programs % (unit // gcd(unit, m.pitch)) if programs < m.n else 0
    if 16 * rest > programs:
        return programs, rows, {**options, "PARTS": tilejit.cdiv(unit, programs) + 1}
    return programs - rest, rows, options


def _walk(heads: int, odd: bool, centred: bool, unit: int, out: Matrix,
          *inputs: Matrix) -> tuple[int, int, dict[str, Any]]:
    m, infos = inputs[0], [tilejit.array_info(x.array) for x in inputs]
    block = max(16, tilejit.next_power_of_2(m.columns // unit * unit))
    rows = max(1, min(LEAST // block, tilejit.next_power_of_2(m.n))) if unit == 1 else 1
    uneven = unit == 1 and (odd or m.columns % 16 > 0 or any([_address(x) % 16 for x in inputs]))
    short = infos[0].dtype.bytes == 2
    shifted = unit > 1 and short
    third = centred and len(inputs) > 2  # registers are scarce, as for ends, or elements, beside all else
    less = shifted and block < LEAST or third and short and (uneven or shifted) and 2 * block <= CTAS * CTA
    cta = (CTA if shifted else cta_of(m)) // (1 + less)
    ctas, warp = max(1, block // cta), cta // 8 if shifted else WARP * cta // CTA
    size = block * rows // ctas
    if not shifted and (centred or size == cta or uneven):
        warp *= 2
    warps = max(4 if uneven else 2, size // warp)
    resident = min(cta // size, REGISTERS // (32 * warps * (LEAST_REGISTERS[uneven] + 16 * (uneven and third or odd))))
    programs = tilejit.clusters(ctas, infos[0].device) * resident
    whole = heads // gcd(heads, rows)
    programs = tilejit.cdiv(max(1, min(programs, tilejit.cdiv(m.n, rows))), whole) * whole
    room = SHARED // resident - 4096 - size * tilejit.array_info(out.array).dtype.bytes
    stages = min(ALONE if centred and size == CTA else STAGES, room // (size * sum([i.dtype.bytes for i in infos])))
    return programs, rows, {"ROWS": rows, "BLOCK": block, "UNIT": unit, "PARTS": 1,
                            "STAGES": stages if stages > 1 else 1, "num_warps": warps, "num_ctas": ctas,
                            "maxnreg": min(255, REGISTERS // (32 * warps * resident) // 8 * 8),
                            "EVERY": 0 if centred and ctas * len(inputs) > 4 else EVERY}


def _address(m: Matrix) -> int:
    return tilejit.array_info(m.array).address
