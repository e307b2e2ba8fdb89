"""What the host functions share: outputs like their inputs, rows of matrices, and block sizes."""
from __future__ import annotations

from typing import Any

import tilejit

#: The widest row that one tile holds without spilling; longer rows are walked in blocks of `STREAM_BLOCK`.
MAX_ROW = 16384
#: The same where rows end elsewhere than at multiples of 16 elements: every element then has an address of its own.
MAX_UNEVEN_ROW = 8192
STREAM_BLOCK = 8192


def rows(x: Any, what: str) -> tuple[int, int, int]:
    """(rows, columns, row stride) of a matrix with unit column stride."""
    info = tilejit.array_info(x)
    if len(info.shape) != 2 or info.strides[1] != 1 and info.shape[1] > 1:
        raise tilejit.LaunchError(f"{what}: expected a matrix with contiguous rows, found shape {info.shape} and "
                                  f"strides {info.strides}: reshape it, or call .contiguous()")
    return info.shape[0], info.shape[1], info.strides[0]


def row_launch(columns: int, uneven: int = MAX_UNEVEN_ROW) -> tuple[int, int, bool]:
    """(block, num_warps, one tile holds a row) for a kernel with one program per row; `uneven`: the widest row of which
    a tile holds all if its length is no multiple of 16."""
    if columns > (uneven if columns % 16 else MAX_ROW):
        return STREAM_BLOCK, 8, False
    block = max(16, tilejit.next_power_of_2(columns))
    return block, 4 if block <= 2048 else 8 if block <= 8192 else 16, True
