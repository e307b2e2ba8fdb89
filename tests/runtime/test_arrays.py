"""Arrays: every kind of them is read right, and what is none is refused."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import LaunchError
from tilejit.ir.types import DTYPES
from tilejit.runtime.arrays import HOST, ArrayInfo, contiguous_strides, describe, from_numpy_dtype, numpy_dtype


@pytest.fixture(autouse=True)
def on_the_cpu():
    with tilejit.knobs(target="evaluator"):
        yield


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"tf32", "fp8e4b15"}))
def test_every_dtype_goes_there_and_back(name):
    t = numpy_dtype(DTYPES[name])
    assert from_numpy_dtype(t) == DTYPES[name] and t.itemsize == DTYPES[name].bytes
    x = np.ones((2, 3)).astype(t)
    a = tilejit.to_device(x)
    assert a.dtype == DTYPES[name] and a.numpy().dtype == t and (a.numpy() == x).all()


def test_numpy_views():
    x = np.zeros((4, 6), np.float32)
    info = describe(x[1:, ::2].T)
    assert info == ArrayInfo(x.ctypes.data + 24, DTYPES["fp32"], (3, 3), (2, 6), HOST)
    assert info.span() == (x.ctypes.data + 24, x.ctypes.data + 24 + 4 * (4 + 12) + 4)
    flipped = describe(x[::-1])
    assert flipped.strides == (-6, 1) and flipped.span() == (x.ctypes.data, x.ctypes.data + x.nbytes)


def test_numpy_without_our_dtype():
    with pytest.raises(LaunchError, match="complex64"):
        describe(np.zeros(3, np.complex64))
    with pytest.raises(LaunchError, match="byte strides"):
        describe(np.zeros(4, np.dtype([("a", "i1"), ("b", "f4")]))["b"])


class Exporter:
    """Only DLPack, as another library's array has."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **kwargs):
        return self.x.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_dlpack():
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, 1:]
    assert describe(Exporter(x)) == describe(x)
    assert describe(Exporter(x)) == ArrayInfo(x.ctypes.data, DTYPES["int16"], (2, 2, 4), (12, 4, 1), HOST)


def test_dlpack_of_another_device():
    class Strange(Exporter):
        def __dlpack_device__(self):
            return (8, 0)

    with pytest.raises(LaunchError, match="neither CPU nor CUDA"):
        describe(Strange(np.zeros(1)))


@pytest.mark.parametrize("x", [3, 1.0, "x", None, object(), (1, 2)])
def test_what_is_no_array(x):
    assert describe(x) is None
    with pytest.raises(LaunchError, match="expected an array"):
        tilejit.array_info(x)


def test_device_array_on_the_cpu():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = tilejit.to_device(x)
    x[0, 0] = 7
    assert a.numpy()[0, 0] == 0                    # a copy, as on a GPU
    assert (a.shape, a.strides, a.nbytes, a.device) == ((2, 3), (3, 1), 24, HOST)
    assert a.address % 128 == 0 and a.data_ptr() == a.address
    assert not hasattr(a, "__cuda_array_interface__") and "fp32[2, 3] on host" in repr(a)
    assert (tilejit.zeros((2, 3), tl.float32).numpy() == 0).all()
    assert tilejit.empty(5, tl.bfloat16).shape == (5,)
    assert tilejit.empty_like(a, (4,), tl.int32).numpy().dtype == np.int32
    assert tilejit.to_device(np.float64(2.5), tl.bfloat16).numpy() == ml_dtypes.bfloat16(2.5)
    assert tilejit.empty((0, 4), tl.float32).numpy().shape == (0, 4)


def test_device_array_errors():
    with pytest.raises(LaunchError, match="negative"):
        tilejit.empty((2, -1), tl.float32)
    with pytest.raises(LaunchError, match=r"expected shape \(2,\)"):
        tilejit.empty(2, tl.float32).copy_from(np.zeros(3))


@pytest.mark.parametrize("spelling", ["bf16", DTYPES["bf16"], ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_dtype_spellings(spelling):
    """Arrays are made with any spelling of a dtype."""
    assert tilejit.empty(3, spelling).dtype == DTYPES["bf16"]


def test_contiguous_strides():
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1) and contiguous_strides(()) == ()
