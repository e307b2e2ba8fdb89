"""What the CTAs of a cluster hold of what they divide: each element once, in strips where a size is no power of two."""
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_conversions import check, element_numbers

from tilejit.layout.clusters import alone, beside, cta_bases, divided, in_tile, own, parts_of, strip, within
from tilejit.layout.named import blocked, wgmma_accumulator

relaxed = settings(deadline=None, max_examples=60)
CTAS = st.sampled_from([2, 4, 8])
#: Odd multiples of powers of two, and those powers.
SIZES = st.builds(lambda odd, bits: odd << bits, st.sampled_from([1, 1, 3, 5, 7, 9, 11, 15]), st.integers(3, 7))


def places(size, ctas):
    """By CTA: where its elements lie along a dimension, in its own order."""
    return [[in_tile(at, size, ctas) + i * strip(size, ctas) for at in range(size // ctas)] for i in range(ctas)]


@relaxed
@given(SIZES, CTAS)
def test_every_element_is_one_ctas(size, ctas):
    held = places(size, ctas)
    assert sorted(x for part in held for x in part) == list(range(size))
    if size & (size - 1) == 0:
        assert held == [list(range(i * size // ctas, (i + 1) * size // ctas)) for i in range(ctas)]


def test_strips():
    """320 columns over two CTAs: 32 of each 64, five times."""
    first, second = places(320, 2)
    assert strip(320, 2) == 32 and first[:33] == [*range(32), 64] and second[:33] == [*range(32, 64), 96]
    assert [strip(n, c) for n, c in ((384, 2), (384, 4), (288, 2), (256, 2))] == [64, 32, 16, 128]


@relaxed
@given(SIZES, CTAS, st.sampled_from([0, 1]))
def test_the_index_of_a_cta_adds_its_strips(size, ctas, dim):
    shape = (size, 16) if dim == 0 else (16, size)
    bases = parts_of(shape, dim, ctas)
    for i in range(ctas):
        at = np.bitwise_xor.reduce([b for k, b in enumerate(bases) if i >> k & 1] or [(0, 0)], 0)
        assert at[dim] == i * strip(size, ctas) and at[1 - dim] == 0


@relaxed
@given(st.sampled_from([(64, 4), (128, 4), (128, 8), (256, 8)]), st.sampled_from([1, 3, 5, 7, 9, 11]), st.integers(4, 6),
       st.sampled_from([2, 4]))
def test_accumulators_side_by_side(form, odd, bits, ctas):
    """Every element of the tile once; a CTA's columns are its own strips."""
    (rows, warps), mine = form, odd << bits
    assume(mine <= 256)
    layout = beside(wgmma_accumulator((rows, mine), warps), 1, ctas)
    assert layout.shape == (rows, mine * ctas) and divided(layout, ctas) == ((1, ctas, 0),)
    numbers = element_numbers(layout)
    assert np.array_equal(np.sort(numbers.ravel()), np.arange(rows * mine * ctas))
    held = places(mine * ctas, ctas)
    for i in range(ctas):
        assert set(np.unique(numbers[i * warps:(i + 1) * warps] % (mine * ctas))) == set(held[i])
    # within its own columns each CTA has what a product of its own would have
    alone, back = wgmma_accumulator((rows, mine), warps), {x: at for at, x in enumerate(held[0])}
    table = within(layout, ctas).table().copy()
    table[..., 1] = np.vectorize(back.__getitem__)(table[..., 1])
    assert np.array_equal(table, alone.table())


def test_strips_are_not_narrower_than_fragments():
    with pytest.raises(ValueError, match="48 columns do not divide over 2 CTAs in strips of at least 16"):
        beside(wgmma_accumulator((64, 24), 4), 1, 2)
    assert beside(wgmma_accumulator((64, 48), 4), 1, 2).shape == (64, 96)


@pytest.mark.parametrize("rows, columns, warps", [(256, 160, 8), (256, 48, 4), (128, 224, 4), (512, 96, 16)])
def test_several_slices_of_odd_columns(rows, columns, warps):
    """The registers that choose among the odd number of parts come behind those of the slices."""
    layout = wgmma_accumulator((rows, columns), warps)
    assert np.array_equal(np.sort(element_numbers(layout).ravel()), np.arange(rows * columns))
    assert layout.num_registers == rows * columns // (32 * warps) and layout.odd_dims == (1,)
    low = columns & -columns
    slices = tuple((64 << i, 0) for i in range((rows * 4 // (64 * warps)).bit_length() - 1))
    chosen = tuple((0, low << i) for i in range((columns // low).bit_length()))
    assert layout.bases_of("register")[-len(slices) - len(chosen):] == slices + chosen


@relaxed
@given(SIZES, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_blocked_vectors(size, warps, vector, ctas):
    """Every element, as often as threads are left over; nothing else; each CTA a part where they divide it."""
    last = parts_of((size,), 0, ctas) if ctas > 1 and strip(size, ctas) >= 1 and ctas <= warps else ()
    layout = blocked((size,), warps, vector, last=last)
    numbers, counts = np.unique(element_numbers(layout), return_counts=True)
    assert np.array_equal(numbers, np.arange(size)) and len(set(counts)) == 1
    assert layout.num_registers == element_numbers(layout).shape[-1]
    if last:
        assert cta_bases(layout, ctas) == last
    side = strip(size, ctas) if last else size & -size
    assert layout.contiguous_registers() >= min(vector, side)


@relaxed
@given(SIZES, st.sampled_from([1, 4, 8]), st.sampled_from([1, 2, 4]), st.data())
def test_vectors_convert(size, warps, elem_bytes, data):
    """From one vector width to another, through shared memory that is rounded up to a power of two."""
    src, dst = (blocked((size,), warps, data.draw(st.sampled_from([1, 2, 4, 8]))) for _ in range(2))
    check(src, dst, elem_bytes)


@pytest.mark.parametrize("columns", [96, 160, 208])
def test_columns_of_a_product_become_a_vector(columns):
    """What a bias is converted to: a row of an accumulator, from and to a coalesced vector."""
    row = wgmma_accumulator((128, columns), 8).reduce(0)
    vector = blocked((columns,), 8, 4)
    check(vector, row, 4)
    check(row, vector, 2)


@relaxed
@given(st.sampled_from([(192, 12), (384, 12), (128, 8), (64, 4)]), st.sampled_from([1, 3, 5, 11]), st.integers(4, 6),
       st.sampled_from([2, 4]), st.sampled_from([0, 1]))
def test_what_a_cta_has_alone(form, odd, bits, ctas, dim):
    """Rows of three warpgroups and columns, both no powers of two: every element once; a CTA's part is its own tile."""
    (rows, warps), mine = form, odd << bits
    assume(mine <= 256 and warps % 3 == 0 or mine & mine - 1 == 0)
    part = wgmma_accumulator((rows, mine), warps)
    whole = beside(part, dim, ctas)
    table = whole.table().reshape(-1, 2)
    assert len({tuple(at) for at in table.tolist()}) == len(table) == rows * mine * ctas
    assert alone(whole, ((dim, ctas, 0),), ctas) == part and divided(whole, ctas) == ((dim, ctas, 0),)
    size = whole.shape[dim]
    assert all(own(in_tile(at, size, ctas), size, ctas) == at for at in range(size // ctas))
