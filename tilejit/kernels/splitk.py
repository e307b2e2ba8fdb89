"""Split-K: every program multiplies one part of K for one tile, and stores it; `parts.py` sums the parts of a tile."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.order import tile_at

#: Pieces of 32 columns of a part that wait to be stored (the option `store_stages`): as many as the widest tile has.
STORE_STAGES = 8


@tilejit.kernel(do_not_specialize=("M", "N", "K"))
def split_kernel(a_desc, b_desc, part_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, PARTS: tl.constexpr):
    """One tile of part_desc: the product of A [M, K] and B [K, N] over one of PARTS parts of K.

    A_ROWS, B_ROWS: the descriptor sees the matrix itself, else its transpose. part_desc: fp32, PARTS times [BM, BN]
    for every tile, one below the other. Programs side by side have the same part, so that who reads the same starts at
    the same time (on an H200 5% faster at 512x512x65536, 1 to 15% elsewhere, than parts of a tile side by side). A part
    has every PARTS'th block of K, so that what all programs read at a time is close together. Operands leave L2 first:
    they are read once or twice, and parts that stay need not go to memory (1% there, 8% at 256x256x131072)."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    part = tl.program_id(0) // (tiles_m * tiles_n)
    row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
    m, n = row * BM, column * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(part, tl.cdiv(K, BK), PARTS):
        if A_ROWS:
            a = a_desc.load([m, k * BK], "evict_first")
        else:
            a = a_desc.load([k * BK, m], "evict_first").T
        if B_ROWS:
            b = b_desc.load([k * BK, n], "evict_first")
        else:
            b = b_desc.load([n, k * BK], "evict_first").T
        acc = tl.dot(a, b, acc)
    part_desc.store([(tile * PARTS + part) * BM, 0], acc)
