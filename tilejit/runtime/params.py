"""Packs a launch's arguments into the parameters of a compiled kernel (ptx/metadata.py)."""
from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from tilejit.errors import CudaError, LaunchError
from tilejit.ir.types import DTYPES
from tilejit.ptx.metadata import Expr, Param, PointerParam, ScalarParam, TensorMapParam

Reader = Callable[[tuple], Any]
#: encode(address, dtype, shape, strides, box, swizzle, fill) -> 128 bytes
Encoder = Callable[..., bytes]

#: struct codes of the scalar types; each parameter has 8 bytes of the frame.
_FORMATS = {"int1": "?7x", "int8": "b7x", "uint8": "B7x", "int16": "h6x", "uint16": "H6x", "int32": "i4x",
            "uint32": "I4x", "int64": "q", "uint64": "Q", "fp16": "e6x", "bf16": "H6x", "fp8e4b15": "B7x",
            "fp8e4nv": "B7x", "fp8e5": "B7x", "fp32": "f4x", "fp64": "d"}
#: Types without a struct code travel as their bits.
_AS_BITS = {"bf16": ("bfloat16", np.uint16), "fp8e4nv": ("float8_e4m3fn", np.uint8),
            "fp8e5": ("float8_e5m2", np.uint8)}
_MAPS_KEPT = 1024


def divide(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": divide,
    "min": min, "max": max}


def reader(expr: Expr, at: Mapping[str, int]) -> Reader:
    kind = expr[0]
    if kind == "const":
        value = expr[1]
        return lambda flat: value
    if kind == "arg":
        return itemgetter(at[expr[1]])
    if kind in ("shape", "stride"):
        i, d = at[expr[1]], expr[2]
        return (lambda flat: flat[i].shape[d]) if kind == "shape" else (lambda flat: flat[i].strides[d])
    op, a, b = _OPS[kind], reader(expr[1], at), reader(expr[2], at)
    return lambda flat: op(a(flat), b(flat))


def bits(value: float, dtype: str) -> int:
    """The bits of a number rounded to a type that struct does not know."""
    import ml_dtypes

    kind, unsigned = _AS_BITS[dtype]
    return int(np.array(value, getattr(ml_dtypes, kind)).view(unsigned))


#: The size of a dimension that nothing bounds (`passes/pointer_tma.py`).
_ENDLESS = 2 ** 31 - 1


class NotForTMA(LaunchError):
    """Arguments that TMA does not take, of a descriptor made in the kernel: another kernel takes them."""


class Packer:
    """The parameters of one compiled kernel."""

    def __init__(self, params: tuple[Param, ...], at: Mapping[str, int], address: Mapping[int, Reader],
                 encode: Encoder):
        self.params, self.encode = params, encode
        self.maps: dict[tuple, bytes] = {}
        self.templates: dict[tuple, bytes | None] = {}  # None: maps of these facts differ in more than a word
        self.agreed: set[int] = set()  # maps of which two differed in that word only
        self.scalars: list[Reader] = []
        self.descs: list[tuple[int, Reader, Reader]] = []  # tensor map number, readers of its address and facts
        self.map_params: list[TensorMapParam] = []
        self.order: list[tuple[bool, int]] = []  # of each parameter: is it a map, and which
        codes = ""
        for p in params:
            if isinstance(p, TensorMapParam):
                self.order.append((True, len(self.map_params)))
                self.descs.append((len(self.map_params), address[at[p.base_arg]], self._map_facts(p, at)))
                self.map_params.append(p)
                continue
            self.order.append((False, len(self.scalars)))
            if isinstance(p, PointerParam):
                self.scalars.append(address[at[p.arg]])
                codes += "P"
            else:
                self.scalars.append(_scalar(p, at))
                codes += _FORMATS[p.dtype]
        # "P" is packed in half the time of "Q", and exists in native order only, where floats are not checked
        self.struct = struct.Struct("<" + codes.replace("P", "Q") if "f" in codes else codes)
        self.free: list[Frame] = []

    @staticmethod
    def _map_facts(p: TensorMapParam, at: Mapping[str, int]) -> Reader:
        """What a tensor map depends on beside its address: (shape, strides, fill), or a descriptor's facts."""
        i = at[p.base_arg]
        if is_whole(p):
            return lambda flat: flat[i].facts
        shape, strides = [reader(e, at) for e in p.shape], [reader(e, at) for e in p.strides]
        fill = p.fill
        return lambda flat: (tuple(r(flat) for r in shape), tuple(r(flat) for r in strides),
                             flat[i].padding if fill == "desc" else fill)

    def values(self, flat: tuple) -> list[Any]:
        """The scalars, in the order of `struct`. Raises LaunchError for one that does not fit its type."""
        return [read(flat) for read in self.scalars]

    def tensor_map(self, number: int, address: int, facts: Any) -> bytes:
        template = self.template(number, address, facts)
        if template is not None:
            return address.to_bytes(8, "little") + template[8:]
        return self.maps.get((number, address, facts)) or self._keep(number, address, facts,
                                                                     self._encoded(number, address, facts))

    def template(self, number: int, address: int, facts: Any) -> bytes | None:
        """A map of these facts whose first word is its address, as far as two maps of the parameter tell, or None."""
        try:
            return self.templates[number, facts]
        except KeyError:
            pass
        first, elsewhere = self._encoded(number, address, facts), address ^ 0x10000
        agree = first[:8] == address.to_bytes(8, "little")
        if agree and number not in self.agreed:
            agree = self._encoded(number, elsewhere, facts) == elsewhere.to_bytes(8, "little") + first[8:]
        if agree:
            self.agreed.add(number)
        else:
            self._keep(number, address, facts, first)
        if len(self.templates) >= _MAPS_KEPT:
            self.templates.clear()
        return self.templates.setdefault((number, facts), first if agree else None)

    def _keep(self, number: int, address: int, facts: Any, encoded: bytes) -> bytes:
        if len(self.maps) >= _MAPS_KEPT:
            self.maps.clear()
        self.maps[number, address, facts] = encoded
        return encoded

    def _encoded(self, number: int, address: int, facts: Any) -> bytes:
        p = self.map_params[number]
        shape, strides, fill = facts if type(facts) is tuple else (facts.shape, facts.strides, facts.padding)
        try:
            validate_map(p, address, shape, strides)
            if p.stored and shape[-1] < _ENDLESS and shape[-1] * DTYPES[p.dtype].bytes % 16:
                raise LaunchError(f"TMA writes whole units of 16 bytes: lines of {shape[-1]} {p.dtype} end within one")
            return self.encode(address, p.dtype, shape, strides, p.box, p.swizzle, fill)
        except (LaunchError, CudaError) as error:
            raise NotForTMA(str(error)) if p.made else error

    def place(self, frame: Frame, number: int, address: int, facts: Any) -> None:
        if address % 16:
            self._encoded(number, address, facts)  # raises
        template = self.template(number, address, facts)
        found = self.tensor_map(number, address, facts)
        ctypes.memmove(frame.base + 128 * number, found, 128)
        frame.maps[number] = None if template is None else facts

    def address_words(self, frame: Frame) -> list[int] | None:
        if None in frame.maps:
            return None
        scalars = [p for p in self.params if not isinstance(p, TensorMapParam)]
        first = 16 * len(self.map_params)
        return [*range(0, first, 16), *(first + i for i, p in enumerate(scalars) if isinstance(p, PointerParam))]

    def as_bytes(self, flat: tuple) -> list[bytes]:
        packed = self.pack(flat)
        maps = [self.tensor_map(n, address(flat), facts(flat)) for n, address, facts in self.descs]
        scalars = [p for p in self.params if not isinstance(p, TensorMapParam)]
        sizes = [8 if isinstance(p, PointerParam) else DTYPES[p.dtype].bytes for p in scalars]
        return [maps[i] if is_map else packed[8 * i:8 * i + sizes[i]] for is_map, i in self.order]

    def pack(self, flat: tuple) -> bytes:
        try:
            return self.struct.pack(*self.values(flat))
        except (struct.error, OverflowError, TypeError) as error:
            raise self.unfit(flat, error) from None

    def unfit(self, flat: tuple, error: Exception) -> Exception:
        return self.unfit_values(self.values(flat), error)

    def unfit_values(self, values: list[Any], error: Exception) -> Exception:
        scalars = [p for p in self.params if not isinstance(p, TensorMapParam)]
        for p, value in zip(scalars, values):
            if isinstance(p, ScalarParam):
                try:
                    struct.pack("<" + _FORMATS[p.dtype], value)
                except (struct.error, OverflowError, TypeError) as why:
                    name = p.expr[1] if p.expr[0] in ("arg", "shape", "stride") else p.expr
                    return LaunchError(f"argument {name!r}: {value!r} does not fit {p.dtype}: {why}")
        return error

    def frame(self, flat: tuple) -> Frame:
        """A filled frame; give it back with `free.append(frame)` after the launch."""
        try:
            frame = self.free.pop()
        except IndexError:
            frame = Frame(self)
        for number, address, facts in self.descs:
            f, a = facts(flat), address(flat)
            if frame.maps[number] == f and not a & 15:
                frame.words[16 * number] = a
            else:
                self.place(frame, number, a, f)
        try:
            self.struct.pack_into(frame.memory, frame.scalars, *[read(flat) for read in self.scalars])
        except (struct.error, OverflowError, TypeError) as error:
            raise self.unfit(flat, error) from None
        return frame


def _scalar(p: ScalarParam, at: Mapping[str, int]) -> Reader:
    read = reader(p.expr, at)
    return (lambda flat: bits(read(flat), p.dtype)) if p.dtype in _AS_BITS else read


class Frame:
    """The memory of one launch at a time."""

    def __init__(self, packer: Packer):
        maps, scalars, count = len(packer.map_params), len(packer.scalars), len(packer.params)
        self.memory = ctypes.create_string_buffer(64 + 128 * maps + 8 * scalars + 8 * max(1, count))
        start = ctypes.addressof(self.memory)
        self.base = -(-start // 64) * 64
        self.scalars = self.base + 128 * maps - start  # offset of the scalars in `memory`
        values = self.base + 128 * maps
        self.address = values + 8 * scalars
        self.maps: list[Any] = [None] * maps  # the facts of the map that lies there, if it is a template
        self.words = memoryview(self.memory).cast("B")[self.base - start:][:values + 8 * scalars - self.base].cast("P")
        pointers = (ctypes.c_uint64 * max(1, count)).from_address(self.address)
        for i, (is_map, n) in enumerate(packer.order):
            pointers[i] = self.base + 128 * n if is_map else values + 8 * n


def is_whole(p: TensorMapParam) -> bool:
    rank = range(len(p.shape))
    return p.fill == "desc" and p.shape == tuple(("shape", p.base_arg, d) for d in rank) \
        and p.strides == tuple(("stride", p.base_arg, d) for d in rank)


def validate_map(p: TensorMapParam, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Check what cuTensorMapEncodeTiled asks. Raises LaunchError."""
    size = DTYPES[p.dtype].bytes
    what = f"TMA descriptor of {p.base_arg!r} ({p.dtype}{list(shape)}, strides {list(strides)})"
    if address % 16:
        raise LaunchError(f"{what}: its base is at {address % 16} bytes modulo 16, TMA needs 16-byte alignment: use "
                          ".contiguous(), or a TensorDescriptor, which falls back to pointer loads")
    for axis, n in enumerate(shape):
        if not 1 <= n <= 2 ** 32:
            raise LaunchError(f"{what}: size {n} of axis {axis} is not in 1..2^32")
    if strides[-1] != 1:
        raise LaunchError(f"{what}: the last stride must be 1")
    for axis, s in enumerate(strides[:-1]):
        if s * size % 16 or not 0 < s * size < 2 ** 40:
            raise LaunchError(f"{what}: the stride of axis {axis} is {s * size} bytes; TMA needs a positive multiple "
                              "of 16 below 2^40: pad the rows, or use a TensorDescriptor, which falls back to pointers")
    inner = p.box[-1] * size
    if max(p.box) > 256 or inner % 16 or (p.swizzle and inner > p.swizzle):
        raise LaunchError(f"{what}: box {list(p.box)} breaks a rule of TMA (sizes up to 256, inner bytes a multiple of "
                          f"16 and at most the swizzle span {p.swizzle})")
