"""The sum of a product's parts: what ends a split-K product whose programs each stored their part of one tile."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels.activations import activate
from tilejit.kernels.order import tile_at

#: Elements that a program sums at least and at most, and of all parts together that its threads hold at once.
LEAST, MOST, AT_ONCE = 128, 512, 8192
#: Programs that are enough: a few a multiprocessor, so that all of the parts are on their way at once.
PROGRAMS = 512


@tilejit.kernel
def tile_origin(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of a tile; tiles are numbered in groups of GROUP tile rows."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
    return row * BM, column * BN


@tilejit.kernel
def as_held(x, BM: tl.constexpr, BN: tl.constexpr):
    """The elements of a tile [BM, BN] in the order in which threads hold the tensor cores' sums: four of a thread
    (columns 2q and 2q + 1 of rows g and g + 8), then the next lane's (q, then g), columns eight by eight, rows sixteen
    by sixteen (PTX ISA, register fragments of wgmma .m64nNk16). Stored so, a warp writes 512 bytes in a row."""
    x = x.reshape(BM // 16, 2, 8, BN // 8, 8).permute(0, 3, 2, 4, 1)
    return x.reshape(BM * BN // 16, 4, 2, 2).permute(0, 1, 3, 2).reshape(BM * BN)


@tilejit.kernel
def from_held(x, COLUMNS: tl.constexpr):
    """A tile [16, COLUMNS] of elements in the order of `as_held`."""
    x = x.reshape(COLUMNS, 4, 2, 2).permute(0, 1, 3, 2).reshape(COLUMNS // 8, 8, 8, 2)
    return x.permute(3, 1, 0, 2).reshape(16, COLUMNS)


@tilejit.kernel
def end_tile(parts, out, bias, tile, share, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
             PARTS: tl.constexpr, HELD: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
             ELEMENTS: tl.constexpr, CHUNK: tl.constexpr):
    """out = act(sum of parts + bias) for one share of ELEMENTS elements of a tile; CHUNK parts are read at once.

    HELD: parts are in the order of `as_held`, and ELEMENTS at least 128 and at most 16 * BN; else row by row."""
    m, n = tile_origin(tile, M, N, BM, BN, GROUP)
    at = share * ELEMENTS + tl.arange(0, ELEMENTS)
    if HELD:
        rows = (m + share * ELEMENTS // (16 * BN) * 16 + tl.arange(0, 16))[:, None]
        cols = (n + share * (ELEMENTS // 16) % BN + tl.arange(0, ELEMENTS // 16))[None, :]
    else:
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
    if HELD:
        x = from_held(x, ELEMENTS // 16)
    if bias is not None:
        if BIAS_ROWS:
            x += tl.load(bias + rows, rows < M, other=0.0).to(tl.float32)
        else:
            x += tl.load(bias + cols, cols < N, other=0.0).to(tl.float32)
    x = activate(x, ACTIVATION, out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64) * down + cols.to(tl.int64) * across, x.to(out.dtype.element_ty), inside)


@tilejit.kernel(do_not_specialize=("M",))
def sum_parts_kernel(parts, out, bias, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
                     PARTS: tl.constexpr, HELD: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
                     ELEMENTS: tl.constexpr, CHUNK: tl.constexpr):
    """out = act(sum of parts + bias) for ELEMENTS elements of one tile.

    parts: fp32, PARTS times [BM, BN] for every tile, tiles in the order of `streamk_kernel` (in groups of GROUP tile
    rows), each in the order of `as_held` (HELD) or row by row. out has strides down and across; with BIAS_ROWS bias has
    a value per row, else per column."""
    shares: tl.constexpr = BM * BN // ELEMENTS
    end_tile(parts, out, bias, tl.program_id(0) // shares, tl.program_id(0) % shares, M, N, down, across, BM, BN, GROUP,
             PARTS, HELD, BIAS_ROWS, ACTIVATION, ELEMENTS, CHUNK)


def sum_parts(parts: Any, out: Any, info: ArrayInfo, bias: Any, activation: str | None, tile: tuple[int, int],
              count: int, group: int, swapped: bool, held: bool = False,
              sums: tuple[int, int] = (0, 0)) -> None:
    """out [M, N] (as `info` says) from the `count` parts of each of its tiles, or swapped: from tiles of out^T.

    Sums are in a fixed order. held: parts are in the order of `as_held`. sums: elements a program, and parts that it
    reads at once, instead of a choice."""
    (m, n), (down, across) = info.shape, info.strides
    if swapped:
        (m, n), (down, across) = (n, m), (across, down)
    bm, bn = tile
    tiles = tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn)
    elements = min(sums[0] or min(max(LEAST, tilejit.next_power_of_2(tiles * bm * bn // PROGRAMS)), MOST), bm * bn)
    elements = min(elements, 16 * bn) if held else elements
    grid = tiles * (bm * bn // elements)
    chunk = sums[1] or min(AT_ONCE // elements, tilejit.next_power_of_2(count))
    sum_parts_kernel[(grid,)](parts, out, bias, m, n, down, across, BM=bm, BN=bn, GROUP=group, PARTS=count,
                              HELD=held, BIAS_ROWS=swapped, ACTIVATION=activation, ELEMENTS=elements, CHUNK=chunk,
                              num_warps=4)
