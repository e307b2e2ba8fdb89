"""Reductions along what the CTAs of a cluster divide."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.verify import verify

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def columns(a_desc, b_desc, sums, peaks, whole, rows, tiles, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Of each tile of a product: sums and largest (and where) of columns, the sum of all, the largest of rows."""
    cols = tl.arange(0, BN)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([tile * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        tl.store(sums + tile * BN + cols, tl.sum(acc, 0))
        tl.store(peaks + tile * BN + cols, tl.argmax(acc, 0))
        tl.store(whole + tile, tl.sum(acc))
        tl.store(rows + tile * BM + tl.arange(0, BM), tl.max(acc, 1))


def problem(bm, bn, tiles=2, k=256):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (n, k)).astype(BF16) for n in (tiles * bm, bn))
    outs = (np.zeros((tiles, bn), np.float32), np.zeros((tiles, bn), np.int32), np.zeros(tiles, np.float32),
            np.zeros((tiles, bm), np.float32))
    return a, b, outs


@pytest.mark.parametrize("split, ctas, warps, bm, bn", [
    ("M", 2, 4, 128, 32), ("M", 4, 4, 256, 16), ("M", 2, 8, 256, 64), ("K", 2, 4, 64, 32), ("K", 4, 8, 128, 32),
    ("K", 8, 4, 64, 16)])
def test_folds_over_ctas(split, ctas, warps, bm, bn):
    bk = 64 * ctas if split == "K" else 64
    a, b, outs = problem(bm, bn)
    descs = [tilejit.TensorDescriptor.from_tensor(x, (n, bk)) for x, n in ((a, bm), (b, bn))]
    with tilejit.knobs(target="emulator"):
        k = columns[(1,)](*descs, *outs, 2, 256, BM=bm, BN=bn, BK=bk, num_ctas=ctas, num_warps=warps, cluster_split=split)
    z = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(2, bm, bn)
    for found, want in zip(outs, (z.sum(1), z.argmax(1), z.sum((1, 2)), z.max(2))):
        assert np.array_equal(found, want)
    assert "what the CTAs have is folded through" in k.report() and not k.warnings()
    assert k.scheduled.count("cluster_fold") >= 3


@pytest.mark.parametrize("split", ["M", "K"])
def test_sanitizer(split):
    bm, bk = (128, 64) if split == "M" else (64, 128)
    a, b, outs = problem(bm, 16, k=128)
    descs = [tilejit.TensorDescriptor.from_tensor(x, (n, bk)) for x, n in ((a, bm), (b, 16))]
    tilejit.check(columns, (1,), *descs, *outs, 2, 128, BM=bm, BN=16, BK=bk, num_ctas=2, cluster_split=split,
                  seeds=range(2)).check()
    z = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(2, bm, 16)
    assert np.array_equal(outs[0], z.sum(1)) and np.array_equal(outs[1], z.argmax(1))


def test_the_text_can_be_read_back():
    """Scheduled IR with both kinds of exchange."""
    types = ("desc<bf16[64x128]>", "desc<bf16[32x128]>", "*fp32", "*int32", "*fp32", "*fp32", "int32", "int32")
    text = columns.compile(*types, BM=64, BN=32, BK=128, num_ctas=2, cluster_split="K").scheduled
    assert "= cluster_sum %acc" in text and "cluster_fold" in text and "{axis=0, ctas=2, " in text
    fn = parse_function(text)
    verify(fn)
    assert print_function(fn) == text
