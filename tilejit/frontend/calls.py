from __future__ import annotations

import ast
import re
from collections.abc import Hashable
from types import FunctionType
from typing import Any

from tilejit import language
from tilejit.frontend.expressions import PYTHON_ERRORS, Bound, Expressions, Method
from tilejit.frontend.functions import BoundConstexpr, ConstexprFunction, plain, runs_on_constants
from tilejit.frontend.source import KernelSource
from tilejit.frontend.values import contains_tensor
from tilejit.ir.types import DType, Ptr
from tilejit.language import debug, elementwise, math
from tilejit.language.aggregates import Aggregate
from tilejit.language.loops import range as device_range
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import block_type, constexpr, tensor

#: Python's own functions that work on constants (min, max and abs on tensors too).
_SAFE = {len, int, float, bool, str, isinstance, getattr, hasattr, tuple, list, range, min, max, abs, type, sum, divmod,
         DType}


#: How deep a kernel may call itself.
_DEPTH = 24
#: What Python's functions, and the package's for the host, are in a kernel.
_INSTEAD: dict[Any, Any] = {print: debug.device_print}


class Calls(Expressions):
    def expr_Call(self, node: ast.Call) -> Any:
        return self.called(self.expr(node.func), node)

    def called(self, fn: Any, node: ast.Call) -> Any:
        args = self.items(node.args)
        kwargs: dict[str, Any] = {}
        for k in node.keywords:
            more = {k.arg: self.expr(k.value)} if k.arg is not None else unwrap(self.expr(k.value))
            if not isinstance(more, dict):
                raise self.fail(k.value, "'**' spreads the keywords of a **parameter")
            if twice := kwargs.keys() & more.keys():
                raise self.fail(node, f"keyword argument given twice: {sorted(twice)[0]!r}")
            kwargs.update(more)
        try:
            return self.call_function(fn, args, kwargs, node)
        except TypeError as error:
            if getattr(fn, "is_builtin", False) or isinstance(fn, type):
                said = re.sub(r" positional arguments? \(and 1 keyword-only argument\)", "", str(error))
                raise self.fail(node, re.sub(r"\b_b\b", "builder", said)) from None
            raise

    def call_function(self, fn: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None = None) -> Any:
        where = node if node is not None else self.source.tree
        if isinstance(fn, constexpr):
            return self._call_constant(fn, args, kwargs, where, node)
        fn = _INSTEAD.get(fn, fn) if isinstance(fn, Hashable) else fn
        fn = getattr(fn, "in_kernel", fn)
        fn = getattr(language, fn) if isinstance(fn, str) else fn
        if getattr(fn, "is_builtin", False):
            return fn(*args, _b=self.b, **kwargs)
        if isinstance(fn, Bound):
            return self.inline(fn.source, [fn.owner, *args], kwargs, node)
        plain = [unwrap(a) for a in args]
        named = {k: unwrap(v) for k, v in kwargs.items()}
        constants = not contains_tensor((*plain, *named.values()))
        name = getattr(fn, "__name__", None) or repr(fn)
        if isinstance(fn, (ConstexprFunction, BoundConstexpr)):
            if not constants and isinstance(fn, ConstexprFunction):
                raise self.fail(where, f"{name}() is a constexpr_function: its arguments must be constants")
            return self.python(where, lambda: f"{name}()", lambda: unwrap(fn(*plain, **named)))
        source = getattr(fn, "source", None)
        if isinstance(source, KernelSource):
            return self.inline(source, args, kwargs, node)
        if fn is constexpr and len(plain) == 1:
            return plain[0]
        if isinstance(fn, type) and issubclass(fn, Aggregate):
            return self.python(where, lambda: f"{name}()", lambda: fn.make(self.b, tuple(args), kwargs))
        if isinstance(fn, DType) and len(plain) == 1:
            return elementwise.cast(plain[0], fn, _b=self.b)
        if fn in (min, max, abs):
            values = list(plain[0]) if len(plain) == 1 and isinstance(plain[0], tuple) and fn is not abs else plain
            if any(isinstance(v, tensor) for v in values):
                return self._pick(fn, values, named, where)
            if fn is not abs and len(values) > 1 and any(isinstance(v, float) and (v != v or str(v) == "-0.0")
                                                         for v in values):
                raise self.fail(where, f"{name}() of constants: NaN and -0.0 have no order, found {values}")
        if fn in (int, float, bool, str) and any(isinstance(a, tensor) for a in plain):
            raise self.fail(where, f"{name}() needs a constant; use x.to(dtype) for a tensor")
        if fn in _SAFE or constants and runs_on_constants(fn):
            try:
                result = fn(*plain, **named)
            except PYTHON_ERRORS as error:
                raise self.fail(where, f"{name}(): {error}") from None
            return tuple(result) if isinstance(result, list) else result
        if isinstance(fn, Method):
            return self.python(where, lambda: f"{name}()", lambda: fn(self.b, args, kwargs))
        if (getattr(fn, "__module__", None) or "").startswith("tilejit.language") \
                or isinstance(fn, type) and issubclass(fn, (tuple, Ptr, device_range)) \
                or isinstance(getattr(fn, "__self__", None), (DType, Ptr, block_type, str, tuple)):
            return fn(*plain, **named)
        raise self.fail(where, f"cannot call {name!r} in a kernel: it is neither a tl function nor a @tilejit.kernel "
                               "function (nor a @tilejit.constexpr_function)")

    def _call_constant(self, fn: constexpr, args: list[Any], kwargs: dict[str, Any], where: ast.AST,
                       node: ast.AST | None) -> Any:
        known = fn.value
        author = isinstance(known, FunctionType) and not getattr(known, "is_builtin", False)
        if not author or contains_tensor((*args, *kwargs.values())):
            return self.call_function(known, args, kwargs, node)
        return self.python(where, lambda: f"{known.__name__}()",
                           lambda: unwrap(known(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})))

    def _pick(self, fn: Any, values: list[Any], named: dict[str, Any], where: ast.AST) -> Any:
        if named or (len(values) != 1 if fn is abs else len(values) < 2):
            raise self.fail(where, f"{fn.__name__}() of run-time values takes " + (
                "one of them" if fn is abs else "two or more of them, and no keywords"))
        if fn is abs:
            return math.abs(values[0], _b=self.b)
        result = values[0]
        for v in values[1:]:
            if isinstance(result, tensor) or isinstance(v, tensor):
                result = (math.minimum if fn is min else math.maximum)(result, v, _b=self.b)
            else:
                result = fn(result, v)
        return result

    def inline(self, source: KernelSource, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        where = node if node is not None else self.source.tree
        if self.stack.count(source) >= _DEPTH:
            names = " -> ".join(dict.fromkeys(s.name for s in self.stack[self.stack.index(source):]))
            raise self.fail(where, f"recursive call: {names} -> {source.name}, {_DEPTH} times deep; what ends a "
                                   "recursion must be a constant")
        try:
            bound = source.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self.fail(where, f"{source.name}(): {error}", f"its signature is {source.name}{source.signature}"
                            ) from None
        bound.apply_defaults()
        env = {k: unwrap(v) for k, v in bound.arguments.items()}
        loc = self.b.loc
        inner = type(self)(source, self.b, env, self.loc(where), self.stack)
        try:
            return inner.function()
        finally:
            self.b.loc, self.b.call = loc, self.call_function

    def function(self) -> Any:
        self.b.call = self.call_function
        done = self.run(self.source.tree.body)
        return done.value if done is not None else None
