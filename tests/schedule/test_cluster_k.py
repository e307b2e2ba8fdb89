"""Clusters whose CTAs divide K: parts of products that meet in distributed shared memory."""
import re

import ml_dtypes
import numpy as np
import pytest
from edited_ptx import explored, no_wait, unchanged
from test_cluster import product

import tilejit
import tilejit.language as tl
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.layout.clusters import divided, in_each, rows_from_each
from tilejit.layout.exchange import Parts
from tilejit.layout.named import wgmma_accumulator
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("ctas, warps, m, n", [(2, 4, 64, 16), (8, 4, 64, 8), (8, 8, 128, 128), (4, 8, 128, 32),
                                               (8, 4, 128, 64), (2, 8, 128, 256), (8, 16, 256, 64), (8, 8, 64, 64)])
@pytest.mark.parametrize("rounds", [1, 2])
def test_every_element_is_sent_where_it_is_read(ctas, warps, m, n, rounds):
    """What all threads of one CTA write into all shares covers the tile, and readers find each element at its place."""
    source = in_each(wgmma_accumulator((m, n), warps), ctas)
    result = rows_from_each(source, ctas)
    parts = Parts(source, result, ctas, 1)
    if rounds > parts.most_rounds:
        pytest.skip("too small for rounds")
    parts = Parts(source, result, ctas, rounds)
    assert divided(result, ctas) == ((0, ctas, 0),) and result.is_surjective()
    memory = {}
    for warp in range(warps):
        thread = [parts.source.bases_of("warp")[i] for i in range(warps.bit_length() - 1) if warp >> i & 1]
        for lane in range(32):
            lanes = [b for i, b in enumerate(source.bases_of("lane")) if lane >> i & 1]
            offset = sum(parts.offsets.get(b, 0) for b in thread + lanes)
            owner = sum(parts.owners.get(b, 0) for b in thread)
            for rnd in range(rounds):
                for to, accesses in parts.sent(rnd).items():
                    for at, registers in accesses:
                        for i, r in enumerate(registers):
                            place = (owner ^ to, rnd, offset + at + 4 * i)
                            assert place not in memory
                            memory[place] = source.apply(register=r, lane=lane, warp=warp)
    assert len(memory) == m * n and all(at < parts.share for _, _, at in memory)
    for cta in range(ctas):
        for warp in range(warps):
            thread = [b for i, b in enumerate(result.bases_of("warp")) if warp >> i & 1]
            for r in range(result.num_registers):
                mine = [b for i, b in enumerate(result.bases_of("register")) if r >> i & 1]
                at = sum(parts.offsets.get(b, 0) for b in thread + mine)
                found = memory[cta, r // parts.per_round, at]
                assert found == result.apply(register=r, warp=warp | cta * warps)


@pytest.mark.parametrize("ctas, warps, bm, bn, shape", [
    (2, 4, 64, 32, (64, 32, 256)), (8, 4, 64, 16, (64, 32, 1104)), (4, 8, 128, 64, (200, 72, 600)),
    (2, 8, 128, 128, (128, 136, 136))])
def test_products(ctas, warps, bm, bn, shape):
    out, exact, k = product(*shape, bm, bn, bk=64 * ctas, num_ctas=ctas, num_warps=warps, cluster_split="K",
                            num_stages=2)
    assert np.array_equal(out, exact)
    assert k.metadata.cluster == (ctas, 1, 1)
    assert f"cluster of {ctas} CTAs, which divide K" in k.report()
    assert ".multicast::cluster" not in k.ptx and "st.async.shared::cluster" in k.ptx
    assert not k.warnings()


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_orders_bias_and_many_tiles(a_rows, b_rows):
    """Two programs walk six tiles: scratch and barriers are used again and again."""
    bias = np.arange(136).astype(BF16)
    out, exact, _ = product(136, 136, 256, 64, 64, a_rows, b_rows, bk=128, bias=bias, num_ctas=2, cluster_split="K",
                            num_consumer_groups=1)
    assert np.array_equal(out, exact)


def test_the_scheduled_sum():
    _, _, k = product(64, 32, 128, 64, 32, bk=128, num_ctas=2, cluster_split="K", num_consumer_groups=1)
    text = k.scheduled
    assert "%acc_parts = alloc {name=\"acc_parts\", private=true" in text and "buffer<2xuint8[4096]" in text
    assert "barriers {name=\"acc.full\"" in text and "barrier<2, count=8>" in text
    assert "= cluster_sum %acc" in text and "{rounds=2, ctas=2} : fp32[64x32, #l" in text
    assert "tma_load %a, " in text and "{slice=((1, 2, 0),)}" in text and "multicast" not in text
    assert "stripes=1, slice=((0, 2, 0),)" in text


@tilejit.kernel
def started(a_desc, b_desc, out, K, BK: tl.constexpr, START: tl.constexpr, EVERY: tl.constexpr):
    acc = tl.full((64, 64), START, tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        part = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, None if EVERY else acc)
        acc = acc * 0.5 + part if EVERY else part
    rows, cols = tl.arange(0, 64), tl.arange(0, 64)
    tl.store(out + rows[:, None] * 64 + cols[None, :], acc)


def test_sums_in_every_iteration_and_pointers():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 512)).astype(BF16) for _ in range(2))
    out = np.full((64, 64), np.nan, np.float32)
    descs = [tilejit.TensorDescriptor.from_tensor(x, (64, 128)) for x in (a, b)]
    with tilejit.knobs(target="emulator"):
        k = started[(1,)](*descs, out, 512, BK=128, START=1.0, EVERY=True, num_ctas=2, cluster_split="K")
    want = np.ones((64, 64))
    for at in range(0, 512, 128):
        want = want * 0.5 + a[:, at:at + 128].astype(float) @ b[:, at:at + 128].astype(float).T
    assert np.array_equal(out, want.astype(np.float32))
    assert "summed over the CTAs in every iteration" in k.report()


def test_what_cannot_be():
    types = ("desc<bf16[64x128]>", "desc<bf16[64x128]>", "*fp32", "int32")
    with pytest.raises(tilejit.CompilationError, match="a product adds to something other than zeros"):
        started.compile(*types, BK=128, START=1.0, EVERY=False, num_ctas=2, cluster_split="K")
    with pytest.raises(tilejit.CompilationError, match="num_ctas=2 needs wgmma, which does not divide .* and a K of 8"):
        started.compile("desc<bf16[64x16]>", "desc<bf16[64x16]>", *types[2:], BK=16, START=0.0, EVERY=False, num_ctas=2,
                        cluster_split="K")
    with pytest.raises(tilejit.CompilationError, match="cluster_split='L' is not legal"):
        started.compile(*types, BK=128, START=0.0, EVERY=False, num_ctas=2, cluster_split="L")


@pytest.mark.parametrize("groups, ctas", [(1, 2), (2, 2), (1, 4)])
def test_sanitizer(groups, ctas):
    """Two tiles for each of two clusters, in two groups of consumers and in one, under several schedules."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 256)).astype(BF16) for n in (64, 64))
    out = np.full((64, 64), np.nan, BF16)
    boxes = (a, (64, 64 * ctas)), (b, (16, 64 * ctas)), (out, (64, 16))
    tilejit.check(matmul_kernel, (2,), *(tilejit.TensorDescriptor.from_tensor(*x) for x in boxes), None, 64, 64, 256,
                  BM=64, BN=16, BK=64 * ctas, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_ctas=ctas,
                  cluster_split="K", num_consumer_groups=groups, seeds=range(2)).check()
    assert rel_error(out, a.astype(np.float32) @ b.astype(np.float32).T) < 4e-3


def exchanged(edit):
    """Two tiles, one after the other, by a pair of CTAs; `edit` changes the PTX, knowing the offsets of barriers."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 128)).astype(BF16) for n in (64, 32)]
    out = np.zeros((64, 32), BF16)
    boxes = ((arrays[0], (64, 128)), (arrays[1], (16, 128)), (out, (64, 16)))
    args = (*(tilejit.TensorDescriptor.from_tensor(*x) for x in boxes), None, 64, 32, 128)
    constants = dict(BM=64, BN=16, BK=128, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_ctas=2,
                     cluster_split="K", num_consumer_groups=1)
    return explored(matmul_kernel, 1, args, constants, out, edit, 3)


def fewer_bytes(text, names):
    return re.sub(rf"(expect_tx\S+ _, \[\S+\+{names['acc.full[0]']}\]), (\d+)", r"\1, 2032", text)


def no_release(text, names):
    return re.sub(rf"@%p\d+ mbarrier\.arrive\.shared::cluster\S+ _, \[\S+\+{names['acc.free[0]']}\];", "", text)


@pytest.mark.parametrize("edit, kinds", [
    (unchanged, set()), (no_wait("acc.full[0]"), {"slot-read-early"}), (no_wait("acc.free[0]"), {"slot-overwritten"}),
    (fewer_bytes, {"tx-count", "deadlock", "slot-read-early"}), (no_release, {"deadlock"})])
def test_the_sanitizer_knows_the_protocol(edit, kinds):
    found = exchanged(edit)
    assert bool(found.kinds) == bool(kinds) and (not kinds or found.kinds & kinds), found
