"""Structured control flow of the frontend: `if`, `for` and `while` on run-time scalars.

Variables that a branch or a loop body assigns become results or carried values. A variable bound in only
one branch is `Undefined` after it, and using it is an error that names the branch.
"""
from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilejit.errors import CompilationError, Loc
from tilejit.ir import Block
from tilejit.ir.types import DType, Type
from tilejit.language import semantics as sem
from tilejit.language.loops import range as device_range
from tilejit.language.loops import static_range
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import KernelBuilder, tensor

if TYPE_CHECKING:
    from tilejit.frontend.source import KernelSource


@dataclass
class Returned:
    """The function has returned `value` on this path."""

    value: Any


class Undefined:
    """A variable that not every path has bound."""

    def __init__(self, reason: str):
        self.reason = reason


def assigned(body: list[ast.stmt]) -> list[str]:
    """Names that statements may bind, in order of appearance."""
    out: dict[str, None] = {}
    for stmt in body:
        for node in ast.walk(stmt):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                out[node.id] = None
    return list(out)


def returns(body: list[ast.stmt]) -> bool:
    """True if a statement (outside nested functions) may return."""
    return any(isinstance(node, ast.Return) for stmt in body for node in ast.walk(stmt))


def flatten(value: Any) -> list[tensor] | None:
    """The tensors in a value (numbers not yet made tensors are kept), or None if it has none to carry."""
    value = unwrap(value)
    if isinstance(value, (tensor, bool, int, float)):
        return [value]  # type: ignore[list-item]
    if isinstance(value, tuple):
        out: list[tensor] = []
        for v in value:
            inner = flatten(v)
            if inner is None:
                return None
            out += inner
        return out
    return None


def rebuild(value: Any, parts: list[tensor]) -> Any:
    """A value of the same structure from new tensors (taken from the front of `parts`)."""
    if isinstance(unwrap(value), tuple):
        items = [rebuild(v, parts) for v in unwrap(value)]
        return type(value)(*items) if hasattr(type(value), "_fields") else tuple(items)
    return parts.pop(0)


class FlowMixin:
    """The control-flow half of `Walker`."""

    source: KernelSource
    b: KernelBuilder
    env: dict[str, Any]
    loop_depth = 0

    if TYPE_CHECKING:
        def loc(self, node: ast.AST) -> Loc: ...
        def fail(self, node: ast.AST, message: str, *notes: str) -> CompilationError: ...
        def expr(self, node: ast.expr) -> Any: ...
        def statements(self, body: list[ast.stmt]) -> Returned | None: ...
        def assign(self, target: ast.expr, value: Any) -> None: ...

    def in_block(self, block: Block, run: Callable[[], Any]) -> Any:
        """Run with the builder appending to `block`."""
        outer, self.b.block = self.b.block, block
        try:
            return run()
        finally:
            self.b.block = outer

    def scalar_condition(self, node: ast.expr) -> Any:
        """A condition: a constant, or a scalar int1 tensor."""
        cond = unwrap(self.expr(node))
        if not isinstance(cond, tensor):
            return cond
        if cond.shape:
            raise self.fail(node, f"a condition must be a scalar, found a tile of shape {list(cond.shape)}: "
                                  "use tl.where(cond, a, b)")
        return sem.to_bool(self.b, cond)

    # -- if ---------------------------------------------------------------------------------------------
    def if_statement(self, node: ast.If, rest: list[ast.stmt]) -> Returned | bool | None:
        """None: go on with the next statement; otherwise the rest has been built (and may have returned)."""
        cond = self.scalar_condition(node.test)
        if not isinstance(cond, tensor):
            return self.statements(node.body if cond else node.orelse)
        if returns(node.body) or returns(node.orelse):
            if self.loop_depth:
                raise self.fail(node, "'return' inside a loop is not supported: carry a flag and return after it")
            return self._branches(node, cond, node.body + _unless_returns(node.body, rest),
                                  node.orelse + _unless_returns(node.orelse, rest)) or True
        self._branches(node, cond, node.body, node.orelse)
        return None

    def _branches(self, node: ast.If, cond: tensor, then: list[ast.stmt], other: list[ast.stmt]) -> Returned | None:
        """Build both branches as one `if`, merging variables and returned values."""
        before = dict(self.env)
        ends: list[tuple[Block, dict[str, Any], Returned | None]] = []
        for body in (then, other):
            block = Block()
            self.env.clear()
            self.env.update(before)
            done = self.in_block(block, lambda body=body: self.statements(body))  # type: ignore[misc]
            ends.append((block, dict(self.env), done))
        names = [n for n in dict.fromkeys(assigned(then) + assigned(other))]
        merged: dict[str, tuple[Any, Any]] = {}
        self.env.clear()
        self.env.update(before)
        (block_a, env_a, done_a), (block_b, env_b, done_b) = ends
        for n in names:
            a, c = env_a.get(n), env_b.get(n)
            if n not in env_a or n not in env_b or isinstance(a, Undefined) or isinstance(c, Undefined):
                where = "then" if n in env_a and not isinstance(a, Undefined) else "else"
                self.env[n] = Undefined(f"the 'if' at line {node.lineno} binds it in its {where} branch only")
            elif a is c or (type(a) is type(c) and not isinstance(a, tensor) and flatten(a) is None and a == c):
                self.env[n] = a
            else:
                merged[n] = (a, c)
        if (done_a is None) != (done_b is None):
            done_a, done_b = done_a or Returned(None), done_b or Returned(None)
        if done_a is not None and done_b is not None:
            if (done_a.value is None) != (done_b.value is None):
                raise self.fail(node, "one branch returns a value and the other does not")
            if done_a.value is not None:
                merged["return"] = (done_a.value, done_b.value)
        results = self._merge(node, cond, block_a, block_b, merged)
        result = results.pop("return", None)
        self.env.update(results)
        return Returned(result) if done_a is not None else None

    def _merge(self, node: ast.AST, cond: tensor, block_a: Block, block_b: Block,
               merged: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
        """Close two branch blocks with yields of the merged values, and create the `if`."""
        pairs: list[tuple[tensor, tensor]] = []
        for name, (a, c) in merged.items():
            fa, fc = flatten(a), flatten(c)
            if fa is None or fc is None or len(fa) != len(fc):
                raise self.fail(node, f"{name!r} is {_kind(a)} after one branch and {_kind(c)} after the other")
            for x, y in zip(fa, fc):
                pairs.append(self._agree(node, name, block_a, x, block_b, y))
        for block, side in ((block_a, 0), (block_b, 1)):
            self.in_block(block, lambda side=side: self.b.op(  # type: ignore[misc]
                "yield", *(p[side].value for p in pairs)))
        op = self.b.op("if", cond.value, regions=[block_a, block_b])
        values = [tensor(r) for r in op.results]
        out = {}
        for name, (a, _) in merged.items():
            out[name] = rebuild(a, values)
            if isinstance(out[name], tensor) and name != "return":
                out[name].value.name = name
        return out

    def _agree(self, node: ast.AST, name: str, block_a: Block, x: Any, block_b: Block, y: Any) -> tuple[tensor, tensor]:
        """Two values of one variable as tensors of one type; numbers take the other side's type."""
        def typed(block: Block, v: Any, like: Any) -> tensor:
            if isinstance(v, tensor):
                return v
            dtype = like.elem if isinstance(like, tensor) and isinstance(like.elem, DType) \
                and not (isinstance(v, float) and like.elem.is_int) else None
            t = self.in_block(block, lambda: sem.to_tensor(self.b, v, dtype))
            if isinstance(like, tensor) and like.shape:
                t = self.in_block(block, lambda: sem.broadcast_to(self.b, t, like.shape))
            return t

        if not isinstance(x, tensor) and not isinstance(y, tensor) and isinstance(x, float) != isinstance(y, float):
            x, y = float(x), float(y)
        a, c = typed(block_a, x, y), typed(block_b, y, x)
        if not sem.same_type(a, c):
            raise self.fail(node, f"{name!r} has type {a!r} after one branch and {c!r} after the other: "
                                  "make them agree with .to(...)")
        return a, c

    def merge_values(self, node: ast.AST, cond: tensor, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """A conditional expression on a run-time scalar."""
        cond = sem.to_bool(self.b, cond)
        block_a, block_b = Block(), Block()
        a, c = self.in_block(block_a, then), self.in_block(block_b, other)
        return self._merge(node, cond, block_a, block_b, {"value": (a, c)})["value"]

    # -- loops --------------------------------------------------------------------------------------------
    def stmt_For(self, node: ast.For) -> None:
        if node.orelse:
            raise self.fail(node, "'for ... else' is not part of the tile language")
        it = unwrap(self.expr_iterator(node.iter))
        if isinstance(it, static_range):
            it = tuple(range(it.lo, it.hi, it.step))
        if isinstance(it, tuple):
            for item in it:
                self.assign(node.target, item)
                self.loop_depth += 1
                self.statements(node.body)
                self.loop_depth -= 1
            return
        if not isinstance(it, device_range):
            raise self.fail(node.iter, "a kernel loops over range(), tl.range() or tl.static_range()")
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "the loop variable must be a name")
        self._for(node, it)

    def expr_iterator(self, node: ast.expr) -> Any:
        """Python's range() is a loop on the device, as tl.range()."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" \
                and "range" not in self.env:
            return device_range(*(self.expr(a) for a in node.args))
        return self.expr(node)

    def _for(self, node: ast.For, it: device_range) -> None:
        bounds = [unwrap(x) for x in (it.lo, it.hi, it.step)]
        for what, x in zip(("start", "end", "step"), bounds):
            if isinstance(x, float) or isinstance(x, tensor) and (x.shape or not (
                    isinstance(x.elem, DType) and x.elem.is_int)):
                raise self.fail(node.iter, f"range: the {what} must be an integer scalar, found {x!r}")
        if bounds[2] == 0:
            raise self.fail(node.iter, "range: the step must not be 0")
        kind: Any = sem.int32
        for x in bounds:
            t: Any = x.elem if isinstance(x, tensor) else sem.literal_type(int(x))
            kind = sem.promote(kind, False, t, not isinstance(x, tensor))
        lo, hi, step = (sem.cast(self.b, sem.to_tensor(self.b, x, None if isinstance(x, tensor) else kind), kind)
                        for x in bounds)
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        carried = [n for n in assigned(node.body) if n in self.env and n != name]
        region = Block([kind], [name])
        inits, shapes = self._carry(node, carried)
        before = dict(self.env)
        self._bind(shapes, [region.add_arg(v.value.type) for v in inits])
        self.env[name] = tensor(region.args[0])
        self.loop_depth += 1
        self.in_block(region, lambda: self.statements(node.body))
        self.loop_depth -= 1
        self.in_block(region, lambda: self._yield(node, shapes, inits))
        op = self.b.op("for", lo.value, hi.value, step.value, *(v.value for v in inits), regions=[region],
                       **it.attrs)
        self._leave(node, before, shapes, op.results)

    def _leave(self, node: ast.For | ast.While, before: dict[str, Any], shapes: dict[str, Any],
               results: list[Any]) -> None:
        """After a loop: carried names have its results, names of its body alone are undefined."""
        self.env.clear()
        self.env.update(before)
        for n in assigned(node.body):
            if n not in before:
                self.env[n] = Undefined(f"the loop at line {node.lineno} binds it, and may not run")
        self._bind(shapes, results)

    def _carry(self, node: ast.AST, names: list[str]) -> tuple[list[tensor], dict[str, Any]]:
        """Initial tensors of the carried names, and each such name's value before the loop (its structure)."""
        inits: list[tensor] = []
        shapes: dict[str, Any] = {}
        for n in names:
            parts = None if isinstance(self.env[n], Undefined) else flatten(self.env[n])
            if parts is not None:
                shapes[n] = self.env[n]
                inits += [sem.to_tensor(self.b, p) for p in parts]
        return inits, shapes

    def _bind(self, shapes: dict[str, Any], values: list[Any]) -> None:
        """Bind the carried names to new values (region arguments or results)."""
        parts = [tensor(v) for v in values]
        for n, shape in shapes.items():
            self.env[n] = rebuild(shape, parts)
            if isinstance(self.env[n], tensor):
                self.env[n].value.name = n

    def _yield(self, node: ast.AST, shapes: dict[str, Any], inits: list[tensor]) -> None:
        """End an iteration: every carried value must have its first type again."""
        outs: list[tensor] = []
        at = 0
        for n, first in shapes.items():
            count = len(flatten(first) or [])
            parts = flatten(self.env[n])
            if parts is None or len(parts) != count:
                raise self.fail(node, f"{n!r} is {_kind(first)} before the loop and "
                                      f"{_kind(self.env[n])} after an iteration")
            for p, init in zip(parts, inits[at:at + count]):
                elem = init.elem if isinstance(init.elem, DType) else None
                t = p if isinstance(p, tensor) else sem.to_tensor(self.b, p, elem)
                if not sem.same_type(t, init):
                    raise self.fail(node, f"{n!r} is {init!r} before the loop and {t!r} after one iteration: a "
                                          "loop-carried value keeps its type and shape",
                                    "give it the final type before the loop, e.g. tl.zeros(shape, dtype)")
                outs.append(t)
            at += count
        self.b.op("yield", *(t.value for t in outs))

    def stmt_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self.fail(node, "'while ... else' is not part of the tile language")
        names = [n for n in assigned([*node.body, ast.Expr(node.test)]) if n in self.env]
        outer = dict(self.env)
        inits, shapes = self._carry(node, names)
        types: list[Type] = [v.value.type for v in inits]
        before, body = Block(types), Block(types)
        self._bind(shapes, before.args)

        def condition() -> None:
            cond = self.scalar_condition(node.test)
            if not isinstance(cond, tensor):
                cond = sem.to_tensor(self.b, bool(cond))
            self.b.op("condition", cond.value, *before.args)

        self.in_block(before, condition)
        self._bind(shapes, body.args)
        self.loop_depth += 1
        self.in_block(body, lambda: self.statements(node.body))
        self.loop_depth -= 1
        self.in_block(body, lambda: self._yield(node, shapes, inits))
        op = self.b.op("while", *(v.value for v in inits), regions=[before, body])
        self._leave(node, outer, shapes, op.results)


def _unless_returns(body: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt]:
    """`rest`, unless the body always returns before it."""
    return [] if body and isinstance(body[-1], ast.Return) else rest


def _kind(x: Any) -> str:
    x = unwrap(x)
    if isinstance(x, tensor):
        return repr(x)
    return "None" if x is None else f"{type(x).__name__} {x!r}"
