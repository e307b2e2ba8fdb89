"""Tiles that a loop only adds up and that are summed behind it are added up in smaller tiles."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, beside, listed, total_warps, uses
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import DType, Tile, int32
from tilejit.passes.axis import analyse
from tilejit.passes.chunks import ELEMENTS, REGISTERS, loaded, loads_of
from tilejit.passes.parts import Group
from tilejit.passes.rules import const_of

#: What adds to a tile -> the operand that is the tile (None: either), and the reduction that it is summed by.
_ADDS: dict[str, tuple[int | None, str]] = {
    "add": (None, "add"), "fma": (2, "add"), "maximum": (None, "maximum"), "minimum": (None, "minimum")}


def shrink_totals(fn: Function) -> Function:
    threads, changed = 32 * total_warps(fn), False
    loops = [op for op in listed(fn.body) if op.name == "for" and not op.attrs.get("num_stages")
             and not any("dot" in x.name for x in listed(op.regions[0]))]
    for loop in loops if fn.attrs.get("num_ctas", 1) == 1 else ():
        if any(isinstance(a.type, Tile) for a in loop.regions[0].args):
            facts = analyse(fn)
            body = loop.regions[0]
            carried = [a.type for a in body.args if isinstance(a.type, Tile) and isinstance(a.type.elem, DType)]
            taken = sum(t.numel // threads * max(1, t.elem.bits // 32) for t in carried)
            taken += sum(loaded(op, threads, facts) for op in loads_of(body))
            table = uses(fn.body)
            found = [i for i in range(len(loop.results)) if adds_up(loop, i, table)] if taken > REGISTERS else []
            changed |= bool(found) and _Totals(fn, loop, found, threads).write()
    if changed:
        drop_dead(fn)
    return fn


def adds_up(loop: Op, i: int, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    """Whether a carried tile starts as nothing, is only added to, and only summed behind the loop."""
    body, init = loop.regions[0], loop.operands[3 + i]
    carried, end, t = body.args[1 + i], body.terminator.operands[i], init.type
    if not isinstance(t, Tile) or len(t.shape) != 1:
        return False
    adds = table.get(carried, [])
    if len(adds) != 1 or adds[0][0].parent is not body or adds[0][0].result is not end or len(table.get(end, ())) != 1:
        return False
    op, index = adds[0]
    place, fold = _ADDS.get(op.name, (None, ""))
    start = const_of(init)
    if not fold or place not in (None, index) or start is None or fold == "add" and start != 0:
        return False
    return all(user.name == "reduce" and len(user.operands) == 1 and len(user.regions[0].ops) == 2
               and user.regions[0].ops[0].name == fold for user, _ in table.get(loop.results[i], ()))


class _Totals(Group):
    def __init__(self, fn: Function, loop: Op, which: list[int], threads: int):
        super().__init__(fn, loop.regions[0])
        self.loop_op, self.which = loop, which
        body = loop.regions[0]
        self.adds = [body.terminator.operands[i].op for i in which]
        self.carried = [body.args[1 + i] for i in which]
        shape = self.carried[0].tile.shape
        self.count = shape[0] // (ELEMENTS * threads)
        self.alike = all(a.tile.shape == shape for a in self.carried)

    def write(self) -> bool:
        body, where = self.block, self.adds[0].place  # type: ignore[union-attr]
        if self.count < 2 or not self.alike or any("write" in op.define.effects for op in listed(body)):
            return False
        if any(self.need(v, (0, 0)) for op in self.adds for v in op.operands if v not in self.carried):  # type: ignore[union-attr]
            return False
        table = uses(self.fn.body)
        inside = {*self.members, *self.adds}
        if any(op.define.effects and user not in inside for op in self.members if isinstance(op, Op)
               for v in op.results for user, _ in table[v]):
            return False
        small = [Tile((a.tile.shape[0] // self.count,), a.tile.elem) for a in self.carried]
        region = Block([int32, *small], ["chunk", *(a.name for a in self.carried)])
        inner = Builder(region)
        parts = self.parts(region.args[0], inner)
        parts.update(((v, (0, 0)), part) for v, part in zip(self.carried, region.args[1:]))
        ends = []
        for op in self.adds:
            assert isinstance(op, Op)
            inner.loc = op.loc
            ends.append(inner.op(op.name, *(parts.get((v, (0, 0)), v) for v in op.operands), **op.attrs).result)
        inner.op("yield", *ends)
        self.retype(small)
        b = Builder(body, max(body.ops.index(op) for op in self.adds) + 1, self.adds[0].loc)  # type: ignore
        totals = b.op("for", b.const(0, int32), b.const(self.count, int32), b.const(1, int32), *self.carried,
                      regions=[region]).results
        for i, total in zip(self.which, totals):
            body.terminator.operands[i] = total
        body.ops = [op for op in body.ops if op not in self.adds]
        self.fn.say("totals", f"sums at {where}: in {self.count} chunks, whose elements have registers", where,
                    chunks=self.count)
        return True

    def retype(self, small: list[Tile]) -> None:
        loop = self.loop_op
        b = beside(loop)
        for i, t in zip(self.which, small):
            loop.operands[3 + i] = b.const(const_of(loop.operands[3 + i]), t)
            loop.regions[0].args[1 + i].type = loop.results[i].type = t
