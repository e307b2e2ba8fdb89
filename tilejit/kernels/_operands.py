"""Matrices as operands of products: their order in memory, descriptors of them, and what does not fit."""
from __future__ import annotations

from math import gcd, prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, infos_of
from tilejit.kernels.product.ends import WRAP
from tilejit.records import dataclass, replace

DTYPES = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32")


@dataclass(frozen=True)
class Matrix:
    """A stack of matrices [..., rows, columns], whose lines are rows, else columns; array `at` of a call."""

    info: ArrayInfo
    rows_first: bool = True
    at: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.info.strides

    @property
    def dtype(self) -> Any:
        return self.info.dtype

    @property
    def lines(self) -> tuple[int, int]:
        """How many there are, and the elements of each."""
        m, n = self.shape[-2:]
        return (m, n) if self.rows_first else (n, m)

    @property
    def pitch(self) -> int:
        """Elements from a line to the next one; of one line only, its own, in whole units of TMA."""
        (count, length), unit = self.lines, 16 // self.dtype.bytes
        return self.strides[-2 if self.rows_first else -1] if count > 1 else tilejit.cdiv(length, unit) * unit

    @property
    def step(self) -> int:
        """Elements from one of a line to the next one."""
        return self.strides[-1 if self.rows_first else -2] if self.lines[1] > 1 else 1

    @property
    def in_reach(self) -> bool:
        """Of TMA: contiguous lines, which begin at multiples of 16 bytes, as all of it does."""
        apart = self.info.address, *(x * self.dtype.bytes for x in (*self.strides[:-2], self.pitch))
        return order_of(self.info) is not None and not any(x % 16 for x in apart)

    @property
    def unit(self) -> int:
        """Elements that threads read at once: what divides where lines begin and their length, at most 16 bytes of
        lines that TMA reads, else 8."""
        size: int = self.dtype.bytes
        most = 16 if self.in_reach else 8
        apart = (x * size for x in self.strides[:-2])
        return gcd(self.info.address, self.pitch * size, self.lines[1] * size, *apart, most) // size or 1

    @property
    def T(self) -> Matrix:
        (*stack, m, n), (*apart, down, across) = self.shape, self.strides
        return replace(self.viewed((*stack, n, m), (*apart, across, down)), rows_first=not self.rows_first)

    def viewed(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix:
        return replace(self, info=self.info._replace(shape=shape, strides=strides))

    def descriptor(self, rows: int, columns: int) -> At:
        """Blocks of rows x columns, or of columns x rows of the transpose; stacks are seen one at a time. TMA writes
        whole units of 16 bytes: where those that a line ends with are to be had, they count as the matrix's."""
        stack, (count, length), unit = self.shape[:-2], self.lines, 16 // self.dtype.bytes
        if self.info.spare:
            length = tilejit.cdiv(length, unit) * unit
        block = (rows, columns) if self.rows_first else (columns, rows)
        return self.seen((*stack, count, length), (*self.strides[:-2], self.pitch, 1), (*(1,) * len(stack), *block))

    def seen(self, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...]) -> At:
        """The same memory in blocks of another shape."""
        return At(self.at, tilejit.TensorDescriptor.template(self.info, shape, strides, block))

    def ragged(self, rows: int, columns: int) -> At:
        """Blocks of a row-major matrix that are clipped at any row."""
        m, n = self.shape
        down = self.strides[0] if m > 1 else n
        return self.seen((WRAP + 1, m + 1, WRAP, n), (2 ** 34 - down, down, down, 1), (1, 1, rows, columns))


def order_of(info: ArrayInfo) -> bool | None:
    """Whether a matrix's rows are contiguous, or else its columns; None: neither are. One column is one line."""
    (m, n), (down, across) = info.shape[-2:], info.strides[-2:]
    if n == 1 < m and down == 1:
        return False
    if across == 1 and (down >= n or m == 1):
        return True
    return False if down == 1 and (across >= m or n == 1) else None


def operand(what: str, name: str, info: ArrayInfo, at: int = 0, rank: int = 2) -> Matrix:
    """Of any strides: lines are along the smaller one where neither is 1."""
    if len(info.shape) != rank:
        kind = "a matrix" if rank == 2 else f"an array of rank {rank}"
        raise tilejit.LaunchError(f"{what}: {name} must be {kind}, found shape {list(info.shape)}")
    rows_first = order_of(info)
    return Matrix(info, info.strides[-1] <= info.strides[-2] if rows_first is None else rows_first, at)


def check_operands(what: str, a: Matrix, b: Matrix, dtypes: tuple[str, ...] = DTYPES) -> None:
    """Dtypes that multiply, inner sizes that agree."""
    alike = a.dtype == b.dtype or a.dtype.is_fp8() and b.dtype.is_fp8() or \
        {str(a.dtype), str(b.dtype)} <= {"int8", "uint8"}
    if str(a.dtype) not in dtypes or not alike:
        raise tilejit.LaunchError(f"{what}: {a.dtype} x {b.dtype} is not supported; use {', '.join(dtypes)}")
    if a.shape[-1] != b.shape[-2]:
        raise tilejit.LaunchError(f"{what}: a is {list(a.shape)}, b is {list(b.shape)}: "
                                  f"{a.shape[-1]} != {b.shape[-2]}")


def new(a: Any, b: Any, out_dtype: Any = None, beside: int = 1) -> Any:
    """For a @ b, of a dtype or of a's (8-bit inputs give bf16). beside: matrices whose columns b has."""
    ia, ib = infos_of(a, b)
    shape = [*ia.shape[:-1], *[n // beside for n in ib.shape[-1:]]]
    if len(ia.shape) == len(ib.shape) == 3:
        shape[0] = max(shape[0], ib.shape[0])
    return tilejit.empty_like(a, tuple(shape), out_dtype or (tl.bfloat16 if ia.dtype.bytes == 1 else ia.dtype))


def result(what: str, info: ArrayInfo, shape: tuple[int, ...], at: int, name: str = "out") -> Matrix:
    """Checked to have this shape and contiguous rows."""
    if info.shape != shape or info.strides[-1] != 1 and shape[-1] > 1 and 0 not in shape:
        raise tilejit.LaunchError(f"{what}: {name} must be a row-major {list(shape)} array, found shape "
                                  f"{list(info.shape)} and strides {list(info.strides)}")
    return Matrix(info, True, at)


def check_dense(what: str, name: str, info: ArrayInfo | None, *shape: int) -> None:
    if info is None:
        return
    dense = [prod(shape[i + 1:]) for i in range(len(shape))]
    if info.shape != shape or any(s != d for s, d, n in zip(info.strides, dense, shape) if n > 1):
        raise tilejit.LaunchError(f"{what}: {name} must be a contiguous {list(shape)} array, found shape "
                                  f"{list(info.shape)} and strides {list(info.strides)}")


def check_one_of(what: str, name: str, value: Any, legal: tuple[Any, ...]) -> None:
    if value not in legal:
        raise tilejit.LaunchError(f"{what}: {name} {value!r} is not one of {legal}")
