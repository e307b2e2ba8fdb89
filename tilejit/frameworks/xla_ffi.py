"""The C interface of XLA (xla/ffi/api/c_api.h, version 0) by ctypes."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, NamedTuple

#: XLA_FFI_DataType -> tilejit's dtypes.
DTYPES = {1: "int1", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
          10: "fp16", 11: "fp32", 12: "fp64", 16: "bf16", 19: "fp8e5", 20: "fp8e4nv"}
_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64),
                ("dims", POINTER(c_int64))]


class _Buffers(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
                ("items", POINTER(POINTER(_Buffer)))]


class _Scalar(Structure):
    _fields_ = [("dtype", c_int), ("value", POINTER(c_int64))]


class _Attributes(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
                ("names", c_void_p), ("items", POINTER(c_void_p))]


class _Api(Structure):
    """The functions, in their order; those behind `stream` are found by `device_ordinal`'s place."""

    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
                ("error", c_void_p), ("message", c_void_p), ("destroy", c_void_p), ("register", c_void_p),
                ("stream", c_void_p), ("others", c_void_p * 12), ("ordinal", c_void_p)]


class _Frame(Structure):
    _fields_ = [("size", c_size_t), ("extension", POINTER(_Extension)), ("api", POINTER(_Api)), ("context", c_void_p),
                ("stage", c_int), ("args", _Buffers), ("rets", _Buffers), ("attrs", _Attributes)]


class _Error(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _Stream(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


class _Ordinal(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("ordinal", c_int32)]


class Buffer(NamedTuple):
    """Memory of XLA's: row-major."""

    address: int
    dtype: str
    shape: tuple[int, ...]


class Call(NamedTuple):
    """`call` is the handler's attribute; index and stream of the GPU are None in host memory."""

    number: int
    args: list[Buffer]
    results: list[Buffer]
    device: int | None
    stream: int | None


_CREATE = ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))
_ASK = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))


def handler(run: Callable[[Call], None], gpu: bool) -> Any:
    """A C function (to be kept alive) that XLA can call: it runs `run`, whose exceptions become XLA's errors."""
    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        if frame.extension and frame.extension.contents.type == _METADATA:
            told = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents.metadata.contents
            told.version.major, told.version.minor = _version(frame)
            told.traits = 0
            return None
        if frame.stage != _EXECUTE:
            return None
        try:
            run(_call(frame, gpu))
        except BaseException as error:  # nothing may leave a callback
            return _failed(frame, f"{type(error).__name__}: {error}")
        return None

    return _HANDLER(handle)


def _version(frame: _Frame) -> tuple[int, int]:
    """XLA's own minor version: what is read here is in all of them. Another major one has other structures, and is told
    0.3, which it refuses."""
    if not frame.api or frame.api.contents.version.major != 0:
        return 0, 3
    return 0, frame.api.contents.version.minor


def _call(frame: _Frame, gpu: bool) -> Call:
    number = ctypes.cast(frame.attrs.items[0], POINTER(_Scalar)).contents.value[0]
    device = stream = None
    if gpu:
        api = frame.api.contents
        asked = _Stream(ctypes.sizeof(_Stream), None, frame.context, None)
        _ASK(api.stream)(ctypes.addressof(asked))
        stream, device = asked.stream or 0, 0
        if api.size >= ctypes.sizeof(_Api):
            where = _Ordinal(ctypes.sizeof(_Ordinal), None, frame.context, 0)
            _ASK(api.ordinal)(ctypes.addressof(where))
            device = where.ordinal
    return Call(number, _buffers(frame.args), _buffers(frame.rets), device, stream)


def _buffers(b: _Buffers) -> list[Buffer]:
    found = []
    for i in range(b.count):
        x = b.items[i].contents
        found.append(Buffer(x.data or 0, DTYPES[x.dtype], tuple(x.dims[:x.rank])))
    return found


def _failed(frame: _Frame, message: str) -> int | None:
    text = message.encode()
    error = _Error(ctypes.sizeof(_Error), None, text, _INTERNAL)
    made: int | None = _CREATE(frame.api.contents.error)(ctypes.byref(error))
    return made
