"""Launch parameters: host expressions, bytes of scalars, frames and their pointers, tensor maps and their rules."""
from __future__ import annotations

import ctypes
import struct
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit import LaunchError, TensorDescriptor
from tilejit.ptx.metadata import PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime.launch import addresses
from tilejit.runtime.params import Packer, reader, validate_map

A = np.zeros((32, 64), np.float32)
D = TensorDescriptor.from_tensor(A, [16, 16])
AT = {"n": 0, "m": 1, "a": 2, "d": 3, "x": 4}
FLAT = (10, -3, A, D, 1.5)
OF_D = tuple(("shape", "d", i) for i in (0, 1)), tuple(("stride", "d", i) for i in (0, 1))
OWN = TensorMapParam("d", *OF_D, (16, 16), "fp32", 64, "desc")


class Encoder:
    """Stands for the driver: remembers its calls, returns the facts as 128 readable bytes."""

    def __init__(self):
        self.calls = []

    def __call__(self, address, dtype, shape, strides, box, swizzle, fill):
        self.calls.append((address, dtype, shape, strides, box, swizzle, fill))
        return f"{address} {dtype} {shape} {strides} {box} {swizzle} {fill}".encode().ljust(128)[:128]


def packer(*params, encode=None) -> Packer:
    return Packer(params, AT, addresses(FLAT), encode or Encoder())


def scalar(dtype) -> Packer:
    return Packer((ScalarParam(("arg", "v"), dtype),), {"v": 0}, {}, Encoder())


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def of(descriptor) -> tuple:
    """The arguments of a launch with another descriptor."""
    return (*FLAT[:3], descriptor, 1.5)


# -- host expressions ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("expr,value", [
    (("const", 7), 7), (("arg", "n"), 10), (("shape", "d", 0), 32), (("shape", "d", 1), 64), (("stride", "d", 0), 64),
    (("max", ("arg", "n"), ("mul", ("const", 3), ("const", 4))), 12)])
def test_expression(expr, value):
    assert reader(expr, AT)(FLAT) == value


@given(st.integers(-100, 100), st.integers(-100, 100).filter(bool))
def test_operators(a, b):
    x, y = ("arg", "a"), ("arg", "b")
    results = {op: reader((op, x, y), {"a": 0, "b": 1})((a, b))
               for op in ("add", "sub", "mul", "div", "min", "max")}
    assert results == {"add": a + b, "sub": a - b, "mul": a * b, "div": int(a / b),
                       "min": min(a, b), "max": max(a, b)}


def test_division_is_exact_for_large_numbers():
    assert reader(("div", ("const", -(2 ** 62) - 1), ("const", 3)), {})(()) == -((2 ** 62 + 1) // 3)


# -- scalars ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype,value", [
    ("int1", True), ("int8", -5), ("uint8", 250), ("int16", -300), ("uint16", 65535), ("int32", -2 ** 31),
    ("uint32", 2 ** 32 - 1), ("int64", -2 ** 63), ("uint64", 2 ** 64 - 1), ("fp16", 0.1), ("bf16", 0.1), ("fp32", 0.1),
    ("fp64", 0.1), ("fp8e4nv", 1.7), ("fp8e5", 3.3), ("int32", np.int64(7)), ("fp32", np.float32(2.5))])
def test_scalar_bytes(dtype, value):
    """A scalar has the bytes of its type, rounded to nearest even."""
    kinds = {"int1": "?", "fp16": "f2", "bf16": ml_dtypes.bfloat16, "fp32": "f4", "fp64": "f8",
             "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}
    assert scalar(dtype).as_bytes((value,)) == [np.array(value, np.dtype(kinds.get(dtype, dtype))).tobytes()]


@pytest.mark.parametrize("dtype,value", [
    ("int32", 2 ** 31), ("int32", 1.5), ("int8", 128), ("uint8", -1), ("uint32", -1), ("int64", 2 ** 63), ("fp16", 1e9),
    ("fp32", 1e300), ("fp32", "a")])
def test_scalar_that_does_not_fit(dtype, value):
    """A value outside its type is an error that names the argument; it is never truncated."""
    p = scalar(dtype)
    for use in (p.as_bytes, p.frame):
        with pytest.raises(LaunchError, match=f"argument 'v': .* does not fit {dtype}"):
            use((value,))


# -- frames -------------------------------------------------------------------------------------------------
def test_frame_points_at_the_bytes():
    """The void* array leads to what as_bytes gives, in order; tensor maps lie on multiples of 64 bytes."""
    made = TensorMapParam("a", (("arg", "n"), ("const", 64)), (("const", 64), ("const", 1)), (8, 16), "fp32", 0)
    p = packer(PointerParam("a"), OWN, ScalarParam(("arg", "n"), "int32"), PointerParam("d"), made,
               ScalarParam(("arg", "x"), "fp32"))
    frame, expected = p.frame(FLAT), p.as_bytes(FLAT)
    pointers = struct.unpack("<6Q", read(frame.address, 48))
    assert [read(at, len(b)) for at, b in zip(pointers, expected)] == expected
    assert pointers[1] % 64 == pointers[4] % 64 == 0
    assert expected[0] == expected[3] == struct.pack("<Q", A.ctypes.data)
    assert (expected[2], expected[5]) == (struct.pack("<i", 10), struct.pack("<f", 1.5))
    assert p.encode.calls == [(A.ctypes.data, "fp32", (32, 64), (64, 1), (16, 16), 64, "zero"),
                              (A.ctypes.data, "fp32", (10, 64), (64, 1), (8, 16), 0, "zero")]


def test_frames_are_reused():
    """Launches at once have a frame each; a frame that comes back keeps nothing of its launch."""
    p = packer(OWN, ScalarParam(("arg", "n"), "int32"))
    first, second = p.frame(FLAT), p.frame((11, *FLAT[1:]))
    assert first is not second
    p.free.append(first)
    other = p.frame(of(TensorDescriptor(A, (16, 64), (64, 1), [16, 16])))
    assert other is first and b"(16, 64)" in read(other.base, 128) and len(p.encode.calls) == 2
    p.free.append(other)
    assert b"(32, 64)" in read(p.frame(FLAT).base, 128) and len(p.encode.calls) == 2


def test_frames_of_threads_do_not_mix():
    """Launches in several threads each see their own values."""
    p, wrong = scalar("int64"), []

    def work(value: int) -> None:
        for _ in range(2000):
            frame = p.frame((value,))
            at, = struct.unpack("<Q", read(frame.address, 8))
            if struct.unpack("<q", read(at, 8))[0] != value:
                wrong.append(value)
            p.free.append(frame)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_no_parameters():
    assert Packer((), {}, {}, Encoder()).frame(()).address


# -- tensor maps --------------------------------------------------------------------------------------------
def test_maps_whose_first_word_is_the_address_are_encoded_once_for_all_addresses():
    class Words(Encoder):
        def __call__(self, address, *facts):
            return address.to_bytes(8, "little") + super().__call__(address, *facts)[20:].ljust(120)[:120]

    p = packer(OWN, encode=Words())
    for rows in (32, 16):
        for _ in range(3):
            other = np.zeros((rows, 64), np.float32)
            frame = p.frame(of(TensorDescriptor.from_tensor(other, [16, 16])))
            assert read(frame.base, 8) == struct.pack("<Q", other.ctypes.data)
            assert read(frame.base, 128) == p.as_bytes(of(TensorDescriptor.from_tensor(other, [16, 16])))[0]
            p.free.append(frame)
    assert len(p.encode.calls) == 3 and not p.maps, "each shape once, the first also elsewhere"
    with pytest.raises(LaunchError, match="16-byte alignment"):
        p.frame(of(TensorDescriptor.from_tensor(np.zeros(100, np.uint8)[4:84].view(np.float32), [16])))


def test_tensor_maps_are_encoded_once():
    """An equal tensor reuses the map; another shape, stride or address does not."""
    p = packer(OWN)
    for _ in range(3):
        p.free.append(p.frame(FLAT))
        p.frame(of(TensorDescriptor.from_tensor(A, [16, 16])))
    assert len(p.encode.calls) == 1
    p.frame(of(TensorDescriptor(A, (16, 64), (64, 1), [16, 16])))
    assert len(p.encode.calls) == 2


def test_the_cache_of_maps_is_bounded():
    p = packer(OWN)
    for i in range(3000):
        p.free.append(p.frame(of(TensorDescriptor(A, (1 + i, 64), (64, 1), [16, 16]))))
    assert len(p.maps) <= 1024 and len(p.encode.calls) == 3000


def test_descriptor_padding_fills():
    """Fill "desc" is the padding of the descriptor of this launch, not of the first one."""
    p = packer(OWN)
    nan = of(TensorDescriptor.from_tensor(A, [16, 16], "nan"))
    assert b" zero" in p.as_bytes(FLAT)[0] and b" nan" in p.as_bytes(nan)[0]


@pytest.mark.parametrize("address,shape,strides,box,hint", [
    (1024, (64, 64), (64, 1), (32, 32), None),
    (1032, (64, 64), (64, 1), (32, 32), "its base is at 8 bytes modulo 16"),
    (1024, (64, 64), (60, 1), (32, 32), "stride of axis 0 is 120 bytes"),
    (1024, (64, 64), (0, 1), (32, 32), "stride of axis 0.*positive"),
    (1024, (64, 64), (64, 2), (32, 32), "last stride"),
    (1024, (0, 64), (64, 1), (32, 32), "size 0 of axis 0"),
    (1024, (2 ** 32 + 1, 64), (64, 1), (32, 32), "of axis 0 is not in"),
    (1024, (64, 64), (64, 1), (512, 32), "up to 256"),
    (1024, (64, 64), (64, 1), (32, 128), "swizzle span"),
    (1024, (64, 64), (64, 1), (32, 4), "multiple of 16"),
])
def test_tensor_map_rules(address, shape, strides, box, hint):
    """What the driver would only call an invalid value is explained."""
    p = TensorMapParam("a", (), (), box, "fp16", 128)
    if hint is None:
        validate_map(p, address, shape, strides)
    else:
        with pytest.raises(LaunchError, match=hint):
            validate_map(p, address, shape, strides)
