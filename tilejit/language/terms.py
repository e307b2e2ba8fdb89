from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.ir.types import Scalar
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, tensor


def _operator(symbol: str, swap: bool = False) -> Callable[[Term, Any], Term]:
    def compute(self: Term, other: Any) -> Term:
        other = other.tensor if isinstance(other, Term) else other
        left, right = (other, self.tensor) if swap else (self.tensor, other)
        return self.new(sem.binary(self.b, symbol, left, right))

    return compute


class Term:
    """A tensor and its builder: `(x * y + 1).value`, by the language's rules of types.

    `op`: any op with operands of one type.
    """

    __slots__ = ("b", "tensor")

    def __init__(self, b: KernelBuilder, x: Any):
        self.b, self.tensor = b, to_tensor(b, x)

    @property
    def elem(self) -> Scalar:
        return self.tensor.elem

    def new(self, x: tensor) -> Term:
        return Term(self.b, x)

    def const(self, value: float) -> Term:
        return self.new(sem.splat_const(self.b, value, self.tensor.shape, self.elem))

    def op(self, name: str, *others: Any, **attrs: Any) -> Term:
        values = [o.tensor.value if isinstance(o, Term) else self.const(o).tensor.value for o in others]
        return self.new(tensor(self.b(name, self.tensor.value, *values, **attrs)))

    def fma(self, y: Any, z: Any) -> Term:
        return self.op("fma", y, z)

    def cast(self, dtype: Scalar) -> Term:
        return self.new(sem.cast(self.b, self.tensor, dtype))

    def bits(self, dtype: Scalar) -> Term:
        return self if self.elem == dtype else self.new(tensor(self.b("bitcast", self.tensor.value, dtype=dtype)))

    def where(self, yes: Any, no: Any) -> Term:
        """yes where this term (a condition) holds, else no; one of them at least is a term."""
        first = yes if isinstance(yes, Term) else no
        picked = [x if isinstance(x, Term) else first.const(x) for x in (yes, no)]
        c, a, z = sem.broadcast(self.b, self.tensor, *(p.tensor for p in picked))
        return self.new(tensor(self.b("select", c.value, a.value, z.value)))

    def abs(self) -> Term:
        return self.op("abs")

    def __neg__(self) -> Term:
        return self.op("neg")

    def __invert__(self) -> Term:
        return self.op("not")

    __add__, __radd__ = _operator("+"), _operator("+", swap=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", swap=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", swap=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", swap=True)
    __and__, __or__, __xor__ = _operator("&"), _operator("|"), _operator("^")
    __lshift__, __rshift__ = _operator("<<"), _operator(">>")
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")
    #: equality, element by element
    eq, ne = _operator("=="), _operator("!=")
