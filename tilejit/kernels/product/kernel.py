"""One kernel for all matrix products. Four functions say what is particular, each with a tuple of its own."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
import tilejit.language as tl


class Product(NamedTuple):
    """The arguments of `product_kernel` but for the walk's."""

    a: Any
    b: Any
    step: Any
    end: Any
    M: Any
    N: Any
    K: Any
    BM: Any
    BN: Any
    BK: Any
    SWAP: Any
    LOAD_A: Any
    LOAD_B: Any
    STEP: Any
    END: Any


class Place(NamedTuple):
    """First row and column of a tile, or a part of K, its blocks of K, every `by`th from first to last; slot: among
    tiles of parts; batch: of stacks; start, count: a group's rows."""

    m: Any
    n: Any
    first: Any
    last: Any
    by: Any = 1
    slot: Any = 0
    batch: Any = 0
    start: Any = 0
    count: Any = None


@tilejit.kernel
def compute(p, at):
    p.END(p, at, p.STEP(p, at))


@tilejit.kernel(do_not_specialize=("walk", "step", "M", "N", "K"))
def product_kernel(walk, a, b, step, end, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   SWAP: tl.constexpr, WALK: tl.constexpr, LOAD_A: tl.constexpr, LOAD_B: tl.constexpr,
                   STEP: tl.constexpr, END: tl.constexpr):
    """A [M, K] times B [K, N], tile [BM, BN] by tile, in blocks of BK of K. SWAP: they are those of a result's
    transpose, C^T = B^T A^T."""
    WALK(Product(a, b, step, end, M, N, K, BM, BN, BK, SWAP, LOAD_A, LOAD_B, STEP, END), walk)
