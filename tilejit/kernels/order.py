"""The order in which programs take a product's tiles: what is computed at once shares its operands in L2."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def tile_at(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column, in tiles, of tile number `tile` of tiles_m x tiles_n: GROUP rows of tiles at a time, column by
    column (grouped ordering, as in Triton's tutorial of matrix multiplication)."""
    first = tile // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    rest = tile % (GROUP * tiles_n)
    return first + rest % height, rest // height
