"""What a kernel is specialised by, and what the compiler is told of each argument."""
from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any

import numpy as np

from tilejit.errors import LaunchError
from tilejit.frontend import Arg, Const, Group, KernelSource, Param
from tilejit.ir.types import DTYPES, Desc, DType, Ptr, fp32, int1, int32, int64, uint64
from tilejit.language.tensor import constexpr
from tilejit.runtime.arrays import HOST, DeviceArray, StandIn, as_dtype, describe, is_torch, is_torch_dtype, stand_in
from tilejit.runtime.descriptor import TensorDescriptor


class ArgumentError(LaunchError, TypeError):
    """The arguments of a launch do not fit the kernel's signature."""


class WrongDevice(ArgumentError, ValueError):
    """An array is not where the kernel runs."""


class IntegerOverflow(ArgumentError, OverflowError):
    """An integer that no integer type of kernels holds."""


class UnknownOption(ArgumentError, KeyError):
    """A keyword that is neither an argument nor an option."""

    def __str__(self) -> str:
        return Exception.__str__(self)


Keyer = Callable[[Any], Hashable]
#: Elements of rows at most that kernels which walk them several times may keep (`passes/walked_rows.py`).
WIDEST = 1 << 20


# -- keys --
class Keys(dict[type, Keyer]):
    """type of an argument -> function to its key; new types are looked up by `resolve`. `keys[type(x)](x)` is the key
    of x.
    """

    def __missing__(self, kind: type) -> Keyer:
        keyer = self[kind] = self.resolve(kind)
        return keyer

    def resolve(self, kind: type) -> Keyer:
        raise NotImplementedError


class ConstantKeys(Keys):
    """Keys of constants: an integer or a text itself; the rest tagged with its type."""

    def __init__(self) -> None:
        super().__init__({int: int, str: str})

    def resolve(self, kind: type) -> Keyer:
        return constant_key


def constant_key(x: Any) -> Hashable:
    if isinstance(x, constexpr):
        return ConstantKeys()[type(x.value)](x.value)
    if isinstance(x, float):
        return (type(x), float(x).hex())  # tells 0.0 from -0.0, and a NaN equals itself
    if isinstance(x, (tuple, list)):
        return (type(x), tuple(map(constant_key, x)))
    return (type(x), x)


class ArgumentKeys(Keys):
    """Keys of run-time arguments."""

    def __init__(self, align: bool, ones: bool, most: bool = False):
        self.align, self.ones, self.most = align, ones, most
        self.guards = _bounded() if most else _GUARDS if align and ones else _GUARDS_VALUE if ones else _GUARDS_PLAIN
        ints = _int_key if align and ones else _int_key_value if ones else _int_key_plain
        super().__init__({int: (lambda x: (ints(x), most_of(x))) if most else ints,
                          float: lambda x: "fp32", bool: lambda x: "int1", TensorDescriptor: lambda x: x.signature,
                          DeviceArray: lambda x: x.signature, type(None): lambda x: None})

    def resolve(self, kind: type) -> Keyer:
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(kind, torch.Tensor):
            return _traced_key if stand_in(kind) else _torch_key if self.align else _torch_key_plain
        if issubclass(kind, (np.bool_, Enum)) or hasattr(kind, "source"):
            return self[bool] if kind is np.bool_ else constant_key
        if issubclass(kind, (int, np.integer)):
            ints = self[int]
            return lambda x: ints(int(x))
        if issubclass(kind, (float, np.floating)):
            return self[float]
        if issubclass(kind, tuple):
            return lambda x: (kind, *[self[type(e)](e) for e in x])
        if issubclass(kind, (list, str, DType, constexpr)):
            return constant_key
        align = self.align
        return lambda x: _array_key(x, align)


def _int_key(x: int) -> Hashable:
    if x == 1:
        return "1"
    if 0 <= x < 2 ** 31:
        return "i32" if x & 7 else "i32:8" if x & 8 else "i32:16"
    return (-2 ** 31 <= x < 0, x < 2 ** 63, _divisor(x), x < 0)


def most_of(x: int) -> int:
    """The power of two that a number of columns is at most; 0 for what is none, or too many for rows that are kept."""
    return 1 << (x - 1).bit_length() if 1 < x <= WIDEST else 0


#: key of an integer -> the same as a comparison, for launchers (`launcher.py`)
_GUARDS = {"1": "{n} == 1", "i32": "{n} & 7 and 1 < {n} < 2147483648",
           "i32:8": "{n} & 15 == 8 and 0 < {n} < 2147483648",
           "i32:16": "not {n} & 15 and 0 <= {n} < 2147483648"}
_GUARDS_PLAIN = {"i32": "-2147483648 <= {n} < 2147483648"}
_GUARDS_VALUE = {"1": "{n} == 1", "i32": "{n} != 1 and -2147483648 <= {n} < 2147483648"}


def _bounded() -> dict[Hashable, str]:
    bounds = {0: f"not 1 < {{n}} <= {WIDEST}"}
    bounds |= {1 << i: f"{1 << i >> 1} < {{n}} <= {1 << i}" for i in range(1, WIDEST.bit_length())}
    return {(key, most): f"{guard} and {bound}" for key, guard in _GUARDS.items() for most, bound in bounds.items()}


def _divisor(x: int) -> int:
    return 1 if x & 7 else 8 if x & 8 else 16


def _int_key_plain(x: int) -> Hashable:
    return "i32" if -2 ** 31 <= x < 2 ** 31 else (x < 2 ** 63, False)


def _int_key_value(x: int) -> Hashable:
    return "1" if x == 1 else _int_key_plain(x)


def _torch_key(x: Any) -> Hashable:
    return (x.dtype, x.data_ptr() & 15 == 0, _place(x))


def _torch_key_plain(x: Any) -> Hashable:
    return (x.dtype, _place(x))


def _place(x: Any) -> Any:
    """A torch tensor's GPU index, HOST, or "pinned" where every GPU reaches it."""
    index = x.get_device()
    return index if index >= 0 else "pinned" if x.is_pinned() else HOST


def _traced_key(x: Any) -> Hashable:
    raise StandIn


def _array_key(x: Any, align: bool) -> Hashable:
    info = describe(x)
    if info is None:
        return constant_key(x)
    return (info.dtype.name, align and info.address % 16 == 0, info.device)


# -- descriptions --
def describe_argument(name: str, x: Any, keys: ArgumentKeys, annotated: DType | None = None,
                      typed: bool = False) -> Arg:
    """What the compiler is told of a run-time argument; `typed`: text may name a type (`_from_text`)."""
    if isinstance(x, str):
        return _from_text(name, x) if typed else Const(x)
    if isinstance(x, tuple):
        return Group(type(x), tuple(describe_argument(f"{name}[{i}]", e, keys, None, typed) for i, e in enumerate(x)))
    if x is None or isinstance(x, (DType, list, Enum, constexpr)) or isinstance(
            getattr(x, "source", None), KernelSource):
        return Const(x)
    if isinstance(x, Ptr):
        return Param(x, 16)
    if isinstance(x, Desc):
        return Param(x)
    if isinstance(x, (bool, np.bool_)):
        return _scalar(name, x, int1, annotated)
    if isinstance(x, (int, np.integer)):
        return _integer(name, int(x), keys, annotated)
    if isinstance(x, (float, np.floating)):
        return _scalar(name, x, fp32, annotated)
    if isinstance(x, TensorDescriptor):
        return Param(Desc(x.dtype, x.block_shape, x.tma), 1 if x.tma else x.facts.unit, padding=x.padding,
                     ragged=x.tma and x.facts.ragged)
    if typed and is_torch_dtype(x):
        return Param(Ptr(as_dtype(x)), 16)
    info = describe(x)
    if info is None:
        raise ArgumentError(f"argument {name!r}: expected an array, a number, a TensorDescriptor or a constant, found "
                            f"{type(x).__name__}")
    if annotated is not None:
        raise ArgumentError(f"argument {name!r}: expected {annotated}, found an array of {info.dtype}")
    return Param(Ptr(info.dtype), 16 if keys.align and info.address % 16 == 0 else info.dtype.bytes)


def _integer(name: str, x: int, keys: ArgumentKeys, annotated: DType | None) -> Arg:
    if not -2 ** 63 <= x < 2 ** 64:
        raise IntegerOverflow(f"argument {name!r}: {x} does not fit 64 bits")
    if annotated is not None and annotated.is_float:
        return Param(annotated)
    if annotated is not None:
        if annotated == int1:
            return Param(int1)
        low, high = (-2 ** (annotated.bits - 1), 2 ** (annotated.bits - 1)) if annotated.is_signed else (
            0, 2 ** annotated.bits)
        if not low <= x < high:
            raise ArgumentError(f"argument {name!r}: {x} does not fit {annotated}, as which it is annotated")
    elif x == 1 and keys.ones:
        return Const(1)
    t = annotated or (int32 if -2 ** 31 <= x < 2 ** 31 else int64 if x < 2 ** 63 else uint64)
    return Param(t, _divisor(x) if keys.align else 1, keys.align and keys.ones and x >= 0,
                 most=most_of(x) if keys.most else 0)


def _scalar(name: str, x: Any, natural: DType, annotated: DType | None) -> Param:
    if annotated is not None and annotated.family != natural.family:
        raise ArgumentError(f"argument {name!r}: expected {annotated}, as which it is annotated, found {x!r}")
    return Param(annotated or natural)


#: Triton's short names of the integer types: i1, i32, u8, ...
_SHORT = {f"{k[0]}{t.bits}": t for k, t in DTYPES.items() if t.is_int()}


def _from_text(name: str, text: str) -> Arg:
    """Types to compile without arrays."""
    base, _, number = text.partition(":")
    word = base.lstrip("*")
    t = DTYPES.get(word) or _SHORT.get(word)
    if t is not None and base.count("*") <= 1 and (not number or number.isdigit()):
        if base.startswith("*"):
            return Param(Ptr(t), int(number or 16))
        return Param(t, int(number or 1))
    if base.startswith("desc<") and base.endswith("]>"):
        elem, _, sizes = base[5:-2].partition("[")
        if elem in DTYPES and all(s.isdigit() for s in sizes.split("x")):
            return Param(Desc(DTYPES[elem], tuple(map(int, sizes.split("x")))))
    if text.startswith(("*", "desc<")):
        raise ArgumentError(f"argument {name!r}: unknown type {text!r}; known are {', '.join(DTYPES)}, a '*' before "
                            "one for a pointer, and desc<bf16[128x64]>")
    return Const(text)


def device_of(x: Any) -> int | None:
    """An array's GPU index, HOST, None for what is no array or reached from all."""
    if isinstance(x, (TensorDescriptor, DeviceArray)):
        return x.device
    if is_torch(x):
        place = _place(x)
        return None if place == "pinned" else int(place)
    if x is None or isinstance(x, (bool, int, float, str, tuple, np.generic, DType, constexpr)):
        return None
    info = describe(x)
    return None if info is None else info.device


def common_device(arguments: dict[str, Any]) -> int | None:
    """The one device of all array arguments, if any. Raises ArgumentError if they differ."""
    places = {n: d for n, x in arguments.items() if (d := device_of(x)) is not None}
    if len(set(places.values())) > 1:
        words = [f"{n!r} on " + ("the cpu" if d == HOST else f"gpu {d}") for n, d in places.items()]
        raise ArgumentError(f"arguments are on different devices: {', '.join(words)}")
    return next(iter(places.values()), None)
