"""What the tile language asks of an element type: Triton's predicates and properties, by the type's name."""
from __future__ import annotations

from enum import Enum

#: Bits of the mantissa and bias of the exponent of the floating-point types.
_FLOATS = {"fp8e4b15": (3, 15), "fp8e4nv": (3, 7), "fp8e4b8": (3, 8), "fp8e5": (2, 15), "fp8e5b16": (2, 16),
           "fp16": (10, 15), "bf16": (7, 127), "tf32": (10, 127), "fp32": (23, 127), "fp64": (52, 1023)}


class Signedness(Enum):
    SIGNED = 0
    UNSIGNED = 1


class Kind(Enum):
    BOOLEAN = 0
    INTEGRAL = 1
    FLOATING = 2


class Predicates:
    """The members of a dtype by Triton's names; `name`, `bits` and the answers come from `types.DType`."""

    name: str
    bits: int
    SINT_TYPES = ("int8", "int16", "int32", "int64")
    UINT_TYPES = ("int1", "uint8", "uint16", "uint32", "uint64")
    FP_TYPES = ("fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64")
    STANDARD_FP_TYPES = ("fp16", "bf16", "fp32", "fp64")
    OTHER_TYPES = ("void",)
    SIGNEDNESS, KIND = Signedness, Kind

    @classmethod
    def is_dtype(cls, name: str) -> bool:
        return name in cls.SINT_TYPES + cls.UINT_TYPES + cls.FP_TYPES + cls.OTHER_TYPES

    @property
    def primitive_bitwidth(self) -> int:
        """1 for int1."""
        return self.bits

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def int_bitwidth(self) -> int:
        if self.is_floating():
            raise AttributeError(f"{self.name} has no int_bitwidth")
        return self.bits

    @property
    def fp_mantissa_width(self) -> int:
        return self._float()[0]

    @property
    def exponent_bias(self) -> int:
        return self._float()[1]

    def _float(self) -> tuple[int, int]:
        if self.name not in _FLOATS:
            raise AttributeError(f"{self.name} has no mantissa and no exponent")
        return _FLOATS[self.name]

    @property
    def int_signedness(self) -> Signedness:
        if self.is_floating():
            raise AttributeError(f"{self.name} has no int_signedness")
        return Signedness.SIGNED if self.is_int_signed() else Signedness.UNSIGNED

    @property
    def scalar(self) -> Predicates:
        return self

    def is_floating(self) -> bool:
        return self.name in _FLOATS

    def is_standard_floating(self) -> bool:
        return self.name in self.STANDARD_FP_TYPES

    def is_fp8(self) -> bool:
        return self.is_floating() and self.bits == 8

    def is_int_signed(self) -> bool:
        return self.name in self.SINT_TYPES

    def is_int_unsigned(self) -> bool:
        """int1 counts as one."""
        return self.name in self.UINT_TYPES

    def is_bool(self) -> bool:
        return self.name == "int1"

    def kind(self) -> Kind:
        return Kind.BOOLEAN if self.is_bool() else Kind.FLOATING if self.is_floating() else Kind.INTEGRAL

    def is_void(self) -> bool:
        return self.name == "void"

    def is_block(self) -> bool:
        return False

    def is_ptr(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    def get_int_max_value(self) -> int:
        return 2 ** (self.int_bitwidth - self.is_int_signed()) - 1

    def get_int_min_value(self) -> int:
        return -2 ** (self.int_bitwidth - 1) if self.is_int_signed() else 0

    def codegen_name(self) -> str:
        for short, long in (("fp", "float"), ("bf", "bfloat")):
            if self.name.startswith(short):
                return long + self.name[2:]
        return self.name

    @property
    def cache_key_part(self) -> str:
        return self.name

    def mangle(self) -> str:
        if self.is_floating():
            return self.name
        return f"{'i' if self.is_int_signed() else 'u'}{self.bits}"

    def with_element_ty(self, element_ty: Predicates) -> Predicates:
        return element_ty

    def __repr__(self) -> str:
        return f"triton.language.{self.codegen_name()}"


def _is(name: str):
    def ask(self: Predicates) -> bool:
        return self.name == name
    ask.__name__, ask.__doc__ = f"is_{name}", f"Whether it is {name}."
    return ask


for _name in (*_FLOATS, "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
    setattr(Predicates, f"is_{_name}", _is(_name))
