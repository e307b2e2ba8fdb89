"""What may be an argument: torch tensors, `__cuda_array_interface__`, DLPack, our arrays, and objects with `data_ptr()`
and `dtype`."""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilejit.errors import LaunchError
from tilejit.ir.types import DTYPES, DType
from tilejit.runtime.hooks import HOOKS

#: name of a torch dtype -> tilejit dtype name.
_TORCH = {"float32": "fp32", "float16": "fp16", "float64": "fp64", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv",
          "float8_e5m2": "fp8e5", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
          "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "int1"}
#: DLPack (code, bits) -> tilejit dtype name (dlpack.h, DLDataTypeCode).
_DLPACK = {(0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (1, 16): "uint16",
           (1, 32): "uint32", (1, 64): "uint64", (2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16",
           (6, 8): "int1", (10, 8): "fp8e4nv", (12, 8): "fp8e5"}
_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_MANAGED = 1, 2, 13
#: `ArrayInfo.device` of an array in host memory.
HOST = -1


class StandIn(TypeError):
    """A torch tensor that stands for others: torch is tracing."""


class _StandInKey:
    def __hash__(self) -> int:
        raise StandIn


STAND_IN = _StandInKey()


class ArrayInfo(NamedTuple):
    """Address, dtype, sizes and strides (elements) of an array, its GPU (HOST: host memory); `spare`: what lies
    behind its rows, up to 16 bytes, may be overwritten."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int
    spare: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.device != HOST

    def span(self) -> tuple[int, int]:
        """First byte and one past the last of the elements."""
        if 0 in self.shape:
            return self.address, self.address
        steps = [(n - 1) * s * self.dtype.bytes for n, s in zip(self.shape, self.strides)]
        low = self.address + sum(s for s in steps if s < 0)
        return low, self.address + sum(s for s in steps if s > 0) + self.dtype.bytes


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1:]) for i in range(len(shape)))


def _torch_dtype(dtype: Any) -> DType:
    name = str(dtype).removeprefix("torch.")
    if name not in _TORCH:
        raise LaunchError(f"{dtype} arrays are not supported")
    return DTYPES[_TORCH[name]]


torch_dtype = lru_cache(maxsize=64)(_torch_dtype)


def stand_in(kind: type) -> bool:
    """Whether torch tensors of a type stand for others: fake and functional ones, and subclasses that dispatch."""
    torch = sys.modules["torch"]
    return bool(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)  # type: ignore[attr-defined]


def same_as(*tensors: Any, sizes: bool = True) -> Callable[..., bool]:
    """torch's own test for distinct tensors of these types, dtypes, devices and ranks, with `sizes` also sizes and
    strides. It may say no to such tensors, and does where torch has none."""
    guards = getattr(getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "guards", None), "TensorGuards", None)
    if guards is None:
        return lambda *others: False
    shapes: list[Any] = [[*t.shape] if sizes else [None] * len(t.shape) for t in tensors]
    strides: list[Any] = [[*t.stride()] if sizes else [None] * len(t.shape) for t in tensors]
    return guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check


def is_address(x: Any) -> bool:
    return _describers[type(x)] is _of_pointer


def extent(x: Any, info: ArrayInfo) -> tuple[int, int]:
    """First byte and one past the last that a kernel may reach through an array: of a torch tensor's storage, or of the
    elements.
    """
    if not is_torch(x):
        return info.span()
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def stands_in(*arguments: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(x, torch.Tensor) and stand_in(type(x))
                                     or getattr(x, "signature", None) is STAND_IN for x in arguments)


def tracing() -> bool:
    """Whether torch's compiler is following this code.

    Once torch was met this name is torch's function: ask as `arrays.tracing()`.
    """
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def traced_as(other: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Mark a function in whose place torch's compiler follows `other`, where asking `tracing()` costs too much."""
    def mark(fn: Callable[..., Any]) -> Any:
        fn._torchdynamo_inline = other  # type: ignore[attr-defined]
        return fn

    return mark


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


@lru_cache(maxsize=1)
def _numpy_dtypes() -> dict[Any, str]:
    import ml_dtypes

    names: dict[Any, str] = {
        np.float32: "fp32", np.float16: "fp16", np.float64: "fp64", np.int8: "int8", np.int16: "int16",
        np.int32: "int32", np.int64: "int64", np.uint8: "uint8", np.uint16: "uint16", np.uint32: "uint32",
        np.uint64: "uint64", np.bool_: "int1", ml_dtypes.bfloat16: "bf16", ml_dtypes.float8_e4m3fn: "fp8e4nv",
        ml_dtypes.float8_e5m2: "fp8e5"}
    return {np.dtype(k): v for k, v in names.items()}


def numpy_dtype(dtype: DType) -> np.dtype:
    return next(k for k, v in _numpy_dtypes().items() if v == dtype.name)


def from_numpy_dtype(dtype: Any) -> DType:
    """Raises LaunchError if we have none."""
    name = _numpy_dtypes().get(np.dtype(dtype))
    if name is None:
        raise LaunchError(f"numpy dtype {dtype} is not supported")
    return DTYPES[name]


def as_dtype(x: Any) -> DType:
    """Our dtype for ours, its name, a torch or a numpy dtype. Raises LaunchError."""
    if isinstance(x, DType):
        return x
    if isinstance(x, str) and x in DTYPES:
        return DTYPES[x]
    if is_torch_dtype(x):
        return torch_dtype(x)
    try:
        return from_numpy_dtype(x)
    except TypeError:
        raise LaunchError(f"expected a dtype, found {x!r}; known are {', '.join(DTYPES)}") from None


def is_torch_dtype(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.dtype)


def describe(x: Any) -> ArrayInfo | None:
    """Facts of an array argument, or None for others. Raises LaunchError for a dtype that we lack."""
    return _describers[type(x)](x)


class _Describers(dict[type, Callable[[Any], "ArrayInfo | None"]]):
    def __missing__(self, kind: type) -> Callable[[Any], ArrayInfo | None]:
        torch = sys.modules.get("torch")
        found = (_of_traced if stand_in(kind) else _of_torch) if torch is not None and issubclass(
            kind, torch.Tensor) else \
            _of_ours if issubclass(kind, DeviceArray) else _of_numpy if issubclass(kind, np.ndarray) else \
            _of_cupy if issubclass(kind, getattr(sys.modules.get("cupy"), "ndarray", ())) else \
            _of_pointer if _is_pointer(kind) else _of_protocol
        self[kind] = found
        if found is _of_torch:
            plain_tensors.add(kind)
            globals()["tracing"] = sys.modules["torch"].compiler.is_dynamo_compiling
        return found


def _is_pointer(kind: type) -> bool:
    return hasattr(kind, "data_ptr") and not any(hasattr(kind, n) for n in ("__cuda_array_interface__", "__dlpack__"))


#: Types of torch tensors that have memory of their own, as far as they were met.
plain_tensors: set[type] = set()
_describers = _Describers()


def describe_as(kind: type, describer: Callable[[Any], ArrayInfo]) -> None:
    _describers[kind] = describer


_info = partial(tuple.__new__, ArrayInfo)  # a third of the time of ArrayInfo(...)


def _of_torch(x: Any) -> ArrayInfo:
    return _info((x.data_ptr(), torch_dtype(x.dtype), tuple(x.shape), x.stride(), x.get_device(), False))


def _of_traced(x: Any) -> ArrayInfo:
    return ArrayInfo(0, _torch_dtype(x.dtype), tuple(x.shape), x.stride(), x.get_device())


def _of_ours(x: DeviceArray) -> ArrayInfo:
    return ArrayInfo(x.address, x.dtype, x.shape, x.strides, x.device)


def _of_numpy(x: np.ndarray) -> ArrayInfo:
    if any(s % x.itemsize for s in x.strides):
        raise LaunchError(f"an array with byte strides {x.strides} is not a whole number of elements apart")
    return ArrayInfo(x.ctypes.data, from_numpy_dtype(x.dtype), x.shape, tuple(s // x.itemsize for s in x.strides), HOST)


def _of_cupy(x: Any) -> ArrayInfo:
    """Launches go to cupy's current stream: nothing has to be waited for."""
    return ArrayInfo(x.data.ptr, from_numpy_dtype(x.dtype), x.shape, tuple(s // x.itemsize for s in x.strides),
                     x.device.id)


def _of_protocol(x: Any) -> ArrayInfo | None:
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(interface)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x)
    return None


def _of_pointer(x: Any) -> ArrayInfo:
    from tilejit.runtime import driver
    from tilejit.runtime.target import default_target

    device = driver.current_device().index if default_target() == "cuda" else HOST
    return ArrayInfo(int(x.data_ptr()), as_dtype(x.dtype), (), (), device)


def _from_interface(interface: dict[str, Any]) -> ArrayInfo:
    """CUDA array interface v2/v3; waits for work queued on the producer's stream."""
    from tilejit.runtime import driver

    dtype = from_numpy_dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    strides = contiguous_strides(shape) if strides is None else tuple(s // dtype.bytes for s in strides)
    address, stream = interface["data"][0], interface.get("stream")
    owner = driver.current_device()
    if stream:
        owner.synchronize(int(stream))
    return ArrayInfo(address, dtype, shape, strides, owner.index)


class _DLTensor(ctypes.Structure):
    """dlpack.h, DLTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _from_dlpack(x: Any) -> ArrayInfo:
    """Read a DLPack capsule without consuming it."""
    from tilejit.runtime import driver

    kind, index = x.__dlpack_device__()
    if kind in (_DLPACK_CUDA, _DLPACK_MANAGED):
        capsule = x.__dlpack__(stream=driver.current_stream(index) or 1)  # 1: the legacy default stream
    elif kind == _DLPACK_CPU:
        capsule, index = x.__dlpack__(), HOST
    else:
        raise LaunchError(f"{type(x).__name__}: DLPack device type {int(kind)} is neither CPU nor CUDA")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = _DLTensor.from_address(get(capsule, b"dltensor"))
    if (t.code, t.bits) not in _DLPACK or t.lanes != 1:
        raise LaunchError(f"DLPack type code {t.code} with {t.bits} bits and {t.lanes} lanes is not supported")
    shape = tuple(t.shape[:t.ndim])
    strides = tuple(t.strides[:t.ndim]) if t.strides else contiguous_strides(shape)
    return ArrayInfo((t.data or 0) + t.byte_offset, DTYPES[_DLPACK[t.code, t.bits]], shape, strides, index)


class DeviceArray:
    """A row-major array in GPU memory, or, where kernels run on the CPU, in host memory; freed with the object.

    Made by `to_device`, `empty` and `zeros`. `strides` count elements, `device` is the GPU's index (-1: host memory).
    """

    __slots__ = ("shape", "dtype", "strides", "nbytes", "address", "device", "signature", "_owner", "_host",
                 "_borrowed", "__weakref__")

    def __init__(self, shape: tuple[int, ...], dtype: DType):
        from tilejit.runtime import driver
        from tilejit.runtime.target import default_target

        self.address, self.shape, self.dtype = 0, tuple(map(int, shape)), dtype
        if any(n < 0 for n in self.shape):
            raise LaunchError(f"an array of shape {self.shape}: sizes must not be negative")
        self.strides = contiguous_strides(self.shape)
        self.nbytes = prod(self.shape) * dtype.bytes
        self._owner = driver.current_device() if default_target() == "cuda" else None
        self._host: np.ndarray | None = None
        if self._owner is None:
            # one element more than needed where there is none, and 128-byte alignment as cuMemAlloc gives
            raw = np.empty(max(1, self.nbytes) + 128, np.uint8)
            skip = -raw.ctypes.data % 128
            self._host = raw[skip:skip + self.nbytes].view(numpy_dtype(dtype)).reshape(self.shape)
            self.address, self.device = raw.ctypes.data + skip, HOST
        else:
            self.device = self._owner.index
            self.address = self._owner.malloc(max(1, self.nbytes))
        self.signature, self._borrowed = (dtype.name, True, self.device), False

    @classmethod
    def borrow(cls, address: int, shape: tuple[int, ...], dtype: DType, device: int) -> DeviceArray:
        """A row-major array in memory of somebody else, on a GPU or (device -1) the host, that outlives the array."""
        made = cls.__new__(cls)
        made.address, made.shape, made.dtype, made.device = address, shape, dtype, device
        made.strides, made.nbytes = contiguous_strides(shape), prod(shape) * dtype.bytes
        made.signature, made._borrowed = (dtype.name, not address & 15, device), True
        made._owner = made._host = None
        if device != HOST:
            from tilejit.runtime import driver

            made._owner = driver.device(device)
        else:
            raw = (ctypes.c_uint8 * made.nbytes).from_address(address)
            made._host = np.frombuffer(raw, np.uint8).view(numpy_dtype(dtype)).reshape(shape)
        return made

    def __del__(self) -> None:
        owner = getattr(self, "_owner", None)
        if owner is not None and self.address and not self._borrowed and not sys.is_finalizing():
            owner.free(self.address)

    def __repr__(self) -> str:
        where = "host" if self.device == HOST else f"gpu {self.device}"
        return f"<tilejit array {self.dtype}{list(self.shape)} on {where}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._owner is None:
            raise AttributeError("__cuda_array_interface__: this array is in host memory")
        return {"shape": self.shape, "typestr": numpy_dtype(self.dtype).str, "data": (self.address, False),
                "version": 3, "strides": None}

    def data_ptr(self) -> int:
        return self.address

    def numpy(self) -> np.ndarray:
        """A host copy (waits for the device)."""
        if self._host is not None:
            return self._host.copy()
        out = np.empty(self.shape, numpy_dtype(self.dtype))
        if self._owner is not None and self.nbytes:
            self._owner.to_host(out.ctypes.data, self.address, self.nbytes)
        return out

    def copy_from(self, x: np.ndarray) -> DeviceArray:
        """Overwrite with a host array of the same shape; returns the array."""
        host = np.asarray(x, numpy_dtype(self.dtype), order="C")
        if host.shape != self.shape:
            raise LaunchError(f"copy_from: expected shape {self.shape}, found {host.shape}")
        if self._host is not None:
            self._host[...] = host
        elif self._owner is not None and self.nbytes:
            self._owner.to_device(self.address, host.ctypes.data, self.nbytes)
        return self


def to_device(x: Any, dtype: Any = None) -> DeviceArray:
    """A copy of a numpy array (or what numpy makes of x) where kernels run, converted to `dtype`."""
    host = np.asarray(x)
    return DeviceArray(host.shape, as_dtype(host.dtype if dtype is None else dtype)).copy_from(host)


def empty(shape: Any, dtype: Any) -> DeviceArray:
    """An uninitialised array; `dtype` is ours, its name, or numpy's or torch's."""
    return DeviceArray((shape,) if isinstance(shape, int) else tuple(shape), as_dtype(dtype))


def zeros(shape: Any, dtype: Any) -> DeviceArray:
    """As `empty`, of zeros."""
    out = empty(shape, dtype)
    if out._host is not None:
        out._host.view(np.uint8)[...] = 0
    elif out._owner is not None and out.nbytes:
        out._owner.clear(out.address, out.nbytes)
    return out


def array_info(x: Any) -> ArrayInfo:
    """Facts of an array. Raises LaunchError for anything that is none."""
    if tracing():
        return _of_traced(x)
    info = describe(x)
    if info is None:
        raise LaunchError(f"expected an array, found {type(x).__name__}")
    return info


def to_torch_dtype(dtype: DType) -> Any:
    return getattr(sys.modules["torch"], next(k for k, v in _TORCH.items() if v == dtype.name))


def empty_like(x: Any, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Any:
    """An uninitialised row-major array of the kind of x (torch, numpy or ours)."""
    if is_torch(x):
        return _torch_new(x, "empty", shape, dtype)
    info = array_info(x)
    shape, dtype = info.shape if shape is None else shape, info.dtype if dtype is None else as_dtype(dtype)
    if isinstance(x, np.ndarray):
        return np.empty(shape, numpy_dtype(dtype))
    return empty(shape, dtype)


def zeros_like(x: Any, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Any:
    """As `empty_like`, of zeros."""
    if is_torch(x):
        return _torch_new(x, "zeros", shape, dtype)
    if not tracing() and HOOKS.recorders and (recorder := HOOKS.recorder()) is not None:
        recorder.refuse("it allocates zeros that are no tensor of torch")
    out = empty_like(x, shape, dtype)
    if isinstance(out, np.ndarray):
        out.fill(0)
        return out
    return zeros(out.shape, out.dtype)


def _torch_new(x: Any, how: str, shape: tuple[int, ...] | None, dtype: Any) -> Any:
    out = getattr(sys.modules["torch"], how)(x.shape if shape is None else shape, device=x.device,
                                             dtype=x.dtype if dtype is None else to_torch_dtype(as_dtype(dtype)))
    if not tracing() and HOOKS.recorders and (recorder := HOOKS.recorder()) is not None:
        recorder.allocated(out, how == "zeros")
    return out
