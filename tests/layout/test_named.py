"""Named layouts against the formulas of the PTX ISA, exhaustively."""
import numpy as np
import pytest

from tilejit.layout.named import blocked, default_blocked, shared, wgmma_a_operand, wgmma_accumulator


def test_blocked_is_coalesced():
    layout = blocked((8, 128), 4, 4)
    table = layout.table()
    assert table[0, 0, :4].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert table[0, 1, 0].tolist() == [0, 4] and table[0, 31, 3].tolist() == [0, 127]
    assert table[1, 0, 0].tolist() == [1, 0] and table[0, 0, 4].tolist() == [4, 0]
    assert layout.is_injective() and layout.num_registers == 8


def test_blocked_orders_and_limits():
    layout = blocked((16, 64), 2, 8, order=(0, 1))
    assert layout.contiguous_registers(0) == 8 and layout.apply(lane=1) == (8, 0)
    assert blocked((4,), 4, 16).contiguous_registers() == 4, "a vector ends where the tile ends"


@pytest.mark.parametrize("shape", [(), (1,), (2,), (16, 2), (1, 64)])
def test_a_small_tile_is_copied(shape):
    layout = default_blocked(shape, 8)
    assert layout.is_surjective() and layout.in_size("lane") == 32 and layout.in_size("warp") == 8
    n = int(np.prod(shape, dtype=int))
    copies = 1 << (len(layout.zero_bits("lane")) + len(layout.zero_bits("warp")))
    assert copies * n == 256 and layout.num_registers == 1


@pytest.mark.parametrize("n, warps", [(8, 4), (64, 4), (256, 4), (128, 8)])
def test_accumulator_fragment(n, warps):
    """row = 16w + l/4 + 8*((i>>1)&1), col = 8*(i>>2) + 2*(l%4) + (i&1); warpgroups along M."""
    layout = wgmma_accumulator((16 * warps, n), warps)
    assert layout.is_injective() and layout.num_registers == n // 2
    w, lane, i = np.ogrid[:warps, :32, :n // 2]
    row = 16 * w + lane // 4 + 8 * (i >> 1 & 1)
    col = 8 * (i >> 2) + 2 * (lane % 4) + (i & 1) + 0 * w
    np.testing.assert_array_equal(layout.table(), np.stack(np.broadcast_arrays(row, col), -1))


def test_accumulator_over_more_warpgroups_and_slices():
    tall = wgmma_accumulator((256, 64), 8)
    assert tall.bases_of("warp") == ((16, 0), (32, 0), (128, 0)) and tall.bases_of("register")[-1] == (64, 0)
    wide = wgmma_accumulator((64, 256), 8)
    assert wide.bases_of("warp")[2] == (0, 128) and wide.num_registers == 64
    both = wgmma_accumulator((128, 64), 16)
    assert both.bases_of("warp")[2:] == ((64, 0), (0, 32)) and both.is_injective()


@pytest.mark.parametrize("m", [192, 384])
def test_accumulator_of_three_warpgroups(m):
    """A third of the rows each, adjacent ones; slices of 64 of them by registers."""
    layout = wgmma_accumulator((m, 48), 12)
    w, lane, i = np.ogrid[:12, :32, :m // 8]
    table = layout.table()
    assert (table[..., 0] // (m // 3) == w // 4).all(), "warpgroups own adjacent rows"
    assert (table[..., 0] % 64 == 16 * (w % 4) + lane // 4 + 8 * (i >> 1 & 1)).all()
    assert layout.bases_of("warp")[2:] == ((m // 3, 0), (2 * m // 3, 0))


def test_four_of_twelve_warps_hold_copies():
    layout = blocked((64, 128), 12)
    assert layout.zero_bits("warp") == (3,) and layout.is_surjective() and layout.num_registers == 32
    clusters = blocked((64, 128), 24, last=((0, 64),))
    assert clusters.bases_of("warp")[3:] == ((0, 0), (0, 64))


@pytest.mark.parametrize("shape, warps, why", [
    ((64, 96), 8, "needs 128 rows, 64 for each"), ((128, 320), 8, "at most 256 columns: 320"), ((32, 64), 4, "does not divide"),
    ((128, 64), 12, "three warpgroups take 192 rows"), ((192, 64), 8, "each warpgroup needs 64 rows"),
    ((384, 64), 24, "found 24 warps"), ((64, 8), 8, "does not divide"), ((64, 64), 2, "warpgroups of 4")])
def test_accumulators_that_do_not_exist(shape, warps, why):
    with pytest.raises(ValueError, match=why):
        wgmma_accumulator(shape, warps)


@pytest.mark.parametrize("elem_bytes, k_step, place", [
    (2, 16, lambda t, e: (t // 4 + 8 * (e >> 1 & 1), 2 * (t % 4) + (e & 1) + 8 * (e >> 2))),
    (1, 32, lambda t, e: (t // 4 + 8 * (e >> 2 & 1), 4 * (t % 4) + (e & 3) + 16 * (e >> 3))),
    (4, 8, lambda t, e: (t // 4 + 8 * (e & 1), t % 4 + 4 * (e >> 1))),
])
def test_a_operand_fragment(elem_bytes, k_step, place):
    layout = wgmma_a_operand((64, 2 * k_step), 4, elem_bytes)
    each = k_step // 4 * 2
    assert layout.is_injective() and layout.num_registers == 2 * each
    for w, lane, e in np.ndindex(4, 32, 2 * each):
        row, k = place(lane, e % each)
        assert layout.apply(warp=w, lane=lane, register=e) == (16 * w + row, k + e // each * k_step)


def test_a_product_feeds_the_next_product():
    for shape, warps in (((64, 128), 4), ((128, 64), 8), ((256, 32), 8)):
        assert wgmma_a_operand(shape, warps, 2) == wgmma_accumulator(shape, warps)
    assert wgmma_a_operand((64, 64), 8, 2).zero_bits("warp") == (2,), "groups along N hold copies of A"
    with pytest.raises(ValueError):
        wgmma_a_operand((64, 8), 4, 2)


@pytest.mark.parametrize("swizzle, rows_per_step", [(128, 1), (64, 2), (32, 4), (0, 0)])
@pytest.mark.parametrize("elem_bytes", [1, 2, 4])
def test_swizzled_memory(swizzle, rows_per_step, elem_bytes):
    """16-byte chunk ^= row (128 B), row/2 (64 B), row/4 (32 B), each mod the chunks of a span."""
    rows, cols = 16, 256 // elem_bytes
    layout = shared((rows, cols), elem_bytes, swizzle)
    assert layout.is_injective() and layout.is_surjective()
    span = swizzle // elem_bytes if swizzle else cols
    where = layout.invert()
    for row, col in np.ndindex(rows, cols):
        sub, inner = divmod(col, span)
        chunk, rest = divmod(inner * elem_bytes, 16)
        if swizzle:
            chunk ^= row // rows_per_step % (swizzle // 16)
        assert where.apply(dim0=row, dim1=col) == (
            ((sub * rows + row) * span * elem_bytes + 16 * chunk + rest) // elem_bytes,)


def test_other_orders_and_ranks():
    column = shared((64, 32), 2, 128, order=(0, 1))
    assert column.transpose((1, 0)) == shared((32, 64), 2, 128)
    cube = shared((2, 8, 64), 2, 128)
    assert cube.reshape((16, 64)) == shared((16, 64), 2, 128)
