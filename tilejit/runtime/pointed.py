"""Arrays of addresses, for the emulator: what memory a kernel may reach through pointers that it reads from arrays."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tilejit.runtime.arrays import ArrayInfo

#: arrays with more elements are taken for numbers
MOST = 1 << 16
#: bytes from an address on that count as its array's, if so many are mapped
REACH = 1 << 28


def pointed_at(infos: Iterable[ArrayInfo]) -> list[tuple[int, int]]:
    """(first byte, one past the last) of memory that 64-bit integers in these host arrays point to.

    Where an array ends is not known: a span reaches to the end of the mapping that the address lies in, REACH bytes at
    most. Nothing is found where the system does not list its mappings (Linux does)."""
    words: set[int] = set()
    for info in infos:
        if info.dtype.is_int and info.dtype.bits == 64 and 0 < np.prod(info.shape) <= MOST:
            low, high = info.span()
            words |= set(np.frombuffer(_view(low, high), np.uint64).tolist()) if high - low <= 8 * MOST else set()
    words = {w for w in words if w >= 1 << 16}
    if not words:
        return []
    mappings = _mappings()
    starts = [low for low, _ in mappings]
    found = []
    for w in sorted(words):
        at = bisect_right(starts, w) - 1
        if at >= 0 and w < mappings[at][1]:
            found.append((w, min(mappings[at][1], w + REACH)))
    return found


def _mappings() -> list[tuple[int, int]]:
    """The process's memory that can be read and written, sorted."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    rows = (line.split(maxsplit=2) for line in lines)
    spans = [tuple(int(x, 16) for x in row[0].split("-")) for row in rows if row[1].startswith("rw")]
    return sorted((low, high) for low, high in spans)


def _view(low: int, high: int) -> memoryview:
    import ctypes

    return memoryview((ctypes.c_uint8 * (high - low)).from_address(low))
