"""The order in which programs take tiles."""
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.kernels.product.walks import tile_at


@tilejit.kernel
def places(out, tiles_m, tiles_n, GROUP: tl.constexpr):
    for tile in range(0, tiles_m * tiles_n):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        tl.store(out + 2 * tile, row)
        tl.store(out + 2 * tile + 1, column)


def order(tiles_m, tiles_n, group):
    """(row, column) of every tile, in order."""
    out = np.full((tiles_m * tiles_n, 2), -1, np.int32)
    with tilejit.knobs(target="evaluator"):
        places[(1,)](out, tiles_m, tiles_n, GROUP=group)
    return [tuple(x) for x in out.tolist()]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 13), st.integers(1, 4), st.sampled_from([1, 4, 8]))
def test_every_tile_once(tiles_m, tiles_n, group):
    found = order(tiles_m, tiles_n, group)
    assert sorted(found) == [(i, j) for i in range(tiles_m) for j in range(tiles_n)]


def test_groups_are_of_equal_height():
    """Nine rows are one group and not eight and one; twelve are two of six; columns go first within a group."""
    assert [row for row, column in order(9, 2, 8) if column == 0] == list(range(9)) and order(9, 2, 8)[9] == (0, 1)
    twelve = order(12, 3, 8)
    assert {row for row, _ in twelve[:18]} == set(range(6)) and twelve[6] == (0, 1)
