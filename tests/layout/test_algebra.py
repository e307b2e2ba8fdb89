"""The algebra of LinearLayout on random layouts (swizzled, with copies), against numpy on whole tiles."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import distributed, values_at

from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import shared, wgmma_a_operand, wgmma_accumulator

EXAMPLE = LinearLayout.from_bases(
    {"register": [(0, 1), (1, 0)], "lane": [(0, 2), (0, 4), (2, 0)], "warp": []}, (4, 8))
relaxed = settings(deadline=None, max_examples=50)


def test_worked_example_of_the_docstring():
    assert EXAMPLE.apply(lane=5, register=3) == (3, 3)
    assert EXAMPLE.num_registers == 4 and EXAMPLE.in_size("lane") == 8 and EXAMPLE.rank == 2
    assert sorted(map(tuple, EXAMPLE.table().reshape(-1, 2).tolist())) == list(np.ndindex(4, 8))
    assert EXAMPLE.is_surjective() and EXAMPLE.is_injective()
    assert str(EXAMPLE) == "<4x8 register=[[0,1],[1,0]] lane=[[0,2],[0,4],[2,0]] warp=[]>"


@relaxed
@given(distributed(), st.data())
def test_shape_algebra_follows_numpy(layout, data):
    """After a numpy shape op on the tile, every place still holds the value that it held."""
    tile = np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape)
    held = values_at(layout, tile)
    order = tuple(data.draw(st.permutations(range(layout.rank))))
    np.testing.assert_array_equal(values_at(layout.transpose(order), tile.transpose(order)), held)
    axis = data.draw(st.integers(0, layout.rank))
    wide = layout.expand_dims(axis)
    np.testing.assert_array_equal(values_at(wide, np.expand_dims(tile, axis)), held)
    assert wide.drop_dim(axis) == layout
    bits = int(tile.size).bit_length() - 1
    cut = data.draw(st.integers(0, bits))
    shape = (1 << cut, 1 << (bits - cut))
    np.testing.assert_array_equal(values_at(layout.reshape(shape), tile.reshape(shape)), held)
    assert layout.reshape(shape).reshape(layout.shape) == layout


@relaxed
@given(distributed(), st.data())
def test_reduce_leaves_each_thread_the_rows_it_took_part_in(layout, data):
    axis = data.draw(st.integers(0, layout.rank - 1))
    kept = layout.reduce(axis)
    held = {kept.apply(register=r) for r in range(kept.num_registers)}
    assert len(held) == kept.num_registers, "a thread keeps no copies"
    rows, left = np.delete(layout.table(), axis, axis=-1), kept.table()
    for w, lane in np.ndindex(rows.shape[:2]):
        assert set(map(tuple, left[w, lane].tolist())) == set(map(tuple, rows[w, lane].tolist()))


@relaxed
@given(distributed())
def test_join_interleaves_registers(layout):
    a, b = (np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape) + k for k in (0, 1000))
    pair = layout.join()
    assert pair.split() == layout and pair.shape == (*layout.shape, 2)
    held = values_at(pair, np.stack([a, b], -1))
    np.testing.assert_array_equal(held[..., 0::2], values_at(layout, a))
    np.testing.assert_array_equal(held[..., 1::2], values_at(layout, b))


def test_split_needs_the_pair_in_one_thread():
    with pytest.raises(ValueError, match="one register bit"):
        LinearLayout.from_bases({"register": [], "lane": [(0, 1)], "warp": []}, (1, 2)).split()


@relaxed
@given(distributed())
def test_inverse(layout):
    for coords in np.ndindex(layout.shape):
        assert layout.apply(**layout.place_of(coords)) == coords
    identity = layout.invert().compose(layout)
    assert all(identity.apply(**{f"dim{d}": x for d, x in enumerate(c)}) == c for c in np.ndindex(layout.shape))


def test_elements_held_nowhere():
    partial = LinearLayout.from_bases({"register": [(1,)], "lane": [(4,)], "warp": []}, (8,))
    assert not partial.is_surjective() and partial.is_injective()
    with pytest.raises(ValueError, match="not held"):
        partial.place_of((2,))
    with pytest.raises(ValueError, match=r"by \('register',\) alone"):
        partial.place_of((4,), ("register",))
    with pytest.raises(ValueError):
        partial.invert()


def test_address_of_an_accumulator_in_swizzled_memory():
    c = wgmma_accumulator((64, 64), 4).invert_and_compose(shared((64, 64), 2, 128))
    assert [b for (b,) in c.bases_of("register")] == [1, 512, 8, 16, 32]
    assert [b for (b,) in c.bases_of("lane")] == [2, 4, 72, 144, 288]
    assert [b for (b,) in c.bases_of("warp")] == [1024, 2048]


@pytest.mark.parametrize("bases, dim, run", [
    ([(0, 1), (0, 2), (1, 0)], 1, 4), ([(1, 0), (2, 0)], 0, 4), ([(1, 0)], 1, 1), ([(0, 2), (0, 1)], 1, 1), ([], 1, 1)])
def test_contiguous_registers(bases, dim, run):
    layout = LinearLayout.from_bases({"register": bases, "lane": [], "warp": []}, (4, 4))
    assert layout.contiguous_registers(dim) == run
    assert dim != 1 or layout.contiguous_registers() == run


def test_compose_checks_its_sizes():
    with pytest.raises(ValueError, match="not places"):
        EXAMPLE.compose(EXAMPLE)
    with pytest.raises(ValueError, match="different tiles"):
        EXAMPLE.invert_and_compose(shared((8, 8), 2, 0))


def test_parts_of_a_dimension():
    """Equal parts hold what the whole holds from there on, in the same threads."""
    whole = wgmma_a_operand((64, 64), 4, 2)
    half = whole.part(1, 32)
    assert half == wgmma_a_operand((64, 32), 4, 2)
    moved = {at: r for r, at in enumerate(whole.registers())}
    for at in half.registers():
        assert at in moved and (at[0], at[1] + 32) in moved
    with pytest.raises(ValueError, match="not registers of their own"):
        whole.part(0, 32)
