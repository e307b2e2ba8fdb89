"""Stream-K with programs of several CTAs that divide the rows of a tile."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, work_of
from references import StandIn

import tilejit
from tilejit.kernels import launches
from tilejit.kernels.streamk import matmul_streamk
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
    """Every tile is finished once; equal bits, whoever is first."""
    t, a, b, bias, want = streamed(t, m, n, k, dtype, programs, stream_tiles)
    with tilejit.knobs(target=target):
        outs = [matmul_streamk(a, b, bias, "relu", config=t) for _ in range(2)]
    assert rel_error(outs[0], want) <= 8e-3 and np.array_equal(*outs)


@pytest.mark.parametrize("t", [LARGE, SMALL])
@pytest.mark.one_schedule
def test_under_several_schedules(t, monkeypatch):
    """Six programs, parts that begin and end inside tiles."""
    t, a, b, bias, want = streamed(t, t.m + 40, 72, 448, BF16, 6)
    kernel = launches.product_kernel
    monkeypatch.setattr(launches, "product_kernel", StandIn(
        lambda grid, *args, **options: tilejit.check(kernel, grid, *args, seeds=range(1), **options).check()))
    with tilejit.knobs(target="emulator"):
        out = np.full(want.shape, np.nan, BF16)
        matmul_streamk(a, b, bias, "relu", out, config=t)
    assert rel_error(out, want) <= 8e-3


@pytest.mark.parametrize("dtype, out", [("bfloat16", "bfloat16"), ("float8e4nv", "bfloat16"), ("float16", "float32")])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.remarks("spills", "stack", reason="8 bytes for results in fp32")
def test_compiles(dtype, out, activation):
    """The tile that products are streamed with: no spills to speak of, and as deep as that of whole tiles."""
    t = Way(256, 256, 8, 2, programs=3, stream=2)
    (launch,) = work_of(t, 512, 256, 1024, dtype, out, activation=activation, bias=activation is not None).launches
    k = compiled(launch, {2: "*bf16", 4: "*fp32", 5: "*int32"})
    assert k.resources.spill_stores <= 8 and k.metadata.num_stages == 4 and "specialised" in k.report()
