"""What follows from a row that lies in shared memory, and whether it can be done strip by strip."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir import Block, Op, Value, read
from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.types import Tile, elem_of
from tilejit.layout.clusters import strip_size
from tilejit.schedule.row_end import RowEnd
from tilejit.schedule.strip import Row, from_start

#: Bytes of a strip a thread: one access of shared memory. Elements of one where threads hold single elements of rows
#: that begin anywhere: what the last strip costs more, for its masks, is so much less of a row.
STRIP, SINGLE = 16, 2


class Stretch:
    """What follows from a row in its block, from one op to another."""

    def __init__(self, block: Block, load: Op, stores: Sequence[Op], ctas: int, fuses: bool):
        self.block, self.load, self.stores, self.fuses = block, load, stores, fuses
        t, layout = load.result.tile, load.result.layout
        self.alone, turn = ctas == 1, strip_size(layout, ctas)
        size = max(1, t.elem.bits // 8)
        self.each = STRIP // size  # elements of a thread in a strip
        if not turn and not self.aligned() and layout.contiguous_registers(0) * size < STRIP:
            self.each = min(SINGLE, self.each)
        self.at_once = STRIP // size // self.each  # such strips as one
        count = max(1, layout.num_registers // self.each)
        if turn:  # a strip of each CTA at least
            count = min(count, t.shape[0] // turn // ctas)
        self.row = Row(t.shape, layout, count, ctas if turn else 1)
        at = self.begin = block.ops.index(load)
        ends = (i for i, op in enumerate(block.ops[at:], at) if "terminator" in op.define.traits
                or op.name == "dot_wait" or op.regions and op.name not in ("reduce", "cluster_fold", "elect"))
        self.end = next(ends, len(block.ops))
        self.ends = RowEnd(block.ops[at:self.end], self.row.wide)
        self.back: Op | None = None
        self.side_by_side = False

    def aligned(self) -> bool:
        """Whether the row begins with 16 bytes."""
        view = self.load.operands[0].op
        return not isinstance(view, Op) or view.name != "row_view"

    def legal(self) -> bool:
        """Whether all that follows from the row can be done in strips, and it is read behind a reduction."""
        inside = self.block.ops[self.begin:self.end]
        self.back = next((op for op in inside if self.is_sink(op) and self.goes_back(op)), None)
        self.side_by_side = self.may_be_side_by_side(inside)
        if self.row.count < 2 or self.row.part is None and not self.side_by_side:
            return False
        sinks = [op for op in inside if self.is_sink(op)]
        made = {r for op in inside for r in op.results if self.row.wide(r)}
        if not any(op.name == "reduce" for op in sinks) or len(sinks) < 2:
            return False
        for op in inside:
            if op in sinks:
                if op.name == "reduce" and not all("elementwise" in x.define.traits or x.name in ("const", "yield")
                                                   for x in op.regions[0].ops):
                    return False
                if not all(self.row.wide(v) for v in op.operands):
                    return False
            elif any(v in made for v in op.operands) and not (op.results and self.row.wide(op.results[0]) and (
                    op.name == "load" or "elementwise" in op.define.traits and op.define.pure)):
                return False
        after = {v for op in self.block.ops[self.end:] for v in read(op)}
        return not after & made and all(self.can(v, set()) for op in sinks for v in op.operands)

    def is_sink(self, op: Op) -> bool:
        return op.name in ("reduce", "store") and any(self.row.wide(v) for v in op.operands)

    def can(self, v: Value, seen: set[Value]) -> bool:
        """Whether a strip of a value can be computed where it is needed."""
        op = v.op
        if v in seen or not self.row.wide(v):
            return True
        seen.add(v)
        if not isinstance(op, Op):
            return False
        if op.name == "load":
            source = argument_of(op.operands[0])
            if is_volatile(op) or op.attrs.get("ahead") or any(may_alias(source, x) for x in self.stores):
                return False
        elif op.name == "local_load":
            return op.parent is self.block and self.begin <= self.block.ops.index(op) < self.end or op is self.load
        elif not op.define.pure or not ("elementwise" in op.define.traits or "registers" in op.define.traits and
                                        not any(isinstance(x.type, Tile) for x in op.operands)):
            return False  # (constants, ranges and splats are those of a strip)
        return all(self.can(x, seen) for x in op.operands)

    def may_be_side_by_side(self, inside: list[Op]) -> bool:
        """Whether side by side."""
        elem, ends, wide = elem_of(self.load.result.type), self.ends, self.row.wide
        if not self.alone or self.aligned() or ends.bound is None:
            return False
        if self.back is None and self.each * elem.bits >= 8 * STRIP:
            return False
        return all(ends.may_be_left_out([op]) and (op is self.back or op.name != "store") if self.is_sink(op) else
                   not any(map(wide, op.results)) or op is self.load or op.name != "local_load" and
                   (op.name != "load" or len(op.operands) > 1 and ends.holds(op.operands[1])) for op in inside)

    def goes_back(self, op: Op) -> bool:
        """Whether what is stored, of single elements a thread, may take the row's place, to be copied as a whole."""
        elem = elem_of(self.load.result.type)
        if op.name != "store" or self.block.parent is not None or not self.alone or self.aligned() or \
                op.attrs.get("vec", 1) > 1 or elem_of(op.operands[1].type) != elem:
            return False
        source = argument_of(op.operands[0])
        if from_start(op.operands[0]) is None or source is None or op.attrs.get("cache") or op.attrs.get("evict"):
            return False
        bound = self.ends.bound
        if len(op.operands) > 2 and (bound is None or self.ends.ends_at(op.operands[2]) is not bound):
            return False
        behind = self.block.ops[self.block.ops.index(op) + 1:]
        return not any(self.is_sink(x) or "read" in x.define.effects or "write" in x.define.effects
                       and may_alias(source, x) for x in behind)
