"""Pieces of epilogues: what kernels do with the sums of a product before they are stored, beside `activations.py`."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import biased


@tilejit.kernel
def scaled(acc, scale, at, limit, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr):
    """acc [ROWS, COLUMNS] in fp32, times what `scale` points to: KIND None nothing, "one" a number, "rows" or "columns"
    the numbers from `at` on, one per row or column, below `limit`."""
    acc = acc.to(tl.float32)
    if KIND == "one":
        acc *= tl.load(scale)
    elif KIND == "rows":
        rows = tl.arange(0, ROWS)
        acc *= tl.load(scale + at + rows, rows < limit - at, other=0.0)[:, None]
    elif KIND == "columns":
        cols = tl.arange(0, COLUMNS)
        acc *= tl.load(scale + at + cols, cols < limit - at, other=0.0)[None, :]
    return acc


@tilejit.kernel
def scaled_biased(acc, scale_a, scale_b, bias, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr, SCALE_A: tl.constexpr,
                  SCALE_B: tl.constexpr):
    """Sums [BM, BN] at (m, n), scaled and biased (None: without)."""
    z = scaled(scaled(acc, scale_a, m, M, BM, BN, SCALE_A), scale_b, n, N, BM, BN, SCALE_B)
    return biased(z, bias, n, N, BN)


@tilejit.kernel
def pair_scaled_biased(gate, up, scale_a, scale_b, bias, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr,
                       SCALE_A: tl.constexpr, SCALE_B: tl.constexpr):
    """The same of both products of a gated one; numbers for the second's columns lie N behind those of the first."""
    gate = scaled(scaled(gate, scale_a, m, M, BM, BN, SCALE_A), scale_b, n, N, BM, BN, SCALE_B)
    up = scaled(up, scale_a, m, M, BM, BN, SCALE_A)
    if SCALE_B == "columns":
        up = scaled(up, scale_b + N, n, N, BM, BN, SCALE_B)
    else:
        up = scaled(up, scale_b, n, N, BM, BN, SCALE_B)
    if bias is not None:
        gate = biased(gate, bias, n, N, BN)
        up = biased(up, bias + N, n, N, BN)
    return gate, up


@tilejit.kernel
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """The left and the right half of a tile [BM, BN]; of a product, without moving a register."""
    return x.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()


@tilejit.kernel
def beside(left, right, BM: tl.constexpr, BN: tl.constexpr):
    """The tile [BM, BN] of two halves."""
    return tl.join(left, right).permute(0, 2, 1).reshape(BM, BN)


@tilejit.kernel
def block_at(source, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Where the block [BM, BN] at (m, n) of a row-major matrix lies: its addresses, and what is inside the matrix."""
    rows = tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = (rows < M - m)[:, None] & (cols < N - n)[None, :]
    start = source + m.to(tl.int64) * stride + n
    return start + (rows[:, None] * stride + cols[None, :]), inside


@tilejit.kernel
def plus_block(y, source, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """y plus the block [BM, BN] of a matrix at (m, n); outside the matrix: y."""
    at, inside = block_at(source, m, n, M, N, stride, BM, BN)
    return y + tl.load(at, inside, other=0.0).to(tl.float32)


@tilejit.kernel
def store_block(y, target, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Stores y as the block [BM, BN] of a matrix at (m, n), as far as that is inside."""
    at, inside = block_at(target, m, n, M, N, stride, BM, BN)
    tl.store(at, y.to(target.dtype.element_ty), inside)


@tilejit.kernel
def with_residual(y, source, m, n, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """As plus_block, at most 64 columns at a time: what is read coalesced passes through shared memory to reach its
    threads, and that area is as large as what is read at a time."""
    if BN <= 64:
        y = plus_block(y, source, m, n, M, N, stride, BM, BN)
    else:
        left, right = halves(y, BM, BN)
        left = plus_block(left, source, m, n, M, N, stride, BM, BN // 2)
        right = plus_block(right, source, m, n + BN // 2, M, N, stride, BM, BN // 2)
        y = beside(left, right, BM, BN)
    return y


@tilejit.kernel
def fold_rows(y, reduced, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr, REDUCE: tl.constexpr):
    """Combines each row of y [BM, BN] into reduced[row]: its "sum", that of its "squares", or its "max" (None: not)."""
    rows = m + tl.arange(0, BM)
    if REDUCE == "sum":
        tl.atomic_add(reduced + rows, tl.sum(y, 1), rows < M, sem="relaxed")
    elif REDUCE == "squares":
        tl.atomic_add(reduced + rows, tl.sum(y * y, 1), rows < M, sem="relaxed")
    elif REDUCE == "max":
        inside = (n + tl.arange(0, BN) < N)[None, :]
        tl.atomic_max(reduced + rows, tl.max(tl.where(inside, y, float("-inf")), 1), rows < M, sem="relaxed")
