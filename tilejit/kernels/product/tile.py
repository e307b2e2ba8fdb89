"""What the functions of a product's kernel see: the product, and the place of a tile in it."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit


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
    """A tile, or a part of K of one: its first row and column, and its blocks of K, every `by`th from first to last.

    slot: its place among tiles of parts. batch: of stacks, the matrix. start, count: of a group, its first row in all
    rows, and its rows."""

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
    """The sums of a tile, and what becomes of them."""
    p.END(p, at, p.STEP(p, at))
