"""Loops whose addresses the loop carries, in ways that feed one another: loads ahead of time read what Python says."""
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl

PLACES, ROW = 8, 64


@tilejit.kernel
def walk(x, out, lo, hi, first, second, STEP: tl.constexpr, STAGES: tl.constexpr, HINT: tl.constexpr, ROW: tl.constexpr,
         PLACES: tl.constexpr):
    """Folds the rows that a walk through x visits; where it goes depends on where it was, and on the counter."""
    here, there = first, second
    row = tl.arange(0, ROW)
    acc = tl.zeros((ROW,), tl.int32)
    for i in tl.range(lo, hi, STEP, num_stages=STAGES):
        start = here * ROW
        if HINT:
            start = start + (tl.program_id(0) + 1)
        acc = acc * 3 + tl.load(x + start + row, mask=row < ROW - 16 - here * 4, other=0)
        turn = (here + there) % PLACES
        there = (there * 3 + (i + 64) % 5) % PLACES
        here = turn
    tl.store(out + row, acc)


@tilejit.kernel
def blocks(x_desc, out, steps, BLOCK: tl.constexpr):
    """Blocks by TMA whose place the loop carries, in the form with one role."""
    at = 0
    r, c = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in tl.range(0, steps, num_stages=3, warp_specialize=False):
        acc = acc * 3 + x_desc.load([at, 0])
        at = (at + BLOCK * (i + 1)) % 64
    tl.store(out + r[:, None] * BLOCK + c[None, :], acc)


def walked(x, lo, hi, step, here, there, shift):
    acc = np.zeros(ROW, np.int64)
    for i in range(lo, hi, step):
        row = x[here * ROW + shift:here * ROW + shift + ROW].astype(np.int64).copy()
        row[max(0, ROW - 16 - here * 4):] = 0
        acc = acc * 3 + row
        here, there = (here + there) % PLACES, (there * 3 + (i + 64) % 5) % PLACES
    return acc.astype(np.int32)


@settings(max_examples=12, deadline=None)
@example(1, 0, 1, 0, 0, 1, False)
@given(st.integers(-3, 3), st.integers(-6, 9), st.sampled_from([1, 2, 3, -1, -2]), st.integers(0, 7), st.integers(0, 7),
       st.sampled_from([1, 2, 3, 5]), st.booleans())
def test_a_walk(lo, length, step, here, there, stages, shifted):
    """Rows as bulk copies, or by threads where they start anywhere; loops of no, few and many steps, up and down."""
    hi = lo + length * (1 if step > 0 else -1)
    x = np.arange(PLACES * ROW + 1, dtype=np.int32) * 7 % 1000
    out = np.full(ROW, -1, np.int32)
    args = (x, out, lo, hi, here, there)
    constants = {"STEP": step, "STAGES": stages, "HINT": shifted, "ROW": ROW, "PLACES": PLACES}
    tilejit.check(walk, (1,), *args, seeds=[0], **constants).check()
    assert np.array_equal(out, walked(x, lo, hi, step, here, there, int(shifted)))
    report = walk.warmup(*args, grid=(1,), **constants).report()
    if lo == hi == 1:                    # arguments that are 1 are constants: there is no loop
        return
    kind = "not pipelined, num_stages=1" if stages == 1 else "cp.async" if shifted else "bulk copies of rows"
    assert kind in report


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_blocks_in_the_form_with_one_role(steps):
    x = np.random.default_rng(0).integers(-4, 5, (64, 16)).astype(np.float32)
    out = np.full((16, 16), np.nan, np.float32)
    desc = tilejit.TensorDescriptor(x, x.shape, (16, 1), (16, 16))
    tilejit.check(blocks, (1,), desc, out, steps, BLOCK=16, seeds=[0]).check()
    want, at = np.zeros((16, 16)), 0
    for i in range(steps):
        want = want * 3 + x[at:at + 16]
        at = (at + 16 * (i + 1)) % 64
    assert np.array_equal(out, want)
    assert steps == 1 or "ring load0: 3 slots x 1024 bytes, TMA tiles, read into registers" in blocks.warmup(
        desc, out, steps, BLOCK=16, grid=(1,)).report()
