"""The sanitizer's parts against naive models: shadow memory byte by byte, clocks as sets."""
from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.shadow import ReaderSets, Region, Shadow, distinct
from tilejit.emulator.sanitizer.strong import CtaClocks

SIZE = 256
ACCESSES = st.tuples(st.booleans(), st.sampled_from([1, 2, 4, 8, 16, 12, 20]), st.lists(st.integers(0, 14), min_size=1, max_size=6),
                     st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.lists(ACCESSES, max_size=12))
def test_shadow_is_what_byte_by_byte_says(accesses) -> None:
    """The last writer and the set of readers since, for starts in any order, repeated or not aligned."""
    shadow, sets = Shadow(SIZE), ReaderSets()
    writer, readers = [0] * SIZE, [frozenset[int]()] * SIZE
    for number, (is_write, size, places, odd) in enumerate(accesses, 1):
        starts = np.array([min(16 * p + odd, SIZE - size) for p in places], np.int64)
        region = Region(starts, size)
        touched = sorted({b for s in starts.tolist() for b in range(s, s + size)})
        assert distinct(region.get(shadow.writer)) == sorted({writer[b] for b in touched})
        found = {m for n in distinct(region.get(shadow.readers)) for m in sets.members[n]}
        assert found == {m for b in touched for m in readers[b]}
        if is_write:
            shadow.write(region, number)
        else:
            shadow.read(region, lambda n: sets.number((*sets.members[n], number)))
        for b in touched:
            writer[b], readers[b] = (number, frozenset()) if is_write else (writer[b], readers[b] | {number})
    assert shadow.writer.tolist() == writer
    assert [frozenset(sets.members[n]) for n in shadow.readers.tolist()] == readers


@given(st.lists(st.integers(0, 5), min_size=1, max_size=300))
def test_distinct(values: list[int]) -> None:
    assert distinct(np.array(values, np.int32)) == sorted(set(values))


STEPS = st.lists(st.tuples(st.sampled_from(["tick", "join", "meet", "op", "fence"]), st.integers(0, 3), st.integers(0, 3)), max_size=30)


@given(STEPS)
def test_clocks_are_sets_of_events(steps) -> None:
    """A clock against the set of (warp, tick) and operations that it stands for; what is fenced is known, too."""
    clocks = [Clock.nothing(4).ticked(w) for w in range(4)]
    known = [{(w, 1)} for w in range(4)]
    fenced: list[set] = [set() for _ in range(4)]
    for number, (what, a, b) in enumerate(steps):
        if what == "tick":
            clocks[a] = clocks[a].ticked(a)
            known[a] = known[a] | {(a, max(t for w, t in known[a] if w == a) + 1)} if any(w == a for w, _ in known[a]) else {(a, 1)} | known[a]
        elif what == "op":
            clocks[a] = clocks[a].with_ops(1 << number)
            known[a] = known[a] | {("op", number)}
        elif what == "fence":
            clocks[a], fenced[a] = clocks[a].fenced(), set(known[a])
        else:
            combine = set.union if what == "join" else set.intersection
            clocks[a] = clocks[a].join(clocks[b]) if what == "join" else clocks[a].meet(clocks[b])
            known[a], fenced[a] = combine(known[a], known[b]), combine(fenced[a], fenced[b])
        for w, c in enumerate(clocks):
            told = {(warp, t) for warp in range(4) for t in range(1, int(c.ticks[0, warp]) + 1)}
            assert told | {("op", i) for i in range(30) if c.ops >> i & 1} == known[w]
            visible = {(warp, t) for warp in range(4) for t in range(1, int(c.ticks[1, warp]) + 1)}
            assert visible | {("op", i) for i in range(30) if c.fenced_ops >> i & 1} == fenced[w]


def test_ctas_learn_by_release_and_acquire_and_by_fences() -> None:
    c = CtaClocks()
    first = c.now(0)
    c.publish(0, 100, "release")
    late = c.now(0)
    assert late == first + 1 and not c.knows(1, 0, first)
    c.observe(1, 100, "acquire")
    assert c.knows(1, 0, first) and not c.knows(1, 0, late) and not c.knows_fenced(1, 0, first)
    c.publish(1, 200, "relaxed")                # nothing was fenced before
    c.observe(2, 200, "acquire")
    assert not c.knows(2, 0, first)
    c.proxy_fence(1)
    assert c.knows_fenced(1, 0, first)
    c.fence(1)
    c.publish(1, 200, "relaxed")
    c.observe(2, 200, "relaxed")
    assert not c.knows(2, 0, first)
    c.fence(2)
    assert c.knows(2, 0, first) and c.knows_fenced(2, 0, first) and c.knows(2, 2, 99)
