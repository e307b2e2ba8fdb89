"""One kernel for all matrix products. Four functions say what is particular, each with a tuple of its own.

    WALK(p, walk)                    computes (`tile.compute`) every tile, or part of K of one, that a program has
    LOAD_A, LOAD_B(args, at, ...)    a block of an operand's rows, for the tile at a place
    STEP(p, at)                      the sums of a tile's blocks of K
    END(p, at, sums)                 what becomes of them

`walks.py`, `loads.py`, `steps.py` and `ends.py` have them, and say what each one's tuple holds: arrays, descriptors,
numbers and constants.
"""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.product.tile import Product


@tilejit.kernel(do_not_specialize=("walk", "step", "M", "N", "K"))
def product_kernel(walk, a, b, step, end, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   SWAP: tl.constexpr, WALK: tl.constexpr, LOAD_A: tl.constexpr, LOAD_B: tl.constexpr,
                   STEP: tl.constexpr, END: tl.constexpr):
    """Products of A [M, K] and B [K, N], tile [BM, BN] by tile, in blocks of BK of K. SWAP: they are those of a
    result's transpose, C^T = B^T A^T."""
    WALK(Product(a, b, step, end, M, N, K, BM, BN, BK, SWAP, LOAD_A, LOAD_B, STEP, END), walk)
