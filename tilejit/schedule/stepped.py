"""Addresses and 64-bit integers that a loop computes from its index go from trip to trip, a sum further each time."""
from __future__ import annotations

from typing import Union

from tilejit.ir import Builder, Function, Op, Value, beside, clone_op, const_of, listed, replace, uses
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import DType, Ptr, Tile, elem_of, int32, int64

#: Instructions of an op on 64 bits; those that are not here take none.
COSTS = {"mul": 3, "add": 2, "sub": 2, "ptr_add": 3, "cast": 1}
#: Instructions that a value takes, at least, to be carried, and values that one loop carries so, at most, each in two
#: registers.
LEAST, MOST = 4, 8
#: Instructions of all trips of a loop, about, up to which ptxas writes it out.
WRITTEN_OUT = 1500
#: How far a value goes in a trip: a number, or a scalar.
Pace = Union[int, Value]


def step_addresses(fn: Function) -> Function:
    loops = [op for op in listed(fn.body) if op.name == "for" and not _written_out(op)]
    if sum(_Loop(loop).rewrite() for loop in reversed(loops)):
        drop_dead(fn)
    return fn


def _same(op: Op) -> bool:
    """Whether a multiple of the index goes through an op as it is: the same numbers, in another shape at most."""
    return "keeps_sign" in op.define.traits and "collective" not in op.define.traits and (
        "shape" in op.define.traits or "identity" in op.define.traits)


def _written_out(loop: Op) -> bool:
    """Whether ptxas writes all trips of a loop one behind the other."""
    lo, hi, step = map(const_of, loop.operands[:3])
    if lo is None or hi is None or not step:
        return False
    each = sum(v.type.layout.num_registers if isinstance(v.type, Tile) and v.type.layout else 1
               for op in listed(loop.regions[0]) if not _same(op) for v in op.results)
    return -(-(hi - lo) // step) * each <= WRITTEN_OUT


class _Loop:
    def __init__(self, loop: Op):
        self.loop, self.body = loop, loop.regions[0]
        self.inner, own = {op: None for op in listed(self.body)}, {self.body}
        self.ops: dict[Op, None] = {}  # all but those of loops in it
        for op in self.inner:
            if op.parent in own:
                self.ops[op] = None
                own.update(op.regions if "loop" not in op.define.traits else ())
        self.known: dict[Value, str] = {self.body.args[0]: "moves"}

    def kind(self, v: Value) -> str:
        """Whether a value `stays` through the loop, `moves` as far in every trip, or does neither (empty)."""
        if v not in self.known:
            self.known[v] = self._kind(v)
        return self.known[v]

    def _kind(self, v: Value) -> str:
        op = v.op
        if v.owner not in self.inner and op is not self.body:
            return "stays"
        if type(op) is not Op or not op.define.pure or op.regions or op.results != [v] or op not in self.ops or \
                type(v.type) not in (Tile, DType, Ptr):
            return ""
        kinds = [self.kind(x) for x in op.operands]
        if "" in kinds:
            return ""
        if "moves" not in kinds:
            return "stays" if "cheap" in op.define.traits or op.name == "const" else ""
        return "moves" if _linear(op, kinds) else ""

    def rewrite(self) -> bool:
        moves = [v for op in self.ops for v in op.results if self.kind(v) == "moves" and _wide(v)
                 and (not isinstance(v.type, Tile) or isinstance(v.type.elem, Ptr))]
        table = uses(self.body) if moves else {}
        ends = [v for v in moves
                if any([self.known.get(r) for r in op.results] != ["moves"] for op, _ in table.get(v, ()))]
        found = sorted((v for v in ends if self.cost(v) >= LEAST), key=self.cost, reverse=True)[:MOST]
        replace(self.body, {v: self._carry(v) for v in found})
        return bool(found)

    def chain(self, v: Value) -> list[Op]:
        wanted: dict[Op, None] = {}

        def visit(v: Value) -> None:
            if isinstance(v.op, Op) and v.op in self.ops and v.op not in wanted:
                for x in v.op.operands:
                    visit(x)
                wanted[v.op] = None

        visit(v)
        return [*wanted]

    def cost(self, v: Value) -> int:
        return sum(COSTS.get(op.name, 0) for op in self.chain(v) if self.kind(op.result) == "moves")

    def _carry(self, v: Value) -> Value:
        """The block argument that is to take a value's place."""
        loop, body, b = self.loop, self.body, beside(self.loop)
        env = {body.args[0]: loop.operands[0]}
        for op in self.chain(v):
            b.insert(clone_op(op, env))
        step = const_of(loop.operands[2]) or loop.operands[2]
        if isinstance(step, Value) and not _wide(step):
            step = b("cast", step, dtype=int64)
        pace = _fold("mul", self.pace(v, env, b), step, b)
        by = b.const(pace, int64) if isinstance(pace, int) else pace
        loop.operands.append(env[v])
        arg = body.add_arg(v.type, v.name)
        loop.add_results([v.type])
        end = beside(body.terminator)
        if isinstance(v.type, Tile):
            by = end.op("splat", by, result_types=[Tile(v.type.shape, int64, v.type.layout)], shape=v.type.shape).result
        name = "ptr_add" if isinstance(elem_of(v.type), Ptr) else "add"
        body.terminator.operands.append(end.op(name, arg, by, result_types=[v.type]).result)
        return arg

    def pace(self, v: Value, env: dict[Value, Value], b: Builder) -> Pace:
        """How far a value goes while the index goes on by one, in elements of a pointer."""
        if v is self.body.args[0]:
            return 1
        if self.kind(v) == "stays":
            return 0
        op = v.maker
        if op.name == "mul":
            moves, stays = op.operands if self.kind(op.operands[0]) == "moves" else op.operands[::-1]
            number = _number(stays)
            assert number is not None
            number = number if isinstance(number, int) else env.get(number, number)
            return _fold("mul", self.pace(moves, env, b), number, b)
        first, *more = (self.pace(x, env, b) for x in op.operands)
        for pace in more:
            first = _fold("add", first, _fold("mul", pace, -1, b) if op.name == "sub" else pace, b)
        return first


def _linear(op: Op, kinds: list[str]) -> bool:
    """Whether the result of an op on what stays or moves goes as far in every trip."""
    tile, wide = isinstance(op.result.type, Tile), _wide(op.result)
    if _same(op) or op.name == "ptr_add":
        return wide and all(_wide(x) for x, k in zip(op.operands, kinds) if k == "moves")
    if op.name == "cast":
        return wide and not tile and elem_of(op.operands[0].type) in (int32, int64)
    if op.name in ("add", "sub"):
        return wide or op.result.type == int32
    return op.name == "mul" and wide and "stays" in kinds and _number(op.operands[kinds.index("stays")]) is not None


def _wide(v: Value) -> bool:
    t = elem_of(v.type) if isinstance(v.type, (Tile, DType, Ptr)) else None
    return isinstance(t, Ptr) or isinstance(t, DType) and t == int64


def _number(v: Value) -> Pace | None:
    """The scalar that is everywhere in a value, a number if it is known."""
    while isinstance(v.type, Tile) and isinstance(v.op, Op) and _same(v.op):
        v = v.op.operands[0]
    known = const_of(v)
    return known if isinstance(known, int) else None if isinstance(v.type, Tile) else v


def _fold(name: str, x: Pace, y: Pace, b: Builder) -> Pace:
    """A sum (`add`) or a product (`mul`), a number where it is known."""
    if isinstance(x, int) and isinstance(y, int):
        return x * y if name == "mul" else x + y
    if name == "mul" and 0 in (x, y):
        return 0
    nothing = int(name == "mul")
    if nothing in (x, y):
        return y if x == nothing else x
    return b(name, *(b.const(p, int64) if isinstance(p, int) else p for p in (x, y)))
