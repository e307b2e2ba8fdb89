"""What memory a kernel in the emulator may reach through addresses that it gets or reads from arrays."""
from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tilejit.runtime.arrays import ArrayInfo

#: arrays with more elements are taken for numbers
MOST = 1 << 16
#: bytes from an address on that count as its array's, if so many are mapped
REACH = 1 << 28


def pointed_at(infos: Iterable[ArrayInfo], numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first byte, one past the last) of memory that numbers, and 64-bit integers in these host arrays, point to; what
    are no addresses is skipped."""
    words = [np.array([n for n in numbers if 0 <= n < 1 << 64], np.uint64)]
    for info in infos:
        if info.dtype.is_int() and info.dtype.bits == 64 and 0 < np.prod(info.shape) <= MOST:
            low, high = info.span()
            if high - low <= 8 * MOST:
                words.append(np.frombuffer((ctypes.c_uint8 * (high - low)).from_address(low), np.uint64))
    found = np.unique(np.concatenate(words))
    found = found[found >= 1 << 16]
    mappings = np.array(_mappings() if len(found) else [], np.uint64).reshape(-1, 2)
    at = np.searchsorted(mappings[:, 0], found, "right")
    found, ends = found[at > 0], mappings[at[at > 0] - 1, 1]
    inside = found < ends
    known = _storages() if inside.any() else []
    return [next((s for s in known if s[0] <= w < s[1]), (w, min(end, w + REACH)))
            for w, end in zip(found[inside].tolist(), ends[inside].tolist())]


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
