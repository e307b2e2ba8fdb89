"""The sum of a product's parts: what ends a split-K product whose programs each stored their part of one tile."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels.activations import activate

#: Elements that a program sums, and of all parts together that its threads hold at once.
ELEMENTS, AT_ONCE = 512, 8192


@tilejit.kernel(do_not_specialize=("M", "N", "down", "across"))
def sum_parts_kernel(parts, out, bias, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
                     PARTS: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, ELEMENTS: tl.constexpr,
                     CHUNK: tl.constexpr):
    """out = act(sum of parts + bias) for ELEMENTS elements of one tile.

    parts: fp32, PARTS times [BM, BN] for every tile, tiles in the order of `streamk_kernel` (in groups of GROUP tile
    rows). out has strides down and across; with BIAS_ROWS bias has a value per row, else per column."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile = tl.program_id(0) // (BM * BN // ELEMENTS)
    at = tl.program_id(0) % (BM * BN // ELEMENTS) * ELEMENTS + tl.arange(0, ELEMENTS)
    first = tile // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    rest = tile % (GROUP * tiles_n)
    rows = (first + rest % height) * BM + at // BN
    cols = rest // height * BN + at % BN
    inside = (rows < M) & (cols < N)
    mine = parts + tile.to(tl.int64) * (PARTS * BM * BN)
    x = tl.zeros((ELEMENTS,), tl.float32)
    for start in tl.static_range(0, PARTS, CHUNK):
        part = start + tl.arange(0, CHUNK)[:, None]
        x += tl.sum(tl.load(mine + part * (BM * BN) + at[None, :], part < PARTS, other=0.0), 0)
    if bias is not None:
        x += tl.load(bias + (rows if BIAS_ROWS else cols), inside, other=0.0).to(tl.float32)
    x = activate(x, ACTIVATION, out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64) * down + cols.to(tl.int64) * across, x.to(out.dtype.element_ty), inside)


def sum_parts(parts: Any, out: Any, info: ArrayInfo, bias: Any, activation: str | None, tile: tuple[int, int],
              count: int, group: int, swapped: bool) -> None:
    """out [M, N] (as `info` says) from the `count` parts of each of its tiles, or swapped: from tiles of out^T.

    Sums are in a fixed order."""
    (m, n), (down, across) = info.shape, info.strides
    if swapped:
        (m, n), (down, across) = (n, m), (across, down)
    bm, bn = tile
    elements = min(ELEMENTS, bm * bn)
    grid = tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn) * (bm * bn // elements)
    chunk = min(AT_ONCE // elements, tilejit.next_power_of_2(count))
    sum_parts_kernel[(grid,)](parts, out, bias, m, n, down, across, BM=bm, BN=bn, GROUP=group, PARTS=count,
                              BIAS_ROWS=swapped, ACTIVATION=activation, ELEMENTS=elements, CHUNK=chunk, num_warps=4)
