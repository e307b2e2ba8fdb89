"""The values of a kernel body: `tensor` (a tile or a scalar in tile IR) and tensor descriptors.

Functions marked by `@builtin` get the IR builder in `_b`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir import Builder, Op, Value, const_of
from tilejit.ir.report import Record
from tilejit.ir.types import DType, Ptr, Scalar, Tile, elem_of, fp32, fp64, int1, int32, int64, uint32, uint64


class KernelBuilder(Builder):
    call: Callable[..., Any]
    notes: list[Record]

    def note(self, kind: str, line: str) -> None:
        where = self.loc.short() if self.loc is not None else ""
        record = Record(kind, f"{line} ({where})" if where else line, where)
        if record not in self.notes:  # loops are built more than once
            self.notes.append(record)


#: name -> builtin that is also a method of `tensor`.
METHODS: dict[str, Callable[..., Any]] = {}


def builtin(fn: Callable[..., Any] | None = None, *, method: bool = False) -> Callable[..., Any]:
    def mark(f: Callable[..., Any]) -> Callable[..., Any]:
        code = getattr(f, "__code__", None)
        semantic = code is not None and "_semantic" in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]

        @wraps(f)
        def outer(*args: Any, _b: KernelBuilder | None = None, _semantic: KernelBuilder | None = None,
                  **kwargs: Any) -> Any:
            b = _b or _semantic  # Triton's name of it, in functions of authors that are not kernels
            if b is None:
                raise CompilationError(f"tl.{f.__name__} can only be called inside a @tilejit.kernel function")
            if semantic and _semantic is None:  # called by a kernel: as in Triton constants come marked, with .value
                args, kwargs = tuple(map(_marked, args)), {k: _marked(v) for k, v in kwargs.items()}
            return f(*args, **{"_semantic" if semantic else "_b": b}, **kwargs)

        outer.is_builtin = True  # type: ignore[attr-defined]
        if method:
            METHODS[f.__name__] = outer
        return outer
    return mark(fn) if fn is not None else mark


def _marked(x: Any) -> Any:
    return constexpr(x) if type(x) in (bool, int, float, str) else x


class constexpr:
    """Marks a compile-time constant: as an annotation of a parameter, or around a global's value. What is computed with
    it is marked as well; a function may be called."""

    def __init__(self, value: Any):
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr({self.value!r})"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, key: Any) -> constexpr:
        return constexpr(self.value[constexpr(key).value])


def _computes(symbol: str) -> Callable[..., constexpr]:
    compute = getattr(operator, symbol)

    def method(x: constexpr, *others: Any) -> constexpr:
        return constexpr(compute(x.value, *(constexpr(y).value for y in others)))

    return method


def _computes_reflected(symbol: str) -> Callable[..., constexpr]:
    compute = getattr(operator, symbol)
    return lambda x, y: constexpr(compute(constexpr(y).value, x.value))


for _symbol in "add sub mul truediv floordiv mod pow lshift rshift and_ or_ xor".split():
    setattr(constexpr, f"__{_symbol.strip('_')}__", _computes(_symbol))
    setattr(constexpr, f"__r{_symbol.strip('_')}__", _computes_reflected(_symbol))
for _symbol in "eq ne lt le gt ge neg pos invert".split():
    setattr(constexpr, f"__{_symbol}__", _computes(_symbol))


class constexpr_type:
    """The type of a constant: which one it is. It also equals the type that the number has as a scalar."""

    def __init__(self, value: Any):
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, constexpr_type):
            return type(self.value) is type(other.value) and bool(self.value == other.value)
        return scalar_type(self.value) == (other.scalar if isinstance(other, block_type) else other)

    def __hash__(self) -> int:
        return hash(scalar_type(self.value))

    def __repr__(self) -> str:
        return f"constexpr_type[{self.value!r}]"


class tuple_type:
    """Its items' types, and the names of a named tuple."""

    def __init__(self, types: Any, fields: Any = None):
        self.types, self.fields = list(types), list(fields or "") or None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple_type) and (self.types, self.fields) == (other.types, other.fields)

    def __hash__(self) -> int:
        return hash(tuple(self.types))

    def __getitem__(self, index: int) -> Any:
        return self.types[index]

    def __repr__(self) -> str:
        return f"[{','.join(map(str, self.types))}]"


def type_of(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple_type([type_of(e) for e in x], getattr(x, "_fields", None))
    return x.type if hasattr(x, "type") else constexpr_type(x)


def scalar_type(x: Any) -> DType | None:
    """The type of a number alone: int1, the smallest of int32, uint32, int64 and uint64, fp32 or fp64; else None."""
    if isinstance(x, bool):
        return int1
    if isinstance(x, int):
        ranges = ((int32, 1 << 31, 31), (uint32, 0, 32), (int64, 1 << 63, 63), (uint64, 0, 64))
        return next((t for t, low, bits in ranges if -low <= x < 1 << bits), None)
    if isinstance(x, float):
        return fp32 if x != x or abs(x) == float("inf") or abs(x) <= 3.4028235e38 else fp64
    return None


class block_type:
    """`.element_ty`, `.shape`, `.scalar` of a tile."""

    def __init__(self, scalar: Scalar, shape: tuple[int, ...]):
        self.scalar, self.shape = scalar, shape
        self.element_ty = scalar.elem if isinstance(scalar, Ptr) else scalar

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (DType, Ptr)):  # a scalar's type is its element's
            return not self.shape and self.scalar == other
        return isinstance(other, block_type) and (self.scalar, self.shape) == (other.scalar, other.shape)

    def __hash__(self) -> int:
        return hash((self.scalar, self.shape) if self.shape else self.scalar)

    def __repr__(self) -> str:
        return f"<{list(self.shape)}, {self.scalar.name}>" if self.shape else repr(self.scalar)

    def get_block_shapes(self) -> tuple[int, ...]:
        return self.shape

    def with_element_ty(self, scalar: Scalar) -> block_type:
        return block_type(scalar, self.shape)

    def is_ptr(self) -> bool:
        return isinstance(self.scalar, Ptr)

    def is_block(self) -> bool:
        return bool(self.shape)


class tensor_descriptor_type:
    """`.block_type`, `.shape_type`, `.strides_type`."""

    def __init__(self, block_type: block_type, shape_type: tuple_type, strides_type: tuple_type):
        self.block_type, self.shape_type, self.strides_type = block_type, shape_type, strides_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tensor_descriptor_type) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.block_type)

    def __repr__(self) -> str:
        return f"tensor_descriptor<{self.block_type}>"


class tensor:
    """A tile, or a scalar computed at run time."""

    def __init__(self, value: Value):
        self.value = value

    @property
    def elem(self) -> Scalar:
        return elem_of(self.value.type)

    @property
    def dtype(self) -> Scalar:
        return elem_of(self.value.type)

    @property
    def shape(self) -> tuple[int, ...]:
        t = self.value.type
        return t.shape if isinstance(t, Tile) else ()

    @property
    def type(self) -> block_type:
        return block_type(self.elem, self.shape)

    @property
    def numel(self) -> int:
        return self.value.type.numel if isinstance(self.value.type, Tile) else 1

    def method(self, name: str) -> Callable[..., Any] | None:
        fn = METHODS.get(name)
        if fn is None:
            return None
        bound = partial(fn, self)
        bound.is_builtin = True  # type: ignore[attr-defined]
        return bound

    def __repr__(self) -> str:
        return str(self.value.type)


class Compound:
    """Made of other values, as tuples are, which is what differs where paths meet.

    `whole`: taken apart only where not the same on every path.
    """

    whole = False

    def alike(self, other: Compound) -> bool:
        raise NotImplementedError

    def parts(self, b: KernelBuilder) -> list[Any]:
        raise NotImplementedError

    def remade(self, b: KernelBuilder, parts: list[Any]) -> Compound:
        raise NotImplementedError

    def part(self, b: KernelBuilder, x: Any, i: int) -> Any:
        """Part number i, which may be x, as one that a loop carries (a number in its type)."""
        return x

    def same(self, other: Compound) -> bool:
        return self is other


class tensor_descriptor(Compound):
    """Its parts are base, sizes and all strides but the last, which is 1; numbers where they are constants."""

    whole = True

    def __init__(self, value: Value, padding: str = "zero"):
        self.value, self.padding = value, padding

    def alike(self, other: Compound) -> bool:
        return isinstance(other, tensor_descriptor) and (self.value.desc, self.padding) \
            == (other.value.desc, other.padding)

    def parts(self, b: KernelBuilder) -> list[Any]:
        rank = len(self.block_shape)
        made = self.value.op
        if isinstance(made, Op) and made.name == "make_desc":
            return [tensor(v) if const_of(v) is None else const_of(v) for v in made.operands[:2 * rank]]
        return [tensor(v) for v in (b("desc_base", self.value),
                                    *(b("desc_shape", self.value, dim=i) for i in range(rank)),
                                    *(b("desc_stride", self.value, dim=i) for i in range(rank - 1)))]

    def remade(self, b: KernelBuilder, parts: list[Any]) -> tensor_descriptor:
        base, *dims = (self.part(b, x, i).value for i, x in enumerate([*parts, 1]))
        seen = self.value.desc.elem
        return tensor_descriptor(b("make_desc", base, *dims, block_shape=self.block_shape, padding=self.padding,
                                   **({} if seen is self.dtype else {"elem": seen})), self.padding)

    def part(self, b: KernelBuilder, x: Any, i: int) -> Any:
        t = int32 if i <= len(self.block_shape) else int64
        if not isinstance(x, tensor):
            return tensor(b.const(x, t))
        return x if i == 0 or x.elem == t else tensor(b("cast", x.value, dtype=t))

    def same(self, other: Compound) -> bool:
        return isinstance(other, tensor_descriptor) and self.value is other.value

    @property
    def type(self) -> tensor_descriptor_type:
        rank = len(self.block_shape)
        return tensor_descriptor_type(self.block_type, tuple_type([int32] * rank), tuple_type([int64] * rank))

    @property
    def block_type(self) -> block_type:
        return block_type(self.dtype, self.block_shape)

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self.value.desc.block_shape

    @property
    def dtype(self) -> DType:
        return self.value.desc.held

    def __repr__(self) -> str:
        return str(self.value.type)
