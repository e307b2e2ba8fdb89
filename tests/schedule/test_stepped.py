"""What a loop computes from its index in 64 bits is carried, a sum further in each trip (`schedule/stepped.py`)."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param
from tilejit.ir import listed
from tilejit.ir.types import Ptr, fp32, int32
from tilejit.runtime.compile import schedule, tile_ir


@tilejit.jit
def rows(x, out, n, pitch, DOWN: tl.constexpr, WIDE: tl.constexpr, W: tl.constexpr):
    """Every second row of x, times its number, is added to one of out's, from the first or the last row on."""
    at = tl.arange(0, W)
    first, last, step = (n - 1, -1, -2) if DOWN else (0, n, 2)
    for i in tl.range(first, last, step):
        row = i.to(tl.int64) if WIDE else i
        line = x + row * pitch * W + at
        if i % 4 == 0:
            tl.store(out + row * pitch * W + at, tl.load(line) * (i + 1), mask=at + row < W + n)


@tilejit.jit
def nested(x, out, n, m, W: tl.constexpr):
    """out[i, j] = 2 x[i, j] of n times m blocks, the pointers of an inner loop from an outer one's."""
    at = tl.arange(0, W)
    for i in range(n):
        for j in tl.range(m, num_stages=1):
            place = (i.to(tl.int64) * 256 + j.to(tl.int64) * 32) * 2 + at
            tl.store(out + place, 2 * tl.load(x + place))


@tilejit.jit
def several(x, y, out, n, first, W: tl.constexpr):
    """Three addresses in a loop, each made in several steps."""
    at = tl.arange(0, W)[None, :]
    rows = tl.arange(0, 4)[:, None]
    for j in range(first.to(tl.int64), n):
        found = tl.load(x + j * 16 * W + (rows * W + at)) + tl.load(y + j * 16 * W + rows * W + at)
        tl.store(out + rows * W + at + j - first.to(tl.int64), found)


def carried(kernel, *args, **constants):
    """How many values each loop carries, and the 64-bit products in loops."""
    names = list(kernel.source.signature.parameters)
    found = {n: a for n, a in zip(names, args)} | {n: Const(c) for n, c in constants.items()}
    fn = schedule(tile_ir(kernel.source, found, {"num_warps": 1}))
    loops = [op for op in listed(fn.body) if op.name == "for"]
    return [len(op.results) for op in loops], sum(
        x.name == "mul" and getattr(x.result.type, "bits", 0) == 64 for op in loops for x in listed(op.regions[0]))


POINTER, NUMBER = Param(Ptr(fp32), 16), Param(int32, 1)


def test_what_is_carried():
    assert carried(rows, POINTER, POINTER, NUMBER, NUMBER, DOWN=False, WIDE=True, W=32)[1] == 0
    counts, products = carried(nested, POINTER, POINTER, NUMBER, NUMBER, W=32)
    assert counts[1] == 2 and products == 0
    assert carried(several, POINTER, POINTER, POINTER, NUMBER, NUMBER, W=32)[0] == [4 + 3], "two loads ahead, three addresses"
    narrow = carried(rows, POINTER, POINTER, NUMBER, NUMBER, DOWN=False, WIDE=False, W=32)[0]
    assert narrow < carried(rows, POINTER, POINTER, NUMBER, NUMBER, DOWN=False, WIDE=True, W=32)[0], "it may wrap around"


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n, pitch", [(0, 1), (1, 3), (9, 2), (10, 1)])
def test_results(down, wide, n, pitch):
    x = np.random.default_rng(1).standard_normal(40 * 32).astype(np.float32)
    out, expected = np.zeros_like(x), np.zeros_like(x)
    for i in range(n - 1, -1, -2) if down else range(0, n, 2):
        if i % 4 == 0:
            at = slice(i * pitch * 32, i * pitch * 32 + min(32, 32 + n - i))
            expected[at] = x[at] * (i + 1)
    with tilejit.knobs(target="emulator"):
        rows[(1,)](x, out, n, pitch, DOWN=down, WIDE=wide, W=32, num_warps=1)
    assert np.array_equal(out, expected)


def test_nested_loops():
    x = np.random.default_rng(1).standard_normal(4 * 512).astype(np.float32)
    out, expected = np.zeros_like(x), np.zeros_like(x)
    for i in range(3):
        for j in range(5):
            at = slice((i * 256 + j * 32) * 2, (i * 256 + j * 32) * 2 + 32)
            expected[at] = 2 * x[at]
    with tilejit.knobs(target="emulator"):
        nested[(1,)](x, out, 3, 5, W=32, num_warps=1)
    assert np.array_equal(out, expected)
