"""Clusters whose CTAs divide rows and columns of products: right results, who loads what, and what a planted bug is found as."""
from __future__ import annotations

import re

import numpy as np
import pytest
from edited_ptx import explored, unchanged
from test_cluster_columns import E4M3, arguments, product, tensors

import tilejit
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.layout.clusters import cuts_of, divided
from tilejit.passes.layouts import beside, wgmma_accumulator

#: Of both operands' dimensions.
BOTH = dict(cluster_split="MN")


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("bm, bn, ctas, warps", [(256, 128, 4, 8), (128, 192, 4, 4), (256, 160, 8, 4)])
def test_orders(bm, bn, ctas, warps, a_rows, b_rows, target):
    """Ragged ends of rows, columns and K; columns of a power of two and of an odd number of strips."""
    product(bm + 24, bn + 72, 136, bm, bn, target=target, **BOTH, a_rows=a_rows, b_rows=b_rows, ctas=ctas, num_warps=warps)


@pytest.mark.one_schedule                # for time: test_sanitizer explores
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("options", [
    dict(dtype=E4M3), dict(bias=True, ACTIVATION="relu", store_role=True), dict(bias=True, store_role=False),
    dict(out_dtype=np.float32, store_role=True), dict(bm=384, num_warps=12), dict(num_warps=4, num_consumer_groups=2)], ids=str)
def test_epilogues(options, target):
    bm = {"bm": 256, **options}.pop("bm")
    product(bm + 8, 200, 160, bm, 128, target=target, **BOTH, ctas=4, **{k: v for k, v in options.items() if k != "bm"})


@pytest.mark.parametrize("bn, columns", [(256, 64), (192, 16)])
def test_who_copies_what(bn, columns):
    """Two CTAs have the same rows of the first operand, a half of them each; two the same columns of the second: a
    half of each strip."""
    args, constants, _, _ = arguments(256, bn, 64, 256, bn, **BOTH, ctas=4)
    build = matmul_kernel.compile(*args, **constants)
    found = tensors(build)
    assert found["a_desc"].box == (64, 64) and found["b_desc"].box == (columns, 64)
    assert "cluster of 4 CTAs: a, b by multicast" in build.report()
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*", build.ptx)
    assert len(loads) == 1 + bn // (4 * columns) and all("multicast::cluster" in x for x in loads)


@pytest.mark.parametrize("ctas", [4, 8])
def test_layouts(ctas):
    """Neighbours have rows below one another."""
    cuts = cuts_of("MN", ctas)
    layout = beside(beside(wgmma_accumulator((64, 96), 4), 0, ctas // 2), 1, 2)
    assert divided(layout, ctas) == cuts == ((0, ctas // 2, 0), (1, 2, ctas.bit_length() - 2))
    assert divided(layout.transpose((1, 0)), ctas) == ((1, ctas // 2, 0), (0, 2, ctas.bit_length() - 2))


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("options", [dict(bm=128, bn=64), dict(bm=128, bn=192, b_rows=True, store_role=True)], ids=str)
def test_sanitizer(options):
    """Two programs of more than a tile each, under several schedules."""
    bm, bn = options["bm"], options["bn"]
    more = {k: v for k, v in options.items() if k not in ("bm", "bn")}
    args, constants, out, exact = arguments(2 * bm, 2 * bn - 16, 144, bm, bn, **BOTH, ctas=4, num_warps=4, **more)
    tilejit.check(matmul_kernel, (2,), *args, seeds=range(2), **constants).check()
    assert np.array_equal(out.astype(np.float32), exact.astype(np.float32))


def first_half(text, names):
    """A slot counts as free when half of the CTAs have said so."""
    return re.sub(rf"(mbarrier\.init\S+ \[\S+\+{names['a_b.empty[0]']}\]), 4;", r"\1, 2;", text)


def to_one(text, names):
    """Only one of those that share a block of the first operand gets it."""
    return re.sub(r"(shl\.b32 %r\d+), 5,", r"\1, 1,", text)


@pytest.mark.one_schedule
@pytest.mark.parametrize("edit, findings", [(unchanged, ()), (first_half, ("slot-overwritten",)), (to_one, ("deadlock",))],
                         ids=["right", "count", "multicast"])
def test_planted_bugs(edit, findings):
    args, constants, out, _ = arguments(128, 64, 576, 128, 64, **BOTH, ctas=4, num_warps=4, num_stages=2, store_role=False)
    kinds = explored(matmul_kernel, 1, args, constants, out, edit, 2).kinds
    assert set(findings) <= set(kinds) and bool(findings) == bool(kinds)
