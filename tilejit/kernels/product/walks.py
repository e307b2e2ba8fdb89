"""WALK: the tiles that a program has, in turn. walk(p, args) computes each at its place."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.product.kernel import Place, compute


@tilejit.kernel
def tile_at(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of number `tile`: GROUP rows of tiles at a time, column by column, so that operands stay in L2."""
    groups = tl.maximum((tiles_m + GROUP // 2) // GROUP, 1)
    rows = tl.cdiv(tiles_m, groups)
    first = tile // (rows * tiles_n) * rows
    height = tl.minimum(tiles_m - first, rows)
    rest = tile % (rows * tiles_n)
    return first + rest % height, rest // height


@tilejit.kernel
def group_at(e, sizes, CAPACITY):
    """First row of group e, and how many it has, of `sizes` as for `groups`."""
    if CAPACITY is None:
        start = tl.load(sizes + e)
        rows = tl.load(sizes + e + 1) - start
    else:
        start = e * CAPACITY
        rows = tl.load(sizes + e)
    return start, rows


@tilejit.kernel
def whole(p, args):
    """Or those of matrix after matrix. args: GROUP (of `tile_at`); sizes as for `groups`, whose rows are K of each
    matrix, or None; how many matrices there are, or None; CAPACITY."""
    GROUP, sizes, batches, CAPACITY = args
    tiles_m = tl.cdiv(p.M, p.BM)
    tiles_n = tl.cdiv(p.N, p.BN)
    for t in tl.range(tl.program_id(0), tiles_m * tiles_n if batches is None else batches * tiles_m * tiles_n,
                      tl.num_programs(0)):
        batch = 0 if batches is None else t // (tiles_m * tiles_n)
        start, rows = (0, None) if sizes is None else group_at(batch, sizes, CAPACITY)
        row, column = tile_at(t if batches is None else t % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        compute(p, Place(row * p.BM, column * p.BN, 0, tl.cdiv(p.K if sizes is None else rows, p.BK), batch=batch,
                         start=start, count=rows))


@tilejit.kernel
def parts(p, args):
    """One part of K of one tile, of as many as there are programs."""
    PARTS, GROUP, BESIDE = args
    tiles_m = tl.cdiv(p.M, p.BM)
    tiles_n = tl.cdiv(p.N, p.BN)
    tiles = tiles_m * tiles_n
    tile = tl.program_id(0) // PARTS if BESIDE else tl.program_id(0) % tiles
    part = tl.program_id(0) % PARTS if BESIDE else tl.program_id(0) // tiles
    row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
    compute(p, Place(row * p.BM, column * p.BN, part, tl.cdiv(p.K, p.BK), PARTS, slot=tile * PARTS + part))


@tilejit.kernel
def stream(p, args):
    """Stream-K (arXiv 2301.03598) (docs/modules.md)."""
    STREAM, GROUP = args
    tiles_m = tl.cdiv(p.M, p.BM)
    tiles_n = tl.cdiv(p.N, p.BN)
    steps = tl.cdiv(p.K, p.BK)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    blocks = STREAM * steps
    share = blocks // programs
    extra = blocks % programs
    begin = pid * share + tl.minimum(pid, extra)
    end = begin + share + tl.where(pid < extra, 1, 0)
    last = (end - 1) // steps
    pieces = tl.where(end > begin, last - begin // steps + 1, 0)
    rest = tl.cdiv(tl.maximum(tiles_m * tiles_n - STREAM - pid, 0), programs)
    for i in tl.range(0, pieces + rest):
        tile = tl.where(i < pieces, last - i, STREAM + (i - pieces) * programs + pid)
        k0 = tl.where(i < pieces, tl.maximum(begin - tile * steps, 0), 0)
        k1 = tl.where(i < pieces, tl.minimum(end - tile * steps, steps), steps)
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        compute(p, Place(row * p.BM, column * p.BN, k0, k1, slot=tile))


@tilejit.kernel
def groups(p, args):
    """Tiles of groups of rows, or columns, of unequal sizes, read on the way (docs/modules.md)."""
    sizes, count, CAPACITY = args
    BR: tl.constexpr = p.BN if p.SWAP else p.BM
    BC: tl.constexpr = p.BM if p.SWAP else p.BN
    across = tl.cdiv(p.M if p.SWAP else p.N, BC)
    programs = tl.num_programs(0)
    tile = tl.program_id(0)  # the next one of this program, counted from the group's first
    for e in range(0, count):
        start, rows = group_at(e, sizes, CAPACITY)
        down = tl.cdiv(rows, BR)
        tiles = down * across
        for t in tl.range(tile, tiles, programs):
            r = t % down * BR
            c = t // down * BC
            compute(p, Place(c if p.SWAP else r, r if p.SWAP else c, 0, tl.cdiv(p.K, p.BK), batch=e, start=start,
                             count=rows))
        tile += tl.cdiv(tl.maximum(tiles - tile, 0), programs) * programs - tiles
