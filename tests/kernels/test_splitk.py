"""Split-K in even parts, however its programs are made, against float64: in the evaluator and on the emulated SM."""
from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, work_of

import tilejit
from tilejit.kernels.streamk import matmul_streamk
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
ONE, SWAPPED = Way(64, 64, 4), Way(64, 16, 4, swap=True)
#: A CTA, or several that divide the rows of a tile, its columns, too, or K.
WAYS = {"one": ONE, "rows": Way(128, 64, 4, ctas=2, split="M"), "k": replace(ONE, ctas=2, split="K"),
        "grid": Way(128, 128, 4, 4, "MN"), "swapped-grid": Way(128, 96, 4, 4, "MN", True), "swapped": SWAPPED, "swapped-k": replace(SWAPPED, ctas=2, split="K")}


@pytest.mark.parametrize("parts", [4, 66])
@pytest.mark.parametrize("t", [Way(128, 256, 8), Way(256, 256, 8, ctas=2, split="M"), Way(128, 256, 8, 2, "K"), Way(512, 256, 4, 8, "MN"),
                               Way(128, 16, 4, swap=True)], ids=lambda t: f"{t.m}x{t.n}/{t.ctas}")
def test_compiles(t, parts):
    """No spills, a deep ring beside what is staged, and each role waits for the launch ahead before it touches memory."""
    m, n = t.computed(t.m, t.n)
    launch, _ = work_of(t.divided(m, n, parts), m, n, 64 * t.k_ctas * parts * 4).launches
    kernel = compiled(launch, {})
    assert not kernel.warnings() and kernel.metadata.num_stages >= 3
    roles = kernel.ptx.split("---- role ")[1:]
    assert len(roles) == 2
    for role in roles:
        touched = re.search(r"cp.async.bulk.tensor|(ld|st|atom).*\.global", role)
        assert touched and 0 < role.find("griddepcontrol.wait") < touched.start()


@pytest.mark.parametrize("k, early", [(4096, True), (4104, False)])
def test_lines_that_two_parts_share_stay(k, early):
    """What parts read leaves L2 first, but where a block of K, another part's, begins within a line of L2."""
    launch, _ = work_of(Way(128, 128, 8).divided(128, 128, 4), 128, 128, k).launches
    assert ("evict_first" in compiled(launch, {}).ptx) == early


@pytest.mark.one_schedule                # many and large; `test_schedules.py` has a small one
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_parts(target, way, parts):
    """Ragged in all directions, with bias and activation; equal inputs give equal bits."""
    rng = np.random.default_rng(parts)
    m, n, k = 10 if WAYS[way].swap else 136, 72, 64 * 7 + 24
    a, b = rng.standard_normal((m, k)).astype(BF16), rng.standard_normal((n, k)).astype(BF16).T
    bias = rng.standard_normal(n).astype(np.float32)
    t = WAYS[way].divided(m, n, parts)
    assert t.parts == parts and t.programs == parts * t.stream
    z = a.astype(np.float64) @ b.astype(np.float64) + bias
    with tilejit.knobs(target=target):
        found = [np.full((m, n), np.nan, BF16) for _ in range(2 if target == "emulator" else 1)]
        for out in found:
            matmul_streamk(a, b, bias, "silu", out, config=t)
    assert rel_error(found[0], z / (1 + np.exp(-z))) <= 8e-3
    assert all(np.array_equal(found[0].view(np.int16), x.view(np.int16)) for x in found)
