"""Loads of sequential loops are issued iterations ahead, into registers: an iteration does not wait for memory."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, beside, clone_op, const_of, listed, replace
from tilejit.ir.ahead import Ahead, address_slice, is_volatile, order_problem
from tilejit.ir.bounds import bounds
from tilejit.ir.registers import peak, size, small_loads
from tilejit.ir.types import Tile, int1
from tilejit.passes.copies import pipelined_loops
from tilejit.records import dataclass

#: Registers of a thread for what is under way, and iterations ahead, at most.
REGISTERS, DEPTH = 16, 4
#: Registers of a thread for all tiles of a loop, at most: with more there are too few warps for that to pay.
ALL = 128
#: What part of a loop's instructions moves may be, at most, where its trips are not written out; and how many
#: instructions trips that are written out may have, about.
PART, WRITTEN_OUT = 16, 1500
#: Instructions of a trip, about, up to which ptxas (13.0) writes out four trips itself, their loads side by side.
BY_PTXAS = 36
#: Iterations for each that is loaded ahead, at least: the first ones are waited for as before.
TRIPS = 8
#: Loads of 4 bytes and less of a trip that adds nothing up, from which on it has enough under way: fewer registers
#: leave room for more warps.
MANY = 8


def load_ahead(fn: Function) -> Function:
    pipelined = pipelined_loops(fn)
    for loop in [op for op in listed(fn.body) if op.name == "for" and op not in pipelined]:
        if any("loop" in op.define.traits for op in listed(loop.regions[0])):
            continue
        loads = [x for op in listed(loop.regions[0]) if op.name == "load" if (x := _early(op, loop)) is not None]
        depth = _depth(fn, loop, loads)
        if depth < 1:
            continue
        found = address_slice(loop, [v for x in loads for v in x.needed])
        assert isinstance(found, Ahead)
        if _moves(loop, loads, depth):
            loop.attrs["turns"] = depth + 1
        _Loop(fn, loop, loads, found, depth).rewrite()
        fn.say("ahead", f"loop at {loop.place}: {len(loads)} loads are issued {depth} iterations ahead, into registers",
               loop.place, loads=len(loads), depth=depth)
    return fn


def _moves(loop: Op, loads: list[_Load], depth: int) -> bool:
    """Whether trips are to be written out for what is handed on."""
    each = sum(max(1, size(v)) for op in listed(loop.regions[0]) for v in op.results)
    moved = depth * sum(max(1, size(x.op.result)) for x in loads)
    return PART * moved > each > BY_PTXAS and (depth + 1) * each <= WRITTEN_OUT


@dataclass
class _Load:
    """A load of a loop, and its condition: (value, whether it is to hold)."""

    op: Op
    under: tuple[Value, bool] | None

    @property
    def needed(self) -> list[Value]:
        return [*self.op.operands, *([self.under[0]] if self.under else [])]


def _early(op: Op, loop: Op) -> _Load | None:
    body, block = loop.regions[0], op.parent
    assert block is not None
    under = None
    if block is not body:
        if block.parent is None or block.parent.name != "if" or block.parent.parent is not body:
            return None
        under = block.parent.operands[0], block is block.parent.regions[0]
    found = _Load(op, under)
    if is_volatile(op) or order_problem(op, loop) or not isinstance(address_slice(loop, found.needed), Ahead):
        return None
    return found


def _depth(fn: Function, loop: Op, loads: list[_Load]) -> int:
    if not loads:
        return 0
    if not loop.results and sum(small_loads(x.op) for x in loads) >= MANY:
        return 0
    each = sum(max(1, size(x.op.result), small_loads(x.op)) for x in loads)
    lo, hi = (bounds(v) for v in loop.operands[:2])
    end = loop.operands[1]
    most = fn.arg_attrs[end.index].get("most", hi[1]) if end.op is fn.body else hi[1]
    step = const_of(loop.operands[2])
    trips = TRIPS
    if isinstance(step, int) and step:
        trips = -(-(min(hi[1], most) - lo[0] if step > 0 else lo[1] - hi[0]) // abs(step))
    if trips <= 1:
        return 0
    return min(DEPTH, REGISTERS // each, (ALL - peak(loop.regions[0])) // each, max(1, trips // TRIPS))


class _Loop:
    def __init__(self, fn: Function, loop: Op, loads: list[_Load], found: Ahead, depth: int):
        self.fn, self.loop, self.loads, self.found, self.depth = fn, loop, loads, found, depth
        self.down = isinstance(step := const_of(loop.operands[2]), int) and step < 0

    def rewrite(self) -> None:
        loop, body = self.loop, self.loop.regions[0]
        lo, _, step = loop.operands[:3]
        b = beside(loop)
        at, carried = lo, [e.init for e in self.found.carried if e.init is not None]
        queue: list[Value] = []
        for _ in range(self.depth):
            made, carried = self.issue(at, carried, b)
            queue += made
            at = b("add", at, step)
        loop.operands += [*carried, *queue]
        args = [body.add_arg(v.type) for v in (*carried, *queue)]
        b = Builder(body, 0, loop.loc)
        at = b("add", body.args[0], b("mul", step, b.const(self.depth, step.type)))
        made, moved = self.issue(at, args[:len(carried)], b)
        queued = args[len(carried):]
        now, later = queued[:len(made)], [*queued[len(made):], *made]
        for v, x in zip(now, self.loads):
            v.name = x.op.result.name
        replace(body, {x.op.result: v for x, v in zip(self.loads, now)})
        for x in self.loads:
            x.op.block.ops.remove(x.op)
        body.terminator.operands += [*moved, *later]
        loop.add_results(v.type for v in (*carried, *queue))

    def issue(self, at: Value, carried: list[Value], b: Builder) -> tuple[list[Value], list[Value]]:
        body = self.loop.regions[0]
        env = {body.args[0]: at, **{e.args[0]: now for e, now in zip(self.found.carried, carried)}}
        inside = b("cmp", at, self.loop.operands[1], pred="gt" if self.down else "lt")
        for op in self.found.ops:
            b.insert(clone_op(op, env))
        made = [self.load(x, inside, env, b) for x in self.loads]
        for op in self.found.steps:
            if op.result not in env:
                b.insert(clone_op(op, env))
        return made, [env.get(v, v) for e in self.found.carried for v in e.ends[:1]]

    def load(self, x: _Load, inside: Value, env: dict[Value, Value], b: Builder) -> Value:
        pointer, *masked = [env.get(v, v) for v in x.op.operands]
        if x.under is not None:
            held = env.get(x.under[0], x.under[0])
            inside = b("and", inside, held if x.under[1] else b("not", held))
        t = x.op.result.type
        mask = inside
        if isinstance(t, Tile):
            mask = b.op("splat", inside, shape=t.shape, result_types=[Tile(t.shape, int1, t.layout)]).result
        if masked:
            mask = b("and", mask, masked[0])
        return b("load", pointer, mask, *masked[1:], **x.op.attrs)
