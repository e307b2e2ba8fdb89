"""The layout of products by multiply-adds: every thread has a block of rows and columns."""
from __future__ import annotations

from tilejit.layout.linear import Basis, LinearLayout


def fma_accumulator(shape: tuple[int, ...], num_warps: int) -> LinearLayout:
    """The accumulator [.., M, N]."""
    rank = len(shape)
    rest = {d: [tuple(1 << i if k == d else 0 for k in range(rank)) for i in range(shape[d].bit_length() - 1)]
            for d in range(rank)}
    m, n = rank - 2, rank - 1
    batch = [b for d in reversed(range(rank - 2)) for b in rest[d]]

    def take(*order: tuple[int, int]) -> list[Basis]:
        out: list[Basis] = []
        for d, count in order:
            out += rest[d][:count]
            del rest[d][:count]
        return out

    bits = num_warps.bit_length() - 1
    apart = batch[:bits]
    own = max(0, len(rest[m]) + len(rest[n]) - 5 - (bits - len(apart)))  # bits of registers for one product
    columns = min(2, len(rest[n]), (own + 1) // 2)
    registers = take((n, columns), (m, min(2, own - columns)))
    lanes = take((n, 3), (m, 2))
    lanes += take((m, 5 - len(lanes)))
    lanes += take((n, 5 - len(lanes)))
    warps = take((m, (bits - len(apart) + 1) // 2), (n, (bits - len(apart)) // 2))
    warps += take((m, bits - len(apart) - len(warps)))
    warps += take((n, bits - len(apart) - len(warps)))
    zero = (0,) * rank
    return LinearLayout.from_bases({
        "register": [*registers, *take((n, 32), (m, 32)), *batch[bits:]],
        "lane": lanes + [zero] * (5 - len(lanes)),
        "warp": [*warps, *apart] + [zero] * (bits - len(warps) - len(apart))}, shape)
