"""Stream-K with programs of several CTAs that divide the rows of a tile."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels.product import streamk_kernel
from tilejit.kernels.streamk import matmul_streamk, workspace_for
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
#: Of one group of consumers, and of two that take turns.
LARGE, SMALL = Way(256, 64, 8, 2), Way(128, 64, 4, 2)


def streamed(t, m, n, k, dtype, programs, stream_tiles=None):
    """The configuration with its programs, operands, a bias, and the exact result."""
    rng = np.random.default_rng(0)
    tiles = tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n)
    t = replace(t, programs=programs, stream=tiles if stream_tiles is None else stream_tiles)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (n, k)))
    bias = rng.standard_normal(n).astype(np.float32)
    return t, a, b.T, bias, np.maximum(a.astype(np.float64) @ b.T.astype(np.float64) + bias, 0)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("t, m, n, k, dtype, programs, stream_tiles", [
    (LARGE, 300, 72, 328, BF16, 3, None),          # ragged, four tiles in three runs
    (LARGE, 256, 136, 512, E4M3, 4, None),         # a run is shorter than a tile: middle parts
    (SMALL, 200, 136, 256, BF16, 4, 5),            # a whole tile after streamed ones, two groups of consumers
    (SMALL, 136, 64, 1024, BF16, 5, None)])
@pytest.mark.one_schedule
def test_streams(target, t, m, n, k, dtype, programs, stream_tiles):
    """Every tile is finished once; equal bits, whoever is first; flags are zero again."""
    t, a, b, bias, want = streamed(t, m, n, k, dtype, programs, stream_tiles)
    with tilejit.knobs(target=target):
        space = workspace_for(a, b, config=t)
        outs = [matmul_streamk(a, b, bias, "relu", workspace=space, config=t) for _ in range(2)]
    assert rel_error(outs[0], want) <= 8e-3 and np.array_equal(*outs)
    assert not space.flags_array.any()


@pytest.mark.parametrize("t", [LARGE, SMALL])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.one_schedule
def test_under_several_schedules(t, ordered):
    """Six programs, parts that begin and end inside tiles; also parts that are added as they come."""
    t, a, b, bias, want = streamed(t, t.m + 40, 72, 448, BF16, 6)
    space, out = workspace_for(a, b, config=t), np.full(want.shape, np.nan, BF16)
    boxes = ((a, (t.m, 64)), (b.T, (t.n, 64)), (out, (t.m, t.n)))
    tilejit.check(
        streamk_kernel, (6,), *(tilejit.TensorDescriptor.from_tensor(*x) for x in boxes), space.tiles(4, t.m, t.n),
        space.parts_array, space.flags_array, bias, *want.shape, 448, 4, BM=t.m, BN=t.n, BK=64, GROUP=8, A_ROWS=True,
        B_ROWS=False, C_ROWS=True, ACTIVATION="relu", ADD=False, ORDERED=ordered, num_warps=t.warps, num_ctas=2,
        seeds=range(1)).check()
    assert rel_error(out, want) <= 8e-3
    assert not space.flags_array.any() and (ordered or not space.parts_array.any())


@pytest.mark.parametrize("dtype, out", [("bf16", "bf16"), ("fp8e4nv", "bf16"), ("fp16", "fp32")])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_compiles(dtype, out, activation):
    """The tile that products are streamed with: no spills, and as deep as that of whole tiles."""
    bk = 64 if dtype != "fp8e4nv" else 128
    k = streamk_kernel.compile(
        f"desc<{dtype}[256x{bk}]>", f"desc<{dtype}[256x{bk}]>", f"desc<{out}[256x256]>", "desc<fp32[256x256]>", "*fp32",
        "*int32", "*bf16" if activation else None, "int32", "int32", "int32", "int32", BM=256, BN=256, BK=bk, GROUP=8,
        A_ROWS=True, B_ROWS=False, C_ROWS=True, ACTIVATION=activation, ADD=False, ORDERED=True, num_warps=8, num_ctas=2)
    assert not k.warnings() and k.metadata.num_stages == 4 and "specialised" in k.report()
