"""The sum of a product's parts: what ends a split-K product whose programs each stored their part of one tile."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels.activations import activate
from tilejit.kernels.order import tile_at

#: Elements that a program sums, and of all parts together that its threads hold at once.
ELEMENTS, AT_ONCE = 512, 8192


@tilejit.kernel
def tile_origin(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of a tile; tiles are numbered in groups of GROUP tile rows."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
    return row * BM, column * BN


@tilejit.kernel
def end_tile(parts, out, bias, tile, share, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
             PARTS: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, ELEMENTS: tl.constexpr,
             CHUNK: tl.constexpr):
    """out = act(sum of parts + bias) for one share of ELEMENTS elements of a tile; CHUNK parts are read at once."""
    m, n = tile_origin(tile, M, N, BM, BN, GROUP)
    at = share * ELEMENTS + tl.arange(0, ELEMENTS)
    rows = m + at // BN
    cols = n + at % BN
    inside = (rows < M) & (cols < N)
    mine = parts + tile.to(tl.int64) * (PARTS * BM * BN)
    x = tl.zeros((ELEMENTS,), tl.float32)
    for start in tl.static_range(0, PARTS, CHUNK):
        part = start + tl.arange(0, CHUNK)[:, None]
        if start + CHUNK <= PARTS:
            y = tl.load(mine + part * (BM * BN) + at[None, :])
        else:
            y = tl.load(mine + part * (BM * BN) + at[None, :], part < PARTS, other=0.0)
        x += tl.sum(y, 0)
    if bias is not None:
        x += tl.load(bias + (rows if BIAS_ROWS else cols), inside, other=0.0).to(tl.float32)
    x = activate(x, ACTIVATION, out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64) * down + cols.to(tl.int64) * across, x.to(out.dtype.element_ty), inside)


@tilejit.kernel(do_not_specialize=("M", "N"))
def sum_parts_kernel(parts, out, bias, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
                     PARTS: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, ELEMENTS: tl.constexpr,
                     CHUNK: tl.constexpr):
    """out = act(sum of parts + bias) for ELEMENTS elements of one tile.

    parts: fp32, PARTS times [BM, BN] for every tile, tiles in the order of `streamk_kernel` (in groups of GROUP tile
    rows). out has strides down and across; with BIAS_ROWS bias has a value per row, else per column."""
    shares: tl.constexpr = BM * BN // ELEMENTS
    end_tile(parts, out, bias, tl.program_id(0) // shares, tl.program_id(0) % shares, M, N, down, across, BM, BN, GROUP,
             PARTS, BIAS_ROWS, ACTIVATION, ELEMENTS, CHUNK)


def sum_parts(parts: Any, out: Any, info: ArrayInfo, bias: Any, activation: str | None, tile: tuple[int, int],
              count: int, group: int, swapped: bool, sums: tuple[int, int] = (0, 0)) -> None:
    """out [M, N] (as `info` says) from the `count` parts of each of its tiles, or swapped: from tiles of out^T.

    Sums are in a fixed order. sums: elements a program, and parts that it reads at once, instead of a choice."""
    (m, n), (down, across) = info.shape, info.strides
    if swapped:
        (m, n), (down, across) = (n, m), (across, down)
    bm, bn = tile
    elements = min(sums[0] or ELEMENTS, bm * bn)
    grid = tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn) * (bm * bn // elements)
    chunk = sums[1] or min(AT_ONCE // elements, tilejit.next_power_of_2(count))
    sum_parts_kernel[(grid,)](parts, out, bias, m, n, down, across, BM=bm, BN=bn, GROUP=group, PARTS=count,
                              BIAS_ROWS=swapped, ACTIVATION=activation, ELEMENTS=elements, CHUNK=chunk, num_warps=4)
