"""Rows that leave a multiprocessor too few CTAs are divided by a cluster, whose size nobody asked for."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_strips import close, softmax

import tilejit
import tilejit.language as tl
from tilejit.schedule.in_flight import cluster_of


@pytest.mark.parametrize("size, block, found", [
    (65536, 32768, (1, 8)), (131072, 65536, (4, 4)), (262144, 131072, (8, 4)), (524288, 262144, (16, 4)),
    (1 << 20, 1 << 19, (16, 8)), (2 << 20, 1 << 20, (16, 16)), (131072, 32768, (4, 4)), (524288, 65536, (16, 4))])
def test_as_few_as_leave_room_for_three_or_six(size, block, found):
    assert cluster_of(size, block) == found


def test_a_softmax_of_one_cta():
    """The launch asks for one CTA of 16 warps; what is compiled says otherwise, from the disk too."""
    x = np.random.default_rng(0).standard_normal((1, 65536)).astype(ml_dtypes.bfloat16)
    out = np.full_like(x, np.nan)
    with tilejit.knobs(target="emulator"):
        softmax[(1,)](x, out, 65536, 65536, BLOCK=65536, num_warps=16)
    for build in (softmax.compile(x, out, 65536, 65536, BLOCK=65536, num_warps=16) for _ in "12"):
        assert (build.metadata.cluster, build.metadata.num_warps) == ((4, 1, 1), 4)
        assert "num_ctas=4" in build.scheduled
    v = np.exp(x.astype(np.float64) - x.astype(np.float64).max())
    close(out, v / v.sum(), ml_dtypes.bfloat16)


@tilejit.kernel
def with_histogram(x, out, counts, BLOCK: tl.constexpr):
    """What clusters are not taught to do stands beside a wide row."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, v - tl.max(v, 0))
    tl.store(counts + tl.arange(0, 16), tl.histogram(tl.arange(0, 64) % 16, 16))


def test_what_cannot_be_divided_is_one_cta_and_says_so():
    build = with_histogram.compile("*fp32", "*fp32", "*int32", BLOCK=32768, num_warps=16)
    assert build.metadata.num_ctas == 1
    assert "rows are not divided by 4 CTAs, as" in build.report()
