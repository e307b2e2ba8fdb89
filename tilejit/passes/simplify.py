"""Simplify: the same function with less in it."""
from __future__ import annotations

from typing import Any

from tilejit.ir.core import Block, Function, Op, Value, computes, const_of, edges, replace
from tilejit.ir.dead import drop_dead
from tilejit.ir.evaluate import fold
from tilejit.ir.numeric import constant
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.passes.rules import RULES, defined_by, same_type

_ROUNDS = 16


def simplify(fn: Function) -> Function:
    for _ in range(_ROUNDS):
        narrow = bool(fn.attrs.get("walks") or fn.attrs.get("maxnreg"))
        rewriter = _Rewriter(narrow, fn.attrs.get("num_ctas", 1))
        rewriter.block(fn.body)
        replace(fn.body, rewriter.mapping)
        drop_dead(fn)  # leaves nothing that could be rewritten further
        if not rewriter.again:
            break
    return fn


class _Frame:
    """A block that is being rewritten."""

    __slots__ = ("out", "here", "changes")

    def __init__(self, changes: set[Value] | None):
        self.out: list[Op] = []
        self.here: list[tuple] = []
        self.changes = changes


class _Rewriter:
    """One forward walk (docs/modules.md)."""

    def __init__(self, narrow: bool, ctas: int) -> None:
        self.narrow, self.ctas = narrow, ctas
        self.mapping: dict[Value, Value] = {}
        self.again = False
        self.known: dict[tuple, Op] = {}
        self.frames: list[_Frame] = []
        self.loc: Any = None

    def final(self, v: Value) -> Value:
        while v in self.mapping:
            v = self.mapping[v]
        return v

    def block(self, block: Block, loop: bool = False) -> None:
        frame = _Frame(set(block.args) if loop else None)
        self.frames.append(frame)
        self.ops(block.ops)
        self.frames.pop()
        block.ops = frame.out
        for op in block.ops:
            op.parent = block
        for key in frame.here:
            del self.known[key]

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            self.one(op)
            if op.name == "return":
                self.again |= op is not ops[-1]
                return

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        op = Op(name, list(operands), attrs, loc=self.loc)
        self.one(op)
        return self.final(op.result)

    def constant(self, value: Any, like: Value) -> Value:
        return self.emit("const", value=value, type=like.type)

    def one(self, op: Op) -> None:
        if not self.mapping.keys().isdisjoint(op.operands):
            op.operands = [self.final(v) for v in op.operands]
        outer, self.loc = self.loc, op.loc
        if not (op.regions and self._inlined(op) or self._replaced(op)):
            for region in op.regions:
                self.block(region, op.name == "for")
            if op.name == "for":
                self._invariants(op)
                self._steps_along(op)
            self._stays(op, self.frames[-1])
        self.loc = outer

    def _stays(self, op: Op, frame: _Frame) -> None:
        frame.out.append(op)
        if frame.changes is not None:
            frame.changes.update(op.results)

    def _replaced(self, op: Op) -> bool:
        """Whether a pure op is done with."""
        if not op.define.pure or op.regions or "scheduled" in op.define.traits:
            return False
        new = None
        if len(op.results) == 1:
            new = self._folded(op) or self._spread(op)
            rule = RULES.get(op.name)
            if new is None and rule is not None:
                new = rule(self, op)
                if new is not None and not same_type(new, op.result):
                    new = None
        if new is not None:
            new.name = new.name or op.result.name
            self.mapping[op.result] = new
            return True
        key = computes(op)
        before = self.known.setdefault(key, op)
        if before is not op:
            self.mapping.update(zip(op.results, before.results))
            return True
        at = len(self.frames) - 1
        while (changes := self.frames[at].changes) is not None and changes.isdisjoint(op.operands) and \
                not (self.narrow and _widens(op)):
            at -= 1
        self.frames[at].here.append(key)
        self._stays(op, self.frames[at])
        return True

    def _folded(self, op: Op) -> Value | None:
        values: list[Any] = []
        for v in op.operands:
            values.append(const_of(v))
            if values[-1] is None:
                return None
        t = op.result.type
        elem = elem_of(t) if isinstance(t, (Tile, DType)) else None
        if not values or not isinstance(elem, DType):
            return None
        if "shape" in op.define.traits:
            return self.constant(values[0], op.result) if len(values) == 1 else None
        if "elementwise" not in op.define.traits:
            return None
        result = fold(op, [constant(c, elem_of(v.type)) for c, v in zip(values, op.operands)])
        if result is None:
            return None
        python = bool if elem.family == "bool" else float if elem.is_float else int
        return self.constant(python(result[0]), op.result)

    def _spread(self, op: Op) -> Value | None:
        if "elementwise" not in op.define.traits or not isinstance(op.result.type, Tile):
            return None
        numbers = [defined_by(v, "splat", "const") for v in op.operands]
        if None in numbers or all(x.name == "const" for x in numbers):  # type: ignore[union-attr]
            return None
        scalars = [x.operands[0] if x.name == "splat" else  # type: ignore[union-attr]
                   self.emit("const", value=x.attrs["value"], type=elem_of(x.result.type)) for x in numbers]  # type: ignore[union-attr]
        return self.emit("splat", self.emit(op.name, *scalars, **op.attrs), shape=op.result.type.shape)

    def _inlined(self, op: Op) -> bool:
        if op.name == "if":
            cond = const_of(op.operands[0])
            if cond is None:
                return False
            return self._splice(op, op.regions[0 if cond else 1], [])
        if op.name == "for":
            lo, hi, step = (const_of(v) for v in op.operands[:3])
            if lo is None or hi is None or step is None or step == 0:
                return False
            trips = len(range(lo, hi, step))
            if trips == 0:
                self.mapping.update((e.result, e.init) for e in edges(op) if e.init)
                self.again = True
                return True
            if trips == 1:
                return self._splice(op, op.regions[0], [op.operands[0], *op.operands[op.define.fixed:]])
        return False

    def _splice(self, op: Op, region: Block, args: list[Value]) -> bool:
        end = region.terminator
        if end.name != "yield":
            return False
        self.mapping.update(zip(region.args, args))
        self.ops(region.ops[:-1])
        self.mapping.update(zip(op.results, (self.final(v) for v in end.operands)))
        self.again = True
        return True

    def _invariants(self, op: Op) -> None:
        body = op.regions[0]
        for e in edges(op):
            init, (arg,), (nxt,), res = e.init, e.args, e.ends, e.result
            assert init is not None
            if self.final(nxt) in (arg, init) and res not in self.mapping:
                self.mapping[res] = init
                replace(body, {arg: init})
                self.again |= arg is not init

    def _steps_along(self, op: Op) -> None:
        """A carried integer that moves by the loop's own step is the induction variable and a number (persistent
        kernels count twice).
        """
        body, (lo, _, step) = op.regions[0], op.operands[:3]
        iv = body.args[0]
        for e in edges(op):
            init, (arg,), end = e.init, e.args, self.final(e.ends[0]).op
            assert init is not None
            if arg.type != iv.type or not (isinstance(end, Op) and end.name == "add" and end.parent is body):
                continue
            by = [v for v in end.operands if v is not arg]
            if len(by) != 1 or by[0] is not step and (const_of(step) is None or const_of(by[0]) != const_of(step)):
                continue
            beside = Op("add", [iv, self.emit("sub", init, lo)], loc=end.loc)
            beside.parent = body
            body.ops.insert(0, beside)
            replace(body, {arg: beside.result})
            self.again = True


def _widens(op: Op) -> bool:
    return op.name == "cast" and isinstance(op.result.type, Tile) and \
        (elem_of(op.operands[0].type).bits, elem_of(op.result.type).bits) == (16, 32)
