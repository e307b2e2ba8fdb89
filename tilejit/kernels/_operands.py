"""Matrices as operands of products: their order in memory, descriptors of them, workspaces, and what does not fit."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo

#: What is multiplied with fp32 sums; and bytes of a row of K in a block: what a swizzled row holds.
DTYPES, K_BYTES = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32"), 128


@dataclass(frozen=True)
class Matrix:
    """A stack of matrices [..., rows, columns] in memory: `rows_first` if a matrix's rows are contiguous."""

    info: ArrayInfo
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rows_first: bool

    @property
    def dtype(self) -> Any:
        return self.info.dtype

    @property
    def pitch(self) -> int:
        """Elements from a line to the next one; where there is one line only, those of the line, in whole units of
        TMA."""
        lines, length = self.shape[-2:] if self.rows_first else self.shape[:-3:-1]
        down, across = self.strides[-2:]
        size: int = self.dtype.bytes
        return (down if self.rows_first else across) if lines > 1 else tilejit.cdiv(length * size, 16) * 16 // size

    def descriptor(self, rows: int, columns: int) -> tilejit.TensorDescriptor:
        """Blocks of rows x columns, or of columns x rows of the transposed matrix; stacks are seen one at a time. TMA
        writes whole units of 16 bytes: where those that a row ends with are to be had, they count as the matrix's."""
        *stack, m, n = self.shape
        if self.info.spare:
            unit = 16 // self.dtype.bytes
            m, n = (m, tilejit.cdiv(n, unit) * unit) if self.rows_first else (tilejit.cdiv(m, unit) * unit, n)
        shape, block = ((m, n), (rows, columns)) if self.rows_first else ((n, m), (columns, rows))
        return tilejit.TensorDescriptor.template(self.info, (*stack, *shape), (*self.strides[:-2], self.pitch, 1),
                                                 (*(1,) * len(stack), *block))

    def transposed(self) -> Matrix:
        """The same memory seen as the transposed matrix."""
        return Matrix(self.info, self.shape[::-1], self.strides[::-1], not self.rows_first)


#: Coordinates of ragged descriptors: rows of a tile that ends at row `end` of the tensor, `rows` before the end of its
#: group, are stored at [WRAP, end, WRAP - rows, column].
WRAP = 2 ** 30


def ragged(x: Matrix, rows: int, columns: int) -> tilejit.TensorDescriptor:
    """A descriptor of a row-major matrix that clips blocks at any row, not at the matrix's last one only.

    A row of the matrix is reached by three coordinates whose strides are such that WRAP times the outermost one and
    the row stride make 2^64 elements, so that [WRAP, y, x, column] is row y + x - WRAP, and x >= WRAP is outside."""
    m, n = x.shape
    down = x.strides[0] if m > 1 else n
    return tilejit.TensorDescriptor.template(x.info, (WRAP + 1, m + 1, WRAP, n), (2 ** 34 - down, down, down, 1),
                                             (1, 1, rows, columns))


def order_of(info: ArrayInfo) -> bool | None:
    """Whether a matrix's rows are contiguous, or else its columns; None: neither are."""
    (m, n), (down, across) = info.shape[-2:], info.strides[-2:]
    if across == 1 and (down >= n or m == 1):
        return True
    return False if down == 1 and (across >= m or n == 1) else None


def in_reach(info: ArrayInfo) -> bool:
    """Whether TMA can read a matrix in its order: its base and its lines at multiples of 16 bytes."""
    rows_first = order_of(info)
    if rows_first is None:
        return False
    pitch = Matrix(info, info.shape, info.strides, rows_first).pitch
    return info.address % 16 == 0 and pitch * info.dtype.bytes % 16 == 0


def operand(what: str, name: str, info: ArrayInfo, rank: int = 2) -> Matrix:
    """A matrix (or stack of matrices) with unit stride along its rows or its columns."""
    shape, strides = info.shape, info.strides
    if len(shape) != rank:
        kind = "a matrix" if rank == 2 else f"an array of rank {rank}"
        raise tilejit.LaunchError(f"{what}: {name} must be {kind}, found shape {list(shape)}")
    rows_first = order_of(info)
    if rows_first is None:
        raise tilejit.LaunchError(f"{what}: {name} has strides {list(strides)}: one of its last two must be 1 and the "
                                  "other at least the length of a line: call .contiguous()")
    return Matrix(info, shape, strides, rows_first)


def check_operands(what: str, a: Matrix, b: Matrix, dtypes: tuple[str, ...], in_place: bool = True) -> None:
    """Dtypes that multiply, inner sizes that agree, and (`in_place`) orders that the tensor cores read as they are."""
    alike = a.dtype == b.dtype or a.dtype.is_fp8() and b.dtype.is_fp8() or \
        {str(a.dtype), str(b.dtype)} <= {"int8", "uint8"}
    if str(a.dtype) not in dtypes or not alike:
        raise tilejit.LaunchError(f"{what}: {a.dtype} x {b.dtype} is not supported; use {', '.join(dtypes)}")
    if a.shape[-1] != b.shape[-2]:
        raise tilejit.LaunchError(f"{what}: a is {list(a.shape)}, b is {list(b.shape)}: "
                                  f"{a.shape[-1]} != {b.shape[-2]}")
    if in_place and a.dtype.bytes != 2 and not (a.rows_first and not b.rows_first):
        raise tilejit.LaunchError(f"{what}: {a.dtype} operands must have K contiguous (a row-major, b column-major): "
                                  "the tensor cores transpose 16-bit elements only")


def new(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A result of the kind of `like`; 8-bit inputs give bf16."""
    return tilejit.empty_like(like, shape, tl.bfloat16 if dtype.bytes == 1 else dtype)


def result(what: str, info: ArrayInfo, shape: tuple[int, ...], name: str = "out") -> Matrix:
    """An output, checked to have this shape and contiguous rows."""
    if info.shape != shape or info.strides[-1] != 1 and shape[-1] > 1:
        raise tilejit.LaunchError(f"{what}: {name} must be a row-major {list(shape)} array, found shape "
                                  f"{list(info.shape)} and strides {list(info.strides)}")
    return Matrix(info, info.shape, info.strides, True)


def check_vector(what: str, name: str, info: ArrayInfo | None, size: int) -> None:
    """A vector of `size` contiguous elements, if it is there."""
    if info is not None and (info.shape != (size,) or info.strides[0] != 1 and size > 1):
        raise tilejit.LaunchError(f"{what}: {name} must have shape [{size}], found {list(info.shape)}")


def tensor_scales(what: str, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """The scales of whole operands that are there, by name: arrays of one number in fp32."""
    if scale_a is None and scale_b is None:
        return {}
    scales = {name: x for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None}
    for name, x in scales.items():
        info = tilejit.array_info(x)
        if info.dtype != tl.float32 or any(n != 1 for n in info.shape):
            raise tilejit.LaunchError(f"{what}: {name} must be one number in fp32, found {info.dtype} "
                                      f"{list(info.shape)}")
    return scales


def require_tma(what: str, **descriptors: tilejit.TensorDescriptor) -> None:
    """All descriptors must satisfy TMA's rules."""
    for name, d in descriptors.items():
        if not d.tma:
            raise tilejit.LaunchError(f"{what}: {name} needs a base and row strides that are multiples of 16 bytes, "
                                      f"found strides {d.strides} of {d.dtype}: pad its rows")


class Workspace:
    """Memory in which programs meet that share a result tile: fp32 partial sums, and flags.

    Flags are zero between launches, and so are sums that are added to.

    A workspace serves any number of launches, one after another on one stream; `like` says where it lives (torch,
    numpy or our arrays)."""

    def __init__(self, like: Any, floats: int, flags: int):
        self.floats, self.flags = floats, flags
        self.parts_array = tilejit.zeros_like(like, (max(1, floats),), tl.float32)
        self.flags_array = tilejit.zeros_like(like, (max(1, flags),), tl.int32)
        self.arrays = self.parts_array, self.flags_array
        self.views: dict[tuple[int, int, int], tilejit.TensorDescriptor] = {}

    def check(self, what: str, floats: int, flags: int) -> Workspace:
        """The workspace, if it is large enough."""
        if floats > self.floats or flags > self.flags:
            raise tilejit.LaunchError(f"{what}: the workspace has {self.floats} floats and {self.flags} flags, "
                                      f"{floats} and {flags} are needed")
        return self

    def tiles(self, count: int, m: int, n: int) -> tilejit.TensorDescriptor:
        """The partial sums seen as `count` tiles of m x n, one below the other."""
        key = count, m, n
        if key not in self.views:
            self.views[key] = tilejit.TensorDescriptor(self.parts_array, (max(1, count) * m, n), (n, 1), (m, n))
        return self.views[key]
