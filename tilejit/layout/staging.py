"""How a distributed tile splits into staged pieces, and into the stripes of warpgroups."""
from __future__ import annotations

from functools import lru_cache

from tilejit.layout.linear import LinearLayout


@lru_cache(maxsize=1024)
def by_pieces(layout: LinearLayout, size: int, axis: int) -> tuple[tuple[int, list[int]], ...]:
    """A thread's pieces of `size` elements along an axis: (first element, registers)."""
    held: dict[int, list[int]] = {}
    for r, at in enumerate(layout.registers()):
        held.setdefault(at[axis] // size * size, []).append(r)
    return tuple(sorted(held.items()))


def stripes_of(layout: LinearLayout, dim: int, size: int, warps: int) -> int:
    """Into how many stripes the warpgroups divide a dimension of a matrix, one each, in order; 1 if they do not."""
    groups = warps // 4
    if groups < 2 or len(layout.shape) != 2 or size // groups < 8:
        return 1
    stripe = size // groups
    divide = all(b[dim] == stripe << i and not b[1 - dim] for i, b in enumerate(layout.bases_of("warp")[2:]))
    others = (*layout.bases_of("register"), *layout.bases_of("lane"), *layout.bases_of("warp")[:2])
    return groups if divide and all(b[dim] < stripe for b in others) else 1


@lru_cache(maxsize=1024)
def piece_layout(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    """The layout in the staging slot of one piece: without bits that select pieces or stripes."""
    def inside(b: tuple[int, ...]) -> bool:
        return all(x < n for x, n in zip(b, shape))

    return LinearLayout.from_bases({
        "register": tuple(b for b in layout.bases_of("register") if inside(b)), "lane": layout.bases_of("lane"),
        "warp": tuple(b if inside(b) else (0,) * len(b) for b in layout.bases_of("warp"))}, shape)


def splits_by_registers(layout: LinearLayout, size: int, axis: int) -> bool:
    return all(b[axis] < size for name in ("lane", "warp") for b in layout.bases_of(name)) and \
        all(b[axis] < size or sum(b) == b[axis] for b in layout.bases_of("register"))


def turned(layout: LinearLayout) -> bool:
    return accumulated(layout.transpose((1, 0))) if layout.rank == 2 else False


def accumulated(layout: LinearLayout) -> bool:
    return (layout.bases_of("register")[:3] == ((0, 1), (8, 0), (0, 8))
            and layout.bases_of("lane") == ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
            and all(b[1] == 0 for b in layout.bases_of("warp")))
