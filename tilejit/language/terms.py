"""Python operators on tensors for builtins that are written in the language itself.

fp8e4b15 by integer operations: no chip of ours converts it, and nothing computes with it.

A sign, four bits of exponent with the bias of fp16 (15) and three of mantissa, without infinities and NaN: the bits are
fp16's without the exponent's highest and the mantissa's seven lowest bits. The largest number is 1.75.
"""
from __future__ import annotations

from typing import Any

from tilejit.ir.types import DType, Scalar, fp8e4b15, fp16, uint8, uint16
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, tensor


class Term:
    """A tensor and the builder that computes with it: `(x * y + 1).value`, with the language's own rules of types.

    Comparisons give terms as well; `op` applies any op of tile IR with operands of one type."""

    __slots__ = ("b", "tensor")

    def __init__(self, b: KernelBuilder, x: Any):
        self.b, self.tensor = b, to_tensor(b, x)

    @property
    def elem(self) -> Scalar:
        """The element type."""
        return self.tensor.elem

    def new(self, x: tensor) -> Term:
        """Another tensor as a term."""
        return Term(self.b, x)

    def const(self, value: float) -> Term:
        """A number in this term's type and shape."""
        return self.new(sem.splat_const(self.b, value, self.tensor.shape, self.elem))

    def _binary(self, symbol: str, other: Any, swap: bool = False) -> Term:
        other = other.tensor if isinstance(other, Term) else other
        left, right = (other, self.tensor) if swap else (self.tensor, other)
        return self.new(sem.binary(self.b, symbol, left, right))

    def op(self, name: str, *others: Any, **attrs: Any) -> Term:
        """The op `name` of this term and others; numbers take its type and shape."""
        values = [o.tensor.value if isinstance(o, Term) else self.const(o).tensor.value for o in others]
        return self.new(tensor(self.b(name, self.tensor.value, *values, **attrs)))

    def fma(self, y: Any, z: Any) -> Term:
        """self * y + z, rounded once."""
        return self.op("fma", y, z)

    def cast(self, dtype: Scalar) -> Term:
        """Converted to another type."""
        return self.new(sem.cast(self.b, self.tensor, dtype))

    def bits(self, dtype: Scalar) -> Term:
        """The same bits as another type of that width."""
        return self if self.elem == dtype else self.new(tensor(self.b("bitcast", self.tensor.value, dtype=dtype)))

    def where(self, yes: Any, no: Any) -> Term:
        """yes where this term (a condition) holds, else no; one of them at least is a term."""
        first = yes if isinstance(yes, Term) else no
        picked = [x if isinstance(x, Term) else first.const(x) for x in (yes, no)]
        c, a, z = sem.broadcast(self.b, self.tensor, *(p.tensor for p in picked))
        return self.new(tensor(self.b("select", c.value, a.value, z.value)))

    def abs(self) -> Term:
        """Absolute value."""
        return self.op("abs")

    def __neg__(self) -> Term:
        return self.op("neg")

    def __invert__(self) -> Term:
        return self.op("not")

    def __add__(self, other: Any) -> Term:
        return self._binary("+", other)

    def __radd__(self, other: Any) -> Term:
        return self._binary("+", other, True)

    def __sub__(self, other: Any) -> Term:
        return self._binary("-", other)

    def __rsub__(self, other: Any) -> Term:
        return self._binary("-", other, True)

    def __mul__(self, other: Any) -> Term:
        return self._binary("*", other)

    def __rmul__(self, other: Any) -> Term:
        return self._binary("*", other, True)

    def __truediv__(self, other: Any) -> Term:
        return self._binary("/", other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._binary("/", other, True)

    def __and__(self, other: Any) -> Term:
        return self._binary("&", other)

    def __or__(self, other: Any) -> Term:
        return self._binary("|", other)

    def __xor__(self, other: Any) -> Term:
        return self._binary("^", other)

    def __lshift__(self, other: Any) -> Term:
        return self._binary("<<", other)

    def __rshift__(self, other: Any) -> Term:
        return self._binary(">>", other)

    def __lt__(self, other: Any) -> Term:
        return self._binary("<", other)

    def __le__(self, other: Any) -> Term:
        return self._binary("<=", other)

    def __gt__(self, other: Any) -> Term:
        return self._binary(">", other)

    def __ge__(self, other: Any) -> Term:
        return self._binary(">=", other)

    def eq(self, other: Any) -> Term:
        """Equality, element by element."""
        return self._binary("==", other)

    def ne(self, other: Any) -> Term:
        """Inequality, element by element."""
        return self._binary("!=", other)


def widened(b: Any, x: tensor) -> tensor:
    """Elements of fp8e4b15 as fp16, exactly."""
    bits = Term(b, x).bits(uint8).cast(uint16)
    return (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).bits(fp16).tensor


def narrowed(b: Any, x: tensor) -> tensor:
    """Floats as fp8e4b15: truncated to fp16, saturated at 1.75 (NaN too), then rounded to nearest, ties away from
    zero. (As Triton converts; from fp16 that is one rounding.)"""
    assert isinstance(x.elem, DType)
    bits = Term(b, sem.cast(b, x, fp16, "rtz" if x.elem.bits > 16 else None)).bits(uint16)
    size = (bits & 0x7FFF).op("minimum", 0x3F00, nan=False)
    return (((size + 0x40) >> 7) | ((bits & 0x8000) >> 8)).cast(uint8).bits(fp8e4b15).tensor
