"""Strip-mining of wide rows: a row that lies in shared memory is worked on strip by strip, once for each reduction.

    %x = local_load %row : bf16[16384]          %x0 = local_load %row {at=(0,)} : bf16[2048]
    %v = cast %x                                %v0 = cast %x0
    %m = reduce %v                              %x1 = local_load %row {at=(2048,)} : bf16[2048]
    %s = sub %v, splat %m              ->       %v1 = cast %x1;  %a1 = maximum %v0, %v1;  ..
    store %p, %s                                %m = reduce %a7
                                                %x0 = local_load %row {at=(0,)};  ..;  store %p0, %s0;  ..

A thread holds a strip at a time, whatever the row's width, and nothing of it while it waits for the others in a
reduction: more programs share a multiprocessor, and 16-bit rows stay what they are. Reductions of which none needs
another one share a pass over the row. Sums of a thread's elements are by position in the strip, strip after strip.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir import Block, Builder, Function, Op, Value, walk
from tilejit.ir.ahead import argument_of, may_alias
from tilejit.ir.types import Tile
from tilejit.layout.linear import LinearLayout

#: Elements of a row a thread from which on it is worked on in strips: fewer are held at less cost.
LEAST = 32
#: Registers that a thread then has at least, where more programs would find room on a multiprocessor.
REGISTERS = 64
#: Bytes of a strip a thread: one access of shared memory.
STRIP = 16


def strip_rows(fn: Function, report: list[str]) -> None:
    """Work on wide rows in strips, in place; `report` gets a line for each row."""
    stores = [op for op in walk(fn.body) if "write" in op.define.effects]
    for block in {id(op.parent): op.parent for op in walk(fn.body) if op.name == "local_load"}.values():
        assert block is not None
        for load in [op for op in block.ops if op.name == "local_load" and _is_wide(op.result)]:
            if load.parent is block and load in block.ops:
                strips = _Strips(block, load, stores)
                if strips.legal():
                    strips.write()
                    fn.attrs["resident_registers"] = REGISTERS
                    report.append(f"{load.result.name or 'a row'} at {load.loc.short() if load.loc else '?'} stays in "
                                  f"shared memory: {strips.count} strips of {strips.size}, read by each of "
                                  f"{strips.passes} passes")


def _is_wide(v: Value) -> bool:
    t = v.type
    return isinstance(t, Tile) and t.layout is not None and len(t.shape) == 1 and t.layout.num_registers >= LEAST


class _Strips:
    """What follows from a row in its block, written strip by strip."""

    def __init__(self, block: Block, load: Op, stores: Sequence[Op]):
        self.block, self.load, self.stores = block, load, stores
        row = load.result.type
        assert isinstance(row, Tile) and row.layout is not None
        self.shape, self.layout = row.shape, row.layout
        self.count = max(1, row.layout.num_registers * max(1, row.elem.bits // 8) // STRIP)
        self.size = row.shape[0] // self.count
        at = block.ops.index(load)
        self.begin = at
        ends = (i for i, op in enumerate(block.ops[at:], at) if "terminator" in op.define.traits
                or op.name == "dot_wait" or op.regions and op.name not in ("reduce", "elect"))
        self.end = next(ends, len(block.ops))
        self.passes = 0

    def wide(self, v: Value) -> bool:
        """Whether a value is a tile like the row, element for element."""
        return isinstance(v.type, Tile) and v.type.shape == self.shape and v.type.layout == self.layout

    def legal(self) -> bool:
        """Whether all that follows from the row can be done in strips, and it is read behind a reduction."""
        try:
            self.part: LinearLayout = self.layout.part(0, self.size)
        except ValueError:
            return False
        if self.count < 2:
            return False
        inside = self.block.ops[self.begin:self.end]
        sinks = [op for op in inside if self.is_sink(op)]
        made = {r for op in inside for r in op.results if self.wide(r)}
        if not any(op.name == "reduce" for op in sinks) or len(sinks) < 2:
            return False
        for op in inside:
            if op in sinks:
                if op.name == "reduce" and not all("elementwise" in x.define.traits or x.name in ("const", "yield")
                                                   for x in op.regions[0].ops):
                    return False
                if not all(self.wide(v) for v in op.operands):
                    return False
            elif any(v in made for v in op.operands) and not (op.results and self.wide(op.results[0]) and (
                    op.name == "load" or "elementwise" in op.define.traits and op.define.pure)):
                return False
        after = {v for op in self.block.ops[self.end:] for x in (op, *(y for r in op.regions for y in walk(r)))
                 for v in x.operands}
        return not after & made and all(self.can(v, set()) for op in sinks for v in op.operands)

    def is_sink(self, op: Op) -> bool:
        return op.name in ("reduce", "store") and any(self.wide(v) for v in op.operands)

    def can(self, v: Value, seen: set[Value]) -> bool:
        """Whether a strip of a value can be computed where it is needed."""
        op = v.op
        if v in seen or not self.wide(v):
            return True
        seen.add(v)
        if not isinstance(op, Op):
            return False
        if op.name == "load":
            source = argument_of(op.operands[0])
            if op.attrs.get("volatile") or op.attrs.get("ahead") or any(may_alias(source, x) for x in self.stores):
                return False
        elif op.name == "local_load":
            return op.parent is self.block and self.begin <= self.block.ops.index(op) < self.end or op is self.load
        elif not op.define.pure or not ("elementwise" in op.define.traits or "registers" in op.define.traits and
                                        not any(isinstance(x.type, Tile) for x in op.operands)):
            return False             # (constants, ranges and splats are those of a strip)
        return all(self.can(x, seen) for x in op.operands)

    # -- writing ----------------------------------------------------------------------------------------------
    def write(self) -> None:
        """Put the strips in place of the row."""
        ops = self.block.ops
        inside, rest = ops[self.begin:self.end], ops[self.end:]
        self.block.ops = ops[:self.begin]
        b = Builder(self.block)
        waiting: list[Op] = []               # sinks of the next pass, and the slots that are given back behind it
        given: list[Op] = []
        for op in inside:
            if self.is_sink(op):
                if op.name == "reduce" and any(self.follows(op, x) for x in waiting) or (
                        op.name == "store" and any(x.name == "reduce" and self.follows(op, x) for x in waiting)):
                    self.one_pass(waiting, b)
                    waiting = []
                waiting.append(op)
            elif op.name == "mbar_arrive":
                given.append(op)
            elif not any(self.wide(r) for r in op.results):
                if any(v.op in waiting for v in op.operands) or not op.define.pure:
                    self.one_pass(waiting, b)
                    waiting = []
                b.insert(op)
        self.one_pass(waiting, b)
        for op in given:
            b.insert(op)
        self.block.ops += rest

    def follows(self, op: Op, other: Op) -> bool:
        """Whether an op needs what another one gives, through ops of this stretch."""
        work, seen = list(op.operands), set()
        while work:
            v = work.pop()
            if v in seen or not isinstance(v.op, Op):
                continue
            seen.add(v)
            if v.op is other:
                return True
            work += v.op.operands
        return False

    def one_pass(self, sinks: list[Op], b: Builder) -> None:
        """All strips of the row, one after another, for ops of which none needs another one."""
        if not sinks:
            return
        self.passes += 1
        sums: dict[Op, list[Value]] = {}
        for i in range(self.count):
            made: dict[Value, Value] = {}
            for op in sinks:
                b.loc = op.loc
                values = [self.strip(v, i, made, b) for v in op.operands]
                if op.name == "store":
                    b.insert(Op(op.name, values, op.attrs, None, None, op.loc))
                else:
                    sums[op] = self.folded(op, sums[op], values, b) if i else values
        for op, values in sums.items():
            op.operands = values
            b.insert(op)

    def strip(self, v: Value, i: int, made: dict[Value, Value], b: Builder) -> Value:
        """Strip i of a value; a value that is no tile, as it is."""
        if not self.wide(v):
            return v
        if v not in made:
            op, t = v.op, Tile((self.size,), v.type.elem, self.part)  # type: ignore[union-attr]
            assert isinstance(op, Op)
            attrs = dict(op.attrs)
            if op.name == "arange":
                attrs["end"] = attrs["start"] + (i + 1) * self.size
                attrs["start"] += i * self.size
            elif op.name == "local_load":
                attrs["at"] = (i * self.size,)
            attrs.update({k: t.shape for k in ("shape",) if k in attrs} | {k: t for k in ("type",) if k in attrs})
            new = Op(op.name, [self.strip(x, i, made, b) for x in op.operands], attrs, None, [t], op.loc)
            b.insert(new)
            new.result.name = v.name
            made[v] = new.result
        return made[v]

    def folded(self, op: Op, left: list[Value], right: list[Value], b: Builder) -> list[Value]:
        """The reduction's region on two strips, element by element."""
        region = op.regions[0]
        env = dict(zip(region.args, [*left, *right]))
        for x in region.ops[:-1]:
            types = [Tile((self.size,), r.type, self.part) for r in x.results]  # type: ignore[arg-type]
            attrs = dict(x.attrs)
            if x.name == "const":
                attrs["type"] = types[0]
            new = Op(x.name, [env[v] for v in x.operands], attrs, None, list(types), x.loc)
            b.insert(new)
            env.update(zip(x.results, new.results))
        return [env[v] for v in region.terminator.operands]
