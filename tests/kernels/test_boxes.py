"""Blocks of every shape through descriptors: wider than TMA's boxes, larger than the tensor, ragged, of one to five
dimensions, by one CTA and in clusters."""
from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl

desc = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def moved(a, b, at, KIND: tl.constexpr):
    if KIND == "store":
        b.store(at, a.load(at))
    elif KIND == "add":
        b.atomic_add(at, a.load(at))
    else:
        b.store(at, a.load(at) + b.load(at))


@st.composite
def blocks(draw, elem_bytes):
    """A block of 2 to 16 KB, a tensor, and where the block starts."""
    rank, numel = draw(st.integers(1, 5)), draw(st.sampled_from([2 ** 11, 2 ** 13, 2 ** 14])) // elem_bytes
    block = [1] * rank
    block[-1] = draw(st.sampled_from([16, 256, 512, 1024])) // elem_bytes
    while prod(block) < numel:
        block[draw(st.sampled_from([rank - 1, *range(rank)]))] *= 2
    unit = 16 // elem_bytes
    shape = [max(1, draw(st.sampled_from([n // 2, n, 2 * n, n + 3, 3]))) for n in block]
    if draw(st.booleans()):
        shape[-1] = -(-shape[-1] // unit) * unit
    at = [draw(st.sampled_from([0, n // 2, n])) for n in block]
    at[-1] = at[-1] // unit * unit
    return tuple(block), tuple(shape), tuple(at)


@pytest.mark.remarks("spills", "stack", reason="one of the drawn blocks in a few: 16 KB of bytes through pointers of rank 5")
@settings(max_examples=14, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), ctas=st.sampled_from([1, 1, 2, 4]), what=st.sampled_from([
    ("store", np.uint8), ("store", np.int16), ("store", np.int64), ("store", ml_dtypes.float8_e5m2), ("add", np.int32),
    ("add", ml_dtypes.bfloat16), ("sum", np.float32), ("sum", np.float16)]))
def test_blocks_of_every_shape(data, ctas, what):
    kind, dtype = what
    block, shape, at = data.draw(blocks(np.dtype(dtype).itemsize))
    unit = 16 // np.dtype(dtype).itemsize
    pitch = -(-shape[-1] // unit) * unit
    a = (np.arange(prod(shape[:-1]) * pitch) % 61).reshape(*shape[:-1], pitch).astype(dtype)[..., :shape[-1]]
    whole = np.ones((*shape[:-1], pitch), dtype)
    want, place = whole.astype(np.float32), tuple(slice(o, min(o + n, size)) for o, n, size in zip(at, block, shape))
    want[place] = a[place].astype(np.float32) + (kind != "store")
    with tilejit.knobs(target="emulator"):
        moved[(1,)](desc(a, block), desc(whole[..., :shape[-1]], block), at, kind, num_ctas=ctas)
    np.testing.assert_array_equal(whole.astype(np.float32), want)
