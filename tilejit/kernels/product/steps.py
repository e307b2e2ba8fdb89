"""STEP: the sums [BM, BN] of a tile's blocks of K."""
from __future__ import annotations

import tilejit
import tilejit.language as tl

#: Elements of K, and columns of B, that share a scale.
SCALE_BLOCK = 128
_BLOCK = tl.constexpr(SCALE_BLOCK)
SUMS = tl.float32, tl.constexpr(0)


@tilejit.kernel
def blocks(p, at, k):
    """Block k of K of both operands, [BM, BK] and [BN, BK]."""
    return p.LOAD_A(p.a, at, at.m, k, p.BM, p.BK), p.LOAD_B(p.b, at, at.n, k, p.BN, p.BK)


@tilejit.kernel
def accumulate(p, at):
    """Of products that stay in flight. p.step: their dtype, TAIL: 0, or what is left of K behind blocks, filled up
    with zeros."""
    DTYPE, TAIL = p.step
    acc = tl.zeros((p.BM, p.BN), DTYPE)
    last = p.K // p.BK if TAIL > 0 else at.last
    for k in tl.range(at.first, last, at.by):
        a, b = blocks(p, at, k)
        acc = tl.dot(a, b.T, acc)
    if TAIL > 0:
        for k in range(last, last + 1):  # as a loop: in the slots of the one before
            a, b = blocks(p, at, k)
            acc = tl.dot(a, b.T, acc, depth=TAIL)
    return acc


@tilejit.kernel
def promote(p, at):
    """fp8 with scales: every block's products are multiplied by theirs, and added to an fp32 sum in registers
    (docs/modules.md)."""
    scale_desc, row_scales, rows, down, across, block_scales, apart, block_down, block_across = p.step
    SIZE: tl.constexpr = p.BN if p.SWAP else p.BM
    mine = at.n if p.SWAP else at.m
    other = at.m if p.SWAP else at.n
    count = rows if at.count is None else at.count
    # Rows beyond the last one are not stored.
    of_rows = (at.start + tl.minimum(mine + tl.arange(0, SIZE), count - 1)) * down
    of_blocks = block_scales + at.batch * apart + other // _BLOCK * block_down
    acc = tl.zeros((p.BM, p.BN), tl.float32)
    first = tl.minimum(at.first, at.last - 1)
    if scale_desc is None:
        row_scale = tl.load(row_scales + (of_rows + first * across))
    block_scale = tl.load(of_blocks + first * block_across)
    for k in tl.range(at.first, at.last, at.by):
        if scale_desc is not None:
            row_scale = scale_desc.load([k, at.start + mine]).reshape(SIZE)
        a, b = blocks(p, at, k)
        part = tl.dot(a, b.T)
        scale = row_scale * block_scale
        # The next block's scales arrive behind this block's product.
        after = tl.minimum(k + at.by, at.last - 1)
        if scale_desc is None:
            row_scale = tl.load(row_scales + (of_rows + after * across))
        block_scale = tl.load(of_blocks + after * block_across)
        acc = tl.fma(part, scale[None, :] if p.SWAP else scale[:, None], acc)
    return acc


@tilejit.kernel
def widened(x, BM: tl.constexpr, BK: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr, scale=None, zero=None):
    """Integers [BM, BK] as DTYPE: int8, or bytes [BM, BK / 2] of two 4-bit numbers, the even one low, less `zero` a
    row (or 8). Then times `scale`, one per row (1 without)."""
    if BITS == 8:
        y = x.to(DTYPE)
    else:
        # In the mantissa of a power of two whose last place is 1, a number n is that power plus n: no conversion.
        bits: tl.constexpr = 0x4300 if DTYPE == tl.bfloat16 else 0x6400
        power: tl.constexpr = 128.0 if DTYPE == tl.bfloat16 else 1024.0
        both = (x.to(tl.int32) * 0x1001 & 0x000F000F) | (bits << 16 | bits)
        even, odd = both.to(tl.int16).to(DTYPE, bitcast=True), (both >> 16).to(tl.int16).to(DTYPE, bitcast=True)
        y = tl.join(even, odd).reshape(BM, BK)
        if zero is None:
            y = y - (power + 8.0)
        else:
            y = y - (zero.to(tl.float32) + power).to(DTYPE)[:, None]
    if scale is not None:
        y = y * scale.to(DTYPE)[:, None]
    return y


@tilejit.kernel
def at_once(source, at, inside, RUN: tl.constexpr):
    """RUN numbers from each of source[at] on, as one integer of 64 bits; or one as it is. None for source None."""
    found = None
    if source is not None:
        if RUN > 1:
            found = tl.load((source + at).to(tl.pointer_type(tl.int64)), inside, other=0)
        else:
            found = tl.load(source + at, inside, other=0.0)
    return found


@tilejit.kernel
def one_of(run, index, source, RUN: tl.constexpr):
    x = run
    if run is not None and RUN > 1:
        bits: tl.constexpr = 64 // RUN
        x = (run >> (index * bits)).to(tl.int16 if bits == 16 else tl.int32).to(source.dtype.element_ty, bitcast=True)
    return x


@tilejit.kernel
def widen(p, at):
    """First operands of 8 or 4 bits become 16-bit numbers in registers, times scales (docs/modules.md)."""
    scales, zeros, down, across, BITS, STEPS, RUN = p.step
    rows = at.m + tl.arange(0, p.BM)
    inside = rows < p.M
    acc = tl.zeros((p.BM, p.BN), tl.float32)
    if STEPS == 0:
        for k in range(at.first * at.last // at.by, (at.first + 1) * at.last // at.by):
            w, x = blocks(p, at, k)
            acc = tl.dot(widened(w, p.BM, p.BK, BITS, x.dtype), x.T, acc)
        acc *= tl.load(scales + rows * down, inside, other=0.0).to(tl.float32)[:, None]
    else:
        # The next numbers are on their way while those before are multiplied by.
        runs = tl.cdiv(at.last, STEPS * RUN)
        begin = at.first * runs // at.by
        end = (at.first + 1) * runs // at.by
        where = rows * down + begin * RUN * across
        next_scale = at_once(scales, where, inside, RUN)
        next_zero = at_once(zeros, where, inside, RUN)
        for run in range(begin, end):
            scale, zero = next_scale, next_zero
            where = rows * down + tl.minimum(run + 1, end - 1) * RUN * across
            next_scale = at_once(scales, where, inside, RUN)
            next_zero = at_once(zeros, where, inside, RUN)
            for k in range(run * (STEPS * RUN), tl.minimum((run + 1) * (STEPS * RUN), at.last)):
                index = k // STEPS % RUN
                w, x = blocks(p, at, k)
                y = widened(w, p.BM, p.BK, BITS, x.dtype, one_of(scale, index, scales, RUN),
                            one_of(zero, index, zeros, RUN))
                acc = tl.dot(y, x.T, acc)
    return acc
