"""The sum of a product's parts: what ends a split-K product whose programs each stored their part of one tile."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Call, Launch
from tilejit.kernels.activations import activate, tensor_scale
from tilejit.kernels.order import tile_at

#: Elements that a program sums at least and at most: its threads have 2 or 4 each, side by side.
LEAST, MOST = 512, 1024
#: Columns of a block that a program sums of a tile of the result's transpose, at most. Parts are read in lines of so
#: many numbers, the sums are written in columns: more columns cost more there, fewer cost more for each part.
COLUMNS = 32
#: Parts whose numbers are on their way at once (ptxas moves the loads up, if there are registers).
_UNROLLED = tl.constexpr(32)
#: Programs that are enough: a few a multiprocessor, so that all of the parts are on their way at once.
PROGRAMS = 1024


@tilejit.kernel(do_not_specialize=("M",))
def sum_parts_kernel(parts, out, bias, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
                     PARTS: tl.constexpr, TURNED: tl.constexpr, ACTIVATION: tl.constexpr, ELEMENTS: tl.constexpr,
                     scale_a=None, scale_b=None, end_args=None, END: tl.constexpr = None):
    """out = act(sum of parts + bias) for ELEMENTS elements of one tile. The sum is multiplied by the numbers at scale_a
    and scale_b first (None: 1).

    parts: fp32, PARTS times [BM, BN] for every tile, tiles in the order of `tile_at` in groups of GROUP rows of them.
    out has strides down and across. TURNED: 0, or it is the transpose of what it is in memory, bias has a value per row
    (else per column), and ELEMENTS are a block of so many columns (else side by side).
    END: None, or what is done with the sums instead of a bias and an activation (`activations.end_tile`)."""
    shares: tl.constexpr = BM * BN // ELEMENTS
    tile = tl.program_id(0) // shares
    row, column = tile_at(tile, tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    share = tl.program_id(0) % shares
    if TURNED:
        high: tl.constexpr = ELEMENTS // TURNED
        r = share // (BN // TURNED) * high + tl.arange(0, high)[:, None]
        c = share % (BN // TURNED) * TURNED + tl.arange(0, TURNED)[None, :]
        at = r * BN + c
        x = tl.zeros((high, TURNED), tl.float32)
    else:
        at = share * ELEMENTS + tl.arange(0, ELEMENTS)
        r = at // BN
        c = at % BN
        x = tl.zeros((ELEMENTS,), tl.float32)
    rows = row * BM + r
    cols = column * BN + c
    mine = parts + tile.to(tl.int64) * (PARTS * BM * BN)
    for several in tl.range(0, PARTS // _UNROLLED, num_stages=1):
        for i in tl.static_range(_UNROLLED):
            x += tl.load(mine + (several * _UNROLLED + i) * (BM * BN) + at)
    for part in tl.static_range(PARTS // _UNROLLED * _UNROLLED, PARTS):
        x += tl.load(mine + part * (BM * BN) + at)
    scale = tensor_scale(scale_a, scale_b)
    if scale is not None:
        x *= scale
    if bias is not None:
        if TURNED:
            x += tl.load(bias + rows, rows < M, other=0.0).to(tl.float32)
        else:
            x += tl.load(bias + cols, cols < N, other=0.0).to(tl.float32)
    if END is not None:
        x = END(x, cols, rows, N, M, end_args) if TURNED else END(x, rows, cols, M, N, end_args)
    x = activate(x, ACTIVATION, out.dtype.element_ty)
    inside = (rows < M) & (cols < N)
    tl.store(out + rows.to(tl.int64) * down + cols.to(tl.int64) * across, x.to(out.dtype.element_ty), inside)


def sum_parts(parts: Any, out: Any, info: ArrayInfo, bias: Any, activation: str | None, tile: tuple[int, int],
              count: int, group: int, swapped: bool, end: Any = None, **named: Any) -> Call:
    """The launch for out [M, N] (as `info` says) from the `count` parts of each of its tiles, or swapped: from tiles of
    out^T. end: a caller's, and in `named` its end_args, and scale_a and scale_b, arrays of a number that the sums are
    multiplied by. The order is fixed."""
    launch = _launch(info.shape, info.strides, activation, tile, count, group, swapped, end)
    return launch, ((), (), parts, out, bias), named


@lru_cache(maxsize=1024)
def _launch(shape: tuple[int, ...], strides: tuple[int, ...], activation: str | None, tile: tuple[int, int], count: int,
            group: int, swapped: bool, end: Any) -> Launch:
    """What launches the sum for parts, out and bias."""
    (m, n), (down, across) = shape, strides
    if swapped:
        (m, n), (down, across) = (n, m), (across, down)
    bm, bn = tile
    tiles = tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn)
    columns = min(COLUMNS, bn & -bn) if swapped else 0
    most = bm * (columns or bn)
    elements = min(max(LEAST, tilejit.next_power_of_2(tiles * bm * bn // PROGRAMS)), MOST, most)
    grid = tiles * (bm * bn // elements)
    kernel = sum_parts_kernel.partial(M=m, N=n, down=down, across=across, BM=bm, BN=bn, GROUP=group, PARTS=count,
                                      TURNED=columns, ACTIVATION=activation, ELEMENTS=elements, num_warps=8,
                                      END=end, launch_pdl=True)
    return Launch(kernel, (grid,), ())
