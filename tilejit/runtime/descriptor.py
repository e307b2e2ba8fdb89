"""The host's tensor descriptor: a tensor seen in blocks, which kernels load and store through TMA."""
from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from math import gcd
from operator import index
from typing import Any

from tilejit.errors import LaunchError
from tilejit.ir.types import DType, fp32, odd_size, tf32
from tilejit.runtime import arrays
from tilejit.runtime.arrays import (
    STAND_IN,
    ArrayInfo,
    array_info,
    plain_tensors,
    same_as,
    stands_in,
    torch_dtype,
)

_KEPT = 8192
_new = object.__new__


class BlockShapeError(LaunchError, ValueError):
    """A block's size that no tile has."""


class Facts:
    """What descriptors of equal tensors at other addresses share."""

    __slots__ = ("dtype", "shape", "strides", "block_shape", "padding", "tma", "ragged", "unit", "device", "aligned",
                 "signature", "__weakref__")

    def __init__(self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], block_shape: tuple[int, ...],
                 padding: str, aligned: bool, device: int):
        self.dtype, self.shape, self.strides, self.block_shape = dtype, shape, strides, block_shape
        self.padding, self.aligned, self.device = padding, aligned, device
        self.tma = (aligned and min(shape) > 0 and max(shape) <= 2 ** 32
                    and all(s * dtype.bytes % 16 == 0 and 0 < s * dtype.bytes < 2 ** 40 for s in strides[:-1]))
        #: whether rows end within a unit of 16 bytes, which TMA writes as a whole
        self.ragged = shape[-1] * dtype.bytes % 16 != 0
        #: bytes, at most 16, that the base, all rows and their ends are known to lie at multiples of
        self.unit = gcd(16, *(n * dtype.bytes for n in (shape[-1], *strides[:-1]))) if aligned else dtype.bytes
        known = (" ragged" if self.ragged else "") if self.tma else f" unit={self.unit}"
        #: what kernels are specialised by; equal texts are one object
        self.signature: Any = sys.intern(f"desc<{dtype}{block_shape} tma={self.tma} {padding} {device}{known}>")


#: what facts are computed from -> facts
_known: dict[tuple, Facts] = {}


def _facts(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...], padding: str,
           aligned: bool, device: int) -> Facts:
    key = dtype, shape, strides, block, padding, aligned, device
    found = _known.get(key)
    if found is None:
        _validate(dtype, shape, strides, block, padding)
        found = _remember(key, Facts(*key))
    return found


#: padding -> block shape -> torch's own test for tensors like one that was seen lately, and their facts
_recent: defaultdict[Any, dict[tuple, tuple[Callable[[Any], bool], Facts]]] = defaultdict(dict)
#: (block shape, padding) -> how many tensors were not known by that
_others: Counter[tuple] = Counter()
#: How many of these there are for each test that is made, which costs more than looking facts up.
_A_TEST = 64


def _remember(key: tuple, facts: Facts) -> Facts:
    if len(_known) >= _KEPT:
        _known.clear()
    return _known.setdefault(key, facts)


def _validate(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...],
              padding: str) -> None:
    rank = len(shape)
    if not 1 <= rank <= 5:
        raise LaunchError(f"TensorDescriptor: rank 1 to 5, found shape {shape}")
    if len(strides) != rank or len(block) != rank:
        raise LaunchError(f"TensorDescriptor: shape {shape}, strides {strides} and block_shape {block} must have the "
                          "same rank")
    if strides[-1] != 1:
        raise LaunchError(f"TensorDescriptor: the last stride must be 1, found {strides[-1]}: pass the transposed "
                          "tensor, or a contiguous copy")
    if min(shape) < 0:
        raise LaunchError(f"TensorDescriptor: shape {shape} has a negative size")
    for axis, n in enumerate(block):
        if n < 1 or n & (n - 1) and not odd_size(block, axis):
            below, above = 1 << max(0, n.bit_length() - 1), 1 << max(0, n.bit_length())
            raise BlockShapeError(f"TensorDescriptor: block_shape {block} must be powers of two, or multiples of 16 up "
                                  f"to 512; axis {axis} is {n}" + (f", next to it {below} and {above}" if n > 0 else "")
                                  + f" (Shape element {axis} must be a power of 2)")
    if padding not in ("zero", "nan") or padding == "nan" and not dtype.is_float:
        raise LaunchError(f"TensorDescriptor: padding must be 'zero' or, for floats, 'nan'; found {padding!r} for "
                          f"{dtype}")


class _Traced:
    """The facts of a stand-in's descriptor, found when the program runs."""

    aligned, tma, ragged, unit, device, signature = True, True, False, 1, 0, STAND_IN

    def __init__(self, dtype: DType, shape: Any, strides: Any, block_shape: Any, padding: str):
        self.dtype, self.shape, self.strides = dtype, tuple(shape), tuple(strides)
        self.block_shape, self.padding = tuple(block_shape), padding


def _seen(info: ArrayInfo, rounded: bool) -> ArrayInfo:
    if rounded and info.dtype is not fp32:
        raise LaunchError(f"TensorDescriptor: round_f32_to_tf32 is only supported for float32, found {info.dtype}")
    return info._replace(dtype=tf32) if rounded else info


def _of_any(array: Any, block_shape: Any, padding: str = "zero", round_f32_to_tf32: bool = False) -> TensorDescriptor:
    out, info = TensorDescriptor.__new__(TensorDescriptor), _seen(array_info(array), round_f32_to_tf32)
    out._fill(array, info, info.shape, info.strides, block_shape, padding)
    return out


def _of_tensor(tensor: Any, block_shape: Any, padding: str) -> TensorDescriptor:
    if type(tensor) not in plain_tensors:
        return _of_any(tensor, block_shape, padding)
    out, address = _new(TensorDescriptor), tensor.data_ptr()
    try:
        blocks = *block_shape, padding
        key = tensor.dtype, tensor.shape, tensor.stride(), *blocks, address & 15, tensor.get_device()
        found = _known.get(key)
    except TypeError:
        return _of_any(tensor, block_shape, padding)  # which says what is wrong
    if found is None:
        found = _remember(key, _facts(torch_dtype(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()),
                                      _integers("block_shape", block_shape), padding, address % 16 == 0,
                                      tensor.get_device()))
    if found.aligned and _others[blocks] % _A_TEST == 0:
        _recent[padding][blocks[:-1]] = same_as(tensor), found
    _others[blocks] += 1
    out.base, out.address, out.facts = tensor, address, found
    return out


class TensorDescriptor:
    """A tensor in global memory, read and written in blocks of `block_shape`.

    base: the array whose first element is the tensor's; shape and strides in elements, outermost first, the last stride
    1; block_shape: powers of two, one a dimension, or multiples of 16 up to 512 (of products); padding: what a load
    finds outside the tensor ("zero", or "nan" for floats); round_f32_to_tf32: loads of fp32 give the nearest tf32.
    Rank 1 to 5. Where the base is not 16-byte aligned or
    strides are no multiples of 16 bytes, which TMA needs, `tma` is False and kernels use pointer loads. The last
    elements of rows that end within 16 bytes are written through pointers. Raises LaunchError for anything else.
    """

    __slots__ = ("base", "address", "facts")

    base: Any
    address: int
    facts: Any

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, padding: str = "zero",
                 round_f32_to_tf32: bool = False):
        self._fill(base, _seen(array_info(base), round_f32_to_tf32), shape, strides, block_shape, padding)

    def _fill(self, base: Any, info: ArrayInfo, shape: Any, strides: Any, block_shape: Any, padding: str) -> None:
        self.base, self.address = base, info.address
        if arrays.tracing() or stands_in(base):
            self.facts = _Traced(info.dtype, shape, strides, block_shape, padding)
            return
        self.facts = _facts(info.dtype, _integers("shape", shape), _integers("strides", strides),
                            _integers("block_shape", block_shape), padding, info.address % 16 == 0, info.device)

    dtype: DType = property(lambda self: self.facts.dtype)  # type: ignore[assignment]
    shape: tuple[int, ...] = property(lambda self: self.facts.shape)  # type: ignore[assignment]
    strides: tuple[int, ...] = property(lambda self: self.facts.strides)  # type: ignore[assignment]
    padding: str = property(lambda self: self.facts.padding)  # type: ignore[assignment]
    tma: bool = property(lambda self: self.facts.tma)  # type: ignore[assignment]
    device: int = property(lambda self: self.facts.device)  # type: ignore[assignment]
    signature: Any = property(lambda self: self.facts.signature)

    @property
    def round_f32_to_tf32(self) -> bool:
        return self.facts.dtype is tf32

    @property
    def map_key(self) -> tuple:
        return self.address, self.shape, self.strides, self.padding

    @property
    def block_shape(self) -> tuple[int, ...]:
        """May be set, as hooks of autotuning do: later launches see the new blocks."""
        return self.facts.block_shape

    @block_shape.setter
    def block_shape(self, shape: Any) -> None:
        self._fill(self.base, _seen(array_info(self.base), self.round_f32_to_tf32), self.shape, self.strides, shape,
                   self.padding)

    @staticmethod
    @arrays.traced_as(_of_any)
    def from_tensor(tensor: Any, block_shape: Any, padding: str = "zero",
                    round_f32_to_tf32: bool = False) -> TensorDescriptor:
        if round_f32_to_tf32:
            return _of_any(tensor, block_shape, padding, True)
        try:
            check, facts = _recent[padding][tuple(block_shape)]
        except (KeyError, TypeError):
            return _of_tensor(tensor, block_shape, padding)
        if check(tensor):
            address = tensor.data_ptr()
            if not address & 15:
                out = _new(TensorDescriptor)
                out.base, out.address, out.facts = tensor, address, facts
                return out
        return _of_tensor(tensor, block_shape, padding)

    @staticmethod
    def template(info: ArrayInfo, shape: Any, strides: Any, block_shape: Any,
                 padding: str = "zero") -> TensorDescriptor:
        """A descriptor to be put `over` arrays like the one that `info` describes."""
        out = TensorDescriptor.__new__(TensorDescriptor)
        out._fill(None, info, shape, strides, block_shape, padding)
        return out

    def over(self, base: Any, info: ArrayInfo | None = None) -> TensorDescriptor:
        """The same view of another array, in a fraction of the time; `info` is its `array_info`, if known. Raises
        LaunchError for another dtype.
        """
        info, facts = _seen(info or array_info(base), self.round_f32_to_tf32), self.facts
        if info.dtype != facts.dtype:
            raise LaunchError(f"TensorDescriptor.over: expected an array of {self.dtype}, found {info.dtype}")
        out = TensorDescriptor.__new__(TensorDescriptor)
        if info.device != facts.device or (info.address & 15 == 0) is not facts.aligned:
            out._fill(base, info, self.shape, self.strides, self.block_shape, self.padding)
            return out
        out.base, out.address, out.facts = base, info.address, facts
        return out

    def __repr__(self) -> str:
        return (f"TensorDescriptor({self.dtype}{list(self.shape)}, strides={list(self.strides)}, "
                f"block_shape={list(self.block_shape)}, padding={self.padding!r}, tma={self.tma})")


def _integers(what: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, values))
    except TypeError:
        raise LaunchError(f"TensorDescriptor: {what} must be integers, found {values!r}") from None
