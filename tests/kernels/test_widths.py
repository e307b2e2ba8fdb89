"""Products whose tiles have a number of columns that is no power of two."""
from __future__ import annotations

import importlib

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
matmul_kernel = importlib.import_module("tilejit.kernels.matmul").matmul_kernel


def launch(bm, bn, dtype, b_rows, **options):
    """Two programs of bm x bn tiles over a ragged product with bias and activation; (out, reference)."""
    m, n, k = bm + 40, 2 * bn + 48, 200
    rng = np.random.default_rng(bn)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    bias, out = rng.standard_normal(n).astype(np.float32), np.full((m, n), np.nan, BF16)
    bk = 128 // a.itemsize
    if k * a.itemsize % 16 or not b_rows:
        padded = np.zeros((n, tilejit.cdiv(k, 16) * 16), dtype)
        padded[:, :k] = b.T
        rows = np.zeros((m, padded.shape[1]), dtype)
        rows[:, :k] = a
    d = tilejit.TensorDescriptor
    da = d.from_tensor(a if b_rows else rows, (bm, bk))
    db = d.from_tensor(b, (bk, bn)) if b_rows else d.from_tensor(padded, (bn, bk))
    matmul_kernel[(2,)](da, db, d.from_tensor(out, (bm, bn)), bias, m, n, k, BM=bm, BN=bn, BK=bk, GROUP=4, A_ROWS=True,
                        B_ROWS=b_rows, ACTIVATION="relu", **options)
    return out, np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("bm, bn, dtype, b_rows, options", [
    (128, 160, BF16, False, {"num_warps": 8}),
    (128, 192, BF16, True, {"num_warps": 8}),
    (64, 176, BF16, True, {"num_warps": 4}),
    (64, 96, E4M3, False, {"num_warps": 4, "num_consumer_groups": 1}),
    (256, 224, BF16, False, {"num_warps": 8, "num_ctas": 2}),
    (256, 144, E4M3, False, {"num_warps": 8, "num_ctas": 2}),
    (256, 208, BF16, True, {"num_warps": 8, "num_ctas": 2, "store_role": True}),
    (256, 160, BF16, False, {"num_warps": 8}),
    (256, 96, E4M3, False, {"num_warps": 8, "store_role": True}),
    *((256, n, BF16, n % 64 == 0, {"num_warps": 8, "num_ctas": 2, "cluster_split": "N"}) for n in (288, 320, 352, 384)),
], ids=str)
def test_widths(target, bm, bn, dtype, b_rows, options):
    with tilejit.knobs(target=target):
        out, ref = launch(bm, bn, dtype, b_rows, **options)
    assert rel_error(out, ref) <= 3e-3


def test_pieces_divide_the_width():
    """A store goes in pieces of the largest power of two of columns that divides them."""
    d = tilejit.TensorDescriptor
    a, b, c = (np.zeros(s, BF16) for s in ((128, 64), (160, 64), (128, 160)))
    compiled = matmul_kernel.compile(
        d.from_tensor(a, (128, 64)), d.from_tensor(b, (160, 64)), d.from_tensor(c, (128, 160)), None, 128, 160, 64, BM=128,
        BN=160, BK=64, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_warps=8)
    assert "staged 32 columns at a time" in compiled.report()
    assert compiled.ptx.count("wgmma.mma_async.sync.aligned.m64n160k16") == 4
    assert "st.shared" not in compiled.ptx and compiled.ptx.count("stmatrix") == 5 * 2


def test_blocks_of_descriptors():
    x = np.zeros((256, 256), BF16)
    for block in ((160, 64), (272, 64), (64, 496)):
        assert tilejit.TensorDescriptor.from_tensor(x, block).block_shape == block
    for block in ((100, 64), (528, 64)):
        with pytest.raises(tilejit.LaunchError, match="multiples of 16 up to 512"):
            tilejit.TensorDescriptor.from_tensor(x, block)
