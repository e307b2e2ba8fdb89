"""Prefetches while the kernel ahead ends: what is asked for, when, and by which kernels."""
import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.kernels.matmul import matmul_kernel
from tilejit.kernels.streamk import streamk_kernel

BF16 = ml_dtypes.bfloat16
desc = tilejit.TensorDescriptor.from_tensor


def product(m, n, k, bm, bn, **options):
    """The compiled kernel and whether its result is exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, s).astype(BF16) for s in ((m, k), (n, k)))
    out = np.full((m, n), np.nan, BF16)
    args = desc(a, (bm, 64)), desc(b, (bn, 64)), desc(out, (bm, bn)), None, m, n, k
    given = dict(BM=bm, BN=bn, BK=64, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, **options)
    with tilejit.knobs(target="emulator"):
        tilejit.check(matmul_kernel, (2,), *args, seeds=[0], **given).check()
        out[:] = np.nan
        compiled = matmul_kernel[(2,)](*args, **given)
    return compiled, np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))


def before(ptx):
    """The text between letting the next kernel start and waiting for the one ahead."""
    return ptx[ptx.index("griddepcontrol.launch_dependents"):ptx.index("griddepcontrol.wait")]


@pytest.mark.parametrize("options", [dict(bm=128, bn=128, num_warps=8), dict(bm=64, bn=64, num_warps=4),
                                     dict(bm=256, bn=64, num_warps=8, num_ctas=2)])
def test_products(options):
    """Right results, with K shorter than what is asked for and longer; only prefetches before the wait."""
    for k in (72, 520):
        compiled, exact = product(200, 72, k, launch_prefetch=3, **options)
        assert exact
    text = before(compiled.ptx)
    assert len(re.findall(r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global", text)) == 2
    assert not re.search(r"\b(ld|st|red|atom)\.global|cp\.async\.bulk\.tensor", text)
    assert compiled.ptx.count("griddepcontrol.wait") == 1
    assert "while the kernel ahead ends: a_b of up to 3 blocks" in compiled.report()


@pytest.mark.parametrize("options", [{}, {"launch_prefetch": 0}, {"launch_prefetch": 4, "launch_pdl": False},
                                     {"launch_prefetch": 4, "warp_specialize": False}])
def test_without(options):
    compiled, exact = product(128, 128, 128, 128, 128, num_warps=8, **options)
    assert exact and "prefetch.tensor." not in compiled.ptx
    assert compiled.ptx.count("griddepcontrol.wait") == (options.get("launch_pdl") is not False)


def test_addresses_from_memory():
    """What the kernel ahead may still write is not read for an address."""
    @tilejit.kernel
    def gather(a_desc, b_desc, c_desc, rows):
        m = tl.load(rows + tl.program_id(0))
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, 4):
            acc = tl.dot(a_desc.load([m, k * 64]), b_desc.load([0, k * 64]).T, acc)
        c_desc.store([tl.program_id(0) * 64, 0], acc.to(c_desc.dtype))

    block = "desc<bf16[64x64]>"
    compiled = gather.compile(block, block, block, "*int32", launch_prefetch=4)
    assert "prefetch.tensor." not in compiled.ptx and compiled.ptx.count("griddepcontrol.wait") == 1


def test_carried_addresses():
    """An address that a loop carries on is known for its first iteration only."""
    @tilejit.kernel
    def strange(a_desc, b_desc, c_desc, step):
        at = 0
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, 4):
            acc = tl.dot(a_desc.load([0, at]), b_desc.load([0, k * 64]).T, acc)
            at += step
        c_desc.store([0, 0], acc.to(c_desc.dtype))

    block = "desc<bf16[64x64]>"
    assert "prefetch.tensor." not in strange.compile(block, block, block, "int32", launch_prefetch=4).ptx


def test_divided_k():
    """The blocks of a run that begins inside of K are those that it begins with."""
    ptx = streamk_kernel.compile(
        "desc<bf16[64x64]>", "desc<bf16[64x16]>", "desc<bf16[16x64]>", None, None, None, None, None, None, "int32",
        "int32", "int32", "int32", "int32", "int32", BM=64, BN=16, BK=64, GROUP=8, A_ROWS=True, B_ROWS=True,
        C_ROWS=False, ACTIVATION=None, ADD=False, ORDERED=False, A_BITS=0, SCALE_STEPS=0, PARTS=0,
        launch_prefetch=8).ptx
    assert before(ptx).count("prefetch.tensor.2d") == 2


@pytest.mark.parametrize("blocks", [-1, True, 2.0])
def test_refused(blocks):
    with pytest.raises(CompilationError, match="launch_prefetch"):
        product(64, 64, 64, 64, 64, launch_prefetch=blocks)
