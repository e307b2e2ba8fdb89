"""Conversions: `simulate` of every plan moves every element, and the plan is the cheap one."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import simulate

from tilejit.layout.convert import (
    Registers,
    Shuffles,
    ThroughShared,
    access_cycles,
    address_bits,
    bank_conflicts,
    plan,
)
from tilejit.layout.named import blocked, shared, wgmma_a_operand, wgmma_accumulator

SIZES = st.sampled_from([64, 128])


@st.composite
def register_layouts(draw, shape, warps):
    """A blocked or a wgmma layout of a matrix."""
    kind = draw(st.sampled_from(["blocked", "blocked", "accumulator", "operand"]))
    if kind == "accumulator":
        return wgmma_accumulator(shape, warps)
    if kind == "operand":
        return wgmma_a_operand(shape, warps, draw(st.sampled_from([1, 2, 4])))
    order = draw(st.sampled_from([(1, 0), (0, 1)]))
    return blocked(shape, warps, draw(st.sampled_from([1, 2, 4, 8])), order)


@st.composite
def pairs(draw):
    """Two layouts of one tile and a number of bytes an element."""
    shape, warps = (draw(SIZES), draw(SIZES)), draw(st.sampled_from([4, 8]))
    return draw(register_layouts(shape, warps)), draw(register_layouts(shape, warps)), draw(st.sampled_from([1, 2, 4]))


def element_numbers(layout):
    """[warps, lanes, registers]: the row-major number of the element that each place holds."""
    number = np.zeros(layout.table().shape[:-1], np.int64)
    for d, size in enumerate(layout.shape):
        number = number * size + layout.table()[..., d]
    return number


def check(src, dst, size):
    p = plan(src, dst, size)
    np.testing.assert_array_equal(simulate(p, src, dst, element_numbers(src)), element_numbers(dst))
    return p


@settings(deadline=None, max_examples=60)
@given(pairs())
def test_every_conversion_is_exact(pair):
    check(*pair)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(16,), (256,), (4, 8, 16), (2, 2, 2, 64)]), st.sampled_from([1, 2, 4]), st.data())
def test_every_rank_converts(shape, size, data):
    def one():
        order = tuple(data.draw(st.permutations(range(len(shape)))))
        return blocked(shape, 4, data.draw(st.sampled_from([1, 4, 8])), order)
    check(one(), one(), size)


@settings(deadline=None, max_examples=40)
@given(pairs(), st.sampled_from([0, 1]))
def test_slices_convert(pair, axis):
    """What a reduction leaves holds copies; converting it must still be exact."""
    src, dst, size = pair
    check(src.reduce(axis), dst.reduce(axis), size)


def test_the_same_layout_is_free():
    layout = wgmma_accumulator((64, 64), 4)
    assert check(layout, layout, 4) == Registers(tuple(range(layout.num_registers)))


def test_copies_are_renamed():
    row = blocked((1, 64), 4).reduce(0)
    assert isinstance(check(row.expand_dims(0).project((1, 64)), row.expand_dims(0), 4), Registers)


def test_neighbouring_lanes_are_shuffled():
    one, two = blocked((64,), 1, 1), blocked((64,), 1, 2)
    assert isinstance(check(one, two, 4), Shuffles)


def test_other_warps_go_through_shared_memory():
    p = check(blocked((64, 64), 4, 4), wgmma_accumulator((64, 64), 4), 4)
    assert isinstance(p, ThroughShared) and p.bytes == 64 * 64 * 4 and not p.within_warp


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match="cannot convert"):
        plan(blocked((64,), 4), blocked((32,), 4), 4)


def test_swizzle_removes_the_conflicts_of_an_accumulator():
    """fp16 accumulators stored as 32-bit pairs: a plain tile has 8 rows on the same banks."""
    acc = wgmma_accumulator((64, 64), 4)
    plain, swizzled = (access_cycles(acc, shared((64, 64), 2, s), 2) for s in (0, 128))
    assert plain == 8 * swizzled
    assert swizzled == acc.num_registers // 2          # one access per pair, one cycle each



def test_bank_conflicts_of_known_patterns():
    assert bank_conflicts((1, 2, 4, 8, 16), 4, 1) == 1
    assert bank_conflicts((32, 64, 128, 256, 512), 4, 1) == 32
    assert bank_conflicts((0, 0, 0, 0, 0), 4, 1) == 1                 # a broadcast
    assert bank_conflicts((4, 8, 16, 32, 64), 4, 4) == 4              # 16 bytes a lane: four groups of eight


def test_vectors_are_as_wide_as_the_layout_allows():
    memory = shared((64, 64), 2, 128)
    assert address_bits(blocked((64, 64), 4, 8), memory).vector(2) == 8
    assert address_bits(wgmma_accumulator((64, 64), 4), memory).vector(2) == 2
