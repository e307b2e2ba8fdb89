"""The host's tensor descriptor: a tensor seen in blocks, which kernels load and store through TMA."""
from __future__ import annotations

from operator import index
from typing import Any

from tilejit.errors import LaunchError
from tilejit.ir.types import odd_size
from tilejit.runtime.arrays import STAND_IN, ArrayInfo, array_info, stands_in, tracing


class TensorDescriptor:
    """A tensor in global memory, read and written in blocks of `block_shape`.

    base: the array whose first element is the tensor's; shape and strides in elements, outermost first, the last
    stride 1; block_shape: powers of two, one a dimension, or multiples of 16 up to 512 (of products); padding:
    what a load finds outside the tensor ("zero", or "nan" for floats). Rank 1 to 5. TMA needs a 16-byte aligned base
    and strides that are multiples of 16 bytes: where that does not hold, `tma` is False and kernels use pointer loads
    instead, which their report says.
    Raises LaunchError for anything else."""

    __slots__ = ("base", "shape", "strides", "_block", "padding", "dtype", "address", "tma", "device",
                 "signature", "map_key")

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, padding: str = "zero"):
        self._fill(base, array_info(base), _integers("shape", shape), _integers("strides", strides), block_shape,
                   padding)

    def _fill(self, base: Any, info: ArrayInfo, shape: tuple[int, ...], strides: tuple[int, ...], block_shape: Any,
              padding: str) -> None:
        self.base, self.padding, self.shape, self.strides = base, padding, shape, strides
        self._block = _integers("block_shape", block_shape)
        self.dtype, self.address, self.device = info.dtype, info.address, info.device
        if tracing() or stands_in(base):
            self.signature: Any = STAND_IN
            return                              # what is made of it when the program runs is looked at then
        rank = len(self.shape)
        if not 1 <= rank <= 5:
            raise LaunchError(f"TensorDescriptor: rank 1 to 5, found shape {self.shape}")
        if len(self.strides) != rank or len(self.block_shape) != rank:
            raise LaunchError(f"TensorDescriptor: shape {self.shape}, strides {self.strides} and block_shape "
                              f"{self.block_shape} must have the same rank")
        if self.strides[-1] != 1:
            raise LaunchError(f"TensorDescriptor: the last stride must be 1, found {self.strides[-1]}: pass the "
                              "transposed tensor, or a contiguous copy")
        if min(self.shape) < 0:
            raise LaunchError(f"TensorDescriptor: shape {self.shape} has a negative size")
        for axis, n in enumerate(self.block_shape):
            if n < 1 or n & (n - 1) and not odd_size(self.block_shape, axis):
                below, above = 1 << max(0, n.bit_length() - 1), 1 << max(0, n.bit_length())
                raise LaunchError(f"TensorDescriptor: block_shape {self.block_shape} must be powers of two, or "
                                  f"multiples of 16 up to 512; axis {axis} is {n}"
                                  + (f", next to it {below} and {above}" if n > 0 else ""))
        if padding not in ("zero", "nan") or padding == "nan" and not info.dtype.is_float:
            raise LaunchError(f"TensorDescriptor: padding must be 'zero' or, for floats, 'nan'; found {padding!r} for "
                              f"{info.dtype}")
        size = info.dtype.bytes
        self.tma = (info.address % 16 == 0 and min(self.shape) > 0 and max(self.shape) <= 2 ** 32
                    and all(s * size % 16 == 0 and 0 < s * size < 2 ** 40 for s in self.strides[:-1]))
        #: what kernels are specialised by
        self.signature = f"desc<{self.dtype}{self.block_shape} tma={self.tma} {padding} {self.device}>"
        #: what a tensor map depends on
        self.map_key = (self.address, self.shape, self.strides, padding)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of a block. It may be set, as hooks of autotuning do: later launches see the new blocks."""
        return self._block

    @block_shape.setter
    def block_shape(self, shape: Any) -> None:
        self._fill(self.base, array_info(self.base), self.shape, self.strides, shape, self.padding)

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Any, padding: str = "zero") -> TensorDescriptor:
        """The descriptor of a whole array."""
        info = array_info(tensor)
        out = TensorDescriptor.__new__(TensorDescriptor)
        out._fill(tensor, info, info.shape, info.strides, block_shape, padding)
        return out

    @staticmethod
    def template(info: ArrayInfo, shape: Any, strides: Any, block_shape: Any,
                 padding: str = "zero") -> TensorDescriptor:
        """A descriptor without an array, to be put `over` arrays like the one that `info` describes."""
        out = TensorDescriptor.__new__(TensorDescriptor)
        out._fill(None, info, _integers("shape", shape), _integers("strides", strides), block_shape, padding)
        return out

    def over(self, base: Any, info: ArrayInfo | None = None) -> TensorDescriptor:
        """The same view of another array of the same dtype, in a fraction of the time; `info` is its `array_info`,
        if known. Raises LaunchError for another dtype."""
        info = info or array_info(base)
        if info.dtype != self.dtype:
            raise LaunchError(f"TensorDescriptor.over: expected an array of {self.dtype}, found {info.dtype}")
        out = TensorDescriptor.__new__(TensorDescriptor)
        if info.device != self.device or (info.address ^ self.address) & 15:
            out._fill(base, info, self.shape, self.strides, self.block_shape, self.padding)
            return out
        out.base, out.address, out.device, out.dtype = base, info.address, self.device, self.dtype
        out.shape, out.strides, out._block, out.padding = self.shape, self.strides, self._block, self.padding
        out.tma, out.signature = self.tma, self.signature
        out.map_key = (out.address, self.shape, self.strides, self.padding)
        return out

    def __repr__(self) -> str:
        return (f"TensorDescriptor({self.dtype}{list(self.shape)}, strides={list(self.strides)}, "
                f"block_shape={list(self.block_shape)}, padding={self.padding!r}, tma={self.tma})")


def _integers(what: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(index(v) for v in values)
    except TypeError:
        raise LaunchError(f"TensorDescriptor: {what} must be integers, found {values!r}") from None
