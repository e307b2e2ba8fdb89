"""Loads of sequential loops, issued iterations ahead: the same results, no address beyond an array, in the right loops."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def forward(x, g, o, T, D: tl.constexpr, BD: tl.constexpr):
    """h = h * g + x, row after row."""
    at = tl.program_id(0) * BD + tl.arange(0, BD)
    mask = at < D
    px, pg, po, h = x + at, g + at, o + at, tl.zeros([BD], tl.float32)
    for _ in range(0, T):
        h = h * tl.load(pg, mask=mask, other=0) + tl.load(px, mask=mask, other=0)
        tl.store(po, h, mask=mask)
        px += D
        pg += D
        po += D


@tilejit.kernel
def backward(x, g, o, T, D: tl.constexpr, BD: tl.constexpr):
    """The same from the last row on, and the row before is only read where there is one."""
    at = tl.program_id(0) * BD + tl.arange(0, BD)
    px, h = x + (T - 2) * D + at, tl.zeros([BD], tl.float32)
    for i in range(T - 1, -1, -1):
        step = tl.load(g + i * D + at, mask=at < D, other=0)
        if i > 0:
            before = tl.load(px, mask=at < D, other=0)
        else:
            before = tl.zeros([BD], tl.float32)
        h = h * step + before
        tl.store(o + i * D + at, h, mask=at < D)
        px -= D


@tilejit.kernel
def in_place(x, T, D: tl.constexpr):
    """Each row is the sum of those before: what is stored is loaded in the next iteration."""
    at = tl.arange(0, D)
    for i in range(1, T):
        tl.store(x + i * D + at, tl.load(x + i * D + at) + tl.load(x + i * D - D + at))


@tilejit.kernel
def followed(links, o, T):
    """Where the next number lies is what was loaded: nothing can be ahead."""
    at = tl.load(links)
    for i in range(0, T):
        tl.store(o + i, at)
        at = tl.load(links + at)


def folded(x, g):
    """The recurrence in numpy."""
    h, out = np.zeros(x.shape[1], np.float32), []
    for a, b in zip(x, g):
        h = h * b + a
        out.append(h)
    return np.array(out).reshape(x.shape)


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    with tilejit.knobs(target=request.param):
        yield


def inputs(rows, columns):
    rng = np.random.default_rng(rows)
    return [rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 13])
def test_forward(target, rows):
    x, g = inputs(rows, 40)
    o = np.zeros_like(x)
    k = forward[(2,)](x, g, o, rows, 40, 32, num_warps=1)
    np.testing.assert_allclose(o, folded(x, g), rtol=1e-4, atol=1e-6)
    assert rows < 2 or "2 loads are issued 4 iterations ahead" in k.report()


@pytest.mark.parametrize("rows", [1, 2, 5, 13])
def test_backward(target, rows):
    x, g = inputs(rows, 40)
    o = np.zeros_like(x)
    backward[(2,)](x, g, o, rows, 40, 32, num_warps=1)
    before = np.concatenate([np.zeros((1, 40), np.float32), x[:-1]])
    np.testing.assert_allclose(o[::-1], folded(before[::-1], g[::-1]), rtol=1e-4, atol=1e-6)


def test_nothing_is_read_beyond_the_arrays():
    """The sanitizer knows where arrays end; loads of iterations that there are not would be beyond."""
    x, g = inputs(6, 32)
    for kernel in (forward, backward):
        tilejit.check(kernel, (1,), x, g, np.zeros_like(x), 6, 32, 32, num_warps=1, seeds=[0]).check()


def test_loads_of_what_the_loop_stores_stay(target):
    x = inputs(7, 32)[0]
    want = np.cumsum(x, axis=0)
    in_place[(1,)](x, 7, 32, num_warps=1)
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-6)


def test_addresses_that_are_loaded_stay(target):
    links, o = np.array([3, 0, 1, 2], np.int32), np.zeros(6, np.int32)
    followed[(1,)](links, o, 6, num_warps=1)
    np.testing.assert_array_equal(o, [3, 2, 1, 0, 3, 2])


def depth(rows, **options):
    """What the report says of the forward kernel."""
    f = np.zeros((1, 1024), np.float32)
    lines = forward.compile(f, f, f, rows, 1024, 1024, **options).report().splitlines()
    return next((int(line.split("issued ")[1].split()[0]) for line in lines if "iterations ahead" in line), 0)


def test_depth_goes_by_registers():
    assert depth(100, num_warps=8) == 2 and depth(100, num_warps=4) == 1 and depth(100, num_warps=1) == 0


@tilejit.kernel
def blocks(x, o, n, B: tl.constexpr):
    """Loops over a row by blocks, of which each iteration needs all sums so far."""
    best, at = -float("inf"), tl.arange(0, B)
    for i in range(0, n, B):
        best = tl.maximum(best, tl.max(tl.load(x + i + at, mask=i + at < n, other=-float("inf")), 0))
    for i in range(0, n, B):
        tl.store(o + i + at, tl.load(x + i + at, mask=i + at < n, other=0) - best, mask=i + at < n)


def test_one_iteration_has_none_ahead(target):
    for n, ahead in ((1000, False), (4000, True)):
        x, o = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        made = blocks[(1,)](x, o, n, 1024)
        assert ("iterations ahead" in made.report()) == ahead
        assert np.array_equal(o, x - (n - 1))


@tilejit.kernel
def copied(x, o, n, B: tl.constexpr):
    row = tl.program_id(0) * n
    for i in range(0, n, B):
        at = i + tl.arange(0, B)
        tl.store(o + row + at, tl.load(x + row + at, mask=at < n), mask=at < n)


def test_trips_of_many_small_loads_have_none_ahead():
    made = [copied.compile("*bf16", "*fp32", "int32", B=b).report() for b in (512, 1024)]
    assert ["iterations ahead" in x for x in made] == [True, False]


@tilejit.kernel
def pairs(x, y, o, first, last, W: tl.constexpr):
    """Each iteration is for itself: a row of x times the first one of y."""
    at = tl.arange(0, W)
    much = tl.load(y + first * W + at)
    for i in range(first, last):
        tl.store(o + i, tl.sum(tl.load(x + i * W + at) * much, 0))


def test_short_trips_are_written_out(target):
    """What is loaded two trips ahead has registers of its own in each of three; the loop ends behind any of them."""
    for last in range(2, 9):
        x, y = (np.random.default_rng(i).standard_normal((9, 256)).astype(np.float16) for i in range(2))
        o = np.zeros(9, np.float32)
        made = pairs[(1,)](x, y, o, 2, last, W=256, num_warps=1)
        want = np.where((np.arange(9) >= 2) & (np.arange(9) < last), x.astype(np.float32) @ y[2].astype(np.float32), 0)
        np.testing.assert_allclose(o, want, rtol=1e-2, atol=1e-1)
    assert made.ptx.count("shfl.sync") == 5 * 5


def test_trips_that_ptxas_writes_out_are_left_to_it(target):
    """Its loads of four trips are side by side, which ours are not: fla's recurrence of hgrn took 1.4 times as long."""
    x, g = (np.ones((20, 32), np.float32) for _ in range(2))
    o = np.zeros((20, 32), np.float32)
    made = forward[(1,)](x, g, o, 20, D=32, BD=32, num_warps=1)
    assert np.array_equal(o[:, 0], np.arange(1, 21)) and made.ptx.count("st.global") == 1
