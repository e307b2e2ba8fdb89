"""Products of a part of a block's K: what lies beyond takes no part, and no instruction."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@tilejit.kernel
def product(a_desc, b_desc, c_desc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DEPTH: tl.constexpr,
            COMPUTED: tl.constexpr = False):
    """C = A @ B^T of one block of K, of whose columns DEPTH count; COMPUTED: A is doubled in registers first."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(1):
        a = a_desc.load([0, k * BK])
        if COMPUTED:
            a = a * 2.0
        acc = tl.dot(a, b_desc.load([0, k * BK]).T, acc, depth=DEPTH)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def ragged(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr):
    """C = A @ B^T, the last block of K in a loop of its own."""
    for row in tl.range(tl.program_id(0), tl.cdiv(a_desc.shape[0], BM), tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(K // BK):
            acc = tl.dot(a_desc.load([row * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        for k in range(K // BK, K // BK + 1):
            acc = tl.dot(a_desc.load([row * BM, k * BK]), b_desc.load([0, k * BK]).T, acc, depth=TAIL)
        c_desc.store([row * BM, 0], acc)


#: Those that both chips multiply, and compute with; then fp8, which only Hopper does, and from shared memory.
TYPES = [(BF16, 16), (BF16, 48), (np.float32, 8)]
WHERE = [("evaluator", "sm_90a"), ("emulator", "sm_90a"), ("emulator", "sm_80")]
WAYS = [(*where, *what, computed) for where in WHERE for what in TYPES for computed in (False, True)]


@pytest.mark.parametrize("target, arch, dtype, depth, computed", [*WAYS, *((*w, E4M3, 32, False) for w in WHERE[:2])])
def test_the_rest_takes_no_part(target, arch, dtype, depth, computed):
    """Operands that are no numbers beyond the depth, in shared memory and from registers."""
    rng = np.random.default_rng(0)
    bk = 128 // np.dtype(dtype).itemsize
    a, b = rng.standard_normal((64, bk)).astype(dtype), rng.standard_normal((32, bk)).astype(dtype)
    want = a[:, :depth].astype(np.float64) @ b[:, :depth].astype(np.float64).T * (2 if computed else 1)
    a[:, depth:], b[:, depth:] = np.nan, np.nan
    out = np.zeros((64, 32), np.float32)
    d = tilejit.TensorDescriptor.from_tensor
    with tilejit.knobs(target=target, arch=arch):
        product[(1,)](d(a, (64, bk)), d(b, (32, bk)), d(out, (64, 32)), BM=64, BN=32, BK=bk, DEPTH=depth,
                      COMPUTED=computed, num_warps=4)
    assert rel_error(out, want) <= 2e-3


def test_a_loop_of_its_own_goes_on_in_the_slots():
    """Sixteen columns behind whole blocks: one product instead of four, in the slots of the loop before."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((256, 208)).astype(BF16), rng.standard_normal((64, 208)).astype(BF16)
    out = np.full((256, 64), np.nan, np.float32)
    d = tilejit.TensorDescriptor.from_tensor
    args = d(a, (128, 64)), d(b, (64, 64)), d(out, (128, 64)), 208
    options = dict(BM=128, BN=64, BK=64, TAIL=16, num_warps=8)
    tilejit.check(ragged, (1,), *args, seeds=[1], **options).check()
    assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64).T) <= 1e-6
    kernel = ragged.compile("desc<bf16[128x64]>", "desc<bf16[64x64]>", "desc<fp32[128x64]>", "int32", **options)
    assert "goes on in the slots" in kernel.report()
    assert len(re.findall(r"wgmma\.mma_async", kernel.ptx)) == 4 + 1


@pytest.mark.parametrize("depth", [0, 8, 24, 128, "16"])
def test_depths_that_are_none(depth):
    with pytest.raises(CompilationError, match=r"must be a constant multiple of 16 \(32 bytes\), at most K=64"):
        product.compile("desc<bf16[64x64]>", "desc<bf16[32x64]>", "desc<fp32[64x32]>", BM=64, BN=32, BK=64, DEPTH=depth)


def test_the_whole_depth_is_none():
    kernel = product.compile("desc<bf16[64x64]>", "desc<bf16[32x64]>", "desc<fp32[64x32]>", BM=64, BN=32, BK=64, DEPTH=64)
    assert "depth=" not in str(kernel.ir)


def test_blocks_that_are_divided_have_no_depth():
    with pytest.raises(CompilationError, match='depth=16 is of a whole block, and with cluster_split="K"'):
        product.compile("desc<bf16[64x64]>", "desc<bf16[32x64]>", "desc<fp32[64x32]>", BM=64, BN=32, BK=64, DEPTH=16,
                        num_ctas=2, cluster_split="K")
