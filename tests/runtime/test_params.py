"""Packing: every parameter's bytes are where the driver and the emulator look for them."""
import ctypes
import struct
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit.errors import LaunchError
from tilejit.ptx.metadata import PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime.params import Packer, reader, validate_map

DESC = SimpleNamespace(address=0x1000, shape=(30, 40), strides=(64, 1), padding="nan",
                       map_key=(0x1000, (30, 40), (64, 1), "nan"))
OWN = TensorMapParam("d", (("shape", "d", 0), ("shape", "d", 1)), (("stride", "d", 0), ("stride", "d", 1)), (16, 32),
                     "bf16", 64, "desc")
MADE = TensorMapParam("x", (("arg", "n"), ("const", 64)), (("mul", ("arg", "n"), ("const", 8)), ("const", 1)), (8, 64),
                      "fp32", 0, "zero")


class Encoder:
    """Stands for the driver: remembers its calls, returns 128 bytes that tell them apart."""

    def __init__(self):
        self.calls = []

    def __call__(self, *args):
        self.calls.append(args)
        return bytes([len(self.calls) % 256]) * 128


def at_address(address, size):
    return ctypes.string_at(address, size)


def packer(params, encode=None):
    at = {"x": 0, "n": 1, "d": 2, "f": 3}
    return Packer(params, at, {0: lambda flat: flat[0], 2: lambda flat: flat[2].address}, encode or Encoder())


def pointers(frame, count):
    return struct.unpack(f"<{count}Q", at_address(frame.address, 8 * count))


def test_frame_holds_every_parameter_in_order():
    p = packer((ScalarParam(("arg", "n"), "int32"), OWN, PointerParam("x"), MADE, ScalarParam(("arg", "f"), "fp32")))
    flat = (0xABCDE0, 24, DESC, 1.5)
    frame = p.frame(flat)
    where = pointers(frame, 5)
    assert at_address(where[0], 4) == struct.pack("<i", 24)
    assert at_address(where[2], 8) == struct.pack("<Q", 0xABCDE0)
    assert at_address(where[4], 4) == struct.pack("<f", 1.5)
    assert (at_address(where[1], 128), at_address(where[3], 128)) == (b"\1" * 128, b"\2" * 128)
    assert where[1] % 64 == 0 and where[3] % 64 == 0
    assert p.encode.calls == [(0x1000, "bf16", (30, 40), (64, 1), (16, 32), 64, "nan"),
                              (0xABCDE0, "fp32", (24, 64), (192, 1), (8, 64), 0, "zero")]
    assert p.as_bytes(flat) == [struct.pack("<i", 24), b"\1" * 128, struct.pack("<Q", 0xABCDE0), b"\2" * 128,
                                struct.pack("<f", 1.5)]


def test_frames_are_reused_and_maps_cached():
    p = packer((OWN, ScalarParam(("arg", "n"), "int32")))
    first = p.frame((0, 1, DESC))
    other = p.frame((0, 2, DESC))
    assert first is not other                      # two launches at once have a frame each
    p.free.append(first)
    again = p.frame((0, 3, SimpleNamespace(map_key=(0x2000, (30, 40), (64, 1), "nan"))))
    assert again is first and len(p.encode.calls) == 2
    map_at, n_at = pointers(again, 2)
    assert at_address(map_at, 128) == b"\2" * 128 and at_address(n_at, 4) == struct.pack("<i", 3)
    p.free.append(again)
    assert at_address(pointers(p.frame((0, 3, DESC)), 2)[0], 128) == b"\1" * 128 and len(p.encode.calls) == 2


def test_map_cache_is_bounded():
    p = packer((OWN,))
    for i in range(3000):
        p.free.append(p.frame((0, 0, SimpleNamespace(map_key=(16 * i, (30, 40), (64, 1), "zero")))))
    assert len(p.maps) <= 1024 and len(p.encode.calls) == 3000


def test_no_parameters():
    frame = packer(()).frame(())
    assert frame.address


@pytest.mark.parametrize("dtype,value,size", [("int1", True, 1), ("int8", -3, 1), ("uint8", 250, 1), ("int16", -300, 2),
                                              ("int32", -2 ** 31, 4), ("uint32", 2 ** 32 - 1, 4),
                                              ("int64", -2 ** 40, 8), ("uint64", 2 ** 64 - 1, 8),
                                              ("fp16", 0.1, 2), ("bf16", 0.1, 2), ("fp32", 0.1, 4), ("fp64", 0.1, 8)])
def test_scalar_types(dtype, value, size):
    (data,) = packer((ScalarParam(("arg", "n"), dtype),)).as_bytes((0, value))
    kinds = {"int1": "?", "fp16": "f2", "bf16": ml_dtypes.bfloat16, "fp32": "f4", "fp64": "f8"}
    t = np.dtype(kinds.get(dtype, dtype))
    assert len(data) == size and data == np.array(value, t).tobytes()


@pytest.mark.parametrize("dtype,value", [("int32", 2 ** 31), ("int32", 1.5), ("uint8", -1), ("fp32", 1e300),
                                         ("fp32", "a")])
def test_scalar_that_does_not_fit(dtype, value):
    p = packer((PointerParam("x"), ScalarParam(("arg", "n"), dtype)))
    with pytest.raises(LaunchError, match=f"argument 'n': .* does not fit {dtype}"):
        p.frame((0, value))


@given(st.integers(-100, 100), st.integers(-100, 100).filter(bool))
def test_expressions(a, b):
    at = {"a": 0, "b": 1}
    x, y = ("arg", "a"), ("arg", "b")
    results = {op: reader((op, x, y), at)((a, b)) for op in ("add", "sub", "mul", "div", "cdiv", "min", "max")}
    assert results == {"add": a + b, "sub": a - b, "mul": a * b, "div": int(a / b), "cdiv": -(-a // b),
                       "min": min(a, b), "max": max(a, b)}


def test_division_is_exact_for_large_numbers():
    assert reader(("div", ("const", -(2 ** 62) - 1), ("const", 3)), {})(()) == -((2 ** 62 + 1) // 3)


@pytest.mark.parametrize("address,shape,strides,hint", [
    (0x1008, (30, 40), (64, 1), "8 bytes modulo 16"), (0x1000, (0, 40), (64, 1), "size 0 of axis 0"),
    (0x1000, (2 ** 32 + 1, 40), (64, 1), "axis 0"), (0x1000, (30, 40), (60, 1), "120 bytes"),
    (0x1000, (30, 40), (0, 1), "positive"), (0x1000, (30, 40), (64, 2), "last stride")])
def test_rules_of_tma(address, shape, strides, hint):
    with pytest.raises(LaunchError, match=hint):
        validate_map(OWN, address, shape, strides)
    validate_map(OWN, 0x1000, (30, 40), (64, 1))


@pytest.mark.parametrize("box,swizzle", [((16, 512), 0), ((16, 4), 0), ((16, 64), 64)])
def test_rules_of_boxes(box, swizzle):
    p = TensorMapParam("d", OWN.shape, OWN.strides, box, "bf16", swizzle)
    with pytest.raises(LaunchError, match="box"):
        validate_map(p, 0x1000, (30, 40), (64, 1))
