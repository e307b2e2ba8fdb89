"""What ends a product in a launch of its own: the sum of its parts, or what follows sums in memory."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import activate, ended
from tilejit.kernels.product.epilogues import block_at, fold_rows, plus_block, scaled_biased, store_block
from tilejit.kernels.product.walks import tile_at

#: Parts whose numbers are on their way at once (ptxas moves the loads up, if there are registers).
_UNROLLED = tl.constexpr(32)


@tilejit.kernel(do_not_specialize=("M",))
def sum_parts_kernel(parts, out, end, M, N, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
                     PARTS: tl.constexpr, COLUMNS: tl.constexpr, ELEMENTS: tl.constexpr, WAYS: tl.constexpr):
    """out = `ended` of the sum of PARTS parts, ELEMENTS elements of a tile."""
    KIND: tl.constexpr = out.dtype.element_ty
    shares: tl.constexpr = BM * BN // ELEMENTS
    tile = tl.program_id(0) // shares
    row, column = tile_at(tile, tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    share = tl.program_id(0) % shares
    which = tl.arange(0, WAYS)[:, None]
    if COLUMNS:
        high: tl.constexpr = ELEMENTS // COLUMNS
        which = which[:, :, None]
        r = share // (BN // COLUMNS) * high + tl.arange(0, high)[:, None]
        c = share % (BN // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        at = r * BN + c
        x = tl.zeros((WAYS, high, COLUMNS), tl.float32)
    else:
        at = share * ELEMENTS + tl.arange(0, ELEMENTS)
        r = at // BN
        c = at % BN
        x = tl.zeros((WAYS, ELEMENTS), tl.float32)
    rows = row * BM + r
    cols = column * BN + c
    mine = parts + tile.to(tl.int64) * (PARTS * BM * BN) + (which * (BM * BN) + at[None])
    step: tl.constexpr = WAYS * BM * BN
    count: tl.constexpr = PARTS // WAYS
    for several in tl.range(0, count // _UNROLLED, num_stages=1):
        for i in tl.static_range(_UNROLLED):
            x += tl.load(mine + (several * _UNROLLED + i) * step)
    for i in tl.static_range(count // _UNROLLED * _UNROLLED, count):
        x += tl.load(mine + i * step)
    if PARTS % WAYS:
        x += tl.load(mine + count * step, which < PARTS % WAYS, other=0.0)
    x = tl.sum(x, 0)
    x = ended(x, cols, rows, N, M, end, KIND) if COLUMNS else ended(x, rows, cols, M, N, end, KIND)
    inside = (rows < M) & (cols < N)
    tl.store(out + rows.to(tl.int64) * down + cols.to(tl.int64) * across, x.to(KIND), inside)


@tilejit.kernel(do_not_specialize=("M",))
def end_kernel(sums, e, M, sums_stride, out_stride, z_stride, z_apart, BM: tl.constexpr, BN: tl.constexpr):
    """What `epilogues.fused` or `gated` do with a product's sums, for those in memory."""
    tiles_n = tl.cdiv(e.N, BN)
    m = tl.program_id(0) // tiles_n * BM
    n = tl.program_id(0) % tiles_n * BN
    at, inside = block_at(sums, m, n, M, e.N, sums_stride, BM, BN)
    y = scaled_biased(tl.load(at, inside, other=0.0), e, False, m, n, M, BM, BN)
    if e.z is not None:
        store_block(y, e.z, m, n, M, e.N, z_stride, BM, BN)
    y = activate(y, e.ACTIVATION, e.out.dtype.element_ty)
    if e.SIDE:
        second = scaled_biased(tl.load(at + e.N, inside, other=0.0), e, True, m, n, M, BM, BN)
        if e.z is not None:
            store_block(second, e.z + z_apart, m, n, M, e.N, z_stride, BM, BN)
        y *= second
    if e.residual is not None:
        y = plus_block(y, e.residual, m, n, M, e.N, e.stride, BM, BN)
    fold_rows(y, e, m, n, M, BM, BN)
    store_block(y, e.out, m, n, M, e.N, out_stride, BM, BN)
