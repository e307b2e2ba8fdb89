"""Random layouts for the property tests: every element is held somewhere, some are held often."""
import numpy as np
from hypothesis import strategies as st

from tilejit.layout.linear import LinearLayout


@st.composite
def distributed(draw, shape=None, lanes=5, warps=None):
    """A surjective layout with coordinate bits dealt to registers, lanes and warps in any order.

    Some bases are xored with others (as swizzles are), and spare lane and warp bits hold copies."""
    if shape is None:
        shape = tuple(1 << b for b in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    rank = len(shape)
    bits = [tuple(1 << i if k == d else 0 for k in range(rank))
            for d, s in enumerate(shape) for i in range(s.bit_length() - 1)]
    bits = draw(st.permutations(bits))
    for _ in range(draw(st.integers(0, 2)) if len(bits) > 1 else 0):
        i, j = draw(st.permutations(range(len(bits))))[:2]
        bits[i] = tuple(a ^ b for a, b in zip(bits[i], bits[j]))
    warps = draw(st.integers(0, 3)) if warps is None else warps
    homes = [draw(st.sampled_from(["register", "lane", "warp"])) for _ in bits]
    rows = {"register": [], "lane": [], "warp": []}
    for bit, home in zip(bits, homes):
        full = {"lane": lanes, "warp": warps}.get(home, 99)
        rows["register" if len(rows[home]) >= full else home].append(bit)
    for name, n in (("lane", lanes), ("warp", warps)):
        while len(rows[name]) < n:
            copies = draw(st.sampled_from([(0,) * rank, *bits[:1]]))
            rows[name].insert(draw(st.integers(0, len(rows[name]))), copies)
    return LinearLayout.from_bases(rows, shape)


def values_at(layout, tile):
    """What each place holds of a tile: [warps, lanes, registers]."""
    return tile[tuple(np.moveaxis(layout.table(), -1, 0))]
