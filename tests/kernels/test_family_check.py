"""Products whose programs meet (streamed tiles, atomics) under many schedules with the sanitizer, at sizes that cut
tiles anywhere; `test_schedules.py` runs every ready kernel once."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from references import StandIn

import tilejit
from tilejit.kernels import fused, grouped, launches, mixed, streamk
from tilejit.kernels.way import Way

BF16 = ml_dtypes.bfloat16
pytestmark = pytest.mark.one_schedule        # its launches explore by themselves


@pytest.fixture
def checked(monkeypatch):
    """checked(tolerance): launches of products become checks, on three multiprocessors; the PTX of each is in the list
    that is returned."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 3)
    made = []

    def patch(tolerance=0.0):
        kernel, ptx = launches.product_kernel, []

        def launch(grid, *args, **kwargs):
            tilejit.check(kernel, grid, *args, tolerance=tolerance, seeds=[0], **kwargs).check()
            ptx.append(kernel.warmup(*args, grid=grid, **kwargs).ptx)

        monkeypatch.setattr(launches, "product_kernel", StandIn(launch))
        made.append(ptx)
        return ptx

    yield patch
    assert all(made)


def normal(*shape, dtype=BF16):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("m, store_role", [(20, None), (100, None), (100, True)])
def test_streamk(checked, monkeypatch, m, store_role):
    """Equal bits under every schedule, whoever stores."""
    found = checked()
    monkeypatch.setattr(Way, "options", lambda self, *_: {"num_warps": self.warps, "store_role": store_role})
    t = Way(64, 64, 4) if m > 20 else Way(64, 32, 4, swap=True)
    t = replace(t, programs=3, stream=t.tiles(m, 128))
    streamk.matmul_streamk(normal(m, 256), normal(128, 256).T, normal(128), "silu", config=t)
    assert ("role store" in found[-1]) == bool(store_role)


def test_accumulate(checked):
    checked(1e-4)
    streamk.matmul_streamk(normal(16, 512), normal(64, 512).T, out=np.ones((16, 64), np.float32), accumulate=True,
                           split=3)


@pytest.mark.parametrize("config", [Way(64, 64, 4), Way(128, 16, 4, swap=True)])
def test_grouped(checked, config):
    checked()
    grouped.grouped_matmul(normal(90, 128), normal(3, 72, 128).transpose(0, 2, 1), np.array([1, 1, 70, 90], np.int32),
                           config=config)


@pytest.mark.parametrize("gated", [True, False])
def test_fused(checked, gated):
    """Everything at once: stores of two results, a residual, row sums by atomics."""
    checked(1e-4)
    m, n, k = 72, 80, 128
    b = normal(2, n, k).transpose(0, 2, 1) if gated else normal(n, k).T
    z = np.zeros((2, m, n) if gated else (m, n), BF16)
    (fused.gated_matmul if gated else fused.fused_matmul)(
        normal(m, k), b, scale_a=normal(m, 1, dtype=np.float32), activation="silu", residual=normal(m, n), z=z,
        reduction="squares", reduced=np.zeros(m, np.float32))


@pytest.mark.parametrize("bits", [8, 4])
def test_mixed(checked, bits):
    checked(1e-2)
    weight = np.random.default_rng(0).integers(0, 100, (136, 256 * bits // 8)).astype(np.int8 if bits == 8 else np.uint8)
    mixed.weight_only_matmul(normal(20, 256), weight, normal(136, 2, dtype=np.float32), split=2)


