"""Pointers that a loop moves all alike: it carries one, and loads the same."""
import numpy as np

import tilejit
import tilejit.language as tl


@tilejit.kernel
def turned(x, out, M, pitch, K, R: tl.constexpr, C: tl.constexpr):
    rows, cols = tl.arange(0, R) % M, tl.arange(0, C)
    left = x + (rows[:, None] * pitch + cols[None, :])
    down = left
    total = tl.zeros((R, C), tl.float32)
    for k in range(0, K):
        total += tl.load(left) - 2 * tl.load(down, mask=cols[None, :] < C - k, other=0)
        left += C
        down += pitch
    tl.store(out + tl.arange(0, R)[:, None] * C + cols[None, :], total)


def test_one_pointer_is_carried():
    rows, cols, trips = 32, 64, 3
    x = np.random.default_rng(1).integers(-9, 9, (rows + trips, 201)).astype(np.float32)
    out = np.zeros((rows, cols), np.float32)
    turned[(1,)](x, out, 30, 201, trips, R=rows, C=cols)
    at, want = np.arange(rows) % 30, np.zeros_like(out)
    for k in range(trips):
        want += x[at, k * cols:(k + 1) * cols] - 2 * np.where(np.arange(cols) < cols - k, x[at + k, :cols], 0)
    np.testing.assert_array_equal(out, want)
    k = turned.compile("*fp32", "*fp32", "int32", "int32", "int32", R=rows, C=cols)
    (loop,) = [line for line in k.ir.splitlines() if " = for " in line]
    assert loop.count("ptr<fp32>[") == 0 and loop.count("ptr<fp32>") == 4, loop
