"""What may be an argument: torch tensors, anything with `__cuda_array_interface__` or DLPack, our own arrays.

`describe` turns any of them into an `ArrayInfo`; torch is found in `sys.modules`, never imported.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tilejit.errors import LaunchError
from tilejit.ir.types import DTYPES, DType

#: numpy dtype -> tilejit dtype name; bf16 and fp8 come from ml_dtypes.
_NUMPY: dict[Any, str] = {
    np.dtype(k): v for k, v in {
        np.float32: "fp32", np.float16: "fp16", np.float64: "fp64", np.int8: "int8", np.int16: "int16",
        np.int32: "int32", np.int64: "int64", np.uint8: "uint8", np.uint16: "uint16", np.uint32: "uint32",
        np.uint64: "uint64", np.bool_: "int1", ml_dtypes.bfloat16: "bf16", ml_dtypes.float8_e4m3fn: "fp8e4nv",
        ml_dtypes.float8_e5m2: "fp8e5"}.items()}
_TORCH = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.float64": "fp64", "torch.bfloat16": "bf16",
          "torch.float8_e4m3fn": "fp8e4nv", "torch.float8_e5m2": "fp8e5", "torch.int8": "int8",
          "torch.int16": "int16", "torch.int32": "int32", "torch.int64": "int64", "torch.uint8": "uint8",
          "torch.uint16": "uint16", "torch.uint32": "uint32", "torch.uint64": "uint64", "torch.bool": "int1"}
#: torch.dtype -> our dtype, filled as dtypes are met (looking one up by name costs a microsecond).
_TORCH_SEEN: dict[Any, DType] = {}


@dataclass(frozen=True)
class ArrayInfo:
    """Address, element type, sizes and strides (elements) of an array; `on_gpu` false for host memory."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    on_gpu: bool


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(prod(shape[i + 1:]) for i in range(len(shape)))


def torch_dtype(dtype: Any) -> DType:
    """Our dtype for a torch dtype."""
    found = _TORCH_SEEN.get(dtype)
    if found is None:
        if str(dtype) not in _TORCH:
            raise LaunchError(f"{dtype} arrays are not supported")
        found = _TORCH_SEEN[dtype] = DTYPES[_TORCH[str(dtype)]]
    return found


def is_torch(x: Any) -> bool:
    """True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def numpy_dtype(dtype: DType) -> np.dtype:
    """The numpy (or ml_dtypes) dtype of a tilejit dtype."""
    return next(k for k, v in _NUMPY.items() if v == dtype.name)


def describe(x: Any) -> ArrayInfo | None:
    """Facts of an array argument, or None if x is no array. Raises LaunchError for an unknown dtype."""
    if is_torch(x):
        return ArrayInfo(x.data_ptr(), torch_dtype(x.dtype), tuple(x.shape), tuple(x.stride()), x.is_cuda)
    if isinstance(x, DeviceArray):
        return ArrayInfo(x.address, x.dtype, x.shape, x.strides, True)
    if isinstance(x, np.ndarray):
        if x.dtype not in _NUMPY:
            raise LaunchError(f"numpy dtype {x.dtype} is not supported")
        return ArrayInfo(x.ctypes.data, DTYPES[_NUMPY[x.dtype]], x.shape,
                         tuple(s // x.itemsize for s in x.strides), False)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        t = np.dtype(interface["typestr"])
        if t not in _NUMPY:
            raise LaunchError(f"array dtype {interface['typestr']} is not supported")
        shape = tuple(interface["shape"])
        strides = interface.get("strides")
        strides = contiguous_strides(shape) if strides is None else tuple(s // t.itemsize for s in strides)
        return ArrayInfo(interface["data"][0], DTYPES[_NUMPY[t]], shape, strides, True)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x)
    return None


def _from_dlpack(x: Any) -> ArrayInfo:
    """Read the DLPack capsule's header (dlpack.h, DLTensor): data, device, ndim, dtype, shape, strides."""
    import ctypes

    class DLTensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

    capsule = x.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = DLTensor.from_address(get(capsule, b"dltensor"))
    names = {(0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8",
             (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64", (2, 16): "fp16", (2, 32): "fp32",
             (2, 64): "fp64", (4, 16): "bf16", (6, 8): "int1"}
    if (t.code, t.bits) not in names:
        raise LaunchError(f"DLPack type code {t.code} with {t.bits} bits is not supported")
    shape = tuple(t.shape[:t.ndim])
    strides = tuple(t.strides[:t.ndim]) if t.strides else contiguous_strides(shape)
    return ArrayInfo((t.data or 0) + t.byte_offset, DTYPES[names[t.code, t.bits]], shape, strides,
                     t.device_type in (2, 13))


class DeviceArray:
    """A row-major array in device memory, made by `to_device` or `empty`; freed with the object."""

    def __init__(self, shape: tuple[int, ...], dtype: DType):
        from tilejit.runtime import driver

        self.shape, self.dtype = tuple(shape), dtype
        self.strides = contiguous_strides(self.shape)
        self.nbytes = max(1, prod(self.shape) * dtype.bytes)
        self.address = driver.malloc(self.nbytes)

    def __del__(self) -> None:
        if getattr(self, "address", 0) and sys.modules is not None:
            from tilejit.runtime import driver

            driver.free(self.address)
            self.address = 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": numpy_dtype(self.dtype).str, "data": (self.address, False),
                "version": 3, "strides": None}

    def data_ptr(self) -> int:
        """The device address."""
        return self.address

    def numpy(self) -> np.ndarray:
        """A host copy (waits for the device)."""
        from tilejit.runtime import driver

        out = np.empty(self.shape, numpy_dtype(self.dtype))
        driver.copy_to_host(out.ctypes.data, self.address, out.nbytes)
        return out


def to_device(x: np.ndarray) -> DeviceArray:
    """A device copy of a numpy array (ml_dtypes for bf16 and fp8 included)."""
    from tilejit.runtime import driver

    host = np.ascontiguousarray(x)
    if host.dtype not in _NUMPY:
        raise LaunchError(f"numpy dtype {host.dtype} is not supported")
    out = DeviceArray(host.shape, DTYPES[_NUMPY[host.dtype]])
    driver.copy_to_device(out.address, host.ctypes.data, host.nbytes)
    return out


def empty(shape: tuple[int, ...], dtype: DType) -> DeviceArray:
    """An uninitialised device array."""
    return DeviceArray(shape, dtype)


def array_info(x: Any) -> ArrayInfo:
    """Facts of an array. Raises LaunchError for anything that is none."""
    info = describe(x)
    if info is None:
        raise LaunchError(f"expected an array, found {type(x).__name__}")
    return info


def empty_like(x: Any, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Any:
    """An uninitialised row-major array of the kind of x (torch, numpy or ours), of another shape or dtype."""
    info = array_info(x)
    shape, dtype = info.shape if shape is None else shape, dtype or info.dtype
    if is_torch(x):
        torch = sys.modules["torch"]
        name = next(k for k, v in _TORCH.items() if v == dtype.name)
        return torch.empty(shape, dtype=getattr(torch, name.split(".")[1]), device=x.device)
    if isinstance(x, np.ndarray):
        return np.empty(shape, numpy_dtype(dtype))
    return empty(shape, dtype)


class TensorDescriptor:
    """A tensor seen in blocks: base array, shape, strides (elements, the last 1), block_shape.

    Any tensor with a unit last stride is legal. TMA needs a 16-byte aligned base and strides that are
    multiples of 16 bytes; where they are not, `tma` is False and kernels use pointer loads instead
    (their report says so)."""

    __slots__ = ("base", "shape", "strides", "block_shape", "padding", "dtype", "address", "tma")

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, padding: str = "zero"):
        info = describe(base)
        if info is None:
            raise LaunchError(f"TensorDescriptor: expected an array as base, found {type(base).__name__}")
        self.base, self.shape, self.strides = base, tuple(shape), tuple(strides)
        self.block_shape, self.padding = tuple(block_shape), padding
        rank = len(self.shape)
        if not 1 <= rank <= 5 or len(self.strides) != rank or len(self.block_shape) != rank:
            raise LaunchError(f"TensorDescriptor: shape {self.shape}, strides {self.strides} and block_shape "
                              f"{self.block_shape} must have one rank from 1 to 5")
        if self.strides[-1] != 1:
            raise LaunchError(f"TensorDescriptor: the last stride must be 1, found {self.strides[-1]}: "
                              "pass the transposed tensor, or a contiguous copy")
        if padding not in ("zero", "nan"):
            raise LaunchError(f"TensorDescriptor: padding must be 'zero' or 'nan', found {padding!r}")
        self.dtype, self.address = info.dtype, info.address
        size = info.dtype.bytes
        self.tma = info.address % 16 == 0 and all(s * size % 16 == 0 and s > 0 for s in self.strides[:-1])

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Any, padding: str = "zero") -> TensorDescriptor:
        """The descriptor of a whole array."""
        info = describe(tensor)
        if info is None:
            raise LaunchError(f"TensorDescriptor: expected an array, found {type(tensor).__name__}")
        return TensorDescriptor(tensor, info.shape, info.strides, block_shape, padding)
