"""Loops on the device: `for` over ranges and `while`, and unrolled ones over compile-time tuples (docs/language.md)."""
from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from functools import partial
from typing import Any

from tilejit.frontend.branches import Branches
from tilejit.frontend.values import (
    Exit,
    Made,
    Opened,
    Slot,
    Undefined,
    assigned,
    breaks,
    describe,
    fill,
    fits,
    retuple,
    returns,
)
from tilejit.ir import Block, Value
from tilejit.ir.types import DType, int32
from tilejit.language import debug
from tilejit.language import semantics as sem
from tilejit.language.loops import range as device_range
from tilejit.language.loops import static_range
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import tensor
from tilejit.language.variables import held, is_held
from tilejit.records import dataclass, replace


@dataclass(frozen=True)
class Carried:
    """Trees of the names carried, the initial tensors of their slots, and trees of those that stay."""

    trees: dict[str, Any]
    inits: list[tensor]
    fixed: dict[str, Any]
    opened: Opened

    def start(self, tree: Any) -> Any:
        if isinstance(tree, Made):
            return tree.like
        if isinstance(tree, tuple):
            return retuple(tree, [self.start(t) for t in tree])
        return self.inits[tree.index] if isinstance(tree, Slot) else tree


#: Names that no program can have, of what loops carry beside variables.
BROKE, RETURNED, RESULT, COUNTER = "broke.", "returned.", "result.", "counter."


class Loops(Branches):
    """Each gives how it ends for the function or the loop around it, None for normally."""

    def stmt_For(self, node: ast.For) -> Exit | None:
        if node.orelse:
            raise self.fail(node, "'for ... else' is not part of the tile language")
        it = self.iterator(node.iter)
        if isinstance(it, static_range):
            it = tuple(range(it.lo, it.hi, it.step))
        if isinstance(it, (tuple, list)):
            return self._left(self._unrolled(node, tuple(it)))
        if not isinstance(it, device_range):
            raise self.fail(node.iter, "a kernel loops over range(), tl.range(), tl.static_range() or a tuple",
                            "Only `range` and `static_range` iterators are currently supported")
        if not isinstance(node.target, ast.Name):
            raise self.fail(node.target, "the loop variable must be a name")
        return self._for(node, node.target.id, it)

    def _unrolled(self, node: ast.For, items: tuple[Any, ...]) -> Exit | None:
        for i, item in enumerate(items):
            self.assign(node.target, item)
            done = self._body(node)
            if done is None or done.broke is False:
                continue
            if done.broke is True:
                return done
            names, ended = assigned([node.target, *node.body]), replace(done, broke=True)
            self.loop_depth += 1
            try:
                return self.fork(node, done.broke, lambda: ended, partial(self._unrolled, node, items[i + 1:]),
                                 names, True)
            finally:
                self.loop_depth -= 1
        return None

    @staticmethod
    def _left(done: Exit | None) -> Exit | None:
        return None if done is None or done.returned is False else Exit(done.returned, done.returned, done.value)

    def _body(self, node: ast.For | ast.While) -> Exit | None:
        self.loop_depth += 1
        try:
            return self.run(node.body)
        finally:
            self.loop_depth -= 1

    def iterator(self, node: ast.expr) -> Any:
        """What a `for` runs over."""
        if isinstance(node, ast.Call) and self.expr(node.func) is builtins.range:
            if not 1 <= len(node.args) <= 3:
                raise self.fail(node, f"range() takes 1 to 3 arguments, found {len(node.args)}")
            return self.called(device_range, node)  # type: ignore[attr-defined]
        return unwrap(self.expr(node))

    # -- what a loop carries --
    def _settle(self, node: ast.For | ast.While, names: list[str], lost: dict[str, Undefined],
                build: Callable[[Carried, dict[str, Undefined]], list[Value]]) -> Exit | None:
        """Build a loop that assigns `names`, and bind them to what they are after it."""
        start, mark, opened = self.env, len(self.b.block.ops), self.opened.setdefault(id(node), Opened())
        early = [BROKE, *((RETURNED, RESULT) if returns(node.body) else ())] if breaks(node.body) else []
        outer = {n: start[n] for n in (BROKE, RETURNED, RESULT, COUNTER) if n in start}
        start = {n: v for n, v in start.items() if n not in outer or n == COUNTER} | dict.fromkeys(early[:2], False)
        while True:
            self.env = {**start, **lost}
            del self.b.block.ops[mark:]
            known = len(opened)
            self.returned, self.result = False, None
            if RESULT in start:
                self.env[RESULT] = self.blank(node, start[RESULT])
            carried = self._carry([*early, *(n for n in names if n not in lost)], opened)
            bad: dict[str, Undefined] = {}
            results = build(carried, bad)
            if self.result is not None and RESULT not in start:
                start = {**start, RESULT: self.result}
            elif len(opened) == known:
                if not bad:
                    break
                lost = {**lost, **bad}
        never = Undefined(f"is bound by the loop at line {node.lineno}, which may not run: give it a value before")
        self.env = {**start, **{n: never for n in names if n not in start}, **lost}
        self._bind(carried, results)
        done = Exit(True, self.env[RETURNED], self.env.get(RESULT)) if self.returned else None
        self.env = {**{n: v for n, v in self.env.items() if n not in early and n != COUNTER}, **outer}
        return done

    def _carry(self, names: list[str], opened: Opened) -> Carried:
        leaves: list[tensor] = []
        trees: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        for n in names:
            if n not in self.env or isinstance(self.env[n], Undefined):
                continue
            count = len(leaves)
            tree = opened.tree(self.b, self.env[n], (n,), leaves)
            if len(leaves) > count:
                trees[n] = tree
            else:
                fixed[n] = tree
        return Carried(trees, leaves, fixed, opened)

    def _bind(self, carried: Carried, values: list[Value]) -> None:
        parts = [tensor(v) for v in values]
        for n, tree in carried.trees.items():
            self.env[n] = fill(self.b, tree, parts)
            if isinstance(self.env[n], tensor):
                self.env[n].value.name = n.rstrip(".")

    def _finish(self, done: Exit | None) -> None:
        self.returned = done is not None and done.returned is not False  # a `return` that constants rule out is none
        if done is None or BROKE not in self.env:
            return
        self.env[BROKE] = done.broke
        if done.returned is not False:
            self.env[RETURNED] = done.returned
            self.env[RESULT] = self.result = done.value

    def _next(self, node: ast.For | ast.While, carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
        """The values to carry on; names that lost their first type are put into `bad`."""
        outs = [v.value for v in carried.inits]
        for n, tree in carried.trees.items():
            value = self.env[n]
            leaves: dict[int, Any] = {}
            if isinstance(value, Undefined) or not carried.opened.match(self.b, tree, value, (n,), leaves):
                bad[n] = self._changes(node, n, carried.start(tree), value)
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
        for n, tree in carried.fixed.items():
            if not carried.opened.match(self.b, tree, self.env[n], (n,), {}):
                bad[n] = self._changes(node, n, carried.start(tree), self.env[n])
        return outs

    @staticmethod
    def _changes(node: ast.For | ast.While, name: str, first: Any, now: Any) -> Undefined:
        if isinstance(now, Undefined):
            return Undefined(now.reason, now.notes)
        return Undefined(f"is {describe(first)} before the loop at line {node.lineno} and {describe(now)} after one "
                         "iteration: a loop carries numbers and tensors, and each keeps its type and shape",
                         ("give it the final type before the loop, e.g. tl.zeros(shape, dtype)",))

    # -- for --
    def _for(self, node: ast.For, name: str, it: device_range) -> Exit | None:
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

        names = [*dict.fromkeys([*assigned(node.body), name])]
        if breaks(node.body):
            return self._for_while(node, name, names, lost, lo, hi, step, it)

        def build(carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
            region, loc = Block([kind], [name]), self.b.loc
            for v in carried.inits:
                region.add_arg(v.value.type)

            def iteration() -> None:
                self._bind(carried, region.args[1:])
                self.env[name] = tensor(region.args[0])
                self._body(node)
                self.b.op("yield", *self._next(node, carried, bad))

            self.in_block(region, iteration)
            self.b.loc = loc  # the loop's line, not that of its last statement
            return self.b.op("for", lo.value, hi.value, step.value, *(v.value for v in carried.inits),
                             regions=[region], **it.attrs).results

        bounds = [unwrap(x) for x in (it.lo, it.hi, it.step)]
        known = name not in self.env and all(type(x) is int or is_held(x) for x in bounds) and range(*bounds)
        done = self._settle(node, names, lost, build)
        if known and isinstance(self.env[name], Undefined):
            self.env[name] = held(known[-1])  # where it surely runs, as in Python
        return done

    def _for_while(self, node: ast.For, name: str, names: list[str], lost: dict[str, Undefined], lo: tensor, hi: tensor,
                   step: tensor, it: device_range) -> Exit | None:
        down = isinstance(unwrap(it.step), int) and unwrap(it.step) < 0
        outer = self.env.get(COUNTER)
        self.env = {**self.env, COUNTER: lo}

        def going() -> tensor:
            return sem.binary(self.b, ">" if down else "<", self.env[COUNTER], hi)

        def iteration() -> Exit | None:
            counter = self.env[name] = self.env[COUNTER]
            done = self._body(node)
            self.env[COUNTER] = sem.binary(self.b, "+", counter, step)
            return done

        done = self._settle(node, [*names, COUNTER], lost, partial(self._while, node, going, iteration, [], []))
        self.env = {n: v for n, v in self.env.items() if n != COUNTER} | ({} if outer is None else {COUNTER: outer})
        return done

    def _bounds(self, node: ast.For, it: device_range) -> list[tensor]:
        bounds = [unwrap(x) for x in (it.lo, it.hi, it.step)]
        for what, x in zip(("start", "end", "step"), bounds):
            if not isinstance(x, (int, tensor)) or isinstance(x, tensor) and (x.shape or not (
                    isinstance(x.elem, DType) and x.elem.is_int())):
                raise self.fail(node.iter, f"range: the {what} must be an integer scalar, found {describe(x)}")
        if bounds[2] == 0:
            raise self.fail(node.iter, "range: the step must not be 0")
        kind: Any = int32
        for x in bounds:
            t: Any = x.elem if isinstance(x, tensor) else sem.literal_type(int(x))
            kind = sem.promote(kind, False, t, not isinstance(x, tensor))
        return [sem.cast(self.b, sem.to_tensor(self.b, x, None if isinstance(x, tensor) else kind), kind)
                for x in bounds]

    # -- while --
    def stmt_While(self, node: ast.While) -> Exit | None:
        if node.orelse:
            raise self.fail(node, "'while ... else' is not part of the tile language")
        tested = assigned([node.test])
        constant: list[bool] = []
        done = self._settle(node, assigned([node.test, *node.body]), {}, partial(
            self._while, node, lambda: self.condition(node.test), lambda: self._body(node), tested, constant))
        if constant == [True] and not breaks(node.body):
            raise self.fail(node.test, "the condition is always true, so the loop never ends: there is no 'break'")
        return done

    def _while(self, node: ast.For | ast.While, going: Callable[[], Any], iteration: Callable[[], Exit | None],
               tested: list[str], constant: list[bool], carried: Carried, bad: dict[str, Undefined]) -> list[Value]:
        kinds = [v.value.type for v in carried.inits]
        before, body = Block(kinds), Block(kinds)

        def test() -> None:
            self._bind(carried, before.args)
            if BROKE in carried.trees:
                ended = sem.unary(self.b, "not", self.env[BROKE])
                cond = self.short_circuit(node, True, ended, going, tested, truth=True)
            else:
                cond = going()
            constant[:] = [] if isinstance(cond, tensor) else [bool(cond)]
            self.b.op("condition", sem.to_tensor(self.b, cond if not constant else constant[0]).value,
                      *self._next(node, carried, bad))

        def run() -> None:
            self._bind(carried, body.args)
            self._finish(iteration())
            self.b.op("yield", *self._next(node, carried, bad))

        loc = self.b.loc
        self.in_block(before, test)
        for n in tested:
            if n not in carried.trees and n not in carried.fixed:
                self.env[n] = Undefined(f"is bound by the condition at line {node.lineno}: give it a value of its "
                                        "type before the loop")
        self.in_block(body, run)
        self.b.loc = loc
        return self.b.op("while", *(v.value for v in carried.inits), regions=[before, body]).results
