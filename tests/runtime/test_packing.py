"""Launch parameters: host expressions, bytes of scalars, the frame's pointers, tensor maps and their cache."""
from __future__ import annotations

import ctypes
import struct
import threading

import numpy as np
import pytest

from tilejit import LaunchError, TensorDescriptor
from tilejit.ptx.metadata import PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime.launch import addresses
from tilejit.runtime.params import Packer, reader

A = np.zeros((32, 64), np.float32)
D = TensorDescriptor.from_tensor(A, [16, 16])
AT = {"n": 0, "m": 1, "a": 2, "d": 3, "x": 4}
FLAT = (10, -3, A, D, 1.5)


def fake_encode(address, dtype, shape, strides, box, swizzle, fill):
    """Stands for the driver: every fact, readable."""
    return f"{address} {dtype} {shape} {strides} {box} {swizzle} {fill}".encode().ljust(128)[:128]


def packer(*params, encode=fake_encode) -> Packer:
    return Packer(params, AT, addresses(FLAT), encode)


@pytest.mark.parametrize("expr,value", [
    (("const", 7), 7), (("arg", "n"), 10), (("shape", "d", 0), 32), (("shape", "d", 1), 64), (("stride", "d", 0), 64),
    (("add", ("arg", "n"), ("const", 1)), 11), (("sub", ("arg", "n"), ("arg", "m")), 13),
    (("mul", ("arg", "n"), ("arg", "m")), -30), (("cdiv", ("arg", "n"), ("const", 4)), 3),
    (("div", ("arg", "n"), ("const", 4)), 2), (("min", ("arg", "n"), ("arg", "m")), -3),
    (("max", ("arg", "n"), ("mul", ("const", 3), ("const", 4))), 12),
])
def test_expressions(expr, value):
    """Every form of a host expression."""
    assert reader(expr, AT)(FLAT) == value


@pytest.mark.parametrize("dtype,value,code", [
    ("int1", True, "?"), ("int8", -5, "b"), ("uint8", 250, "B"), ("int16", -300, "h"), ("int32", -2 ** 31, "i"),
    ("uint32", 2 ** 32 - 1, "I"), ("int64", -2 ** 63, "q"), ("uint64", 2 ** 64 - 1, "Q"), ("fp16", 1.5, "e"),
    ("fp32", 0.1, "f"), ("fp64", 0.1, "d"), ("int32", np.int64(7), "i"), ("fp32", np.float32(2.5), "f")])
def test_scalar_bytes(dtype, value, code):
    """A scalar has the bytes of its type."""
    p = Packer((ScalarParam(("arg", "v"), dtype),), {"v": 0}, {}, fake_encode)
    assert p.as_bytes((value,)) == [struct.pack("<" + code, value)]


def test_bf16_scalar():
    """bf16 is the upper half of fp32, rounded to nearest even."""
    p = Packer((ScalarParam(("arg", "v"), "bf16"),), {"v": 0}, {}, fake_encode)
    assert p.as_bytes((1.0,)) == [b"\x80\x3f"]


@pytest.mark.parametrize("dtype,value", [("int32", 2 ** 31), ("int8", 128), ("uint32", -1), ("fp16", 1e9),
                                         ("int64", 2 ** 63)])
def test_scalar_that_does_not_fit(dtype, value):
    """A value outside its type is an error that names the argument; it is never truncated."""
    p = Packer((ScalarParam(("arg", "v"), dtype),), {"v": 0}, {}, fake_encode)
    with pytest.raises(LaunchError, match="v"):
        p.as_bytes((value,))
    with pytest.raises(LaunchError, match="v"):
        p.frame((value,))


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_frame_points_at_the_bytes():
    """The void* array leads to what as_bytes gives, in order; tensor maps lie on multiples of 64 bytes."""
    desc = tuple(("shape", "d", i) for i in (0, 1)), tuple(("stride", "d", i) for i in (0, 1))
    p = packer(PointerParam("a"), TensorMapParam("d", *desc, (16, 16), "fp32", 64, "desc"),
               ScalarParam(("arg", "n"), "int32"), PointerParam("d"),
               TensorMapParam("a", (("arg", "n"), ("const", 64)), (("const", 64), ("const", 1)), (8, 16), "fp32", 0),
               ScalarParam(("arg", "x"), "fp32"))
    frame, expected = p.frame(FLAT), p.as_bytes(FLAT)
    pointers = struct.unpack("<6Q", read(frame.address, 48))
    assert [read(at, len(b)) for at, b in zip(pointers, expected)] == expected
    assert pointers[1] % 64 == pointers[4] % 64 == 0
    assert expected[0] == expected[3] == struct.pack("<Q", A.ctypes.data)
    assert expected[1].split(b" fp32 ")[1].startswith(b"(32, 64) (64, 1) (16, 16) 64 zero")
    assert expected[4].split(b" fp32 ")[1].startswith(b"(10, 64) (64, 1) (8, 16) 0 zero")


def test_descriptor_padding_fills():
    """Fill "desc" is the padding of the descriptor of this launch, not of the first one."""
    nan = TensorDescriptor.from_tensor(A, [16, 16], "nan")
    desc = tuple(("shape", "d", i) for i in (0, 1)), tuple(("stride", "d", i) for i in (0, 1))
    p = packer(TensorMapParam("d", *desc, (16, 16), "fp32", 64, "desc"))
    assert b" zero" in p.as_bytes(FLAT)[0] and b" nan" in p.as_bytes((*FLAT[:3], nan, 1.5))[0]


def test_tensor_maps_are_encoded_once():
    """An equal tensor reuses the map; another shape, stride or address does not."""
    calls = []

    def encode(*facts):
        calls.append(facts)
        return fake_encode(*facts)

    desc = tuple(("shape", "d", i) for i in (0, 1)), tuple(("stride", "d", i) for i in (0, 1))
    p = packer(TensorMapParam("d", *desc, (16, 16), "fp32", 64, "desc"), encode=encode)
    for _ in range(3):
        frame = p.frame(FLAT)
        p.free.append(frame)
        p.frame((*FLAT[:3], TensorDescriptor.from_tensor(A, [16, 16]), 1.5))
    assert len(calls) == 1
    other = TensorDescriptor(A, (16, 64), (64, 1), [16, 16])
    frame = p.frame((*FLAT[:3], other, 1.5))
    assert len(calls) == 2 and b"(16, 64)" in read(frame.base, 128)
    p.free.append(frame)
    assert b"(32, 64)" in read(p.frame(FLAT).base, 128), "a reused frame kept the map of another launch"


def test_frames_of_threads_do_not_mix():
    """Launches in several threads each see their own values."""
    p = Packer((ScalarParam(("arg", "v"), "int64"),), {"v": 0}, {}, fake_encode)
    wrong = []

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
