"""Runs of elementwise ops: emitted a pair of elements at a time through all of them, not op by op."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilejit.ir import Op, Value
from tilejit.ir.types import Tile, elem_of, fp32
from tilejit.ptx.emit import EMITTERS, Emitter
from tilejit.ptx.places import renamed, source_layout

#: Registers that go through a run together: conversions to narrow floats take two.
_PAIR = 2
#: Tiles of fewer registers a thread are emitted op by op.
_LEAST = 8
#: A run of so many ops takes about as long as storing a piece does.
_LONG = 8


def step(e: Emitter, op: Op) -> bool:
    """Note an op in the current run and return True; or emit the run, if this op may not overtake it."""
    traits = op.define.traits
    if ("elementwise" in traits or "permutes" in traits) and _joins(e, op):
        e.run[op.result] = op
        return True
    if e.run:
        free = "registers" in traits and e.run.keys().isdisjoint(op.operands)
        if not free and (op.regions or not op.define.pure or _tiles(op)):
            finish(e, op)
    return False


def _tiles(op: Op) -> bool:
    for v in op.operands:
        if type(v.type) is Tile:
            return True
    return False


def _joins(e: Emitter, op: Op) -> bool:
    if "permutes" in op.define.traits and op.operands[0] in e.run:
        return _sunk(op.operands[0]) and _sunk(op.result)
    traits = op.define.traits
    if "elementwise" not in traits or "packs" in traits or not op.define.pure \
            or type(op.results[0].type) is not Tile or not op.operands \
            or [v for v in op.operands if type(v.type) is not Tile]:
        return False
    # Many registers for one, found again, or left out together.
    if not op.attrs.keys().isdisjoint(("runs", "ragged", "ones")) or e.steps.by_roots(op):
        return False
    count = e.count(op.results[0].type)
    if count < _LEAST or count % _PAIR:
        return False
    if not e.run.keys().isdisjoint(op.operands):
        return not [v for v in op.operands if v not in e.run and "" in e.values[v]]
    different = set(zip(*map(e.get, op.operands)))
    return len(different) == count and not [x for x in different if "" in x]  # copies are computed once, whole


def _sunk(v: Value) -> bool:
    return isinstance(v.op, Op) and "by_pieces" in v.op.attrs


def finish(e: Emitter, op: Op | None = None) -> None:
    """Emit what the run computes for ops outside of it; all but what the store that follows asks for by pieces."""
    stored = op.operands[1] if op is not None and "pieces" in op.define.traits else None
    inside = set(e.run.values())
    needed = [v for v in e.run if not inside.issuperset([user for user, _ in e.uses.get(v, ())])
              and not (v is stored and _sunk(v))]
    for v in [v for v in needed if "permutes" in e.run[v].define.traits]:  # its store comes later than others ask
        e.set(v, parts(e, v)(range(v.layout.num_registers)))
        needed.remove(v)
    while needed:
        layout = needed[0].layout
        alike = [v for v in needed if v.layout == layout]
        for v, regs in zip(alike, prepared(e, alike)(range(layout.num_registers))):
            e.set(v, regs)
        needed = [v for v in needed if v not in alike]
    if stored is None:
        e.run.clear()


def parts(e: Emitter, v: Value) -> Callable[[Sequence[int]], list[str]]:
    if v in e.values:
        regs = e.get(v)
        return lambda registers: [regs[i] for i in registers]
    op = e.run[v]
    if "permutes" in op.define.traits:
        inner, source = parts(e, op.operands[0]), renamed(source_layout(op), v.layout, op)
        return lambda registers: inner([source[i] for i in registers])
    compute = prepared(e, [v], pinned=elem_of(v.type).bits >= 32 or len(e.run) >= _LONG)
    return lambda registers: compute(registers)[0]


def prepared(e: Emitter, values: list[Value], pinned: bool = False) -> Callable[[Sequence[int]], list[list[str]]]:
    """A function that emits what computes some registers of values of one layout, through the run."""
    wanted = set(values)
    for v in reversed(e.run):
        if v in wanted and v not in e.values:
            wanted.update(e.run[v].operands)
    ops = [op for v, op in e.run.items() if v in wanted and v not in e.values]
    leaves = {v: e.get(v) for v in dict.fromkeys((*values, *(x for op in ops for x in op.operands))) if v in e.values}
    packed: list[int] = []  # which of the values have a register with a pair, too

    def make(*regs: str) -> list[str]:
        for i, leaf in enumerate(leaves):
            e.set(leaf, list(regs[_PAIR * i:_PAIR * (i + 1)]))
        for op in ops:
            EMITTERS[op.name](e, op)
        both = [e.packed.pop(tuple(e.get(v)), "") for v in values]
        packed[:] = [i for i, r in enumerate(both) if r]
        return [*(r for v in values for r in e.get(v)), *filter(None, both)]

    for op in ops:
        e.at(op)
    pair = e.p.template(make, _PAIR * len(leaves))
    for op in ops:
        del e.values[op.result]
    e.values.update(leaves)

    def compute(registers: Sequence[int]) -> list[list[str]]:
        now = _pinned(e, leaves) if pinned else leaves
        columns = [map(regs.__getitem__, registers[i::_PAIR]) for regs in now.values() for i in range(_PAIR)]
        made = pair(list(zip(*columns)))
        for regs in made:
            e.packed.update((tuple(regs[_PAIR * i:_PAIR * (i + 1)]), both)
                            for i, both in zip(packed, regs[_PAIR * len(values):]))
        return [[r for regs in made for r in regs[_PAIR * i:_PAIR * (i + 1)]] for i in range(len(values))]

    return compute


def _pinned(e: Emitter, leaves: dict[Value, list[str]]) -> dict[Value, list[str]]:
    """fp32 constants that depend on the time: x * x + x is even."""
    p, out = e.p, dict(leaves)
    constants = [v for v in leaves if isinstance(v.op, Op) and v.op.name == "const" and elem_of(v.type) == fp32]
    if constants:
        now = p.new("b32", "mov.u32", "%clock")
        zero = p.new("b32", "and.b32", p.new("b32", "mad.lo.u32", now, now, now), 1)
    for v in constants:
        bits = p.new("b32", "or.b32", p.new("b32", "mov.b32", leaves[v][0]), zero)
        out[v] = [p.new("f32", "mov.b32", bits)] * len(leaves[v])
    return out
