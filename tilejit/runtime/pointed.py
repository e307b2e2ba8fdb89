"""What memory a kernel in the emulator may reach through addresses that it gets or reads from arrays."""
from __future__ import annotations

import ctypes
import gc
import sys
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
    """(first byte, one past the last) of memory that 64-bit integers in these host arrays point to."""
    words: set[int] = set()
    for info in infos:
        if info.dtype.is_int() and info.dtype.bits == 64 and 0 < np.prod(info.shape) <= MOST:
            low, high = info.span()
            if high - low <= 8 * MOST:
                words |= set(np.frombuffer((ctypes.c_uint8 * (high - low)).from_address(low), np.uint64).tolist())
    return around(words)


def around(addresses: Iterable[int]) -> list[tuple[int, int]]:
    """The memory that addresses lie in, as `pointed_at`; other numbers are skipped."""
    words = sorted(w for w in addresses if w >= 1 << 16)
    mappings = _mappings() if words else []
    ends = {}
    for w in words:
        at = bisect_right(mappings, w, key=lambda m: m[0]) - 1
        if at >= 0 and w < mappings[at][1]:
            ends[w] = min(mappings[at][1], w + REACH)
    known = _storages() if ends else []
    return [next((s for s in known if s[0] <= w < s[1]), (w, end)) for w, end in ends.items()]


def _storages() -> list[tuple[int, int]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    # What refers to the classes, not all objects: other threads fill tuples that must have no second owner.
    tensors = [x for kind in (torch.Tensor, torch.nn.Parameter) for x in gc.get_referrers(kind)
               if type(x) is kind and x.device.type == "cpu" and x.layout is torch.strided]
    storages = [x.untyped_storage() for x in tensors]
    return sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages if s.nbytes()})


def _mappings() -> list[tuple[int, int]]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split(maxsplit=2) for line in lines]
    spans = [tuple(int(x, 16) for x in row[0].split("-")) for row in rows if row[1].startswith("rw")]
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and found[-1][1] == low:  # one mapping, split by madvise; arrays lie across
            low = found.pop()[0]
        found.append((low, high))
    return found
