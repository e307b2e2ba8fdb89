"""Eviction policies of descriptor loads: hints of TMA's copies to L2, which change no value."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def product(a_desc, b_desc, c_desc, K, A_EVICT: tl.constexpr):
    acc = tl.zeros((128, 64), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a_desc.load([0, k], A_EVICT), b_desc.load([0, k], eviction_policy="evict_last").T, acc)
    c_desc.store([0, 0], acc)


TYPES = ("desc<bf16[128x64]>", "desc<bf16[64x64]>", "desc<fp32[128x64]>", "int32")


@pytest.mark.parametrize("ctas", [1, 2])
def test_hints(ctas):
    """Each load has its own policy, multicast or not; one that has none has no hint."""
    a, b = (np.random.default_rng(n).integers(-4, 5, (n, 256)).astype(ml_dtypes.bfloat16) for n in (128, 64))
    c = np.empty((128, 64), np.float32)
    block = tilejit.TensorDescriptor.from_tensor
    args = block(a, (128, 64)), block(b, (64, 64)), block(c, (128, 64)), 256
    with tilejit.knobs(target="emulator"):
        product[(1,)](*args, A_EVICT="evict_first", num_ctas=ctas)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    both, one = (product.compile(*TYPES, A_EVICT=e, num_ctas=ctas).ptx for e in ("evict_first", ""))
    assert both.count(".L2::cache_hint") == 2 and one.count(".L2::cache_hint") == 1
    assert both.count("createpolicy.fractional.L2::evict_first.b64") == 1 and "L2::evict_first" not in one
    assert all(ptx.count("createpolicy.fractional.L2::evict_last.b64") == 1 for ptx in (both, one))


def test_others_are_told():
    with pytest.raises(tilejit.CompilationError, match="is evict_first or evict_last, found 'first'"):
        product.compile(*TYPES, A_EVICT="first")


@tilejit.kernel
def centred(x, out, columns, stride, BLOCK: tl.constexpr, EVICT: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * stride + cols, cols < columns, other=0.0, eviction_policy=EVICT).to(tl.float32)
    tl.store(out + tl.program_id(0) * stride + cols, (v - tl.sum(v, 0) / columns).to(tl.float16), cols < columns)


@tilejit.kernel
def summed(x, out, n, EVICT: tl.constexpr):
    at = x + tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :]
    total = tl.zeros((32, 64), tl.float32)
    for i in tl.range(0, n, num_stages=3):
        total += tl.load(at + i * 2048, eviction_policy=EVICT)
    tl.store(out + tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :], total)


@pytest.mark.parametrize("begin, ctas", [(0, 1), (1, 1), (0, 2), (3, 2)])
def test_rows_that_are_copied(begin, ctas):
    """A load that becomes a bulk copy keeps the author's hint, wherever the row begins, and in a CTA's strips."""
    block, stride = 2048 * ctas, 2048 * ctas + 16
    x = np.random.default_rng(0).integers(-8, 8, 2 * stride + begin).astype(np.float16)[begin:]
    out, kw = np.zeros_like(x), {"num_warps": 1, "num_ctas": ctas}
    args = x, out, block, stride, block
    with tilejit.knobs(target="emulator"):
        centred[(2,)](*args, "evict_first", **kw)
    v = x[:2 * stride].reshape(2, stride)[:, :block].astype(np.float64)
    got = out[:2 * stride].reshape(2, stride)[:, :block].astype(np.float64)
    np.testing.assert_allclose(got, v - v.mean(1, keepdims=True), atol=1e-2)
    hinted, plain = (centred.compile(*args, e, **kw).ptx for e in ("evict_first", ""))
    assert "cp.async.bulk" in plain and ".L2::cache_hint" not in plain
    copies = [line for line in hinted.splitlines() if "cp.async.bulk.shared" in line]
    assert copies and all(".L2::cache_hint" in line for line in copies)
    assert hinted.count("createpolicy.fractional.L2::evict_first.b64") == 1


def test_tiles_that_threads_copy():
    x, out = np.random.default_rng(0).standard_normal((5, 32, 64)).astype(np.float32), np.zeros((32, 64), np.float32)
    with tilejit.knobs(target="emulator", pointer_tma=False):
        summed[(1,)](x, out, 5, "evict_last")
        ptx = summed.compile(x, out, 5, "evict_last").ptx
    np.testing.assert_allclose(out, x.sum(0), rtol=1e-5)
    copies = [line for line in ptx.splitlines() if "cp.async.c" in line]
    assert copies and all(".L2::cache_hint" in line for line in copies)
