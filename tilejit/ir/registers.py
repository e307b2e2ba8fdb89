"""How many registers a thread needs at once, from the layouts of the tiles that are alive."""
from __future__ import annotations

from collections.abc import Container

from tilejit.ir.core import Block, Op, Value, listed
from tilejit.ir.types import DType, Pending, Tile, elem_of


def size(v: Value) -> int:
    """32-bit registers of a thread for a tile or sums in flight; 0 for others."""
    t = v.type.tile if type(v.type) is Pending else v.type
    if type(t) is not Tile or t.layout is None:
        return 0
    elem = elem_of(t)
    bits = elem.bits if isinstance(elem, DType) else 64
    return -(-t.layout.num_registers * max(8, bits) // 32)


def small_loads(load: Op) -> int:
    """A thread's instructions for a load, if each is of 4 bytes at most."""
    t, vec = load.result.type, load.attrs.get("vec", 1)
    if not isinstance(t, Tile) or t.layout is None or vec * max(8, t.elem.bits) > 32:  # type: ignore[union-attr]
        return 0
    return t.layout.num_registers // vec


def root(v: Value) -> list[Value]:
    if isinstance(v.op, Op) and "registers" in v.op.define.traits:
        return [r for x in v.op.operands for r in root(x)]
    return [v]


def peak(body: Block, elsewhere: Container[Value] = ()) -> int:
    """The most registers that tiles take at once in a loop's body."""
    steps = [step for step in _runs(body) if step]
    at = {op: i for i, step in enumerate(steps) for op in step}
    ends: dict[Value, int] = {}  # value -> the step of its last use
    for op in body.ops:
        for v in op.operands:
            ends.update((r, max(ends.get(r, 0), at[op])) for r in root(v))
    for op in body.ops:
        if op.name == "dot" and isinstance(op.operands[0].type, Tile):
            used = min((at[x] for x in body.ops if op.result in x.operands), default=len(steps))
            ends.update((r, max(ends[r], used)) for r in root(op.operands[0]))
    inside = {v for op in listed(body) for v in op.results} | set(body.args)
    ends = {v: end for v, end in ends.items() if v not in elsewhere}
    alive = {v for v in ends if v not in inside or v.op is body}
    ends.update((v, len(steps)) for v in ends if v not in inside)
    ends.update((r, len(steps)) for v in body.terminator.operands for r in root(v))
    most = sum(map(size, alive))
    for i, step in enumerate(steps):
        alive -= {v for v in alive if ends[v] <= i}
        alive |= {v for op in step for v in op.results if ends.get(v, 0) > i and root(v) == [v]}
        most = max(most, sum(map(size, alive)))
    return most


def _runs(body: Block) -> list[list[Op]]:
    out: list[list[Op]] = [[]]
    for op in body.ops:
        tile = any(isinstance(v.type, Tile) for v in (*op.operands, *op.results))
        alone = not tile or "elementwise" in op.define.traits
        if "registers" in op.define.traits or alone and op.define.pure:
            out[-1].append(op)
        elif op.define.regions == "fold" and not out[-1] and out[-2:-1] and op.operands[0].op is out[-2][-1]:
            out[-2].append(op)  # a fold's results are folded again as they come
        else:
            out += [[op], []]
    return out
