"""The tile language: what a kernel body may call. `import tilejit.language as tl`."""
from enum import Enum as _Enum

from tilejit.ir.types import DType as dtype
from tilejit.ir.types import Ptr as pointer_type
from tilejit.ir.types import bf16 as bfloat16
from tilejit.ir.types import fp8e4b8 as float8e4b8
from tilejit.ir.types import fp8e4b15 as float8e4b15
from tilejit.ir.types import fp8e4nv as float8e4nv
from tilejit.ir.types import fp8e5 as float8e5
from tilejit.ir.types import fp8e5b16 as float8e5b16
from tilejit.ir.types import fp16 as float16
from tilejit.ir.types import fp32 as float32
from tilejit.ir.types import fp64 as float64
from tilejit.ir.types import int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, void
from tilejit.language import extra, math
from tilejit.language.aggregates import *
from tilejit.language.assembly import *
from tilejit.language.atomics import *
from tilejit.language.block_pointers import *
from tilejit.language.creation import *
from tilejit.language.debug import *
from tilejit.language.descriptors import *
from tilejit.language.elementwise import *
from tilejit.language.hints import *
from tilejit.language.loops import range, static_range
from tilejit.language.math import *
from tilejit.language.memory import *
from tilejit.language.products import *
from tilejit.language.random import *
from tilejit.language.reductions import *
from tilejit.language.scaled import *
from tilejit.language.scans import *
from tilejit.language.shape import *
from tilejit.language.sorting import *
from tilejit.language.tensor import (
    block_type,
    constexpr,
    constexpr_type,
    tensor,
    tensor_descriptor,
    tensor_descriptor_type,
    tuple_type,
)


class PropagateNan(_Enum):
    NONE = 0
    ALL = 0xFFFF


class const:
    """The pointer is only read, and stores through it are refused."""


TRITON_MAX_TENSOR_NUMEL = 1 << 20
pi32_t = pointer_type(int32)
tuple = tuple
slice = slice

__all__ = ["PropagateNan", "TRITON_MAX_TENSOR_NUMEL", "bfloat16", "block_type", "const", "constexpr", "constexpr_type",
           "dtype", "extra", "float16", "float32", "float64", "float8e4b15", "float8e4b8", "float8e4nv", "float8e5",
           "float8e5b16", "int1", "int16",
           "int32", "int64", "int8", "math", "pi32_t", "pointer_type", "range", "slice", "static_range", "tensor",
           "tensor_descriptor", "tensor_descriptor_type", "tuple", "tuple_type", "uint16", "uint32", "uint64", "uint8",
           "void"]
