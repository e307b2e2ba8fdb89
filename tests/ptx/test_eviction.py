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
