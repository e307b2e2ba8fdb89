"""LinearLayout: algebra against plain indexing, and the named layouts against their formulas."""
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked, shared, wgmma_a_operand, wgmma_accumulator


def sizes(low=1, high=64):
    return st.sampled_from([1 << i for i in range(low.bit_length() - 1, high.bit_length())])


@st.composite
def layouts(draw, max_rank=4):
    """A blocked layout of a random shape, order, vector width and number of warps."""
    rank = draw(st.integers(1, max_rank))
    shape = tuple(draw(sizes(1, 16)) for _ in range(rank))
    order = tuple(draw(st.permutations(range(rank))))
    return blocked(shape, draw(sizes(1, 8)), draw(sizes(1, 8)), order)


@st.composite
def any_layouts(draw):
    """Any linear layout: random bases."""
    shape = tuple(draw(sizes(1, 8)) for _ in range(draw(st.integers(1, 3))))
    basis = st.tuples(*(st.integers(0, s - 1) for s in shape))
    return LinearLayout.from_bases({n: draw(st.lists(basis, max_size=3)) for n in ("register", "lane", "warp")}, shape)


def places(layout):
    return [(r, lane, w) for r in range(layout.in_size("register")) for lane in range(layout.in_size("lane"))
            for w in range(layout.in_size("warp"))]


def at(layout, place):
    r, lane, w = place
    return layout.apply(register=r, lane=lane, warp=w)


@given(any_layouts())
def test_text_round_trip(layout):
    assert LinearLayout.parse(str(layout)) == layout


@given(any_layouts(), st.randoms())
def test_transpose_permutes_coordinates(layout, random):
    order = list(range(layout.rank))
    random.shuffle(order)
    moved = layout.transpose(tuple(order))
    assert moved.shape == tuple(layout.shape[i] for i in order)
    for p in places(layout)[:64]:
        assert at(moved, p) == tuple(at(layout, p)[i] for i in order)
    back = tuple(order.index(i) for i in range(layout.rank))
    assert moved.transpose(back) == layout


@given(any_layouts(), st.data())
def test_reshape_keeps_row_major_order(layout, data):
    total = math.prod(layout.shape)
    rows = data.draw(sizes(1, total))
    flat = layout.reshape((rows, total // rows))
    for p in places(layout)[:64]:
        assert np.ravel_multi_index(at(flat, p), flat.shape) == np.ravel_multi_index(at(layout, p), layout.shape)
    assert flat.reshape(layout.shape) == layout


@given(any_layouts(), st.data())
def test_project_drops_broadcast_dimensions(layout, data):
    keep = data.draw(st.tuples(*(st.booleans() for _ in layout.shape)))
    shape = tuple(s if k else 1 for s, k in zip(layout.shape, keep))
    source = layout.project(shape)
    assert source.shape == shape
    # every element of the broadcast's result is in a thread that holds its source element
    for p in places(layout)[:64]:
        want = tuple(x if s > 1 else 0 for x, s in zip(at(layout, p), shape))
        held = {source.apply(register=r, lane=p[1], warp=p[2]) for r in range(source.num_registers)}
        assert want in held


@given(any_layouts(), st.data())
def test_reduce_leaves_the_result_with_all_who_took_part(layout, data):
    axis = data.draw(st.integers(0, layout.rank - 1))
    left = layout.reduce(axis)
    for p in places(layout)[:64]:
        c = at(layout, p)
        held = {left.apply(register=r, lane=p[1], warp=p[2]) for r in range(left.num_registers)}
        assert (*c[:axis], *c[axis + 1:]) in held


@given(any_layouts())
def test_expand_then_drop(layout):
    for axis in range(layout.rank + 1):
        assert layout.expand_dims(axis).drop_dim(axis) == layout


@given(layouts())
def test_join_then_split(layout):
    assert layout.join().split() == layout


@settings(deadline=None)
@given(any_layouts())
def test_place_of_finds_what_is_held(layout):
    held = {at(layout, p) for p in places(layout)}
    for c in np.ndindex(*layout.shape):
        if c in held:
            assert layout.apply(**layout.place_of(c)) == c
        else:
            with pytest.raises(ValueError):
                layout.place_of(c)
    assert layout.is_surjective() == (len(held) == math.prod(layout.shape))
    assert layout.is_injective() == (len(held) == len(places(layout)))


@given(layouts())
def test_place_of_prefers_this_thread(layout):
    for r in range(layout.num_registers):
        place = layout.place_of(layout.apply(register=r))
        assert place["lane"] == 0 and place["warp"] == 0


@given(layouts())
def test_blocked_covers_the_tile(layout):
    assert layout.is_surjective()
    assert not layout.zero_bits("register")


@settings(deadline=None)
@given(layouts())
def test_invert_finds_every_element(layout):
    inverse = layout.invert()
    names = [n for n, _ in layout.bases]
    for c in list(np.ndindex(*layout.shape))[:256]:
        place = inverse.apply(**{f"dim{d}": x for d, x in enumerate(c)})
        assert layout.apply(**dict(zip(names, place))) == c


@given(layouts())
def test_table_is_apply(layout):
    table = layout.table()
    for r, lane, w in places(layout)[:128]:
        assert tuple(table[w, lane, r]) == at(layout, (r, lane, w))


def test_blocked_is_coalesced():
    layout = blocked((8, 256), 4, vector=8)
    assert layout.contiguous_registers() == 8
    assert [layout.apply(lane=1 << i) for i in range(5)] == [(0, 8 << i) for i in range(5)]


def test_bad_sizes_and_bases_are_refused():
    with pytest.raises(ValueError, match="3 is no power of two"):
        LinearLayout.from_bases({"register": []}, (3,))
    with pytest.raises(ValueError, match="choose among its 3 parts"):
        LinearLayout.from_bases({"register": [(4,), (8,), (1,)], "lane": [(2,)]}, (12,))
    with pytest.raises(ValueError, match="does not fit"):
        LinearLayout.from_bases({"register": [(4,)]}, (4,))


@given(st.integers(1, 16), st.sampled_from([4, 8, 16]))
def test_an_odd_multiple_is_a_matter_of_the_last_registers(sixteens, warps):
    """Accumulators of any multiple of 16 columns: every element once, and so in every layout that follows."""
    m, n = 16 * warps, 16 * sixteens
    layout = wgmma_accumulator((m, n), warps)
    everywhere = {tuple(at) for at in layout.table().reshape(-1, 2).tolist()}
    assert layout.num_registers == n // 2 and len(layout.table().reshape(-1, 2)) == m * n == len(everywhere)
    assert layout.registers() == tuple(layout.apply(register=r) for r in range(n // 2))
    row = layout.project((1, n)).drop_dim(0)
    assert row.num_registers == n // 4 and {c for c, in row.table().reshape(-1, 1).tolist()} == set(range(n))
    assert layout.reshape((1, m, n)).drop_dim(0) == layout == LinearLayout.parse(str(layout))
    unit = min(n & -n, 64)
    assert layout.part(1, unit).num_registers * (n // unit) == n // 2


@given(st.integers(1, 16), st.sampled_from([192, 384]))
def test_three_warpgroups_divide_rows(sixteens, m):
    """Two odd sizes at once: rows are a matter of the warps, of which there are 12 of 16, columns of the registers."""
    n = 16 * sixteens
    layout = wgmma_accumulator((m, n), 12)
    table = layout.table()
    assert table.shape == (12, 32, m * n // 384, 2) and layout.num_registers == m * n // 384
    assert len({tuple(at) for at in table.reshape(-1, 2).tolist()}) == m * n and (table < (m, n)).all()
    column = layout.project((m, 1)).drop_dim(1)
    assert {r for r, in column.table().reshape(-1, 1).tolist()} == set(range(m)) and column.num_registers == m // 96
    assert layout.reshape((1, m, n)).drop_dim(0) == layout == LinearLayout.parse(str(layout))
    for row, col in ((0, 0), (m - 1, n - 1), (m // 2 + 5, n // 2)):
        assert layout.apply(**layout.place_of((row, col))) == (row, col)


def test_odd_sizes_that_nothing_of_their_own_chooses():
    rows = {"register": [(0, 1)], "lane": [(1, 0)], "warp": [(2, 0), (4, 0)]}
    assert LinearLayout.from_bases(rows, (6, 2)).coords("warp").tolist() == [[0, 0], [2, 0], [4, 0]]
    for change, shape in (({"warp": [(4, 0), (2, 0)]}, (6, 2)),                        # not in order
                          ({"lane": [(2, 0)], "warp": [(1, 0), (4, 0)]}, (6, 2)),      # a lane and a warp choose
                          ({"register": [(0, 1), (0, 2), (2, 0), (4, 0)], "warp": []}, (6, 3))):    # both by registers
        with pytest.raises(ValueError, match="choose among its 3 parts"):
            LinearLayout.from_bases({**rows, **change}, shape)


def test_an_odd_multiple_stays_the_last_size():
    with pytest.raises(ValueError, match=r"may only become another one and powers of two .* found \[64, 96\]"):
        wgmma_accumulator((64, 96), 4).reshape((96, 64))


def test_an_odd_multiple_splits_into_another_and_powers_of_two():
    """Each coordinate as division has it; gates and what they are for lie side by side in one thread's registers."""
    layout = wgmma_accumulator((128, 160), 8)
    apart = layout.reshape((128, 1, 10, 2, 8))
    for at, there in zip(layout.registers(), apart.registers()):
        assert there == (at[0], 0, at[1] // 16, at[1] // 8 % 2, at[1] % 8)
    assert apart.reshape((128, 160)) == layout
    half = apart.transpose((1, 0, 2, 4, 3)).split().reshape((128, 80))
    assert half.num_registers == 40 and half.odd_dims == (1,)
    with pytest.raises(ValueError, match=r"found \[128, 160\] and \[128, 2, 80\]"):
        layout.reshape((128, 2, 80))


# -- the tensor cores' fragments ------------------------------------------------------------------------
@pytest.mark.parametrize("m, n, warps", [(64, 8, 4), (64, 256, 4), (128, 128, 8), (256, 64, 16), (128, 32, 4), (256, 16, 8)])
def test_wgmma_accumulator_formula(m, n, warps):
    layout = wgmma_accumulator((m, n), warps)
    each = m // (warps // 4)                         # adjacent rows of a warpgroup
    for w in range(warps):
        for lane in range(32):
            for i in range(layout.num_registers):
                # a further 64-row slice of a warpgroup starts after the registers of one m64nN product
                part, inner = divmod(i, n // 2)
                row = w // 4 * each + 16 * (w % 4) + lane // 4 + 8 * ((inner >> 1) & 1) + 64 * part
                col = 8 * (inner >> 2) + 2 * (lane % 4) + (inner & 1)
                assert layout.apply(register=i, lane=lane, warp=w) == (row, col)
    assert layout.is_injective() and layout.is_surjective()


def test_wgmma_accumulator_splits_columns_when_rows_run_out():
    layout = wgmma_accumulator((64, 256), 8)
    assert layout.apply(warp=4) == (0, 128)
    assert layout.num_registers == 64
    with pytest.raises(ValueError):
        wgmma_accumulator((32, 64), 4)
    with pytest.raises(ValueError):
        wgmma_accumulator((64, 64), 2)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_wgmma_a_operand_formula(size):
    pack = 4 // size
    layout = wgmma_a_operand((64, 32 * pack), 4, size)
    for w in range(4):
        for lane in range(32):
            for i in range(layout.num_registers):
                word, e = divmod(i, pack)
                row = 16 * w + lane // 4 + 8 * (word & 1)
                k = (word >> 1) * 4 * pack + pack * (lane % 4) + e
                assert layout.apply(register=i, lane=lane, warp=w) == (row, k)


def test_an_accumulator_is_a_16_bit_a_operand():
    assert wgmma_accumulator((128, 64), 8) == wgmma_a_operand((128, 64), 8, 2)


# -- shared memory --------------------------------------------------------------------------------------
@settings(deadline=None)
@given(st.sampled_from([0, 32, 64, 128]), st.sampled_from([1, 2, 4]), sizes(8, 64), sizes(1, 4))
def test_swizzle_is_the_xor_of_address_bits(swizzle, size, rows, spans):
    span = (swizzle or 64) // size
    columns = span * spans
    layout = shared((rows, columns), size, swizzle)
    offsets = layout.coords("offset")
    where = {tuple(c): o for o, c in enumerate(offsets.tolist())}
    assert len(where) == rows * columns
    width = columns if swizzle == 0 else span
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    for (r, c), offset in where.items():
        address = ((c // width) * rows * width + r * width + c % width) * size
        address ^= ((address >> 7) & ((1 << bits) - 1)) << 4
        assert offset * size == address


def test_shared_in_column_order_is_the_transpose():
    assert shared((64, 32), 2, 128, (0, 1)) == shared((32, 64), 2, 128).transpose((1, 0))


@given(any_layouts())
def test_registers_are_what_apply_says(layout):
    assert layout.registers() == tuple(layout.apply(register=r) for r in range(layout.num_registers))
