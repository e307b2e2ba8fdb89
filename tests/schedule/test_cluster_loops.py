"""Rows in loops of clusters: every CTA fills rings with its strips of them, and what all have is folded in each turn."""
from __future__ import annotations

import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def walk(x, w, out, sums, n, columns, pitch, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Rows times weights less the row's sum; sums over a program's rows."""
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    weights = tl.load(w + cols, inside, other=0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(tl.program_id(0), n, tl.num_programs(0), num_stages=STAGES):
        at = row.to(tl.int64) * pitch
        v = tl.load(x + at + cols, inside, other=0.0)
        y = v * weights - tl.sum(v, 0)
        total += y
        tl.store(out + at + cols, y, inside)
    tl.store(sums + tl.program_id(0) * columns + cols, total, inside)


@pytest.mark.parametrize("ctas, stages, columns, block", [(2, 2, 496, 512), (2, 3, 1008, 1024), (4, 2, 2048, 2048)])
def test_rings_of_strips(ctas, stages, columns, block):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    out, sums = np.full_like(x, np.nan), np.full((2, columns), np.nan, np.float32)
    args, kw = (x, w, out, sums, 7, columns, columns), dict(BLOCK=block, STAGES=stages, num_warps=1, num_ctas=ctas)
    with tilejit.knobs(target="emulator"):
        tilejit.check(walk, (2,), *args, seeds=[0], **kw).check()
        build = walk.compile(*args, **kw)
    want = x.astype(np.float64) * w - x.astype(np.float64).sum(1, keepdims=True)
    assert np.abs(out - want).max() < 1e-4 and np.abs(sums - [want[::2].sum(0), want[1::2].sum(0)]).max() < 1e-4
    assert f"{stages} slots x {block // ctas * 4} bytes, bulk copies of rows" in build.report()
    assert f"ctas={ctas}" in next(line for line in build.scheduled.splitlines() if " row_copy " in line)
