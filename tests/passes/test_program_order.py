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
