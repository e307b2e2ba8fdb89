"""Split-K: every program multiplies one part of K for one tile, and stores it; the parts of a tile are summed after.

Who sums: a second launch (`parts.py`), or the programs themselves: each counts itself on its tile, waits until all
parts of the tile are there, and sums its own share of the elements of all parts. Both sum in a fixed order.
The count needs no clearing: all programs of a tile add 2**31 together, so that whoever waits sees the top bit change.
All programs must be resident (at most one per multiprocessor).
"""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.parts import LEAST, as_held, end_tile, tile_origin


@tilejit.kernel(do_not_specialize=("M", "K"))
def split_kernel(a_desc, b_desc, part_desc, parts, turns, out, bias, M, N, K, down, across, BM: tl.constexpr,
                 BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
                 PARTS: tl.constexpr, WOVEN: tl.constexpr, EVICT: tl.constexpr, ELEMENTS: tl.constexpr,
                 CHUNK: tl.constexpr, BIAS_ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    """Part number program_id of `parts`: the product of A [M, K] and B [K, N] over one of PARTS parts of K.

    A_ROWS, B_ROWS: the descriptor sees the matrix itself, else its transpose. parts: fp32, PARTS times [BM, BN] for
    every tile; part_desc sees them in blocks; None: threads store what they hold (`as_held`). WOVEN: a part has every
    PARTS'th block of K, so that what all programs read at a time is close together; else successive ones. EVICT:
    of the operands in L2 ("evict_first" leaves room for parts, so that they are not written to memory). ELEMENTS: 0, or
    how many the programs sum at once, CHUNK parts of them; then out = act(sum of parts + bias), as of
    `sum_parts_kernel`, and turns int32 [tiles] counts (turns, out and bias: else None)."""
    pid = tl.program_id(0)
    tile = pid // PARTS
    number = pid % PARTS
    m, n = tile_origin(tile, M, N, BM, BN, GROUP)
    steps = tl.cdiv(K, BK)
    if WOVEN:
        first, last, step = number, steps, PARTS
    else:
        first, last, step = number * steps // PARTS, (number + 1) * steps // PARTS, 1
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(first, last, step):
        if A_ROWS:
            a = a_desc.load([m, k * BK], EVICT)
        else:
            a = a_desc.load([k * BK, m], EVICT).T
        if B_ROWS:
            b = b_desc.load([k * BK, n], EVICT)
        else:
            b = b_desc.load([n, k * BK], EVICT).T
        acc = tl.dot(a, b, acc)
    if part_desc is None:
        at = pid.to(tl.int64) * (BM * BN) + tl.arange(0, BM * BN)
        tl.store(parts + at, as_held(acc, BM, BN))
    else:
        part_desc.store([pid * BM, 0], acc)
    if ELEMENTS > 0:
        turn = tl.atomic_add(turns + tile, tl.where(number == 0, 2147483649 - PARTS, 1), sem="release")
        done = tl.where(turn < 0, 0, -2147483648)
        while tl.atomic_cas(turns + tile, done, done, sem="acquire") != done:
            pass
        for i in tl.static_range(0, tl.cdiv(BM * BN // ELEMENTS, PARTS)):
            share = i * PARTS + number
            if share < BM * BN // ELEMENTS:
                end_tile(parts, out, bias, tile, share, M, N, down, across, BM, BN, GROUP, PARTS, part_desc is None,
                         BIAS_ROWS, ACTIVATION, ELEMENTS, CHUNK)


def shares(m: int, n: int, parts: int, threads: int) -> tuple[int, int]:
    """How programs of so many threads sum a tile of m x n: how many elements at once, and of how many parts."""
    held = 64 * threads
    at_once = min(max(m * n >> parts.bit_length() - 1, LEAST), held // 4, 16 * n)
    return at_once, min(tilejit.next_power_of_2(parts), held // at_once)
