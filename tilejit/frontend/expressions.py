"""Expressions of a kernel body, calls apart: on constants they are Python's, on tensors they build IR."""
from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from tilejit.errors import CompilationError, close_matches
from tilejit.frontend.functions import BoundConstexpr, ConstexprFunction
from tilejit.frontend.loops import Loops
from tilejit.frontend.source import KernelSource
from tilejit.frontend.values import assigned, contains_tensor, describe
from tilejit.ir.types import DType
from tilejit.language import debug, descriptors, shape
from tilejit.language import semantics as sem
from tilejit.language.aggregates import Aggregate
from tilejit.language.block_pointers import BlockPointer, advance
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import (
    METHODS,
    KernelBuilder,
    constexpr,
    tensor,
    tensor_descriptor,
    type_of,
)
from tilejit.language.variables import held, is_held

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
           ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_UNARY = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~"}
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "**": lambda a, b: a ** b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}
_PYTHON_UNARY: dict[str, Callable[[Any], Any]] = {"+": lambda a: +a, "-": lambda a: -a, "~": lambda a: ~a}
PYTHON_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError)
SUPPORTED = ("assignments, if/elif/else, for over range/tl.range/tl.static_range, while, break, continue, return, "
             "assert, expressions and calls of tl functions and other kernels")


class Expressions(Loops):
    def expr(self, node: ast.expr) -> Any:
        kind: Any = type(node)
        if kind is ast.Constant:  # leaves build no ops, which would need their place
            return node.value  # type: ignore[attr-defined]
        if kind is ast.Name:
            return self.name(node.id, node)  # type: ignore[attr-defined]
        if kind is ast.Attribute:
            return self.expr_Attribute(node)  # type: ignore[arg-type]
        handler = getattr(self, f"expr_{kind.__name__}", None)
        if handler is None:
            raise self.fail(node, f"'{keyword(node)}' is not part of the tile language", f"what is: {SUPPORTED}")
        return self._located(node, handler, node)

    def _located(self, node: ast.expr, run: Callable[..., Any], *args: Any) -> Any:
        outer, self.b.loc = self.b.loc, self.loc(node)
        try:
            return run(*args)
        except CompilationError as error:
            raise error.with_loc(self.loc(node))
        finally:
            self.b.loc = outer

    def expr_Tuple(self, node: ast.Tuple) -> tuple:
        return tuple(self.items(node.elts))

    def expr_List(self, node: ast.List) -> tuple:
        return tuple(self.items(node.elts))

    def items(self, nodes: list[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for n in nodes:
            if not isinstance(n, ast.Starred):
                out.append(self.expr(n))
                continue
            spread = unwrap(self.expr(n.value))
            if not isinstance(spread, (tuple, list, range)):
                raise self.fail(n, f"'*' spreads a tuple, found {describe(spread)}")
            out += spread
        return out

    # -- operators --
    def python(self, node: ast.AST, text: Callable[[], str], run: Callable[[], Any]) -> Any:
        try:
            return run()
        except PYTHON_ERRORS as error:
            raise self.fail(node, f"{text()}: {error}") from None

    def expr_BinOp(self, node: ast.BinOp) -> Any:
        return self.binary(node, self.expr(node.left), self.expr(node.right), type(node.op))

    def binary(self, node: ast.AST, left: Any, right: Any, op: type) -> Any:
        if op not in _BINARY:
            raise self.fail(node, f"operator '{op.__name__}' is not part of the tile language; tl.dot multiplies "
                                  "matrices")
        return self._operate(node, _BINARY[op], left, right)

    def _operate(self, node: ast.AST, symbol: str, left: Any, right: Any) -> Any:
        left, right = unwrap(left), unwrap(right)
        if isinstance(left, tensor) or isinstance(right, tensor):
            return debug.checked(self.b, symbol, left, right)
        return self.python(node, lambda: f"{describe(left)} {symbol} {describe(right)}",
                           lambda: sem.folded(symbol, left, right, _PYTHON[symbol](left, right)))

    def expr_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            x = unwrap(self.truth(node.operand))
            return sem.unary(self.b, "not", x) if isinstance(x, tensor) else not x
        x, symbol = unwrap(self.expr(node.operand)), _UNARY[type(node.op)]
        if isinstance(x, tensor):
            return sem.unary(self.b, symbol, x)
        result = self.python(node, lambda: f"{symbol}{describe(x)}", lambda: _PYTHON_UNARY[symbol](x))
        return held(result) if is_held(x) else result

    def expr_Compare(self, node: ast.Compare) -> Any:
        """`a < b < c` computes b once, and c only where a < b (without effects: always)."""
        def chain(left: Any, i: int) -> Any:
            right = self.expr(node.comparators[i])
            one = self._compare(node, node.ops[i], left, right)
            if i + 1 == len(node.ops):
                return one
            later = assigned([*node.comparators[i + 1:]])
            return self.short_circuit(node, True, one, lambda: chain(right, i + 1), later, truth=True)

        return chain(self.expr(node.left), 0)

    def _compare(self, node: ast.Compare, op: ast.cmpop, left: Any, right: Any) -> Any:
        left, right = unwrap(left), unwrap(right)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if left is not None and right is not None and (isinstance(left, tensor) or isinstance(right, tensor)):
                raise self.fail(node, "'is' asks for one and the same object: compare run-time values with ==")
            return (left is right) == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self._contains(node, right, left)
            if isinstance(op, ast.In):
                return found
            return sem.unary(self.b, "not", found) if isinstance(found, tensor) else not found
        if isinstance(left, tuple) and isinstance(right, tuple) and contains_tensor((left, right)):
            raise self.fail(node, "tuples of run-time values have no comparison: compare their elements")
        return self._operate(node, _COMPARE[type(op)], left, right)

    def _contains(self, node: ast.Compare, container: Any, x: Any) -> Any:
        if not contains_tensor(x) and not contains_tensor(container):
            return self.python(node, lambda: f"{describe(x)} in {describe(container)}", lambda: x in container)
        if not isinstance(container, (tuple, list, range)) or isinstance(x, tuple):
            raise self.fail(node, f"'in' looks for a number in a tuple, found {describe(x)} in {describe(container)}")
        result: Any = False
        for item in container:
            one = self._operate(node, "==", x, item)
            if isinstance(one, tensor) and isinstance(result, tensor):
                result = sem.binary(self.b, "|", result, one)
            elif result is not True:
                result = one if result is False or one is True else result
        return result

    def expr_BoolOp(self, node: ast.BoolOp) -> Any:
        return self._bool_op(node, self.expr, truth=False)

    def _bool_op(self, node: ast.BoolOp, operand: Callable[[ast.expr], Any], truth: bool) -> Any:
        def chain(i: int) -> Any:
            if i + 1 == len(node.values):
                return operand(node.values[i])
            return self.short_circuit(node, isinstance(node.op, ast.And), operand(node.values[i]),
                                      lambda: chain(i + 1), assigned([*node.values[i + 1:]]), truth)

        return chain(0)

    def truth(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BoolOp):
            return self._located(node, self._bool_op, node, self.truth, True)
        return self.expr(node)

    def condition(self, node: ast.expr) -> Any:
        cond = unwrap(self.truth(node))
        if not isinstance(cond, tensor):
            return cond
        if cond.numel > 1:
            raise self.fail(node, f"a condition must be a scalar, found a tile of shape {list(cond.shape)}: "
                                  "use tl.where(cond, a, b)")
        cond = shape.item(cond, _b=self.b)
        return sem.to_bool(self.b, cond)

    # -- strings, names bound in expressions, comprehensions --
    def expr_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.held(node.target, self.expr(node.value))
        self.assign(node.target, value)
        return value

    def held(self, target: ast.expr, value: Any) -> Any:
        """What a variable holds of a value: a number's type, unless its name is annotated as tl.constexpr."""
        constant = isinstance(target, ast.Name) and target.id in self.constants
        return unwrap(value) if constant else held(value)

    def expr_JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join(str(unwrap(self.expr(v))) for v in node.values)

    def expr_FormattedValue(self, node: ast.FormattedValue) -> str:
        value = unwrap(self.expr(node.value))
        spec = self.expr(node.format_spec) if node.format_spec is not None else ""
        conversion: dict[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}
        if node.conversion in conversion:
            value = conversion[node.conversion](value)
        return self.python(node, lambda: describe(value), lambda: format(value, spec))

    def expr_ListComp(self, node: ast.ListComp) -> tuple:
        if len(node.generators) != 1:
            raise self.fail(node, "a list comprehension may have one 'for'")
        gen = node.generators[0]
        items = unwrap(self.expr(gen.iter))
        if not isinstance(items, (tuple, list, range)):
            raise self.fail(gen.iter, f"a list comprehension runs over a tuple of constants, found {describe(items)}")
        own = assigned([gen.target])
        hidden = {n: self.env[n] for n in own if n in self.env}
        out = []
        for item in items:
            self.assign(gen.target, item)
            if all(self._static_truth(c) for c in gen.ifs):
                out.append(self.expr(node.elt))
        for n in own:  # a name bound by := stays, the loop's own go
            self.env.pop(n, None)
        self.env.update(hidden)
        return tuple(out)

    def _static_truth(self, node: ast.expr) -> bool:
        value = unwrap(self.truth(node))
        if isinstance(value, tensor):
            raise self.fail(node, "the 'if' of a list comprehension needs a constant, found a run-time value")
        return bool(value)

    # -- attributes and subscripts --
    def expr_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.expr(node.value)
        if type(owner) is types.ModuleType and hasattr(owner, node.attr):
            value = getattr(owner, node.attr)
            return value.value if isinstance(value, constexpr) else value
        if isinstance(owner, constexpr):
            if node.attr == "value":
                return owner.value
            owner = owner.value
        if isinstance(owner, tensor):
            return self._located(node, self._tensor_attribute, node, owner)
        if isinstance(owner, tensor_descriptor):
            return self._located(node, self._descriptor_attribute, node, owner)
        if isinstance(owner, Aggregate) or isinstance(owner, type) and issubclass(owner, Aggregate):
            return self._field(node, owner)
        if isinstance(owner, BlockPointer) and node.attr in ("advance", "store"):
            moved = partial(advance if node.attr == "advance" else METHODS["store"], owner)
            moved.is_builtin = True  # type: ignore[attr-defined]
            return moved
        if isinstance(owner, BlockPointer) and node.attr not in ("dtype", "type"):
            raise self.fail(node, f"a block pointer has no {node.attr!r}; tl.load, tl.store and tl.advance take it")
        if isinstance(owner, (bool, int, float)):
            return self._number_attribute(node, owner)
        if node.attr in ("value", "type") and isinstance(owner, (DType, str, type(None))):
            return owner if node.attr == "value" else type_of(owner)  # in Triton these are marked as constants
        if node.attr == "type" and isinstance(owner, tuple) and not hasattr(owner, "type"):
            return type_of(owner)
        try:
            value = getattr(owner, node.attr)
        except AttributeError:
            if node.attr in getattr(owner, "LACKING", ()):
                raise self.fail(node, f"Triton has {node.attr!r}, tilejit does not have it") from None
            near = close_matches(node.attr, dir(owner), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            name = getattr(owner, "__name__", type(owner).__name__)
            raise self.fail(node, f"{name!r} has no {node.attr!r}{hint}") from None
        return value.value if isinstance(value, constexpr) else value

    def _number_attribute(self, node: ast.Attribute, x: bool | int | float) -> Any:
        if node.attr == "value":
            return x
        if node.attr == "type":
            return type_of(x)
        if node.attr in ("dtype", "shape", "numel") or node.attr in METHODS:
            return self._located(node, lambda: self._tensor_attribute(node, sem.to_tensor(self.b, x)))
        raise self.fail(node, f"a number has no {node.attr!r}")

    def _field(self, node: ast.Attribute, owner: Any) -> Any:
        cls: Any = owner if isinstance(owner, type) else type(owner)
        if node.attr in cls.fields and not isinstance(owner, type):
            return unwrap(getattr(owner, node.attr))
        member = next((vars(c)[node.attr] for c in cls.__mro__ if node.attr in vars(c)), None)
        if member is None or node.attr in vars(Aggregate) and node.attr not in vars(cls):
            near = close_matches(node.attr, [*cls.fields, *vars(cls)], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(node, f"{cls.__name__!r} has no {node.attr!r}{hint}")
        free = isinstance(owner, type) or isinstance(member, staticmethod)
        member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property):
            return self._located(node, lambda: unwrap(Method(member.fget, owner)(self.b, [], {})))
        if isinstance(member, ConstexprFunction):
            return member if free else BoundConstexpr(member, owner)
        if isinstance(getattr(member, "source", None), KernelSource):
            return member if free else Bound(member, owner)
        if callable(member) and not isinstance(member, constexpr):
            return Method(member, None if free else owner)
        return unwrap(member)

    def _tensor_attribute(self, node: ast.Attribute, x: tensor) -> Any:
        if node.attr == "T":
            return shape.trans(x, _b=self.b)
        if node.attr in ("dtype", "shape", "type", "numel"):
            return getattr(x, node.attr)
        found = x.method(node.attr)
        if found is None:
            near = close_matches(node.attr, [*METHODS, "T", "dtype", "shape"], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(node, f"a tensor has no {node.attr!r}{hint}")
        return found

    def _descriptor_attribute(self, node: ast.Attribute, d: tensor_descriptor) -> Any:
        if node.attr in descriptors.DESCRIPTOR_METHODS:
            bound = partial(descriptors.DESCRIPTOR_METHODS[node.attr], d)
            bound.is_builtin = True  # type: ignore[attr-defined]
            return bound
        if node.attr in ("block_shape", "block_type", "dtype", "type"):
            return getattr(d, node.attr)
        rank = len(d.block_shape)
        if node.attr in ("shape", "strides"):
            name = "desc_shape" if node.attr == "shape" else "desc_stride"
            return tuple(tensor(self.b(name, d.value, dim=i)) for i in range(rank))
        raise self.fail(node, f"a descriptor has no {node.attr!r}; it has {', '.join(descriptors.DESCRIPTOR_METHODS)}, "
                              "shape, strides, block_shape and dtype")

    def expr_Subscript(self, node: ast.Subscript) -> Any:
        x = unwrap(self.expr(node.value))
        if isinstance(x, (int, float)):
            x = sem.to_tensor(self.b, x)  # a variable's number is a scalar in Triton: `offset[None, :]`
        if isinstance(x, Aggregate):
            method = self._located(node, self._field, ast.copy_location(
                ast.Attribute(node.value, "__getitem__", ast.Load()), node), x)
            return self.call_function(method, [self.expr(node.slice)], {}, node)  # type: ignore[attr-defined]
        if not isinstance(x, tensor):
            index = self._static_index(node.slice)
            try:
                return x[index]
            except (TypeError, IndexError, KeyError) as error:
                if hasattr(x, "is_kernel_type"):
                    return x
                raise self.fail(node, f"cannot index {show(x)} with {show(index)}: {error}") from None
        items = self._indices(node, x)
        for axis, new in enumerate(items):  # (as in Triton ':' at dimensions that are not there says nothing)
            if new:
                x = shape.expand_dims(x, axis if x.shape else 0, _b=self.b)
        return x

    def _indices(self, node: ast.Subscript, x: tensor) -> list[bool]:
        nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items: list[bool] = []
        rest: int | None = None
        for item in nodes:
            whole = isinstance(item, ast.Slice) and self._static_index(item) == slice(None)
            value = None if isinstance(item, ast.Slice) else unwrap(self.expr(item))
            if value is Ellipsis and rest is None:
                rest = len(items)
            elif whole or value is None and not isinstance(item, ast.Slice):
                items.append(not whole)
            else:
                raise self.fail(item, "a tile is indexed by None and ':' only: use tl.load on pointers, or tl.where",
                                f"unsupported tensor index: {show(value)}")
        if rest is not None:
            items[rest:rest] = [False] * max(0, len(x.shape) - items.count(False))
        return items

    def _static_index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            parts = [unwrap(self.expr(p)) if p is not None else None for p in (node.lower, node.upper, node.step)]
            return slice(*parts)
        index = unwrap(self.expr(node))
        if isinstance(index, tensor):
            raise self.fail(node, "a tuple is indexed by constants, found a run-time value")
        return index


class Bound:
    def __init__(self, kernel: Any, owner: Any):
        self.source, self.owner, self.__name__ = kernel.source, owner, kernel.source.name
        self.must_use = getattr(kernel, "must_use", None)


class Method:
    """A Python function of a value class, which runs when the kernel is compiled; it may ask for the builder as
    `_semantic`."""

    def __init__(self, function: Any, owner: Any):
        self.function, self.owner = function, owner
        self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, b: KernelBuilder, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if "_semantic" in inspect.signature(self.function).parameters:
            kwargs = {**kwargs, "_semantic": b}
        return self.function(*(() if self.owner is None else (self.owner,)), *args, **kwargs)


def keyword(node: ast.AST) -> str:
    names = {"Try": "try", "With": "with", "ClassDef": "class", "Lambda": "lambda", "Yield": "yield",
             "AsyncFunctionDef": "async", "Match": "match", "FunctionDef": "nested def (a nested function)",
             "Raise": "raise", "Import": "import", "ImportFrom": "import", "Delete": "del",
             "Global": "global", "Nonlocal": "nonlocal", "Dict": "dict", "Set": "set", "GeneratorExp": "generator",
             "DictComp": "dict comprehension", "SetComp": "set comprehension", "Await": "await"}
    return names.get(type(node).__name__, type(node).__name__)


def show(x: Any) -> str:
    if isinstance(x, (tensor, tensor_descriptor)):
        return f"a {'tile' if isinstance(x, tensor) and x.shape else 'scalar'} {x!r}"
    return repr(x)
