"""Walks a kernel's AST and builds tile IR: its statements. A constant condition is followed at once; one of a scalar
tensor becomes structured IR (`branches.py`, `loops.py`)."""
from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from typing import Any

from tilejit.errors import CompilationError
from tilejit.frontend.calls import Calls
from tilejit.frontend.expressions import SUPPORTED, keyword
from tilejit.frontend.values import Exit, assigned
from tilejit.ir import Op
from tilejit.language import debug
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import constexpr, tensor
from tilejit.language.variables import held


class Walker(Calls):
    def run(self, body: list[ast.stmt]) -> Exit | None:
        for i, stmt in enumerate(body):
            self.b.loc = self.loc(stmt)
            try:
                if isinstance(stmt, ast.If):
                    ended, done = self.if_statement(stmt, body[i + 1:])
                    if ended:
                        return done
                    continue
                handler = getattr(self, f"stmt_{type(stmt).__name__}", None)
                if handler is None:
                    raise self.fail(stmt, f"'{keyword(stmt)}' is not part of the tile language",
                                    f"what is: {SUPPORTED}")
                done = handler(stmt)
                if isinstance(done, Exit) and isinstance(done.returned, tensor):  # a loop that may have returned
                    rest, returned = body[i + 1:], done
                    return self.fork(stmt, done.returned, lambda: replace(returned, broke=True, returned=True),
                                     partial(self.run, rest), assigned(rest), True)
            except CompilationError as error:
                raise error.with_loc(self.loc(stmt))
            if isinstance(done, Exit):
                return done
        return None

    def stmt_Pass(self, node: ast.Pass) -> None:
        """Nothing."""

    def stmt_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            must = getattr(self.expr(node.value.func), "must_use", None)
            if must is not None:
                name = ast.unparse(node.value.func)
                raise self.fail(node, f"The result of {name} is not being used. {must}".rstrip())
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self._promised(self.expr(node.value))

    def _promised(self, value: Any) -> None:
        found = value.value if isinstance(value, tensor) else None
        while found is not None and isinstance(found.op, Op) and found.op.name == "hint":
            found = found.op.operands[0]
        if found is not None and found is not value.value:
            self.env.update({n: value for n, v in self.env.items() if isinstance(v, tensor) and v.value is found})

    def stmt_Return(self, node: ast.Return) -> Exit:
        return Exit(True, True, held(self.expr(node.value)) if node.value is not None else None)

    def stmt_Break(self, node: ast.Break) -> Exit:
        return Exit(True)

    def stmt_Continue(self, node: ast.Continue) -> Exit:
        return Exit()

    def stmt_Assign(self, node: ast.Assign) -> None:
        value = self.expr(node.value)
        for target in node.targets:
            self.assign(target, self.held(target, value))

    def stmt_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            if isinstance(node.target, ast.Name) and self._is_constexpr(node.annotation):
                self.constants.add(node.target.id)
            return
        value = self.expr(node.value)
        if self._is_constexpr(node.annotation):  # a hint, as in Triton: a run-time value stays one
            value = unwrap(value)
        else:
            value = held(value)
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
        self.assign(node.target, held(self.binary(node, left, self.expr(node.value), type(node.op))))

    def stmt_Assert(self, node: ast.Assert) -> None:
        cond = unwrap(self.truth(node.test))
        message = unwrap(self.expr(node.msg)) if node.msg is not None else ""
        if isinstance(cond, tensor):
            debug.device_assert(cond, message, _b=self.b)
        elif not cond:
            says = f": {message}" if message else ""
            if self.b.debug:  # type: ignore[attr-defined]
                raise self.fail(node, "assertion failed" + says)
            self.b.note("assert", "assertion failed, which counts with debug=True" + says)
