from __future__ import annotations

from typing import Any

from tilejit.ir.types import DType
from tilejit.runtime.arrays import ArrayInfo, array_info, as_dtype, describe_as, is_torch_dtype


class TensorWrapper:
    def __init__(self, base: Any, dtype: DType):
        self.base, self.dtype, self.data, self.device, self.shape = base, dtype, base.data, base.device, base.shape
        self.is_cuda = getattr(base, "is_cuda", False)

    def data_ptr(self) -> int:
        return int(self.base.data_ptr())

    def stride(self, *args: Any) -> Any:
        return self.base.stride(*args)

    def element_size(self) -> int:
        return int(self.base.element_size())

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(self.base.cpu(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        return TensorWrapper(self.base.to(device), self.dtype)

    def clone(self) -> TensorWrapper:
        return TensorWrapper(self.base.clone(), self.dtype)

    def new_empty(self, size: Any) -> TensorWrapper:
        return TensorWrapper(self.base.new_empty(size), self.dtype)

    def copy_(self, other: Any) -> None:
        self.base.copy_(other.base if isinstance(other, TensorWrapper) else other)

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def _info(x: TensorWrapper) -> ArrayInfo:
    return array_info(x.base)._replace(dtype=as_dtype(x.dtype))


describe_as(TensorWrapper, _info)


def reinterpret(tensor: Any, dtype: Any) -> Any:
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if dtype is base.dtype:
        return base
    info, wanted = array_info(base), as_dtype(dtype)
    if info.dtype.bytes != wanted.bytes:
        raise TypeError(f"reinterpret: {info.dtype} has {info.dtype.bytes} bytes, {wanted} has {wanted.bytes}")
    return TensorWrapper(base, wanted)


class MockTensor:
    def __init__(self, dtype: Any, shape: Any = None):
        self.dtype, self.shape = dtype, [1] if shape is None else list(shape)

    @staticmethod
    def wrap_dtype(arg: Any) -> Any:
        return MockTensor(arg) if is_torch_dtype(arg) else arg

    def stride(self) -> list[int]:
        out = [1]
        for n in self.shape[:0:-1]:
            out.insert(0, out[0] * n)
        return out

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0
