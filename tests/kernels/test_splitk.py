"""Split-K in even parts, every way it can be configured, against float64: in the evaluator and on the emulated SM."""
from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.errors import CompilationError
from tilejit.kernels.splitk import shares, split_kernel
from tilejit.kernels.streamk import Config, matmul_streamk, workspace_for
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
SMALL = Config(64, 64, 4, staged=2, woven=False)
#: How parts are made and summed.
WAYS = {
    "successive": SMALL, "woven": replace(SMALL, woven=True), "sums": replace(SMALL, sums=(256, 4)),
    "meet": replace(SMALL, meet=True), "meet-woven": replace(SMALL, meet=True, woven=True),
    "rows": Config(128, 64, 4, ctas=2, rows=True, staged=2, evict="evict_first"), "k": replace(SMALL, ctas=2),
    "rows-meet": Config(128, 64, 4, ctas=2, rows=True, meet=True), "k-meet": replace(SMALL, ctas=2, meet=True),
    "held": replace(SMALL, staged=0), "held-sums": replace(SMALL, staged=0, sums=(128, 2)),
    "held-meet": replace(SMALL, staged=0, meet=True), "held-k": replace(SMALL, staged=0, ctas=2),
    "evict": replace(SMALL, evict="evict_first"),
    "held-rows-meet": Config(128, 64, 4, ctas=2, rows=True, staged=0, meet=True),
    "held-swapped": Config(64, 16, 4, swap=True, staged=0), "held-swapped-meet": Config(64, 16, 4, swap=True, staged=0,
                                                                                        meet=True),
    "swapped": Config(64, 16, 4, swap=True, meet=True), "swapped-k": Config(64, 16, 4, swap=True, ctas=2),
}


def test_eviction():
    """A hint of the loads; anything else is told."""
    args = ("desc<bf16[128x64]>", "desc<bf16[256x64]>", None, "*fp32", None, None, None, *["int32"] * 5)
    rest = dict(BM=128, BN=256, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False, PARTS=2, WOVEN=True, ELEMENTS=0, CHUNK=0,
                BIAS_ROWS=False, ACTIVATION=None, num_warps=8)
    ptx = split_kernel.compile(*args, EVICT="evict_first", **rest).ptx
    assert ptx.count(".L2::cache_hint") == 2 and "createpolicy.fractional.L2::evict_first.b64" in ptx
    assert "cache_hint" not in split_kernel.compile(*args, EVICT="", **rest).ptx
    with pytest.raises(CompilationError, match="is evict_first or evict_last, found 'first'"):
        split_kernel.compile(*args, EVICT="first", **rest)


LARGE = [replace(t, meet=meet) for meet in (False, True) for t in (
    Config(128, 256, 8, staged=0), Config(256, 256, 8, ctas=2, rows=True, staged=0), Config(128, 16, 4, swap=True, staged=0),
    Config(128, 256, 8), Config(256, 256, 8, ctas=2, rows=True), Config(128, 256, 8, ctas=2), Config(128, 16, 4, swap=True))]


@pytest.mark.parametrize("parts", [4, 66])
@pytest.mark.parametrize("t", LARGE, ids=lambda t: f"{t.m}x{t.n}/{t.ctas}{'-meet' * t.meet}{'-held' * (not t.staged)}")
def test_compiles(t, parts):
    """No spills, a deep ring beside what is staged, and each role waits for the launch ahead before it touches memory."""
    bk = 64 * (1 if t.rows else t.ctas)
    elements, chunk = shares(t.m, t.n, parts, 32 * t.warps * t.ctas) if t.meet else (0, 0)
    kernel = split_kernel.compile(
        f"desc<bf16[{t.m}x{bk}]>", f"desc<bf16[{t.n}x{bk}]>", f"desc<fp32[{t.m}x{t.n}]>" if t.staged else None, "*fp32",
        *(("*int32", "*bf16", "*bf16") if t.meet else (None,) * 3), "int32", "int32:16", "int32", "int32:16", 1, BM=t.m,
        BN=t.n, BK=bk, GROUP=8, A_ROWS=True, B_ROWS=False, PARTS=parts, WOVEN=True, EVICT=t.evict, ELEMENTS=elements, CHUNK=chunk,
        BIAS_ROWS=t.swap, ACTIVATION="gelu" if t.meet else None, num_warps=t.warps, store_stages=t.staged or None, **t.options)
    assert not kernel.warnings() and kernel.metadata.num_stages >= 3
    roles = kernel.ptx.split("---- role ")[1:]
    assert len(roles) == 2
    for role in roles:
        touched = re.search(r"cp.async.bulk.tensor|(ld|st|atom).*\.global", role)
        assert touched and 0 < role.find("griddepcontrol.wait") < touched.start()


@pytest.mark.one_schedule                # waiting for other programs takes its time
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_parts(target, way, parts):
    """Ragged in all directions, with bias and activation; a workspace serves twice, and equal inputs give equal bits."""
    if target == "evaluator" and WAYS[way].meet:
        pytest.skip("programs that wait for later ones: the evaluator runs one after another")
    rng = np.random.default_rng(parts)
    m, n, k = 10 if WAYS[way].swap else 136, 72, 64 * 7 + 24
    a, b = rng.standard_normal((m, k)).astype(BF16), rng.standard_normal((n, k)).astype(BF16).T
    bias = rng.standard_normal(n).astype(np.float32)
    t = WAYS[way].split(*((n, m) if WAYS[way].swap else (m, n)), parts)
    assert t.parts == parts and t.programs == parts * t.stream_tiles
    z = a.astype(np.float64) @ b.astype(np.float64) + bias
    with tilejit.knobs(target=target):
        space = workspace_for(a, b, config=t)
        found = [np.full((m, n), np.nan, BF16) for _ in range(3)]
        for out, w in zip(found, (space, space, None)):
            matmul_streamk(a, b, bias, "silu", out, workspace=w, config=t)
    assert rel_error(found[0], z / (1 + np.exp(-z))) <= 8e-3
    assert all(np.array_equal(found[0].view(np.int16), x.view(np.int16)) for x in found)
    assert not space.flags_array.any()
