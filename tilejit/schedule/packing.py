"""Packs areas into one address range: two that clash never share a byte, any others may."""
from __future__ import annotations

from collections.abc import Sequence, Set

from tilejit.records import dataclass


@dataclass(frozen=True)
class Item:
    """An area to place: `size` bytes, at a multiple of `align`, first used at position `start`."""

    size: int
    align: int = 128
    start: int = 0


@dataclass(frozen=True)
class Packing:
    """The first byte of every item, in the order in which they were given, and the end of the last byte."""

    offsets: tuple[int, ...]
    total: int


def pack(items: Sequence[Item], clashes: Sequence[Set[int]]) -> Packing:
    """Offsets such that item i shares no byte with those in clashes[i]; the smallest total that was found."""
    places = range(len(items))
    orders = [sorted(places, key=lambda i: (-items[i].size, i)),
              sorted(places, key=lambda i: (-items[i].align, -items[i].size, i)),
              sorted(places, key=lambda i: (items[i].start, -items[i].size, i)), places]
    return min((_greedy(items, order, clashes) for order in dict.fromkeys(map(tuple, orders))), key=lambda p: p.total)


def _greedy(items: Sequence[Item], order: Sequence[int], clashes: Sequence[Set[int]]) -> Packing:
    offsets = [0] * len(items)
    placed: list[int] = []
    for i in order:
        taken = sorted((offsets[j], offsets[j] + items[j].size) for j in placed if j in clashes[i])
        at = 0
        for start, end in taken:
            if at + items[i].size <= start:
                break
            at = max(at, -(-end // items[i].align) * items[i].align)
        offsets[i] = at
        placed.append(i)
    return Packing(tuple(offsets), max((o + x.size for o, x in zip(offsets, items)), default=0))


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
