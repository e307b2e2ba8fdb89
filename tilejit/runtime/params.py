"""Packs a launch's arguments into the parameter block of a compiled kernel (see ptx/metadata.py)."""
from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilejit.errors import LaunchError
from tilejit.ir.types import DTYPES
from tilejit.ptx.metadata import Expr, KernelMetadata, Param, PointerParam, ScalarParam

_FORMATS = {"int1": "<?", "int8": "<b", "uint8": "<B", "int16": "<h", "uint16": "<H", "int32": "<i", "uint32": "<I",
            "int64": "<q", "uint64": "<Q", "fp32": "<f", "fp64": "<d", "fp16": "<e"}
_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: int(a / b) if a < 0 else a // b, "cdiv": lambda a, b: -(-a // b), "min": min, "max": max}


def value_of(expr: Expr, args: dict[str, Any]) -> Any:
    """Evaluate a host expression over the arguments by name."""
    kind = expr[0]
    if kind == "const":
        return expr[1]
    if kind == "arg":
        return args[expr[1]]
    if kind == "shape":
        return args[expr[1]].shape[expr[2]]
    if kind == "stride":
        return args[expr[1]].strides[expr[2]]
    return _OPS[kind](value_of(expr[1], args), value_of(expr[2], args))


def scalar_bytes(value: Any, dtype: str, name: object) -> bytes:
    """A scalar in PTX's little-endian form; raises LaunchError if it does not fit."""
    if dtype == "bf16":
        return np.array(value, ml_dtypes.bfloat16).tobytes()
    try:
        return struct.pack(_FORMATS[dtype], value)
    except struct.error as error:
        raise LaunchError(f"argument {name}: {value!r} does not fit {dtype}: {error}") from None


class Frame:
    """A parameter block: one 64-byte aligned slot per parameter, and the array of pointers to them.

    A frame may be used by one thread at a time."""

    def __init__(self, metadata: KernelMetadata, encode: Callable[..., bytes]):
        self.params, self.encode = metadata.params, encode
        self.maps: dict[tuple, bytes] = {}
        count = max(1, len(self.params))
        self.memory = ctypes.create_string_buffer(128 * count + 64)
        base = -(-ctypes.addressof(self.memory) // 64) * 64
        self.slots = [base + 128 * i for i in range(count)]
        self.pointers = (ctypes.c_void_p * count)(*self.slots)
        self.address = ctypes.addressof(self.pointers)
        self.last: list[bytes] = [b""] * count

    def fill(self, args: dict[str, Any], addresses: dict[str, int]) -> int:
        """Write every parameter; returns the address of the pointer array."""
        for i, p in enumerate(self.params):
            data = self.bytes_of(p, args, addresses)
            if data is not self.last[i]:
                ctypes.memmove(self.slots[i], data, len(data))
                self.last[i] = data
        return self.address

    def bytes_of(self, p: Param, args: dict[str, Any], addresses: dict[str, int]) -> bytes:
        """One parameter's bytes."""
        if isinstance(p, PointerParam):
            return addresses[p.arg].to_bytes(8, "little")
        if isinstance(p, ScalarParam):
            return scalar_bytes(value_of(p.expr, args), p.dtype, p.expr[1])
        shape = tuple(value_of(e, args) for e in p.shape)
        strides = tuple(value_of(e, args) for e in p.strides)
        key = (p, addresses[p.base_arg], shape, strides)
        found = self.maps.get(key)
        if found is None:
            if len(self.maps) > 1024:
                self.maps.clear()
            fill = args[p.base_arg].padding if p.fill == "desc" else p.fill
            found = self.encode(addresses[p.base_arg], p.dtype, DTYPES[p.dtype].bytes, shape, strides, p.box,
                                p.swizzle, fill)
            self.maps[key] = found
        return found
