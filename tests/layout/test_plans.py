"""Plans between random layouts are right, and each kind is chosen where it is the cheap one."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import distributed, values_at
from simulated import simulate

from tilejit.layout.convert import (
    Shuffles,
    ThroughShared,
    access_cycles,
    address_bits,
    bank_conflicts,
    plan,
)
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked, shared, wgmma_accumulator

relaxed = settings(deadline=None, max_examples=60)


def row(register, lane, warp, size):
    """A layout of a one-dimensional tile; missing lane bits hold copies."""
    lane = [*lane, *[0] * (5 - len(lane))]
    return LinearLayout.from_bases({"register": [(x,) for x in register], "lane": [(x,) for x in lane],
                                    "warp": [(x,) for x in warp]}, (size,))


def check(src, dst, elem_bytes=4):
    """The plan, after proving on a whole tile that it moves every element to where dst wants it."""
    found = plan(src, dst, elem_bytes)
    tile = np.arange(np.prod(src.shape, dtype=int)).reshape(src.shape)
    np.testing.assert_array_equal(simulate(found, src, dst, values_at(src, tile)), values_at(dst, tile))
    return found


@relaxed
@given(st.data())
def test_every_plan_is_right(data):
    shape = tuple(1 << b for b in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    warps = data.draw(st.integers(0, 2))
    src, dst = (data.draw(distributed(shape, warps=warps)) for _ in "ab")
    found = check(src, dst, data.draw(st.sampled_from([1, 2, 4, 8])))
    if isinstance(found, ThroughShared):
        assert found.layout.is_injective() and found.layout.is_surjective()
        owned = [{tuple(c) for c in layout.table()[w].reshape(-1, len(shape)).tolist()}
                 for layout in (src, dst) for w in range(1 << warps)]
        if found.within_warp:
            assert all(dst_w <= src_w for src_w, dst_w in zip(owned, owned[1 << warps:]))


def test_a_register_of_another_warp_is_no_rename():
    """Equal lane and warp bits do not suffice: the element must be in this very thread."""
    assert isinstance(check(row([], [1, 2], [4], 8), row([4], [1, 2], [4], 8)), ThroughShared)


def test_lanes_shuffle():
    found = check(blocked((32,), 1), row([], [16, 8, 4, 2, 1], [], 32))
    assert isinstance(found, Shuffles) and found.select == () and found.lane_bases == (16, 8, 4, 2, 1)


def test_spreading_a_row_over_its_lanes_needs_no_shared_memory():
    assert isinstance(check(row([1], [2, 4], [0], 8), blocked((8,), 2)), Shuffles)


def test_many_choices_go_through_shared_memory_of_the_warp():
    found = check(blocked((256,), 1, 8), blocked((256,), 1, 1))
    assert isinstance(found, ThroughShared) and found.within_warp and found.bytes == 1024


def test_copies_in_several_warps_are_written_by_one():
    """So the others must wait for it: the warps have to meet."""
    found = check(row([1, 2, 4], [8, 16, 32, 64, 128], [0], 256), row([128, 64, 32], [16, 8, 4, 2, 1], [0], 256))
    assert isinstance(found, ThroughShared) and not found.within_warp


@pytest.mark.parametrize("n, elem_bytes", [(64, 2), (256, 2), (64, 4), (128, 1)])
def test_an_accumulator_leaves_coalesced_without_load_conflicts(n, elem_bytes):
    src, dst = wgmma_accumulator((64, n), 4), blocked((64, n), 4, 16 // elem_bytes)
    found = check(src, dst, elem_bytes)
    assert isinstance(found, ThroughShared) and not found.within_warp
    assert access_cycles(dst.reshape(found.shape), found.layout, elem_bytes) == dst.num_registers * elem_bytes * 32 // 128


def test_transposing_through_shared_memory_uses_a_swizzle():
    src, dst = blocked((64, 64), 4, 4), blocked((64, 64), 4, 4, order=(0, 1))
    assert check(src, dst).cycles < sum(access_cycles(x, shared((64, 64), 4, 0), 4) for x in (src, dst))


@pytest.mark.parametrize("lanes, elem_bytes, vec, cycles", [
    ((1, 2, 4, 8, 16), 4, 1, 1),                 # 32 neighbouring words
    ((32, 64, 128, 256, 512), 4, 1, 32),         # one bank
    ((1, 2, 4, 8, 16), 2, 1, 1),                 # pairs of lanes share words
    ((4, 8, 16, 32, 64), 4, 4, 4),               # 512 bytes take four cycles at best
    ((32, 64, 128, 256, 512), 4, 4, 32),         # 8 lanes a group, all on the same four banks
    ((36, 72, 144, 288, 576), 4, 4, 4),          # the same rows, swizzled
    ((0, 0, 0, 0, 0), 4, 1, 1),                  # a broadcast
    ((2, 4, 8, 16, 32), 4, 1, 2),                # stride 2
])
def test_bank_conflicts(lanes, elem_bytes, vec, cycles):
    assert bank_conflicts(lanes, elem_bytes, vec) == cycles


def test_address_bits_of_an_accumulator():
    bits = address_bits(wgmma_accumulator((64, 64), 4), shared((64, 64), 2, 128))
    assert bits.register == (1, 512, 8, 16, 32) and bits.lane == (2, 4, 72, 144, 288)
    assert bits.warp == (1024, 2048) and bits.vector(2) == 2


@relaxed
@given(distributed(), st.sampled_from([(1, 0), (2, 32), (4, 64), (4, 128)]))
def test_address_bits_are_the_addresses(layout, memory):
    elem_bytes, swizzle = memory
    swizzle = swizzle if layout.shape[-1] * elem_bytes >= swizzle else 0
    tile = shared(layout.shape, elem_bytes, swizzle)
    bits = address_bits(layout, tile)
    vec = bits.vector(elem_bytes)
    for w, lane, r in np.ndindex(layout.in_size("warp"), 4, layout.num_registers):
        at = 0
        for value, masks in ((r, bits.register), (lane, bits.lane), (w, bits.warp)):
            for i, m in enumerate(masks):
                at ^= m if value >> i & 1 else 0
        assert tile.apply(offset=at) == layout.apply(warp=w, lane=lane, register=r)
        assert r % vec or at % vec == 0, "vectors are aligned"


@pytest.mark.parametrize("size, most", [(1, 2), (2, 2), (4, 4)])
def test_transposes_through_shared_memory_have_few_conflicts(size, most):
    """Coalesced along rows to coalesced along columns: element by element in, vectors out."""
    width = 16 // size
    rows, columns = (blocked((128, 128), 4, width, order) for order in ((1, 0), (0, 1)))
    found = check(rows, columns)
    assert isinstance(found, ThroughShared)
    real = plan(rows, columns, size)
    assert isinstance(real, ThroughShared)
    assert real.cycles <= most * (rows.num_registers + columns.num_registers // width * 4)


def test_within_warps_shared_memory_takes_the_place_of_many_shuffles():
    """A tile of 16 bits whose neighbours come from different lanes: sixteen shuffles of half words, against four accesses."""
    src = LinearLayout.from_bases({"register": [(0, 1), (0, 8), (8, 0)], "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
                                   "warp": [(0, 16)]}, (16, 32))
    dst = LinearLayout.from_bases({"register": [(1, 0), (8, 0), (0, 8)], "lane": [(2, 0), (4, 0), (0, 1), (0, 2), (0, 4)],
                                   "warp": [(0, 16)]}, (16, 32))
    assert isinstance(plan(src, dst, 2), ThroughShared) and plan(src, dst, 2).within_warp
