"""Host tensor descriptors: what they accept, what they refuse and why, and when TMA is off."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import LaunchError, TensorDescriptor
from tilejit.tools.tensor_descriptor import TensorDescriptor as Reexported


def aligned(shape: tuple[int, ...], dtype: type = np.float16, skip: int = 0) -> np.ndarray:
    """An array whose address is `skip` elements past a multiple of 128 bytes."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(int(np.prod(shape)) * size + 256, np.uint8)
    start = -raw.ctypes.data % 128 + skip * size
    return raw[start:start + int(np.prod(shape)) * size].view(dtype).reshape(shape)


def test_from_tensor():
    """Shape and strides come from the array, strides in elements."""
    d = Reexported.from_tensor(aligned((64, 128)), [32, 64])
    assert Reexported is TensorDescriptor
    assert (d.shape, d.strides, d.block_shape, d.dtype.name) == ((64, 128), (128, 1), (32, 64), "fp16")
    assert d.tma and d.padding == "zero"


@pytest.mark.parametrize("array,tma", [
    (aligned((64, 64)), True), (aligned((64, 64), skip=8), True), (aligned((64, 64), skip=1), False),
    (aligned((64, 60)), False), (aligned((64, 60))[:, :56], False), (aligned((64, 64))[:, :60], True),
    (aligned((64, 20), np.float32), True), (aligned((100,), skip=8), True), (aligned((100,), skip=3), False),
], ids=["plain", "base+16", "base+2", "rows of 120 bytes", "part of 120", "part of 128", "rows of 80", "1d", "1d+6"])
def test_tma_needs_alignment(array, tma):
    """TMA takes 16-byte aligned bases and strides that are multiples of 16 bytes; the rest goes through pointers."""
    d = TensorDescriptor.from_tensor(array, [16] * array.ndim)
    assert d.tma is tma
    assert ("tma=True" in d.signature) is tma


@pytest.mark.parametrize("shape,strides,block,tma", [
    ((8, 64), (72, 1), (4, 32), True), ((60,), (1,), (32,), True), ((8, 60), (60, 1), (4, 32), False),
    ((8, 0), (64, 1), (4, 32), False), ((8, 64), (0, 1), (4, 32), False), ((8, 64), (-64, 1), (4, 32), False)])
def test_strides_and_shapes_that_tma_cannot_serve(shape, strides, block, tma):
    """They are legal all the same, on any kind of array."""
    with tilejit.knobs(target="evaluator"):
        x = tilejit.to_device(np.zeros((8, 64), np.float16))
    d = TensorDescriptor(x, shape, strides, block)
    assert d.tma is tma and d.map_key == (x.address, shape, strides, "zero")
    assert f"tma={tma}" in repr(d)


@pytest.mark.parametrize("shape,strides,block,padding,hint", [
    ((), (), (), "zero", "rank 1 to 5"),
    ((2,) * 6, (32, 16, 8, 4, 2, 1), (2,) * 6, "zero", "rank 1 to 5"),
    ((8, 8), (8,), (8, 8), "zero", "same rank"),
    ((8, 8), (8, 1), (8,), "zero", "same rank"),
    ((8, 8), (1, 8), (8, 8), "zero", "last stride must be 1, found 8"),
    ((8, -8), (8, 1), (8, 8), "zero", "negative"),
    ((8, 8), (8, 1), (8, 12), "zero", "axis 1 is 12, next to it 8 and 16"),
    ((8, 8), (8, 1), (0, 8), "zero", "multiples of 16 up to 512; axis 0 is 0"),
    ((8, 8), (8, 1), (8, 8), "one", "padding"),
    ((8, 8), (8, 1), (8, 8.5), "zero", "must be integers"),
])
def test_refused(shape, strides, block, padding, hint):
    """Each error names what was found."""
    with pytest.raises(LaunchError, match=hint):
        TensorDescriptor(aligned((8, 8)), shape, strides, block, padding)


def test_nan_padding_is_for_floats():
    """NaN fills floats of any width, and nothing else."""
    assert TensorDescriptor.from_tensor(aligned((8, 8), ml_dtypes.bfloat16), [8, 8], "nan").padding == "nan"
    with pytest.raises(LaunchError, match="int32"):
        TensorDescriptor.from_tensor(aligned((8, 8), np.int32), [8, 8], "nan")


def test_signature_and_map_key():
    """Descriptors with the same signature share a kernel; those with the same map key share a tensor map."""
    a, b = aligned((64, 64)), aligned((128, 64))
    first, second = (TensorDescriptor.from_tensor(x, [32, 32]) for x in (a, b))
    assert first.signature == second.signature and first.map_key != second.map_key
    assert first.map_key == TensorDescriptor.from_tensor(a, [16, 16]).map_key
    for other in (TensorDescriptor.from_tensor(a, [16, 32]), TensorDescriptor.from_tensor(a, [32, 32], "nan"),
                  TensorDescriptor.from_tensor(aligned((64, 64), ml_dtypes.bfloat16), [32, 32])):
        assert other.signature != first.signature
