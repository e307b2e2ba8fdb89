"""Loops on the device: `for` over ranges and `while`, and unrolled ones over compile-time tuples.

A name that a loop's body assigns and that had a number, a tensor or a tuple of these before is carried from one
iteration to the next, at the type it had first. What cannot be carried (None, a descriptor, a value whose type
changes) is fine as long as every iteration assigns it before it reads it: so a loop is built again with such names
undefined at its start, and reading one is then an error at the user's line.
"""
from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilejit.frontend.branches import Branches
from tilejit.frontend.values import Undefined, assigned, describe, fill, fits, identical, match, take_leaves
from tilejit.ir import Block, Value
from tilejit.ir.types import DType
from tilejit.language import debug
from tilejit.language import semantics as sem
from tilejit.language.loops import range as device_range
from tilejit.language.loops import static_range
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import tensor


@dataclass(frozen=True)
class Carried:
    """What a loop does with the names that it assigns: the trees of those it carries and the initial tensors of
    their slots, and the values of those that it cannot carry."""

    trees: dict[str, Any]
    inits: list[tensor]
    fixed: dict[str, Any]


class Loops(Branches):
    """The loop statements."""

    def stmt_For(self, node: ast.For) -> None:
        if node.orelse:
            raise self.fail(node, "'for ... else' is not part of the tile language")
        it = self.iterator(node.iter)
        if isinstance(it, static_range):
            it = tuple(range(it.lo, it.hi, it.step))
        if isinstance(it, (tuple, list)):
            for item in it:
                self.assign(node.target, item)
                self._body(node)
            return
        if not isinstance(it, device_range):
            raise self.fail(node.iter, "a kernel loops over range(), tl.range(), tl.static_range() or a tuple")
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "the loop variable must be a name")
        self._for(node, node.target.id, it)

    def _body(self, node: ast.For | ast.While) -> None:
        self.loop_depth += 1
        self.run(node.body)
        self.loop_depth -= 1

    def iterator(self, node: ast.expr) -> Any:
        """What a `for` runs over; Python's range() is a loop on the device, as tl.range()."""
        if isinstance(node, ast.Call) and self.expr(node.func) is builtins.range:
            if node.keywords:
                raise self.fail(node, "range() takes no keywords; tl.range() does")
            args = self.items(node.args)
            if not 1 <= len(args) <= 3:
                raise self.fail(node, f"range() takes 1 to 3 arguments, found {len(args)}")
            return device_range(*args)
        return unwrap(self.expr(node))

    # -- what a loop carries -----------------------------------------------------------------------------
    def _settle(self, node: ast.For | ast.While, names: list[str], lost: dict[str, Undefined],
                build: Callable[[Carried, dict[str, Undefined]], list[Value]]) -> None:
        """Build a loop that assigns `names`, and bind them to what they are after it.

        `build` reports the names that an iteration leaves at something that cannot be carried; while there are any,
        what it built is thrown away and the loop is built without them."""
        start, mark = self.env, len(self.b.block.ops)
        while True:
            self.env = {**start, **lost}
            del self.b.block.ops[mark:]
            carried = self._carry([n for n in names if n not in lost])
            bad: dict[str, Undefined] = {}
            results = build(carried, bad)
            if not bad:
                break
            lost = {**lost, **bad}
        never = Undefined(f"is bound by the loop at line {node.lineno}, which may not run: give it a value before")
        self.env = {**start, **{n: never for n in names if n not in start}, **lost}
        self._bind(carried, results)

    def _carry(self, names: list[str]) -> Carried:
        """Sort the names that have a value now."""
        leaves: list[Any] = []
        trees: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        for n in names:
            if n not in self.env or isinstance(self.env[n], Undefined):
                continue
            count = len(leaves)
            tree = take_leaves(self.env[n], leaves)
            if len(leaves) > count:
                trees[n] = tree
            else:
                fixed[n] = self.env[n]
        return Carried(trees, [sem.to_tensor(self.b, v) for v in leaves], fixed)

    def _bind(self, carried: Carried, values: list[Value]) -> None:
        """Bind the carried names to new values (region arguments or results)."""
        parts = [tensor(v) for v in values]
        for n, tree in carried.trees.items():
            self.env[n] = fill(tree, parts)
            if isinstance(self.env[n], tensor):
                self.env[n].value.name = n

    def _next(self, node: ast.For | ast.While, carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
        """The values to carry on with from here; names that do not have their first type are put into `bad`."""
        outs = [v.value for v in carried.inits]
        for n, tree in carried.trees.items():
            value = self.env[n]
            leaves = None if isinstance(value, Undefined) else match(tree, value)
            if leaves is None:
                bad[n] = self._changes(node, n, fill(tree, carried.inits), value)
                continue
            for i, leaf in leaves.items():
                init = carried.inits[i]
                if not isinstance(leaf, tensor):
                    elem = init.elem
                    leaf = sem.to_tensor(self.b, leaf, elem if isinstance(elem, DType) and fits(leaf, elem) else None)
                if sem.same_type(leaf, init):
                    outs[i] = leaf.value
                else:
                    bad[n] = self._changes(node, n, init, leaf)
        for n, value in carried.fixed.items():
            if not identical(self.env[n], value):
                bad[n] = self._changes(node, n, value, self.env[n])
        return outs

    @staticmethod
    def _changes(node: ast.For | ast.While, name: str, first: Any, now: Any) -> Undefined:
        if isinstance(now, Undefined):
            return Undefined(now.reason, now.notes)
        return Undefined(f"is {describe(first)} before the loop at line {node.lineno} and {describe(now)} after one "
                         "iteration: a loop carries numbers and tensors, and each keeps its type and shape",
                         ("give it the final type before the loop, e.g. tl.zeros(shape, dtype)",))

    # -- for --------------------------------------------------------------------------------------------------
    def _for(self, node: ast.For, name: str, it: device_range) -> None:
        lo, hi, step = self._bounds(node, it)
        kind: Any = lo.elem
        if isinstance(unwrap(it.step), tensor):
            debug.device_assert(sem.binary(self.b, ">", step, 0), "the step of a range is positive", _b=self.b)
        lost: dict[str, Undefined] = {}
        first = unwrap(self.env.get(name))
        if isinstance(first, int) and not isinstance(first, bool) and not isinstance(first, tensor):
            self.env = {**self.env, name: sem.to_tensor(self.b, first, kind)}  # after no iteration it is still this
        elif name in self.env and not (isinstance(first, tensor) and sem.same_type(first, lo)) \
                and not isinstance(first, Undefined):
            lost[name] = Undefined(f"is {describe(first)} before the loop at line {node.lineno} and its {kind} counter "
                                   "after it")

        def build(carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
            region, loc = Block([kind], [name]), self.b.loc
            self._bind(carried, [region.add_arg(v.value.type) for v in carried.inits])
            self.env[name] = tensor(region.args[0])
            self.in_block(region, lambda: self._body(node))
            self.in_block(region, lambda: self.b.op("yield", *self._next(node, carried, bad)))
            self.b.loc = loc         # the loop's line, not that of its last statement
            return self.b.op("for", lo.value, hi.value, step.value, *(v.value for v in carried.inits),
                             regions=[region], **it.attrs).results

        self._settle(node, [*dict.fromkeys([*assigned(node.body), name])], lost, build)

    def _bounds(self, node: ast.For, it: device_range) -> list[tensor]:
        """Start, end and step of a range as scalars of one integer type."""
        bounds = [unwrap(x) for x in (it.lo, it.hi, it.step)]
        for what, x in zip(("start", "end", "step"), bounds):
            if not isinstance(x, (int, tensor)) or isinstance(x, tensor) and (x.shape or not (
                    isinstance(x.elem, DType) and x.elem.is_int)):
                raise self.fail(node.iter, f"range: the {what} must be an integer scalar, found {describe(x)}")
        if bounds[2] == 0:
            raise self.fail(node.iter, "range: the step must not be 0")
        kind: Any = sem.int32
        for x in bounds:
            t: Any = x.elem if isinstance(x, tensor) else sem.literal_type(int(x))
            kind = sem.promote(kind, False, t, not isinstance(x, tensor))
        return [sem.cast(self.b, sem.to_tensor(self.b, x, None if isinstance(x, tensor) else kind), kind)
                for x in bounds]

    # -- while ------------------------------------------------------------------------------------------------
    def stmt_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self.fail(node, "'while ... else' is not part of the tile language")
        tested = assigned([node.test])
        constant: list[Any] = []

        def build(carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
            kinds = [v.value.type for v in carried.inits]
            before, body = Block(kinds), Block(kinds)
            self._bind(carried, before.args)

            def test() -> None:
                cond = self.condition(node.test)
                constant[:] = [] if isinstance(cond, tensor) else [bool(cond)]
                self.b.op("condition", sem.to_tensor(self.b, cond if not constant else constant[0]).value,
                          *self._next(node, carried, bad))

            self.in_block(before, test)
            for n in tested:
                if n not in carried.trees and n not in carried.fixed:
                    self.env[n] = Undefined(f"is bound by the condition at line {node.lineno}: give it a value of its "
                                            "type before the loop")
            self._bind(carried, body.args)
            self.in_block(body, lambda: self._body(node))
            self.in_block(body, lambda: self.b.op("yield", *self._next(node, carried, bad)))
            return self.b.op("while", *(v.value for v in carried.inits), regions=[before, body]).results

        self._settle(node, assigned([node.test, *node.body]), {}, build)
        if constant == [True]:
            raise self.fail(node.test, "the condition is always true, so the loop never ends: there is no 'break'")
