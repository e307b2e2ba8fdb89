from __future__ import annotations

from collections.abc import Callable

import numpy as np

_WIDTHS = frozenset({1, 2, 4, 8, 16})


class Region:
    """The bytes [start, start + size) of every start, as rows of the shadow arrays."""

    __slots__ = ("width", "at")

    def __init__(self, starts: np.ndarray, size: int):
        if len(starts) == 1:
            first = int(starts[0])
            self.width = size if size in _WIDTHS and not first & (size - 1) else 1
            self.at: slice | np.ndarray = slice(first // self.width, (first + size) // self.width)
            return
        if size in _WIDTHS and not (starts & (size - 1)).any():
            self.width, rows = size, starts // size
        else:
            self.width, rows = 1, (starts[:, None] + np.arange(size)).reshape(-1)
        n, low = len(rows), int(rows.min())
        dense = int(rows.max()) - low + 1 == n
        if dense:
            ordered = rows if rows[0] == low and rows[-1] == low + n - 1 else np.sort(rows)
            dense = bool((ordered[1:] - ordered[:-1] == 1).all())
        self.at = slice(low, low + n) if dense else rows

    def get(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, self.width)[self.at]

    def put(self, array: np.ndarray, values: np.ndarray | int) -> None:
        array.reshape(-1, self.width)[self.at] = values

    def where(self, array: np.ndarray, number: int) -> tuple[int, int]:
        index = np.arange(len(array)).reshape(-1, self.width)[self.at]
        hits = index[self.get(array) == number]
        return int(hits.min()), int(hits.max()) + 1


def distinct(values: np.ndarray) -> list[int]:
    flat = values.reshape(-1)
    if len(flat) < 64:
        return sorted(set(flat.tolist()))
    changes = (flat[1:] != flat[:-1]).nonzero()[0]
    return sorted({*flat[changes].tolist(), int(flat[-1])})


class Shadow:
    """`sets` is shared by all shadows of a cluster: number -> accesses."""

    def __init__(self, size: int):
        size = -(-size // 16) * 16
        self.writer = np.zeros(size, np.int32)
        self.readers = np.zeros(size, np.int32)

    def write(self, region: Region, number: int) -> None:
        region.put(self.writer, number)
        region.put(self.readers, 0)

    def read(self, region: Region, extended: Callable[[int], int]) -> None:
        old = region.get(self.readers)
        numbers = distinct(old)
        if len(numbers) == 1:
            region.put(self.readers, extended(numbers[0]))
            return
        new = old.copy()
        for number in numbers:
            new[old == number] = extended(number)
        region.put(self.readers, new)


class ReaderSets:
    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def number(self, members: tuple[int, ...]) -> int:
        found = self._numbers.get(members)
        if found is None:
            found = self._numbers[members] = len(self.members)
            self.members.append(members)
        return found
