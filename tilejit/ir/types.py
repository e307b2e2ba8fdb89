"""The types of tile IR values. They are frozen and compare by value."""
from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Union

from tilejit.ir.predicates import Predicates
from tilejit.records import dataclass

if TYPE_CHECKING:
    from tilejit.layout.linear import LinearLayout


class DType(Predicates):
    """A scalar element type."""

    name: str
    family: str
    bits: int

    def __new__(cls, name: str, family: str = "", bits: int = 0) -> DType:
        if name in DTYPES:
            return DTYPES[name]
        if not family:
            raise ValueError(f"{name!r} is no dtype; there are {', '.join(DTYPES)}")
        made = super().__new__(cls)
        made.name, made.family, made.bits = name, family, bits
        DTYPES[name] = made
        return made

    @cached_property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @cached_property
    def is_float(self) -> bool:
        return self.family == "float"

    def is_int(self) -> bool:
        """True for signed, unsigned and int1."""
        return self.family != "float"

    @cached_property
    def is_signed(self) -> bool:
        return self.family == "int"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        """Copies and pickles are this object: its name is a variable of this module."""
        return self.name


#: Every dtype by its name: the one list that printers, parsers and frontends read.
DTYPES: dict[str, DType] = {}

int1 = DType("int1", "bool", 1)
int8, int16, int32, int64 = (DType(f"int{b}", "int", b) for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{b}", "uint", b) for b in (8, 16, 32, 64))
fp8e4b15 = DType("fp8e4b15", "float", 8)  # moved as bytes; the language converts it (custom_float8.py)
fp8e4nv = DType("fp8e4nv", "float", 8)
fp8e5 = DType("fp8e5", "float", 8)
fp16 = DType("fp16", "float", 16)
bf16 = DType("bf16", "float", 16)
tf32 = DType("tf32", "float", 32)
fp32 = DType("fp32", "float", 32)
fp64 = DType("fp64", "float", 64)


class OtherDType(DType):
    """A program may name it and ask what it is: of other chips, and `void`."""

    def __new__(cls, name: str, bits: int = 8) -> OtherDType:
        made = object.__new__(cls)
        made.name, made.family, made.bits = name, "float", bits
        return made


fp8e4b8, fp8e5b16, void = OtherDType("fp8e4b8"), OtherDType("fp8e5b16"), OtherDType("void", 0)


@dataclass(frozen=True)
class Ptr(Predicates):
    """A 64-bit global address of elements of type `elem`; `const` (while a kernel is built): not to be written."""

    elem: Scalar
    address_space: int = 1
    const: bool = False
    bits = 64
    bytes = 8

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{'const_' * self.const}pointer<{self.elem.name}>"

    @property
    def element_ty(self) -> Scalar:
        return self.elem

    def is_ptr(self) -> bool:
        """False of tiles' types, see `block_type`."""
        return True

    def is_const(self) -> bool:
        return self.const

    def is_floating(self) -> bool:
        return False

    def is_int(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"ptr<{'const ' if self.const else ''}{self.elem}>"

    def __repr__(self) -> str:
        return self.name


Scalar = Union[DType, Ptr]


@dataclass(frozen=True)
class Tile:
    """A block of elements, every size a power of two; columns of products may be multiples of 16, and rows three times
    a power of two.
    """

    shape: tuple[int, ...]
    elem: Scalar
    layout: LinearLayout | None = None

    def __hash__(self) -> int:
        """By shape alone: what is hashed tells the rest apart."""
        return hash(self.shape)

    @property
    def numel(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    def with_layout(self, layout: LinearLayout | None) -> Tile:
        return Tile(self.shape, self.elem, layout)

    def __str__(self) -> str:
        return f"{self.elem}[{'x'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Desc:
    """A view of a global tensor that is read and written in blocks of `block_shape` (outermost first)."""

    elem: DType
    block_shape: tuple[int, ...]
    tma: bool = True

    @property
    def held(self) -> DType:
        """The elements in memory and in tiles."""
        return fp32 if self.elem is tf32 else self.elem

    def __str__(self) -> str:
        tail = "" if self.tma else ", no_tma"
        return f"desc<{self.elem}[{'x'.join(map(str, self.block_shape))}]{tail}>"

    def ahead_of(self, rank: int) -> int | None:
        """How many dimensions of size 1 a block has ahead of a tile's of this rank; None for others, which the tile has
        merged.
        """
        ahead = len(self.block_shape) - rank
        return ahead if all(n == 1 for n in self.block_shape[:max(0, ahead)]) else None


@dataclass(frozen=True)
class Buffer:
    """A ring of `slots` shared-memory tiles."""

    shape: tuple[int, ...]
    elem: DType
    slots: int
    swizzle: int
    order: tuple[int, ...]

    @classmethod
    def of(cls, tile: Tile, slots: int, order: tuple[int, ...]) -> Buffer:
        from tilejit.layout.shared import widest_swizzle

        assert isinstance(tile.elem, DType)
        return cls(tile.shape, tile.elem, slots, widest_swizzle(tile.shape, tile.elem.bytes, order[0]), order)

    @property
    def slot_bytes(self) -> int:
        n = self.elem.bytes
        for s in self.shape:
            n *= s
        return n

    @property
    def slot_stride(self) -> int:
        """Bytes from one slot to the next: a multiple of 128, as TMA asks."""
        return -(-self.slot_bytes // 128) * 128

    def __str__(self) -> str:
        ring = f"{self.slots}x" if self.slots else "view "
        dims = "x".join(map(str, self.shape))
        order = "x".join(map(str, self.order))
        return f"buffer<{ring}{self.elem}[{dims}], swizzle={self.swizzle}, order={order}>"


@dataclass(frozen=True)
class Barrier:
    """A ring of `slots` mbarriers, each completing a phase after `count` arrivals (and its bytes)."""

    slots: int
    count: int

    def __str__(self) -> str:
        return f"barrier<{self.slots}, count={self.count}>"


@dataclass(frozen=True)
class Pending:
    """An accumulator that tensor cores may still be writing; only `dot_wait` turns it into a tile."""

    tile: Tile

    def __str__(self) -> str:
        return f"pending<{self.tile}>"


def odd_size(shape: tuple[int, ...], axis: int) -> bool:
    """Whether a size that is no power of two may be one of a block."""
    return any(n % 16 == 0 and n <= 512 for n in accumulate(shape[axis:], mul))


Type = Union[DType, Ptr, Tile, Desc, Buffer, Barrier, Pending]


def elem_of(t: Type) -> Scalar:
    kind = type(t)  # (compared, not asked: passes come here for every operand)
    if kind is Tile:
        return t.elem  # type: ignore[union-attr]
    if kind is Pending:
        return t.tile.elem  # type: ignore[union-attr]
    assert kind is DType or kind is Ptr, t
    return t  # type: ignore[return-value]


def with_elem(t: Type, elem: Scalar) -> Type:
    return Tile(t.shape, elem, t.layout) if isinstance(t, Tile) else elem


def shape_of(t: Type) -> tuple[int, ...]:
    kind = type(t)
    return t.shape if kind is Tile else t.tile.shape if kind is Pending else ()  # type: ignore[union-attr]
