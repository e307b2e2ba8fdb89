"""`break`, `continue` and `return` in loops on the device, in the evaluator and as PTX in the emulator."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@pytest.fixture(params=["evaluator", "emulator"], autouse=True)
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@tilejit.kernel
def first_above(x, out, n, limit):
    found = -1
    steps = 0
    for i in range(n):
        steps += 1
        if tl.load(x + i) > limit:
            found = i
            break
    tl.store(out, found)
    tl.store(out + 1, steps)


@pytest.mark.parametrize("limit", [-1, 3, 6, 99])
def test_break(limit):
    x, out = np.array([0, 2, 1, 4, 3, 7, 7, 5], np.int32), np.zeros(2, np.int32)
    first_above[(1,)](x, out, 8, limit, num_warps=1)
    above = np.flatnonzero(x > limit)
    assert out.tolist() == ([above[0], above[0] + 1] if len(above) else [-1, 8])


@tilejit.kernel
def odd_rows(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros((N,), tl.int32)
    for i in range(n - 1, -1, -1):
        row = tl.load(x + i * N + at)
        if tl.sum(row) % 2 == 0:
            continue
        total += row
    tl.store(out + at, total)


def test_continue_with_tiles():
    x, out = np.random.default_rng(0).integers(0, 9, (6, 64)).astype(np.int32), np.zeros(64, np.int32)
    odd_rows[(1,)](x, out, 6, 64)
    np.testing.assert_array_equal(out, x[x.sum(1) % 2 == 1].sum(0))


@tilejit.kernel
def search(x, n, N: tl.constexpr, wanted):
    """Row and values of the first row that has the wanted number; a nested loop and a while around it."""
    i = 0
    while True:
        if i >= n:
            break
        for j in range(N):
            v = tl.load(x + i * N + j)
            if v < 0:
                break
            if v == wanted:
                return i, tl.load(x + i * N + tl.arange(0, N))
        i += 1
    return -1, tl.zeros((N,), tl.int32)


@tilejit.kernel
def searches(x, out, n, wanted, N: tl.constexpr):
    row, values = search(x, n, N, wanted)
    tl.store(out, row)
    tl.store(out + 1 + tl.arange(0, N), values)


@pytest.mark.parametrize("wanted", [5, 8, 77])
def test_return_of_tiles_out_of_nested_loops(wanted):
    x = np.array([[1, -1, 5, 8], [2, 3, 8, 4], [5, 0, 0, 0]], np.int32)
    out = np.zeros(5, np.int32)
    searches[(1,)](x, out, 3, wanted, 4)
    row = {5: 2, 8: 1}.get(wanted, -1)
    assert out.tolist() == [row, *(x[row] if row >= 0 else [0] * 4)]


@tilejit.kernel
def leaves_at_once(x, out, n):
    for i in range(n):
        if tl.load(x + i) == 0:
            return
        tl.store(out + i, 1)
    tl.store(out + 7, 2)


@pytest.mark.parametrize("zero", [0, 2, None])
def test_bare_return(zero):
    x, out = np.ones(4, np.int32), np.zeros(8, np.int32)
    if zero is not None:
        x[zero] = 0
    leaves_at_once[(1,)](x, out, 4)
    assert out.tolist() == ([1, 1, 1, 1, 0, 0, 0, 2] if zero is None else [*[1] * zero, *[0] * (8 - zero)])


@tilejit.kernel
def unrolled(x, out, N: tl.constexpr):
    for i in tl.static_range(N):
        if tl.load(x + i) == 0:
            continue
        if tl.load(x + i) < 0:
            break
        tl.store(out + i, i + 1)
    else_value = i  # noqa: F841
    tl.store(out + N, 9)


@pytest.mark.parametrize("x", [[1, 1, 1], [0, 1, 1], [1, -1, 1], [0, 0, -1]])
def test_unrolled(x):
    out = np.zeros(4, np.int32)
    unrolled[(1,)](np.array(x, np.int32), out, 3)
    expected = [0, 0, 0, 9]
    for i, v in enumerate(x):
        if v < 0:
            break
        expected[i] = i + 1 if v else 0
    assert out.tolist() == expected


@tilejit.kernel
def rules_out(x, n, K: tl.constexpr):
    """A `return` in a loop that the constants leave out."""
    v = x
    for i in range(n):
        if K > 5 and x > 3:
            return i
        v += i
        if i > 2:
            break
    return v


@tilejit.kernel
def calls_it(out, n, K: tl.constexpr):
    tl.store(out, rules_out(n, n, K))


@pytest.mark.parametrize("k, expected", [(1, 7 + 0 + 1 + 2 + 3), (9, 0)])
def test_a_return_that_constants_rule_out(k, expected):
    out = np.zeros(1, np.int32)
    calls_it[(1,)](out, 7, k)
    assert out[0] == expected
