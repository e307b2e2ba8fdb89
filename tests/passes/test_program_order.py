"""What a program reads and writes of one tensor, in the order of the program, whichever warps do it."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def first_of_rows(x, M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr):
    """Every row (or column) plus its first element, in place."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    at = x + m[:, None] * N + n[None, :]
    tile = tl.load(at)
    first = tl.load(x + m * N)[:, None] if ROWS else tl.load(x + n)[None, :]
    tl.store(at, tile + first)


@tilejit.kernel
def of_all(x, N: tl.constexpr):
    """Every element times the first, which is read by all."""
    at = x + tl.arange(0, N)
    tl.store(at, tl.load(at) * tl.load(x))


@tilejit.kernel
def in_place(x, N: tl.constexpr):
    at = x + tl.arange(0, N)
    tl.store(at, tl.load(at) * 2.0)


@pytest.mark.parametrize("rows", [False, True])
def test_rows_in_place(rows):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 32)).astype(np.float32)
    want = x + (x[:, :1] if rows else x[:1])
    for seed in range(6):
        made = x.copy()
        with tilejit.knobs(target="emulator"):
            tilejit.check(first_of_rows, (1,), made.copy(), 32, 32, rows) if seed == 0 else None
            first_of_rows[(1,)](made, 32, 32, rows)
        assert np.array_equal(made, want)


def test_what_all_read_is_written_after():
    x = np.arange(2, 1026, dtype=np.float32)
    want = x * x[0]
    with tilejit.knobs(target="emulator"):
        of_all[(1,)](x, 1024)
    assert np.array_equal(x, want)


def test_a_thread_of_its_own_needs_no_meeting():
    x = np.ones(1024, np.float32)
    assert "bar.sync" not in in_place.compile(x, 1024).ptx
    assert "bar.sync" in of_all.compile(x, 1024).ptx


@tilejit.kernel
def transposes(p, n, B: tl.constexpr):
    """Every iteration reads in one layout what the one before wrote in another."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    for _ in range(n):
        x = tl.load(p + i * B + j)
        tl.store(p + j * B + i, x * 2)


@tilejit.kernel
def overwrites(p, x, n, B: tl.constexpr):
    """Of two stores the later one stays."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    for k in range(n):
        tl.store(p + i * B + j, tl.zeros((B, B), tl.float32))
        tl.store(p + j * B + i, tl.load(x + j * B + i) + k)


@tilejit.kernel
def counts(p, n):
    """A number in memory, which every warp reads and one thread writes."""
    for k in range(n):
        tl.store(p, tl.load(p) + k)


@tilejit.kernel
def in_place_again(p, n, B: tl.constexpr):
    """The same threads read and write."""
    at = tl.arange(0, B)
    for k in range(n):
        tl.store(p + at, tl.load(p + at) + k)


@tilejit.kernel
def less_the_first(p, n, B: tl.constexpr):
    """A number that all threads read, then blocks in place, of which the first one has that number."""
    first = tl.load(p)
    for k in range(n):
        at = p + k * B + tl.arange(0, B)
        tl.store(at, tl.load(at) - first)


def meetings(compiled):
    return str(compiled.ir).count("debug_barrier")


def test_meetings_are_where_they_must_be():
    """Between accesses in different layouts, in one iteration and from one to the next; not where threads keep to their
    own, not for different arguments, and not twice."""
    assert meetings(transposes.compile("*fp32", "int32", 32)) == 2
    assert meetings(overwrites.compile("*fp32", "*fp32", "int32", 32)) == 2
    assert meetings(counts.compile("*int32", "int32")) == 2
    assert meetings(in_place_again.compile("*int32", "int32", 1024)) == 0
    assert meetings(in_place_again.compile("*int32", "int32", 16)) == 2          # every warp reads what one writes
    assert meetings(transposes.compile("*fp32", "int32", 32, num_warps=1)) == 0


def test_what_was_read_before_a_loop_is_met_for_before_it():
    """Once, not in every iteration."""
    before, loop = str(less_the_first.compile("*int32", "int32", 1024).ir).split("for %")
    assert "debug_barrier" in before and "debug_barrier" not in loop
    x = np.arange(5, 4101, dtype=np.int32)
    made = x.copy()
    with tilejit.knobs(target="emulator"):
        tilejit.check(less_the_first, (1,), made, 4, 1024, policies=("random",), seeds=[0]).check()
    assert np.array_equal(made, x - 5)


@pytest.mark.parametrize("seed", range(4))
def test_iterations_are_in_order(seed):
    """Whichever warp runs ahead."""
    x = np.random.default_rng(0).integers(0, 9, (32, 32)).astype(np.float32)
    with tilejit.knobs(target="emulator"):
        for kernel, args, want in (
                (transposes, (x.copy(), 5, 32), 32 * x.T), (overwrites, (np.ones_like(x), x, 3, 32), x + 2),
                (counts, (np.zeros(1, np.int32), 7), np.array([21])),
                (in_place_again, (np.zeros(16, np.int32), 5, 16), np.full(16, 10))):
            tilejit.check(kernel, (1,), *args, policies=("random",), seeds=[seed]).check()
            assert np.array_equal(args[0], want), kernel


@tilejit.kernel
def twice_through_descriptors(x, M, N, BM: tl.constexpr, BN: tl.constexpr, POINTERS: tl.constexpr):
    """What one loop stores through a descriptor, another one loads, through it or through pointers."""
    d = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    m = tl.program_id(0) * BM
    at = (m + tl.arange(0, BM))[:, None] * N + tl.arange(0, BN)[None, :]
    for n in range(0, N, BN):
        d.store([m, n], d.load([m, n]) + 10)
    for n in range(0, N, BN):
        if POINTERS:
            tl.store(x + at + n, tl.load(x + at + n) + 5)
        else:
            d.store([m, n], d.load([m, n]) + 5)


@tilejit.kernel
def stored_then_loaded(x, y, N: tl.constexpr):
    """Threads store what a descriptor loads."""
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(x + i, tl.load(x + i) * 2)
    tl.store(y + i, tl.make_tensor_descriptor(x, [N, N], [N, 1], [N, N]).load([0, 0]))


@tilejit.kernel
def sums_in_place(x, n, M: tl.constexpr, N: tl.constexpr):
    """Every iteration loads what the one before has stored."""
    d = tl.make_tensor_descriptor(x, [M, N], [N, 1], [M, N])
    for k in range(n):
        d.store([0, 0], d.load([0, 0]) * 2 + k)


def checked(kernel, grid, arrays, *args, **options):
    """The arrays after a launch whose copies land in any order, in which the sanitizer finds nothing."""
    made = [x.copy() for x in arrays]
    with tilejit.knobs(target="emulator"):
        tilejit.check(kernel, grid, *made, *args, seeds=[1], policies=["random"], **options).check()
    return made


@pytest.mark.parametrize("pointers", [False, True])
def test_what_descriptors_stored_is_loaded(pointers):
    (x,) = checked(twice_through_descriptors, (8,), [np.zeros((64, 512), np.float32)], 64, 512, 8, 128, pointers)
    assert (x == 15).all()


@pytest.mark.parametrize("warps", [1, 4])
def test_descriptors_load_what_threads_stored(warps):
    x, y = checked(stored_then_loaded, (1,), [np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)], 32,
                   num_warps=warps)
    assert (x == 2).all() and (y == 2).all()


def test_descriptors_load_what_the_iteration_before_stored():
    (x,) = checked(sums_in_place, (1,), [np.ones((16, 32), np.float32)], 5, 16, 32, num_stages=3)
    want = 1
    for k in range(5):
        want = want * 2 + k
    assert (x == want).all()


def test_blocks_that_move_on_are_still_loaded_ahead():
    k = twice_through_descriptors.compile(np.zeros((64, 512), np.float32), 64, 512, 8, 128, False, num_stages=3)
    assert k.ptx.count("bulk.wait_group 0") == 2 and "3 slots" in str(k.report)
