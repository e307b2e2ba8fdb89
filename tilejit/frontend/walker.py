"""Walks a kernel's AST and builds tile IR: statements, expressions and calls.

Names are bound to `tensor`s (run time), Python constants (compile time), tuples of these, descriptors,
modules and functions. Control flow with a constant condition is followed at once; on a scalar tensor it
becomes structured IR (`flow.py`). A `return` under a run-time condition puts the rest of the function into
the other branch, so functions stay structured.
"""
from __future__ import annotations

import ast
import difflib
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from tilejit.errors import CompilationError, Loc
from tilejit.frontend.flow import FlowMixin, Returned, Undefined
from tilejit.frontend.source import KernelSource, is_constant
from tilejit.ir.types import DType, Ptr
from tilejit.language import core
from tilejit.language import semantics as sem
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import (
    METHODS,
    KernelBuilder,
    PointerDType,
    block_type,
    constexpr,
    tensor,
    tensor_descriptor,
)

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
           ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_UNARY = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "**": lambda a, b: a ** b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}
#: Python's own functions that work on constants (and, for min and max, on tensors).
_SAFE = {len, int, float, bool, str, isinstance, getattr, hasattr, tuple, list, range, min, max, abs, print,
         type, sum, divmod}
_SUPPORTED = ("assignments, if/elif/else, for over range/tl.range/tl.static_range, while, assert, return, "
              "expressions and calls of tl functions and other kernels")


class Walker(FlowMixin):
    """One function body being built, either a kernel's own or an inlined call's."""

    def __init__(self, source: KernelSource, b: KernelBuilder, env: dict[str, Any], call_site: Loc | None,
                 stack: tuple[KernelSource, ...] = ()):
        self.source, self.b, self.env, self.call_site = source, b, env, call_site
        self.stack = (*stack, source)
        b.call = self.call_function

    # -- errors and locations -----------------------------------------------------------------------
    def loc(self, node: ast.AST) -> Loc:
        """The span of a node in the user's file."""
        line, col = getattr(node, "lineno", self.source.line), getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", col + 1) if getattr(node, "end_lineno", line) == line else 10 ** 6
        return Loc(self.source.file, line, col, end, self.source.name, self.call_site)

    def fail(self, node: ast.AST, message: str, *notes: str) -> CompilationError:
        """An error at a node."""
        return CompilationError(message, self.loc(node), notes)

    # -- statements -------------------------------------------------------------------------------------
    def function(self) -> Any:
        """Build the whole body; the value of its `return`, if any."""
        done = self.statements(self.source.tree.body)
        return done.value if isinstance(done, Returned) else None

    def statements(self, body: list[ast.stmt]) -> Returned | None:
        """Run statements in order until one returns."""
        for i, stmt in enumerate(body):
            self.b.loc = self.loc(stmt)
            try:
                if isinstance(stmt, ast.If):
                    done = self.if_statement(stmt, body[i + 1:])
                    if done is not None:
                        return done if isinstance(done, Returned) else None
                    continue
                handler = getattr(self, f"stmt_{type(stmt).__name__}", None)
                if handler is None:
                    raise self.fail(stmt, f"'{_keyword(stmt)}' is not part of the tile language",
                                    f"what is: {_SUPPORTED}")
                done = handler(stmt)
            except CompilationError as error:
                raise error.with_loc(self.loc(stmt))
            if isinstance(done, Returned):
                return done
        return None

    def stmt_Pass(self, node: ast.Pass) -> None:
        """Nothing."""

    def stmt_Expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.expr(node.value)

    def stmt_Return(self, node: ast.Return) -> Returned:
        if self.loop_depth:
            raise self.fail(node, "'return' inside a loop is not supported: carry a flag and return after it")
        return Returned(self.expr(node.value) if node.value is not None else None)

    def stmt_Assign(self, node: ast.Assign) -> None:
        value = self.expr(node.value)
        for target in node.targets:
            self.assign(target, value)

    def stmt_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.expr(node.value)
        if self._is_constexpr(node.annotation):
            value = unwrap(value)
            if isinstance(value, tensor):
                raise self.fail(node, "a tl.constexpr variable needs a constant, found a run-time value")
        self.assign(node.target, value)

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        try:
            return self.expr(annotation) is constexpr
        except CompilationError:
            return False

    def stmt_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "only variables can be assigned: tiles have no item assignment")
        left = self.name(node.target.id, node.target)
        self.assign(node.target, self.binary(node, left, self.expr(node.value), type(node.op)))

    def stmt_Assert(self, node: ast.Assert) -> None:
        cond = unwrap(self.expr(node.test))
        message = unwrap(self.expr(node.msg)) if node.msg is not None else ""
        if isinstance(cond, tensor):
            core.device_assert(cond, message, _b=self.b)
        elif not cond:
            raise self.fail(node, f"assertion failed{': ' + str(message) if message else ''}")

    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind a name or unpack a tuple."""
        if isinstance(target, ast.Name):
            if isinstance(value, tensor) and not value.value.name:
                value.value.name = target.id
            self.env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = unwrap(value)
            if not isinstance(items, (tuple, list)):
                raise self.fail(target, f"cannot unpack {_show(value)} into {len(target.elts)} names")
            if len(items) != len(target.elts):
                raise self.fail(target, f"cannot unpack {len(items)} values into {len(target.elts)} names")
            for t, v in zip(target.elts, items):
                self.assign(t, v)
        else:
            raise self.fail(target, "only variables can be assigned: tiles have no item or attribute assignment; "
                                    "use tl.where or tl.store")

    # -- expressions --------------------------------------------------------------------------------------
    def expr(self, node: ast.expr) -> Any:
        """The value of an expression."""
        handler = getattr(self, f"expr_{type(node).__name__}", None)
        if handler is None:
            raise self.fail(node, f"'{_keyword(node)}' is not part of the tile language", f"what is: {_SUPPORTED}")
        outer, self.b.loc = self.b.loc, self.loc(node)
        try:
            return handler(node)
        except CompilationError as error:
            raise error.with_loc(self.loc(node))
        finally:
            self.b.loc = outer

    def expr_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def expr_Name(self, node: ast.Name) -> Any:
        return self.name(node.id, node)

    def name(self, name: str, node: ast.AST) -> Any:
        """A local variable, or a constant, module or function of the surroundings."""
        if name in self.env:
            value = self.env[name]
            if isinstance(value, Undefined):
                raise self.fail(node, f"{name!r} is not defined on every path: {value.reason}")
            return value
        try:
            value = self.source.lookup(name)
        except KeyError:
            near = difflib.get_close_matches(name, [*self.env, *self.source.fn.__globals__], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(node, f"{name!r} is not defined{hint}") from None
        if isinstance(value, constexpr):
            return value.value
        if is_constant(value) or isinstance(value, (types.ModuleType, type)) or callable(value):
            return value
        raise self.fail(node, f"{name!r} is a {type(value).__name__} outside the kernel; only constants may be "
                              "captured: pass it as an argument")

    def expr_Tuple(self, node: ast.Tuple) -> tuple:
        return tuple(self._items(node.elts))

    def expr_List(self, node: ast.List) -> tuple:
        return tuple(self._items(node.elts))

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for n in nodes:
            if isinstance(n, ast.Starred):
                out += list(unwrap(self.expr(n.value)))
            else:
                out.append(self.expr(n))
        return out

    def expr_BinOp(self, node: ast.BinOp) -> Any:
        return self.binary(node, self.expr(node.left), self.expr(node.right), type(node.op))

    def binary(self, node: ast.AST, left: Any, right: Any, op: type) -> Any:
        """`left op right` on constants or tensors."""
        if op not in _BINARY:
            raise self.fail(node, f"operator '{op.__name__}' is not part of the tile language; tl.dot multiplies "
                                  "matrices")
        return self.operate(node, _BINARY[op], left, right)

    def operate(self, node: ast.AST, symbol: str, left: Any, right: Any) -> Any:
        """An operator by its symbol."""
        left, right = unwrap(left), unwrap(right)
        if isinstance(left, tensor) or isinstance(right, tensor):
            return sem.binary(self.b, symbol, left, right)
        try:
            return _PYTHON[symbol](left, right)
        except (TypeError, ZeroDivisionError, ValueError) as error:
            raise self.fail(node, f"{_show(left)} {symbol} {_show(right)}: {error}") from None

    def expr_UnaryOp(self, node: ast.UnaryOp) -> Any:
        x, symbol = unwrap(self.expr(node.operand)), _UNARY[type(node.op)]
        if isinstance(x, tensor):
            return sem.unary(self.b, symbol, x)
        return {"+": lambda: +x, "-": lambda: -x, "~": lambda: ~x, "not": lambda: not x}[symbol]()

    def expr_Compare(self, node: ast.Compare) -> Any:
        result: Any = None
        left = self.expr(node.left)
        for op, right_node in zip(node.ops, node.comparators):
            right = self.expr(right_node)
            if isinstance(op, (ast.Is, ast.IsNot)):
                one: Any = (unwrap(left) is unwrap(right)) == isinstance(op, ast.Is)
            elif isinstance(op, (ast.In, ast.NotIn)):
                one = (unwrap(left) in unwrap(right)) == isinstance(op, ast.In)
            else:
                one = self.operate(node, _COMPARE[type(op)], left, right)
            result = one if result is None else self._logical("&", result, one)
            left = right
        return result

    def _logical(self, symbol: str, a: Any, c: Any) -> Any:
        a, c = unwrap(a), unwrap(c)
        if not isinstance(a, tensor) and not isinstance(c, tensor):
            return (a and c) if symbol == "&" else (a or c)
        return sem.binary(self.b, symbol, sem.to_bool(self.b, a), sem.to_bool(self.b, c))

    def expr_BoolOp(self, node: ast.BoolOp) -> Any:
        """Short-circuits on constants; both sides are computed for tensors."""
        is_and = isinstance(node.op, ast.And)
        result = unwrap(self.expr(node.values[0]))
        for other in node.values[1:]:
            if not isinstance(result, tensor):
                if bool(result) != is_and:
                    return result
                result = unwrap(self.expr(other))
                continue
            right = unwrap(self.expr(other))
            result = self._logical("&" if is_and else "|", result, right)
        return result

    def expr_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.expr(node.value)
        self.assign(node.target, value)
        return value

    def expr_JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join(str(unwrap(self.expr(v))) for v in node.values)

    def expr_FormattedValue(self, node: ast.FormattedValue) -> str:
        spec = self.expr(node.format_spec) if node.format_spec is not None else ""
        return format(unwrap(self.expr(node.value)), spec)

    def expr_ListComp(self, node: ast.ListComp) -> tuple:
        if len(node.generators) != 1:
            raise self.fail(node, "a list comprehension may have one 'for'")
        gen = node.generators[0]
        out = []
        saved = dict(self.env)
        items = unwrap(self.expr(gen.iter))
        if not isinstance(items, (tuple, list, range)):
            raise self.fail(gen.iter, f"a list comprehension runs over a tuple of constants, found {_show(items)}")
        for item in items:
            self.assign(gen.target, item)
            if all(unwrap(self.expr(c)) for c in gen.ifs):
                out.append(self.expr(node.elt))
        self.env.clear()
        self.env.update(saved)
        return tuple(out)

    def expr_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.expr(node.value)
        if isinstance(owner, tensor):
            return self._tensor_attribute(node, owner)
        if isinstance(owner, tensor_descriptor):
            return self._descriptor_attribute(node, owner)
        if isinstance(owner, constexpr) and node.attr == "value":
            return owner.value
        if not isinstance(owner, (types.ModuleType, type, DType, Ptr, PointerDType, block_type, str, tuple)) \
                and not hasattr(type(owner), "_fields"):
            raise self.fail(node, f"{_show(owner)} has no attribute {node.attr!r} in the tile language")
        try:
            value = getattr(owner, node.attr)
        except AttributeError:
            near = difflib.get_close_matches(node.attr, dir(owner), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            name = getattr(owner, "__name__", type(owner).__name__)
            raise self.fail(node, f"{name!r} has no {node.attr!r}{hint}") from None
        return value.value if isinstance(value, constexpr) else value

    def _tensor_attribute(self, node: ast.Attribute, x: tensor) -> Any:
        if node.attr == "T":
            return core.trans(x, _b=self.b)
        if node.attr in ("dtype", "shape", "type", "numel"):
            return getattr(x, node.attr)
        found = x.method(node.attr)
        if found is None:
            near = difflib.get_close_matches(node.attr, [*METHODS, "T", "dtype", "shape"], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(node, f"a tensor has no {node.attr!r}{hint}")
        return found

    def _descriptor_attribute(self, node: ast.Attribute, d: tensor_descriptor) -> Any:
        if node.attr in core.DESCRIPTOR_METHODS:
            bound = partial(core.DESCRIPTOR_METHODS[node.attr], d)
            bound.is_builtin = True  # type: ignore[attr-defined]
            return bound
        if node.attr in ("block_shape", "dtype", "type"):
            return getattr(d, node.attr)
        rank = len(d.block_shape)
        if node.attr in ("shape", "strides"):
            name = "desc_shape" if node.attr == "shape" else "desc_stride"
            return tuple(tensor(self.b(name, d.value, dim=i)) for i in range(rank))
        raise self.fail(node, f"a descriptor has no {node.attr!r}; it has {', '.join(core.DESCRIPTOR_METHODS)}, "
                              "shape, strides, block_shape and dtype")

    def expr_Subscript(self, node: ast.Subscript) -> Any:
        x = unwrap(self.expr(node.value))
        if not isinstance(x, tensor):
            index = self._static_index(node.slice)
            try:
                return x[index]
            except (TypeError, IndexError, KeyError) as error:
                if hasattr(x, "is_kernel_type"):
                    return x
                raise self.fail(node, f"cannot index {_show(x)} with {_show(index)}: {error}") from None
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        axis = 0
        for item in items:
            if isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None:
                axis += 1
                continue
            value = None if isinstance(item, ast.Slice) else unwrap(self.expr(item))
            if value is not None or isinstance(item, ast.Slice):
                raise self.fail(item, "a tile is indexed by None and ':' only: use tl.load on pointers, or tl.where")
            x = core.expand_dims(x, axis, _b=self.b)
            axis += 1
        if axis != len(x.shape):
            raise self.fail(node, f"index has {axis} dimensions for a tile of shape {list(x.shape)}")
        return x

    def _static_index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            parts = [unwrap(self.expr(p)) if p is not None else None for p in (node.lower, node.upper, node.step)]
            return slice(*parts)
        index = unwrap(self.expr(node))
        if isinstance(index, tensor):
            raise self.fail(node, "a tuple is indexed by constants, found a run-time value")
        return index

    # -- calls ------------------------------------------------------------------------------------------
    def expr_Call(self, node: ast.Call) -> Any:
        fn = self.expr(node.func)
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for k in node.keywords:
            if k.arg is None:
                kwargs.update(unwrap(self.expr(k.value)))
            else:
                kwargs[k.arg] = self.expr(k.value)
        try:
            return self.call_function(fn, args, kwargs, node)
        except TypeError as error:
            if getattr(fn, "is_builtin", False) or fn in _SAFE or isinstance(fn, type):
                raise self.fail(node, str(error).replace("_b", "builder")) from None
            raise

    def call_function(self, fn: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None = None) -> Any:
        """Call a builtin, inline another kernel, or run a Python function on constants."""
        if getattr(fn, "is_builtin", False):
            return fn(*args, _b=self.b, **kwargs)
        source = getattr(fn, "source", None)
        if isinstance(source, KernelSource):
            return self.inline(source, args, kwargs, node)
        where = node if node is not None else self.source.tree
        if isinstance(fn, type) and fn is constexpr:
            return unwrap(args[0])
        if fn in (min, max) and any(isinstance(unwrap(a), tensor) for a in args):
            from tilejit.language import math

            pick = math.minimum if fn is min else math.maximum
            result = args[0]
            for a in args[1:]:
                result = pick(result, a, _b=self.b)
            return result
        if fn is abs and isinstance(unwrap(args[0]), tensor):
            from tilejit.language import math

            return math.abs(args[0], _b=self.b)
        if getattr(fn, "__module__", "").startswith("tilejit.language") or fn in _SAFE \
                or isinstance(fn, type) and issubclass(fn, tuple) or getattr(fn, "is_constexpr_function", False) \
                or isinstance(getattr(fn, "__self__", None), (DType, PointerDType, block_type, str)):
            plain = [unwrap(a) for a in args]
            if fn in (int, float, bool, str) and any(isinstance(a, tensor) for a in plain):
                raise self.fail(where, f"{fn.__name__}() needs a constant; use x.to(dtype) for a tensor")
            return fn(*plain, **{k: unwrap(v) for k, v in kwargs.items()})
        name = getattr(fn, "__name__", repr(fn))
        raise self.fail(where, f"cannot call {name!r} in a kernel: it is neither a tl function nor a "
                               "@tilejit.kernel function")

    def inline(self, source: KernelSource, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        """Build the body of another kernel function in place; its value is what it returns."""
        where = node if node is not None else self.source.tree
        if source in self.stack:
            names = " -> ".join(s.name for s in (*self.stack, source))
            raise self.fail(where, f"recursive call: {names}")
        try:
            bound = source.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self.fail(where, f"{source.name}(): {error}", f"its signature is {source.name}{source.signature}"
                            ) from None
        bound.apply_defaults()
        env = {k: unwrap(v) for k, v in bound.arguments.items()}
        for name in source.constexprs:
            if isinstance(env[name], tensor):
                raise self.fail(where, f"{source.name}(): argument {name!r} is tl.constexpr, found a run-time value")
        loc = self.b.loc
        inner = Walker(source, self.b, env, self.loc(where), self.stack)
        try:
            return inner.function()
        finally:
            self.b.loc, self.b.call = loc, self.call_function

    def expr_IfExp(self, node: ast.IfExp) -> Any:
        cond = unwrap(self.expr(node.test))
        if not isinstance(cond, tensor):
            return self.expr(node.body if cond else node.orelse)
        if cond.shape:
            raise self.fail(node.test, f"a condition must be a scalar, found a tile of shape {list(cond.shape)}: "
                                       "use tl.where(cond, a, b)")
        return self.merge_values(node, cond, lambda: self.expr(node.body), lambda: self.expr(node.orelse))


def _keyword(node: ast.AST) -> str:
    names = {"Try": "try", "With": "with", "ClassDef": "class", "Lambda": "lambda", "Yield": "yield",
             "AsyncFunctionDef": "async", "Match": "match", "FunctionDef": "nested def", "Break": "break",
             "Continue": "continue", "Raise": "raise", "Import": "import", "ImportFrom": "import", "Delete": "del",
             "Global": "global", "Nonlocal": "nonlocal", "Dict": "dict", "Set": "set", "GeneratorExp": "generator",
             "DictComp": "dict comprehension", "SetComp": "set comprehension", "Await": "await"}
    return names.get(type(node).__name__, type(node).__name__)


def _show(x: Any) -> str:
    if isinstance(x, (tensor, tensor_descriptor)):
        return f"a {'tile' if isinstance(x, tensor) and x.shape else 'scalar'} {x!r}"
    return repr(x)
