"""Warp-specialised Hopper matrix products (TMA, mbarriers, wgmma, setmaxnreg, clusters): exact results.

data/gemm_*.ptx are generated texts: D[M,N] = A[M,K] @ B[N,K]^T in bf16, persistent, one producer and two
consumer warpgroups. Small integers make every sum exact, so the results must be equal to the bit.
"""
from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import u32

from tilejit.emulator import Program, encode_tensor_map
from tilejit.emulator.policy import POLICIES

DATA = Path(__file__).parent / "data"
BF16 = ml_dtypes.bfloat16


def gemm(name: str, m: int, n: int, k: int, ctas: int, policy: str = "round_robin", seed: int = 0) -> None:
    text = (DATA / f"gemm_{name}.ptx").read_text()
    bm, bn, bk, cluster, smem = map(int, re.match(
        r"// tile (\d+)x(\d+)x(\d+), cluster (\d+), shared (\d+)", text).groups())  # type: ignore[union-attr]
    rng = np.random.default_rng(seed)
    a = rng.integers(-3, 4, (m, k)).astype(BF16)
    b = rng.integers(-3, 4, (n, k)).astype(BF16)
    d = np.zeros((m, n), BF16)

    def tensor_map(x: np.ndarray, box: tuple[int, int]) -> bytes:
        return encode_tensor_map(x.ctypes.data, "bf16", x.shape, (x.shape[1], 1), box, 128)

    params = [tensor_map(a, (bm, bk)), tensor_map(b, (bn // cluster, bk)), tensor_map(d, (64, 64)), u32(m), u32(n), u32(k)]
    report = Program(text).launch((ctas,), 384, params, shared_bytes=smem, cluster=(cluster, 1, 1), memory=[a, b, d],
                                  policy=policy, seed=seed).check()
    assert report.ctas == ctas
    want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)
    assert np.array_equal(d.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("name,ctas", [("cooperative", 3), ("pingpong", 3), ("cluster2", 4), ("cluster4", 4), ("tall", 2)])
def test_configurations(name: str, ctas: int) -> None:
    gemm(name, 512, 768, 320, ctas)


@pytest.mark.parametrize("name,ctas", [("cooperative", 2), ("pingpong", 2), ("cluster2", 2), ("cluster4", 4), ("tall", 2)])
def test_ragged_shapes(name: str, ctas: int) -> None:
    gemm(name, 300, 328, 200, ctas)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name,ctas", [("cooperative", 2), ("pingpong", 2), ("cluster2", 2), ("cluster4", 4)])
def test_policies(name: str, ctas: int, policy: str, seed: int) -> None:
    gemm(name, 256, 512, 192, ctas, policy, seed)
