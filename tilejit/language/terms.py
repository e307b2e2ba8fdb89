"""Python operators on tensors for builtins that are written in the language itself."""
from __future__ import annotations

from typing import Any

from tilejit.ir.types import Scalar
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
