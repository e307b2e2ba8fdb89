"""Products whose tiles have a number of columns that is no power of two."""
from __future__ import annotations

import importlib
import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
matmul_kernel = importlib.import_module("tilejit.kernels.product.plain").matmul_kernel


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
    (192, 176, BF16, False, {"num_warps": 12}),
    (192, 128, E4M3, False, {"num_warps": 12, "store_role": True}),
    *((192, n, BF16, n % 64 == 0, {"num_warps": 12, "num_ctas": 2, "cluster_split": "N"}) for n in (320, 352, 384)),
    (384, 176, BF16, True, {"num_warps": 12, "num_ctas": 2}),
    (384, 128, E4M3, False, {"num_warps": 12, "num_ctas": 2, "store_role": True}),
    (384, 128, BF16, False, {"num_warps": 12, "num_ctas": 2, "store_role": False}),
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


def kernel(bm, bn, warps, **options):
    """`matmul_kernel` compiled for a tile."""
    return matmul_kernel.compile(
        f"desc<bf16[{bm}x64]>", f"desc<bf16[{bn}x64]>", f"desc<bf16[{bm}x{bn}]>", None, "int32", "int32", "int32", BM=bm,
        BN=bn, BK=64, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_warps=warps, **options)


@pytest.mark.parametrize("bm, bn, options, products", [
    (256, 160, {}, {"m64n160k16": 8}), (256, 320, {"num_ctas": 2, "cluster_split": "N"}, {"m64n160k16": 8}),
    (256, 384, {"num_ctas": 2, "cluster_split": "N"}, {"m64n192k16": 8}), (128, 160, {}, {"m64n160k16": 4})])
def test_a_warpgroup_has_slices_of_rows(bm, bn, options, products):
    """One instruction for each slice of 64 rows and 16 of K, as wide as the CTA's columns; registers of one slice only."""
    ptx = kernel(bm, bn, 8, **options).ptx
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)\S* \{([^}]*)\}", ptx)
    assert {kind: len(found) for kind, _ in found} == products
    sets = {tuple(registers.split(", ")) for _, registers in found}
    assert len(sets) * 4 == len(found) and len(set().union(*sets)) == sum(map(len, sets)), "each slice has its own"


def test_blocks_of_descriptors():
    x = np.zeros((256, 256), BF16)
    for block in ((160, 64), (272, 64), (64, 496)):
        assert tilejit.TensorDescriptor.from_tensor(x, block).block_shape == block
    for block in ((100, 64), (528, 64)):
        with pytest.raises(tilejit.LaunchError, match="multiples of 16 up to 512"):
            tilejit.TensorDescriptor.from_tensor(x, block)


def test_three_warpgroups():
    """Each has 64 rows, its own store and registers of a pool that four share; slots are free when all three say so."""
    build = kernel(192, 352, 12, num_ctas=2, cluster_split="N")
    assert "specialised: producer warp + 3 consumer warpgroups" in build.report()
    assert "registers: 128 at launch, 24 producer, 160 consumers" in build.report()
    assert build.metadata.num_threads == 512 and build.ptx.count("wgmma.mma_async.sync.aligned.m64n176k16") == 4
    assert build.resources.spill_stores == 0 and not build.resources.messages
    empty = int(re.search(r"\+ +(\d+)  a_b.empty", build.report())[1])
    assert empty == 4 * 8 and len(re.findall(r"mbarrier\.init\S* \[\S+\], 6;", build.ptx)) == 4


@tilejit.kernel
def copied(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i))


@tilejit.kernel
def scaled(a_desc, b_desc, c_desc, x, K, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T, acc)
    i = tl.arange(0, 1024)
    c_desc.store([0, 0], (acc * tl.sum(tl.load(x + i))).to(tl.bfloat16))


@pytest.mark.parametrize("compiled, why", [
    (lambda: kernel(128, 128, 12), "three warpgroups take 192 rows"),
    (lambda: kernel(192, 176, 12, num_ctas=2, cluster_split="M"), "96x176 does not divide over 12 warps"),
    (lambda: kernel(192, 128, 12, warp_specialize=False), "no such loop: use 8 or 16"),
    (lambda: kernel(192, 128, 12, target="sm_80"), "num_warps=12 needs wgmma"),
    (lambda: kernel(48, 128, 12), "num_warps=12 needs wgmma"),
    (lambda: copied.compile("*fp32", "*fp32", N=1024, num_warps=12), "no such loop: use 8 or 16"),
    (lambda: scaled.compile("desc<bf16[192x64]>", "desc<bf16[128x64]>", "desc<bf16[192x128]>", "*fp32", "int32", BM=192,
                            BN=128, num_warps=12), "reduce: warps fold in pairs")])
def test_where_three_warpgroups_cannot_work(compiled, why):
    with pytest.raises(tilejit.CompilationError, match=why):
        compiled()


@tilejit.kernel
def beside(a_desc, b_desc, c_desc, x, y, K, BM: tl.constexpr, BN: tl.constexpr, WHAT: tl.constexpr):
    """C = A @ B^T, changed by numbers of x in one way; what is stored in y in another."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    whole = rows[:, None] * BN + columns[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        part = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T)
        if WHAT == "rows in the loop":
            part *= tl.load(x + rows + k)[:, None]
        elif WHAT == "a number in the loop":
            part *= tl.load(x + k)
        acc += part
    if WHAT == "rows":
        acc *= tl.load(x + rows)[:, None]
    elif WHAT == "a column":
        acc *= tl.load(x + rows[:, None])
    elif WHAT == "all":
        acc *= tl.load(x + whole)
    elif WHAT == "stored":
        tl.store(y + whole, acc)
    elif WHAT == "vectors":
        tl.store(y + rows, tl.load(x + rows) + 1)
        tl.store(y + 512 + tl.arange(0, 256), tl.load(x + tl.arange(0, 256)) + 1)
    elif WHAT == "an atomic":
        tl.atomic_add(y, 1.0)
    c_desc.store([0, 0], acc.to(tl.bfloat16))


@pytest.mark.remarks("spills", "stack", reason="addresses of whole tiles beside two sets of sums")
@pytest.mark.parametrize("what", ["rows in the loop", "a number in the loop", "rows", "a column", "all", "stored", "vectors",
                                  "an atomic"])
@pytest.mark.parametrize("bm, bn, options", [(192, 176, {}), (384, 128, {"num_ctas": 2}),
                                             (192, 256, {"num_ctas": 2, "cluster_split": "N"})], ids=str)
def test_what_else_three_warpgroups_do(bm, bn, options, what):
    """Loads and stores beside a product: layouts whose rows three warpgroups divide, or eight warps and four copies."""
    rng = np.random.default_rng(bm)
    a, b = (rng.integers(-2, 3, (n, 128)).astype(BF16) for n in (bm, bn))
    x, y, c = rng.integers(1, 3, bm * bn + 128).astype(np.float32), np.zeros(bm * bn, np.float32), np.zeros((bm, bn), BF16)
    d = tilejit.TensorDescriptor.from_tensor
    with tilejit.knobs(target="emulator"):
        beside[(1,)](d(a, (bm, 64)), d(b, (bn, 64)), d(c, (bm, bn)), x, y, 128, BM=bm, BN=bn, WHAT=what, num_warps=12, **options)
    halves = [a[:, k:k + 64].astype(np.float32) @ b[:, k:k + 64].astype(np.float32).T for k in (0, 64)]
    factors = {"rows in the loop": (x[:bm, None], x[64:bm + 64, None]), "a number in the loop": (x[0], x[64]),
               "rows": (x[:bm, None],) * 2, "a column": (x[:bm, None],) * 2, "all": (x[:bm * bn].reshape(bm, bn),) * 2}
    exact = sum(h * f for h, f in zip(halves, factors.get(what, (1, 1))))
    np.testing.assert_array_equal(c.astype(np.float32), exact.astype(BF16).astype(np.float32))
    if what == "stored":
        np.testing.assert_array_equal(y.reshape(bm, bn), exact)
    elif what == "vectors":
        np.testing.assert_array_equal(y[:bm], x[:bm] + 1)
        np.testing.assert_array_equal(y[512:768], x[:256] + 1)
    elif what == "an atomic":
        assert y[0] == 1
