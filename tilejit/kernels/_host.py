"""How kernels of rows are launched: rows and columns of a program, warps, CTAs."""
from __future__ import annotations

from functools import lru_cache

import tilejit
from tilejit.records import dataclass

#: Widest row of a kernel that does not say more, widest row at all, bytes of rows that a program (or its cluster)
#: keeps.
MAX_ROW, WIDEST, MOST_BYTES = 32768, 1 << 20, 2 << 20
#: What of a row's last strip may be empty, as a share of the row, before fewer warps make strips shorter.
STRIP_REST = 0.15
#: Elements of a thread at least where rows begin anywhere: so many are copied as whole lines.
UNEVEN = 32
STREAM_BLOCK = 8192
#: Elements of a program at least: less than 4 KB are bound by how fast programs start.
LEAST = 2048


@dataclass(frozen=True)
class RowLaunch:
    """Grid, rows a program, options of the launch, and whether a tile has whole rows."""

    grid: tuple[int]
    rows: int
    options: dict[str, int]
    whole: bool


@lru_cache(maxsize=1024)
def row_launch(n: int, columns: int, widest: int = MAX_ROW, several: bool = True, size: int = 2,
               together: int = 1, share: int = 1) -> RowLaunch:
    """For n rows of so many columns. several: a program may have several rows; `size`: bytes of an element of all
    rows; together: CTAs that go over a row block by block, at most; share: see `share`."""
    block = max(16, tilejit.next_power_of_2(columns))
    if columns > widest or block * size > MOST_BYTES:
        options = {"BLOCK": STREAM_BLOCK * together // share, "num_warps": 8, "num_ctas": together}
        return RowLaunch((n,), 1, options, False)
    least = LEAST // share
    many = min(least // block, tilejit.next_power_of_2(max(1, n))) if several and block < least else 1
    warps = 4 if block <= 4096 else 8 if block <= 16384 else 16
    if columns % 16 and block >= 32 * UNEVEN:
        many, warps = 1, min(warps, block // (32 * UNEVEN))
    while warps > 4 and -columns % (32 * 8 * warps) > STRIP_REST * columns:
        warps //= 2
    return RowLaunch((tilejit.cdiv(n, many),), many, {"BLOCK": block, "num_warps": warps}, True)
