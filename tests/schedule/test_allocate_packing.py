"""The packer: what clashes shares no byte, what does not clash may; alignment; nothing wasted where it is easy."""
from hypothesis import given
from hypothesis import strategies as st

from tilejit.schedule.packing import Item, overlap, pack

SETS = st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([8, 128, 256, 512, 1024]), st.integers(0, 30),
                          st.integers(0, 10)), max_size=12)


def clashes(n, clash):
    return [{j for j in range(n) if j != i and clash(i, j)} for i in range(n)]


@given(SETS)
def test_live_at_once_share_no_byte(rows):
    """Intervals [start, start + length]: those that meet get disjoint, aligned bytes."""
    items = [Item(size, align, start) for size, align, start, _ in rows]
    ends = [start + length for _, _, start, length in rows]

    def clash(i, j):
        return items[i].start <= ends[j] and items[j].start <= ends[i]

    found = pack(items, clashes(len(items), clash))
    assert len(found.offsets) == len(items)
    for i, x in enumerate(items):
        assert found.offsets[i] % x.align == 0 and 0 <= found.offsets[i] <= found.offsets[i] + x.size <= found.total
        for j in range(i):
            if clash(i, j):
                assert not overlap((found.offsets[i], x.size), (found.offsets[j], items[j].size))
    # never worse than end to end, never better than what is live at one point
    assert found.total <= sum(x.size + x.align - 1 for x in items)
    for point in range(42):
        assert found.total >= sum(x.size for x, end in zip(items, ends) if x.start <= point <= end)


def test_nothing_clashes():
    assert pack([Item(512), Item(1024), Item(128)], [set()] * 3).total == 1024


def test_everything_clashes():
    assert pack([Item(512), Item(1000), Item(128)], clashes(3, lambda i, j: True)).total in range(1640, 1793)


def test_a_gap_is_filled():
    """Two that live one after the other fit beside a third that lives throughout."""
    found = pack([Item(4096), Item(1024), Item(1024)], clashes(3, lambda i, j: {i, j} != {1, 2}))
    assert found.total == 5120 and found.offsets[1] == found.offsets[2]


def test_overlap_is_of_bytes():
    assert overlap((0, 10), (9, 1)) and not overlap((0, 10), (10, 5)) and not overlap((5, 5), (0, 5))
