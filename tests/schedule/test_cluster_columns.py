"""Clusters whose CTAs divide columns of products: right results, who loads what, and what a planted bug is found as."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from edited_ptx import explored, no_wait, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.layout.clusters import divided

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def arguments(m, n, k, bm, bn, a_rows=True, b_rows=False, dtype=BF16, bias=False, out_dtype=BF16, ctas=2, **options):
    """Arguments and options of `matmul_kernel`, where the result goes, and the exact one."""
    rng = np.random.default_rng(m + n)
    bk = 128 // np.dtype(dtype).itemsize
    a = rng.integers(-3, 4, (m, k) if a_rows else (k, m)).astype(dtype)
    b = rng.integers(-3, 4, (k, n) if b_rows else (n, k)).astype(dtype)
    out, add = np.full((m, n), np.nan, out_dtype), np.arange(n).astype(np.float32) - 7 if bias else None

    def desc(x, rows, columns, first):
        return tilejit.TensorDescriptor.from_tensor(x, (rows, columns) if first else (columns, rows))

    exact = (a if a_rows else a.T).astype(np.float32) @ (b if b_rows else b.T).astype(np.float32)
    args = desc(a, bm, bk, a_rows), desc(b, bk, bn, b_rows), desc(out, bm, bn, True), add, m, n, k
    options = {"ACTIVATION": None, "num_warps": 8, "cluster_split": "N", **options}
    given_ = dict(BM=bm, BN=bn, BK=bk, GROUP=4, A_ROWS=a_rows, B_ROWS=b_rows, num_ctas=ctas, **options)
    exact = exact + (0 if add is None else add)
    return args, given_, out, (np.maximum(exact, 0) if options["ACTIVATION"] else exact).astype(out_dtype)


def product(*shape, target="emulator", grid=2, **options):
    args, constants, out, exact = arguments(*shape, **options)
    with tilejit.knobs(target=target):
        compiled = matmul_kernel[(grid,)](*args, **constants)
    assert np.array_equal(out.astype(np.float32), exact.astype(np.float32))
    return compiled


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("bm, bn", [(128, 128), (128, 192), (256, 160), (192, 96)])
def test_orders(bm, bn, a_rows, b_rows, target):
    """Ragged ends of rows, columns and K; tiles of a power of two and of an odd number of strips."""
    product(bm + 24, bn + 72, 136, bm, bn, a_rows, b_rows, target=target, num_warps=12 if bm == 192 else 8)


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("options", [
    dict(dtype=E4M3), dict(dtype=E4M3, bias=True, ACTIVATION="relu"), dict(bias=True, ACTIVATION="relu", store_role=True),
    dict(bias=True, store_role=False), dict(out_dtype=np.float32, store_role=True), dict(store_role=False, store_stages=1),
    dict(dtype=np.float32, out_dtype=np.float32)], ids=str)
@pytest.mark.parametrize("bn", [128, 96, 224])
def test_dtypes_and_epilogues(bn, options, target):
    product(200, 2 * bn + 48, 160, 128, bn, target=target, **options)


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("options", [
    dict(bn=256), dict(bn=192), dict(bn=320, store_role=True), dict(bn=448, bm=64, num_warps=4, num_consumer_groups=1),
    dict(bn=64, bm=64, num_warps=4, bias=True), dict(bn=192, bm=64, num_warps=4, num_consumer_groups=2, store_role=True)], ids=str)
def test_four_ctas(options, target):
    """Also groups of consumers that take turns; the rows are of one warpgroup."""
    options = {"bm": 128, **options}
    bm, bn = options.pop("bm"), options.pop("bn")
    build = product(bm + 8, bn + 40, 136, bm, bn, ctas=4, target=target, **options)
    if target == "emulator":
        assert build.metadata.cluster == (4, 1, 1) and "cluster of 4 CTAs: a by multicast" in build.report()


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@settings(deadline=None, max_examples=12)
@given(st.sampled_from([(64, 4, 2, 256), (128, 8, 2, 256), (128, 4, 2, 128), (64, 4, 4, 128)]), st.booleans(), st.booleans(),
       st.data())
def test_any_width(form, a_rows, b_rows, data):
    """Strips of 16 columns and more, as many as a product takes; blocks of 512 columns at most."""
    bm, warps, ctas, most = form
    bn = ctas * data.draw(st.sampled_from(range(16, most + 16, 16)))
    product(bm + 8, bn + 16, 72, bm, bn, a_rows, b_rows, ctas=ctas, num_warps=warps)


def tensors(build):
    return {p.base_arg: p for p in build.metadata.params if hasattr(p, "box")}


@pytest.mark.parametrize("bn, strip", [(256, 128), (320, 32), (384, 64), (288, 16), (352, 16)])
def test_boxes_are_strips(bn, strip):
    """The second operand in boxes of a CTA's strips, of the first operand a half of the rows for all."""
    args, constants, _, _ = arguments(256, bn, 64, 256, bn)
    build = matmul_kernel.compile(*args, **constants)
    found = tensors(build)
    assert found["b_desc"].box == (strip, 64) and found["a_desc"].box == (128, 64)
    assert "cluster of 2 CTAs: a by multicast" in build.report()
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*", build.ptx)
    assert len(loads) == 1 + bn // (2 * strip) and sum("multicast::cluster" in x for x in loads) == 1
    assert build.metadata.cluster == (2, 1, 1) and ".reqnctapercluster 2, 1, 1" in build.ptx


@pytest.mark.parametrize("bn, strip", [(256, 128), (320, 32), (384, 64)])
def test_boxes_of_rows_of_b(bn, strip):
    """Where columns of B lie side by side, a box is a swizzle's span, or a strip."""
    args, constants, _, _ = arguments(256, bn, 64, 256, bn, b_rows=True)
    assert tensors(matmul_kernel.compile(*args, **constants))["b_desc"].box == (64, min(64, strip))


@pytest.mark.parametrize("bn, columns", [(256, 64), (320, 32), (384, 64), (352, 16)])
@pytest.mark.parametrize("role", [True, False])
def test_stores_are_of_strips(bn, columns, role):
    """A piece lies in one strip: as many columns as divide a CTA's."""
    args, constants, _, _ = arguments(256, bn, 64, 256, bn)
    build = matmul_kernel.compile(*args, **constants, store_role=role)
    assert tensors(build)["c_desc"].box == (128, columns) and f"staged {columns} columns at a time" in build.report()
    assert build.ptx.count("cp.async.bulk.tensor.2d.global") == bn // 2 // columns
    fn = parse_function(build.scheduled)
    assert str(fn) == build.scheduled
    acc = next(op for op in walk(fn.body) if op.name == "dot_async").result.type
    tile = getattr(acc, "tile", acc)
    assert divided(tile.layout, 2) == ((1, 2, 0),)


def test_the_rows_of_a_product_are_where_they_were():
    """By rows, the default, the other operand is shared."""
    args, constants, _, _ = arguments(256, 128, 64, 256, 128)
    build = matmul_kernel.compile(*args, **{**constants, "cluster_split": "M"})
    assert "cluster of 2 CTAs: b by multicast" in build.report()
    assert build.ptx == matmul_kernel.compile(*args, **{**constants, "cluster_split": None}).ptx


@tilejit.kernel
def symmetric(a_desc, b_desc, out, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, 2):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    if BM == BN:
        acc += acc.T
    tl.store(out + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@pytest.mark.parametrize("bm, bn, options, why", [
    (128, 128, {}, "convert would move elements between CTAs"),
    (64, 96, dict(num_ctas=4), "96 columns do not divide over 4 CTAs in strips of at least 16"),
    (64, 48, {}, "48 columns do not divide over 2 CTAs in strips of at least 16"),
    (64, 192, dict(num_warps=8), "an accumulator of 64x96 needs 128 rows, 64 for each of its warpgroups"),
    (32, 64, {}, "num_ctas=2")])
def test_what_cannot_be(bm, bn, options, why):
    with pytest.raises(tilejit.CompilationError, match=why):
        symmetric.compile(f"desc<bf16[{bm}x64]>", f"desc<bf16[{bn}x64]>", "*fp32", BM=bm, BN=bn,
                          **{"num_ctas": 2, "cluster_split": "N", **options})


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_stores_through_pointers(target):
    """Each CTA writes its own columns, masks and addresses of the whole tile."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (n, 128)).astype(BF16) for n in (64, 160))
    out = np.full((64, 160), np.nan, np.float32)
    d = tilejit.TensorDescriptor.from_tensor
    with tilejit.knobs(target=target):
        symmetric[(1,)](d(a, (64, 64)), d(b, (160, 64)), out, 64, 160, num_ctas=2, cluster_split="N", num_warps=4)
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


@tilejit.kernel
def merged(a_desc, b_desc, out, BM: tl.constexpr, BN: tl.constexpr, RANK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, 2):
        if RANK == 3:
            b = b_desc.load([0, 0, k * 64])
        else:
            b = b_desc.load([0, 0, 0, k * 64])
        acc = tl.dot(a_desc.load([0, k * 64]), b.reshape(BN, 64).T, acc)
    tl.store(out + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("split", ["M", "N"])
@pytest.mark.parametrize("block", [(16, 2, 8), (10, 2, 8), (12, 2, 8), (80, 2, 1), (6, 32)], ids=str)
def test_merged_blocks(block, split, target):
    """Columns of two matrices in turn (or of a stack of them) are one operand: each CTA loads, or multicasts, its
    part of every power of two."""
    rng, bn = np.random.default_rng(0), int(np.prod(block))
    a, b = rng.integers(-3, 4, (128, 128)).astype(BF16), rng.integers(-3, 4, (*block, 128)).astype(BF16)
    stacked = b.swapaxes(0, 1).copy().swapaxes(0, 1)     # one matrix behind the other in memory
    out = np.full((128, bn), np.nan, np.float32)
    strides = tuple(s // 2 for s in stacked.strides)
    db = tilejit.TensorDescriptor(stacked, stacked.shape, strides, (*block, 64))
    with tilejit.knobs(target=target):
        merged[(1,)](tilejit.TensorDescriptor.from_tensor(a, (128, 64)), db, out, 128, bn, len(block) + 1, num_ctas=2,
                     cluster_split=split, num_warps=8 if split == "N" else 4)
    assert np.array_equal(out, a.astype(np.float32) @ b.reshape(bn, 128).astype(np.float32).T)


@pytest.mark.parametrize("split", ["M", "N"])
@pytest.mark.parametrize("block, shape", [((5, 2, 16), 160), ((1, 2, 64), 128), ((3, 64), 192)], ids=str)
def test_merged_blocks_that_cannot_be(block, shape, split):
    """A part of the first dimension would not be a part of what they are merged to."""
    why = rf"a block \[{', '.join(map(str, block))}, 64\] as \[{shape}, 64\] does not divide: of dimensions that are merged, " \
          "the first must be a multiple of 2 and the others powers of two"
    with pytest.raises(tilejit.CompilationError, match=why):
        merged.compile("desc<bf16[128x64]>", f"desc<bf16[{'x'.join(map(str, block))}x64]>", "*fp32", BM=128, BN=shape,
                       RANK=len(block) + 1, num_ctas=2, cluster_split=split, num_warps=8 if split == "N" else 4)


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("options", [
    dict(bm=128, bn=128), dict(bm=128, bn=192, store_role=False), dict(bm=128, bn=96, b_rows=True, store_role=True),
    dict(bm=64, bn=128, num_warps=4), dict(bm=64, bn=320, num_warps=4, ctas=4, num_consumer_groups=1, dtype=E4M3, bias=True)], ids=str)
def test_sanitizer(options):
    """Two programs of more than a tile each, under several schedules."""
    options = dict(options)
    bm, bn = options.pop("bm"), options.pop("bn")
    args, constants, out, exact = arguments(2 * bm, 2 * bn - 16, 144, bm, bn, **options)
    tilejit.check(matmul_kernel, (2,), *args, seeds=range(2), **constants).check()
    assert np.array_equal(out.astype(np.float32), exact.astype(np.float32))


def edited(edit, **options):
    """Two tiles of 128 x 192, one after the other, by a pair of CTAs that divide columns."""
    args, constants, out, _ = arguments(256, 192, 256, 128, 192, num_stages=2, store_role=False, **options)
    return explored(matmul_kernel, 1, args, constants, out, edit, 2)


def one_strip_twice(text, names):
    """The last strip of the second operand arrives where the one before it is."""
    return re.sub(r"(tx::bytes \[%\w+)\+8192\]", r"\1+4096]", text)


def to_the_first(text, names):
    """Only the first CTA gets what both load for both."""
    return re.sub(r"mov\.u16 (%h\d+), 3;(?=\s+cp\.async\.bulk\.tensor\S*\.multicast::cluster)", r"mov.u16 \1, 1;", text)


@pytest.mark.one_schedule
@pytest.mark.parametrize("edit, finding", [
    (unchanged, None), (no_wait("a_b.full[0]"), "slot-read-early"), (no_wait("a_b.empty[0]"), "slot-overwritten"),
    (one_strip_twice, "uninitialised-shared"), (to_the_first, "deadlock")],
    ids=["right", "full", "empty", "strip", "multicast"])
def test_planted_bugs(edit, finding):
    """Who does not wait for its operands reads them too early, who does not wait for a free slot overwrites one that the
    other CTA reads; a strip that is missing is read as it was never written, a multicast that is missing never comes."""
    kinds = edited(edit).kinds
    assert finding in kinds if finding else not kinds
