"""END of fused products: scales of rows and columns, bias, activation, gate, residual, second output, row sums."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import activate, numbers


class Extras(NamedTuple):
    """z = scale_a * scale_b * sums + bias; y = act(z) + residual, or gated: act(z[0]) * z[1] + residual
    (docs/modules.md)."""

    out: Any
    z: Any
    scale_a: Any
    scale_b: Any
    bias: Any
    residual: Any
    reduced: Any
    stride: Any
    N: Any
    SCALE_A: Any
    SCALE_B: Any
    ACTIVATION: Any
    REDUCE: Any
    SIDE: Any = 0


@tilejit.kernel
def scaled_biased(acc, e, second: tl.constexpr, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    """At (m, n), in fp32; `second`: of the second of two matrices."""
    rows = tl.arange(0, BM)[:, None]
    cols = tl.arange(0, BN)[None, :]
    behind = n + e.N if second else n
    z = acc.to(tl.float32)
    if e.SCALE_A is not None:
        z *= numbers(e.scale_a + m, rows, M - m) if e.SCALE_A == "rows" else tl.load(e.scale_a)
    if e.SCALE_B is not None:
        z *= numbers(e.scale_b + behind, cols, e.N - n) if e.SCALE_B == "columns" else tl.load(e.scale_b)
    if e.bias is not None:
        z += numbers(e.bias + behind, cols, e.N - n)
    return z


@tilejit.kernel
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """Of a tile [BM, BN]; of a product, without moving a register."""
    return x.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()


@tilejit.kernel
def beside(left, right, BM: tl.constexpr, BN: tl.constexpr):
    return tl.join(left, right).permute(0, 2, 1).reshape(BM, BN)


@tilejit.kernel
def block_at(source, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Addresses of the block at (m, n) of a row-major matrix, and what is inside the matrix."""
    rows = tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = (rows < M - m)[:, None] & (cols < N - n)[None, :]
    start = source + m.to(tl.int64) * stride + n
    return start + (rows[:, None] * stride + cols[None, :]), inside


@tilejit.kernel
def plus_block(y, source, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Outside the matrix: y."""
    at, inside = block_at(source, m, n, M, N, stride, BM, BN)
    return y + tl.load(at, inside, other=0.0).to(tl.float32)


@tilejit.kernel
def store_block(y, target, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """As far as the block is inside."""
    at, inside = block_at(target, m, n, M, N, stride, BM, BN)
    tl.store(at, y.to(target.dtype.element_ty), inside)


@tilejit.kernel
def with_residual(y, e, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    """At most 64 columns at a time: what is read coalesced passes through shared memory to reach its threads."""
    if BN <= 64:
        y = plus_block(y, e.residual, m, n, M, e.N, e.stride, BM, BN)
    else:
        left, right = halves(y, BM, BN)
        left = plus_block(left, e.residual, m, n, M, e.N, e.stride, BM, BN // 2)
        right = plus_block(right, e.residual, m, n + BN // 2, M, e.N, e.stride, BM, BN // 2)
        y = beside(left, right, BM, BN)
    return y


@tilejit.kernel
def fold_rows(y, e, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    rows = m + tl.arange(0, BM)
    if e.REDUCE == "max":
        inside = (n + tl.arange(0, BN) < e.N)[None, :]
        tl.atomic_max(e.reduced + rows, tl.max(tl.where(inside, y, float("-inf")), 1), rows < M, sem="relaxed")
    elif e.REDUCE is not None:
        tl.atomic_add(e.reduced + rows, tl.sum(y * y if e.REDUCE == "squares" else y, 1), rows < M, sem="relaxed")


@tilejit.kernel
def stored(y, e, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    if e.residual is not None:
        y = with_residual(y, e, m, n, M, BM, BN)
    fold_rows(y, e, m, n, M, BM, BN)
    e.out.store([m, n], y.to(e.out.dtype))


@tilejit.kernel
def finished(acc, e, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    """All that follows the sums of a tile of at most 128 columns. Integers that go to int32 are stored so."""
    if e.out.dtype == tl.int32:
        e.out.store([m, n], acc)
    else:
        z = scaled_biased(acc, e, False, m, n, M, BM, BN)
        if e.z is not None:
            e.z.store([m, n], z.to(e.z.dtype))
        stored(activate(z, e.ACTIVATION, e.out.dtype), e, m, n, M, BM, BN)


@tilejit.kernel
def fused(p, at, acc):
    """p.end: `Extras`; its descriptors have blocks of at most 128 columns."""
    if p.BN <= 128:
        finished(acc, p.end, at.m, at.n, p.M, p.BM, p.BN)
    else:
        # A whole tile's scales and sums together do not fit the registers.
        left, right = halves(acc, p.BM, p.BN)
        finished(left, p.end, at.m, at.n, p.M, p.BM, p.BN // 2)
        finished(right, p.end, at.m, at.n + p.BN // 2, p.M, p.BM, p.BN // 2)


@tilejit.kernel
def gate(first, second, e, m, n, M, BM: tl.constexpr, BN: tl.constexpr):
    """act(first) * second of a tile at (m, n), both scaled, biased and stored as z."""
    first = scaled_biased(first, e, False, m, n, M, BM, BN)
    second = scaled_biased(second, e, True, m, n, M, BM, BN)
    if e.z is not None:
        e.z.store([0, m, n], first.to(e.z.dtype).reshape(1, BM, BN))
        e.z.store([1, m, n], second.to(e.z.dtype).reshape(1, BM, BN))
    return activate(first, e.ACTIVATION, e.out.dtype) * second


@tilejit.kernel
def gated(p, at, acc):
    """The same of two matrices, of which half of the product's columns are each (`loads.pair_rows`): e.out has blocks
    of all columns of y in a tile, e.z, [2, M, N], of at most 64."""
    e = p.end
    BN: tl.constexpr = p.BN // 2
    n = tl.multiple_of(at.n // 2, BN)
    first, second = acc.reshape(p.BM, BN // e.SIDE, 2, e.SIDE).permute(0, 1, 3, 2).split()
    first = first.reshape(p.BM, BN)
    second = second.reshape(p.BM, BN)
    if BN == 128 and (e.z is not None or e.residual is not None or e.REDUCE is not None):
        # What else these need does not fit the registers.
        first, more_first = halves(first, p.BM, BN)
        second, more_second = halves(second, p.BM, BN)
        left = gate(first, second, e, at.m, n, p.M, p.BM, BN // 2)
        right = gate(more_first, more_second, e, at.m, n + BN // 2, p.M, p.BM, BN // 2)
        y = beside(left, right, p.BM, BN)
    else:
        y = gate(first, second, e, at.m, n, p.M, p.BM, BN)
    stored(y, e, at.m, n, p.M, p.BM, BN)
