"""Two ways through a program that meet again: `if`, conditional expressions, `and` and `or` on run-time scalars."""
from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from tilejit.errors import CompilationError
from tilejit.frontend.frame import Frame
from tilejit.frontend.values import (
    Exit,
    Undefined,
    assigned,
    describe,
    fill,
    fits,
    leaves_early,
    number_type,
    pair,
    retuple,
)
from tilejit.ir import Block, walk
from tilejit.ir.types import DType, Ptr, int64
from tilejit.language import semantics as sem
from tilejit.language.semantics import literal_type, promote, unwrap
from tilejit.language.tensor import Compound, tensor
from tilejit.language.variables import is_held
from tilejit.records import dataclass, replace

RETURNED_VALUE = "Return type mismatch: the returned value"


@dataclass(frozen=True)
class Branch:
    block: Block
    env: dict[str, Any]
    value: Any

    def bound(self, name: str) -> bool:
        return not isinstance(self.env.get(name, Undefined("")), Undefined)

    @property
    def pure(self) -> bool:
        """Whether the ops may run where Python would not run them."""
        return all(op.define.pure for op in walk(self.block))


class Branches(Frame):
    def branch(self, run: Callable[[], Any]) -> Branch:
        before, block = self.env, Block()
        self.env = dict(before)
        value = self.in_block(block, run)
        after, self.env = self.env, before
        return Branch(block, after, value)

    def join(self, node: ast.AST, cond: tensor, then: Branch, other: Branch, names: list[str], what: str) -> Any:
        """Make the `if` and bind `names` behind it; the branches' common value. `what`: for errors."""
        leaves: list[tuple[tensor, tensor]] = []
        trees: dict[str, Any] = {}
        for n in names:
            if then.bound(n) and other.bound(n):
                try:
                    trees[n] = self._meet(then, then.env[n], other, other.env[n], leaves)
                except CompilationError as error:
                    line = getattr(node, "lineno", 0)
                    self.env[n] = Undefined(f"{error.message}, which meet at line {line} (Mismatched type for {n})")
            elif n in then.env or n in other.env:
                self.env[n] = self._half_bound(node, n, then, other)
        try:
            value = self._meet(then, then.value, other, other.value, leaves)
        except CompilationError as error:
            raise self.fail(node, f"{what} {error.message}") from None
        for block, side in ((then.block, 0), (other.block, 1)):
            self.in_block(block, partial(self.b.op, "yield", *(p[side].value for p in leaves)))
        op = self.b.op("if", cond.value, regions=[then.block, other.block])
        results = [tensor(r) for r in op.results]
        for n, tree in trees.items():
            self.env[n] = fill(self.b, tree, results)
            if isinstance(self.env[n], tensor) and not self.env[n].value.name:
                self.env[n].value.name = n
        return fill(self.b, value, results)

    def _meet(self, then: Branch, a: Any, other: Branch, c: Any, leaves: list[tuple[tensor, tensor]]) -> Any:
        """The tree of both branches' values; a number takes the other side's type if its kind fits."""
        pairs: list[tuple[Any, Any]] = []
        tree = pair(a, c, pairs, len(leaves), *(partial(self._parts, side.block) for side in (then, other)))
        typed = []
        for x, y in pairs:
            numbers = not isinstance(x, tensor) and not isinstance(y, tensor)
            one = self._leaf(then.block, x, y, number_type(x, y) if numbers else None)
            two = self._leaf(other.block, y, x, one.elem if numbers else None)
            if not sem.same_type(one, two):
                raise CompilationError(f"has type {one!r} after one branch and {two!r} after the other: "
                                       "make them agree with .to(...)")
            typed.append((one, two))
        leaves += typed
        return tree

    def _parts(self, block: Block, value: Compound) -> list[Any]:
        return self.in_block(block, lambda: value.parts(self.b))

    def _leaf(self, block: Block, v: Any, like: Any, dtype: Any) -> tensor:
        if isinstance(v, tensor):
            return v
        if isinstance(like, tensor) and isinstance(like.elem, DType) and fits(v, like.elem):
            dtype = like.elem
        shape = like.shape if isinstance(like, tensor) else ()
        return self.in_block(block, lambda: sem.broadcast_to(self.b, sem.to_tensor(self.b, v, dtype), shape))

    @staticmethod
    def _half_bound(node: ast.AST, name: str, then: Branch, other: Branch) -> Undefined:
        if not then.bound(name) and not other.bound(name):
            return then.env.get(name) or other.env[name]
        which = "then" if then.bound(name) else "else"
        kind = "'if'" if isinstance(node, ast.If) else "condition"
        return Undefined(f"is not defined on every path: the {kind} at line {getattr(node, 'lineno', 0)} binds it in "
                         f"its {which} branch only")

    # -- if --
    def if_statement(self, node: ast.If, rest: list[ast.stmt]) -> tuple[bool, Exit | None]:
        cond = self.condition(node.test)
        if not isinstance(cond, tensor):
            chosen = node.body if cond else node.orelse
            if leaves_early(chosen):
                return True, self.run(chosen + rest)
            self.run(chosen)
            return False, None
        ends = leaves_early([node])
        one, two = (body + rest if ends else body for body in (node.body, node.orelse))
        return ends, self.fork(node, cond, partial(self.run, one), partial(self.run, two), assigned([*one, *two]), ends)

    def fork(self, node: ast.AST, cond: tensor, then_run: Callable[[], Exit | None],
             other_run: Callable[[], Exit | None], names: list[str], ends: bool) -> Exit | None:
        """Build statements for both values of a condition; how they end."""
        then, other = self.branch(then_run), self.branch(other_run)
        if ends and not self.loop_depth:  # after a return out of the function no name is read any more
            names = []
        if then.value is None and other.value is None:
            self.join(node, cond, then, other, names, "nothing")
            return None
        if not self.loop_depth:
            a, c = (e.value.value if e.value is not None else None for e in (then, other))
            if (a is None) != (c is None):
                raise self.fail(node, "one branch returns a value and the other does not")
            return Exit(True, True, self.join(node, cond, replace(then, value=a), replace(other, value=c), names,
                                              RETURNED_VALUE))
        return self._exits(node, cond, then, other, names)

    def _exits(self, node: ast.AST, cond: tensor, then: Branch, other: Branch, names: list[str]) -> Exit:
        a, c = (e.value if e.value is not None else Exit() for e in (then, other))
        blanks = [x.value if x.returned is not False else
                  self.in_block(end.block, lambda: self.blank(node, y.value))
                  for x, y, end in ((a, c, then), (c, a, other))]
        one, two = (replace(end, value=(x.broke, x.returned, v)) for end, x, v in zip((then, other), (a, c), blanks))
        return Exit(*self.join(node, cond, one, two, names, RETURNED_VALUE))

    def blank(self, node: ast.AST, value: Any) -> Any:
        value = unwrap(value)
        if isinstance(value, tuple):
            return retuple(value, [self.blank(node, v) for v in value])
        if isinstance(value, Compound):
            return value.remade(self.b, [self.blank(node, v) for v in value.parts(self.b)])
        if not isinstance(value, tensor):
            return value
        elem = value.elem
        zero = self.b.const(0, int64 if isinstance(elem, Ptr) else elem)
        zero = self.b("bitcast", zero, dtype=elem) if isinstance(elem, Ptr) else zero
        return sem.broadcast_to(self.b, tensor(zero), value.shape)

    def expr_IfExp(self, node: ast.IfExp) -> Any:
        cond = self.condition(node.test)
        if not isinstance(cond, tensor):
            return self.expr(node.body if cond else node.orelse)
        then, other = self.branch(lambda: self.expr(node.body)), self.branch(lambda: self.expr(node.orelse))
        return self.join(node, cond, then, other, assigned([node.body, node.orelse]), "Ternary expression with dynamic "
                         "condition has inconsistent types: the conditional expression")

    # -- and, or --
    def short_circuit(self, node: ast.AST, is_and: bool, left: Any, right: Callable[[], Any], names: list[str],
                      truth: bool) -> Any:
        """With `truth` only the truth matters."""
        left = unwrap(left)
        if not isinstance(left, tensor):
            return right() if bool(left) == is_and else left
        if left.shape:
            return self._both(is_and, left, right())
        cond = sem.to_bool(self.b, left)
        end = self.branch(right)
        value = unwrap(end.value)
        shape = value.shape if isinstance(value, tensor) else ()
        if truth or shape or left.elem == sem.int1 == getattr(value, "elem", None):
            dtype = sem.int1
        else:
            dtype = self._operand_type(node, left, value)
        same = all(end.env.get(n) is self.env.get(n) for n in names)
        if end.pure and same:
            for op in end.block.ops:
                self.b.insert(op)
            if not isinstance(value, tensor) and (truth or isinstance(value, bool) and left.elem == sem.int1):
                return left if bool(value) == is_and else value  # known before the program runs, as in Triton
            if dtype == sem.int1:
                return self._both(is_and, cond, value)
            a, c = self._operand(left, dtype), self._operand(value, dtype)
            return tensor(self.b("select", cond.value, *((c.value, a.value) if is_and else (a.value, c.value))))
        end = replace(end, value=self.in_block(end.block, lambda: self._operand(value, dtype)))
        skip = self.branch(lambda: sem.broadcast_to(self.b, self._operand(left, dtype), shape))
        then, other = (end, skip) if is_and else (skip, end)
        return self.join(node, cond, then, other, names, "the condition")

    def _operand_type(self, node: ast.AST, left: tensor, right: Any) -> DType:
        weak = isinstance(right, (bool, int, float))
        a, c = left.elem, literal_type(right) if weak else getattr(right, "elem", None)
        if not isinstance(a, DType) or not isinstance(c, DType):
            raise self.fail(node, f"'and' and 'or' work on numbers: found {describe(left)} and {describe(right)}")
        return promote(a, False, c, weak and not is_held(right))

    def _operand(self, x: Any, dtype: DType) -> tensor:
        if dtype == sem.int1:
            return sem.to_bool(self.b, x if isinstance(x, tensor) else bool(x))
        if not isinstance(x, tensor):
            return sem.to_tensor(self.b, x, dtype)
        return sem.cast(self.b, x, dtype)

    def _both(self, is_and: bool, left: tensor, right: Any) -> tensor:
        a, c = self._operand(left, sem.int1), self._operand(right, sem.int1)
        return sem.binary(self.b, "&" if is_and else "|", a, c)
