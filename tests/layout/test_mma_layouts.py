"""The layouts of mma.sync against the fragments of the PTX ISA, and ldmatrix against what the ISA says it moves."""
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.layout.convert import address_bits
from tilejit.layout.fma import fma_accumulator
from tilejit.layout.matrices import matrix_cycles, split
from tilejit.layout.mma import mma_accumulator, mma_operand, warp_grid
from tilejit.layout.named import blocked, shared

SIDES = st.sampled_from([16, 32, 64, 128])
WARPS = st.sampled_from([1, 2, 4, 8, 16])


@given(SIDES, st.sampled_from([8, 16, 32, 64, 128]), WARPS)
def test_accumulator_is_the_fragment(m, n, warps):
    """Registers 0..3 of every lane are c0..c3 of an m16n8 fragment, and the tile is covered."""
    layout = mma_accumulator((m, n), warps)
    table = layout.table()                        # [warp, lane, register, dim] of the tile's coordinates
    lane = np.arange(32)
    for i in range(4):
        assert (table[0, :, i, 0] == lane // 4 + 8 * (i // 2)).all()
        assert (table[0, :, i, 1] == 2 * (lane % 4) + i % 2).all()
    assert len({tuple(x) for x in table.reshape(-1, 2)}) == m * n


@given(SIDES, st.sampled_from([8, 16, 64]), WARPS, st.sampled_from([1, 2, 4]), st.sampled_from([16, 32, 128]))
def test_operands_are_the_fragments(m, n, warps, size, k_bytes):
    """A and B at every register, and only elements that the warp's part of the accumulator needs."""
    k, pack, lane = k_bytes // size, 4 // size, np.arange(32)
    acc = mma_accumulator((m, n), warps)
    a, b = (mma_operand(acc, i, k, size) for i in (0, 1))
    ta, tb, tc = (x.table() for x in (a, b, acc))
    for j in range(pack):
        assert (ta[0, :, j, 0] == lane // 4).all() and (ta[0, :, j, 1] == pack * (lane % 4) + j).all()
        assert (ta[0, :, pack + j, 0] == lane // 4 + 8).all()
        assert (tb[0, :, j, 1] == lane // 4).all() and (tb[0, :, j, 0] == pack * (lane % 4) + j).all()
    for w in range(warps):
        assert set(ta[w, ..., 0].ravel()) == set(tc[w, ..., 0].ravel())
        assert set(tb[w, ..., 1].ravel()) == set(tc[w, ..., 1].ravel())
        assert set(ta[w, ..., 1].ravel()) == set(tb[w, ..., 0].ravel()) == set(range(k))


def test_warps_share_a_tile_sensibly():
    assert warp_grid(64, 64, 4) == (2, 2)
    assert warp_grid(128, 256, 8) == (2, 4)
    assert warp_grid(16, 64, 4) == (1, 4)
    assert warp_grid(64, 64, 4, rows_only=True) == (4, 1)
    assert warp_grid(16, 8, 4) == (1, 1), "warps without a part hold copies"


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 8, 16, 32]), st.sampled_from([1, 2, 4, 8, 32]), WARPS,
       st.sampled_from([1, 2, 4, 8]))
def test_batches_and_tiles_smaller_than_a_fragment(batch, m, n, warps, size):
    """Every element is held; a thread's row and column are the fragment's, modulo the tile's."""
    acc, lane = mma_accumulator((batch, m, n), warps), np.arange(32)
    table = acc.table()
    assert len({tuple(x) for x in table.reshape(-1, 3)}) == batch * m * n
    assert acc.num_registers * 32 * warps >= batch * m * n and not acc.zero_bits("register")
    assert (table[0, :, 0, 1] == lane // 4 % m).all() and (table[0, :, 0, 2] == 2 * (lane % 4) % n).all()
    k = 64 // size
    for index in (0, 1):
        held = mma_operand(acc, index, k, size).table()
        for w in range(warps):
            assert {x[0] for x in held[w].reshape(-1, 3)} == {x[0] for x in table[w].reshape(-1, 3)}
            assert {x[1 + index] for x in held[w].reshape(-1, 3)} == {x[1 + index] for x in table[w].reshape(-1, 3)}


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([(), (1,), (4,)]), st.sampled_from([1, 2, 16, 64]), st.sampled_from([1, 4, 32, 128]), WARPS)
def test_multiply_adds_use_every_thread(batch, m, n, warps):
    """Every element once where there are enough, and a block of rows and columns a thread."""
    layout = fma_accumulator((*batch, m, n), warps)
    numel = m * n * (batch[0] if batch else 1)
    assert len({tuple(x) for x in layout.table().reshape(-1, 2 + len(batch))}) == numel
    if layout.num_registers >= 16 and min(m, n) >= 16:
        assert layout.contiguous_registers(-1) == 4


def test_a_16_bit_accumulator_is_the_next_left_operand():
    acc = mma_accumulator((64, 64), 4, rows_only=True)
    assert mma_operand(acc, 0, 64, 2) == acc


def lands(layout, memory, size, trans):
    """What ldmatrix puts where, by the ISA's words, as [warp, lane, register]: offsets in elements."""
    found = split(layout, memory, size)
    assert found is not None and found.trans == trans
    bits = address_bits(layout, memory)
    pack = 1 << found.packed
    table = np.zeros((layout.in_size("warp"), 32, layout.num_registers), int)

    def mix(values, index):
        out = 0
        for i, v in enumerate(values):
            out ^= v if index >> i & 1 else 0
        return out

    for warp in range(table.shape[0]):
        for first in range(0, layout.num_registers, pack * found.count):
            base = mix(bits.warp, warp) ^ mix(bits.register, first)
            for j in range(found.count):
                rows = [base ^ mix([bits.register[i] for i in found.registers], j) ^ mix(found.rows, r)
                        for r in range(8)]
                for lane in range(32):
                    for i in range(pack):
                        row, column = (2 * (lane % 4) + i, lane // 4) if trans else (lane // 4, pack * (lane % 4) + i)
                        table[warp, lane, first + j * pack + i] = rows[row] + column
    return table


@given(SIDES, st.sampled_from([8, 32, 64]), WARPS, st.sampled_from([1, 2, 4]), st.sampled_from([0, 32, 64, 128]),
       st.sampled_from([0, 1]))
def test_ldmatrix_reads_operands(m, n, warps, size, swizzle, index):
    """K contiguous for every element size, and 16-bit operands of either order."""
    k = 128 // size
    acc = mma_accumulator((m, n), warps)
    layout = mma_operand(acc, index, k, size)
    for order in ((1, 0), (0, 1)):
        k_fast = order[0] == 1 - index
        if swizzle > layout.shape[order[0]] * size or not k_fast and size != 2:
            continue
        memory = shared(layout.shape, size, swizzle, order)
        expected = layout.invert_and_compose(memory).table()[..., 0]
        assert (lands(layout, memory, size, not k_fast) == expected).all()


def test_what_ldmatrix_does_not_read():
    acc = mma_accumulator((64, 64), 4)
    assert split(mma_operand(acc, 0, 64, 1), shared((64, 64), 1, 64, (0, 1)), 1) is None, "bytes along K are apart"
    assert split(blocked((64, 64), 4, 8), shared((64, 64), 2, 128), 2) is None
    assert split(acc, shared((64, 64), 8, 128), 8) is None


def test_swizzles_cost_nothing():
    """One cycle a matrix in a swizzled tile, eight in a plain one of 128-byte rows."""
    a = mma_operand(mma_accumulator((64, 64), 4), 0, 64, 2)
    words = a.num_registers // 2
    assert matrix_cycles(a, shared((64, 64), 2, 128), 2) == words
    assert matrix_cycles(a, shared((64, 64), 2, 0), 2) == 8 * words
