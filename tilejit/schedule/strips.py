"""Strip-mining of wide rows: a row that lies in shared memory is worked on strip by strip, once for each reduction."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, blocks, clone_op, listed, needed, reached, whole
from tilejit.ir.folds import joined
from tilejit.ir.types import elem_of, int32
from tilejit.schedule.row_end import times
from tilejit.schedule.stretch import SINGLE, STRIP, Stretch
from tilejit.schedule.strip import Row, Strip, from_start

#: Elements of a row a thread from which on it is worked on in strips: fewer are held at less cost.
LEAST = 32
#: Registers that a thread then has at least, where more programs would find room on a multiprocessor; of rows that
#: begin anywhere; of numbers of 64 bits.
REGISTERS, UNALIGNED, DOUBLE = 64, 80, 96
#: Bytes of what is read at once from shared memory where weights are loaded one by one beside it.
WORD = 4
#: Strips in an iteration where they need other loads, so that those of all are in flight.
AT_ONCE = 4


def strip_rows(fn: Function) -> Function:
    stores = [op for op in listed(fn.body) if "write" in op.define.effects]
    for block in [*blocks(fn.body)]:
        for load in [op for op in block.ops if op.name == "local_load" and len(op.result.tile.shape) == 1]:
            if load in block.ops and load.result.layout.num_registers >= LEAST:
                stretch = Stretch(block, load, stores, fn.attrs.get("num_ctas", 1),
                                  fn.attrs.get("enable_fp_fusion", True))
                if stretch.legal():
                    strips = _Passes(stretch)
                    strips.write()
                    wide = elem_of(load.result.type).bits >= 64
                    least = DOUBLE if wide else REGISTERS if stretch.aligned() else UNALIGNED
                    fn.attrs["resident_registers"] = max(least, fn.attrs.get("resident_registers", 0))
                    count, size, passes = strips.row.count, strips.row.size, strips.passes
                    fn.say("strips", f"{load.result.name or 'a row'} at {load.place} stays in shared memory: {count} "
                           f"strips of {size}, read by each of {passes} passes", load.place, count=count, size=size,
                           passes=passes)
    return fn


def _fills_again(op: Op, given: list[Op]) -> bool:
    """Whether an op waits for a slot that is given back."""
    return op.name == "elect" and any(x.name == "mbar_wait" and x.operands[0] is back.operands[0]
                                      for x in op.regions[0].ops for back in given)


class _Passes:
    """A stretch in passes over its row. tail: the strip in which it ends; rest: results still to be folded."""

    def __init__(self, stretch: Stretch):
        self.stretch, self.row, self.ends = stretch, stretch.row, stretch.ends
        self.at_once, self.passes = stretch.at_once, 0
        self.tail: Value | None = None
        self.rest: dict[Value, Op] = {}

    def fold_rest(self, op: Op, result: Value, b: Builder) -> None:
        now, t = self.row.now, op.result.type
        z, mine = self.ends.beyond(op.operands[0], b, now, {}), now.get(result, result)
        assert self.tail is not None and z is not None
        left = b("mul", b("sub", b.const(self.row.count - 1, int32), self.tail), b.const(self.row.size, int32))
        if times(op) == "many":
            z = b("mul", z, b("cast", left, dtype=t))
        env = dict(zip(op.regions[0].args, (mine, z)))
        for x in op.regions[0].ops[:-1]:
            b.insert(clone_op(x, env))
        some = b("cmp", left, b.const(0, int32), pred="gt" if self.row.before is None else "ne")
        total = b("select", some, env[op.regions[0].terminator.operands[0]], mine)
        total.name = mine.name
        now[result] = total

    def lay_out(self, loads: bool, b: Builder) -> None:
        """Strips of 16 bytes a thread, from the row's first 16 bytes on; of 4 where others are loaded one by one."""
        row, size = self.row, elem_of(self.stretch.load.result.type).bits // 8
        unit = WORD if loads else STRIP
        before = b("row_shift", self.stretch.load.operands[0], unit=unit) if unit > size else None
        each = max(unit // size, SINGLE)
        self.at_once, self.tail = STRIP // size // each, None
        count = row.shape[0] // (each * 32 << row.layout.in_bits("warp"))
        self.row = Row(row.shape, row.layout, count, row.ctas, row.now, max(1, unit // size), before)
        self.row.b = b

    def put(self, b: Builder) -> None:
        """Copy what has taken the row's place to memory, as far as the row goes."""
        assert self.stretch.back is not None and (found := from_start(self.stretch.back.operands[0])) is not None
        b.loc, base, most = self.stretch.back.loc, self.row.now.get(found[0], found[0]), self.row.shape[0]
        if found[1].attrs["start"]:
            base = b("ptr_add", base, b.const(found[1].attrs["start"], int32))
        whole = b.const(most, int32)
        b.op("row_put", self.stretch.load.operands[0], base,
             whole if self.ends.bound is None else self.ends.clamped(0, most, b))

    # -- writing --
    def write(self) -> None:
        ops = self.stretch.block.ops
        inside, rest = ops[self.stretch.begin:self.stretch.end], ops[self.stretch.end:]
        self.stretch.block.ops = ops[:self.stretch.begin]
        b = self.row.b = Builder(self.stretch.block)
        within = set(inside)
        waiting: list[Op] = []  # sinks of the next pass
        #: slots that are given back behind all passes, and what fills those again
        given: list[Op] = []
        for op in inside:
            if self.stretch.is_sink(op):
                behind = needed([op], within)
                if not behind.isdisjoint(waiting):
                    self.one_pass(waiting, b)
                    waiting = []
                waiting.append(op)
            elif op.name == "mbar_arrive" or _fills_again(op, given):
                given.append(op)
            elif not any(self.row.wide(r) for r in op.results):
                if any(v.op in waiting for v in op.operands) or not op.define.pure:
                    self.one_pass(waiting, b)
                    waiting = []
                folded = [self.rest.pop(v) for v in op.operands if v in self.rest]
                op.operands = [self.row.now.get(v, v) for v in op.operands]
                b.insert(op)
                for x, result in zip(folded, op.results):
                    self.fold_rest(x, result, b)
        self.one_pass(waiting, b)
        for op in given:
            b.insert(op)
        for op in rest:
            for x in whole(op):
                x.operands = [self.row.now.get(v, v) for v in x.operands]
        self.stretch.block.ops += rest

    def one_pass(self, sinks: list[Op], b: Builder) -> None:
        """A loop over the strips for ops of which none needs another one; reductions begin with the first strip."""
        if not sinks:
            return
        self.passes += 1
        b.loc = sinks[0].loc
        early = self.ends.may_be_left_out(sinks)
        folds = [op for op in sinks if op.name == "reduce"]
        loads = any(self.loads(v) for op in sinks for v in op.operands)
        if self.stretch.side_by_side:
            self.lay_out(loads, b)
        first, end = b.const(0, int32), b.const(self.row.count, int32)
        start, last = first, None
        values: dict[Op, list[Value]] = {}
        stores: list[Op] = []
        if self.row.before is not None:  # the first and the last strip have the mask
            last, start = self.ends_in(b), b.const(1, int32)
            values = self.strips(sinks, Strip(self.row, first, b, first=self.ends), stores)
            end = b("maximum", last, start)
        elif early:  # the last strip has the mask
            end = self.ends_in(b)
            values = self.strips(sinks, Strip(self.row, end, b), stores)
        elif folds:
            values, start = self.strips(sinks, Strip(self.row, first, b), stores), b.const(1, int32)
        for op in stores:
            b.insert(op)
        results = [v for op in folds for v in values[op]]
        if last is not None:
            results = self.loop(sinks, end, b("add", last, start), 1, False, results, b)
        at_once = min((AT_ONCE if loads else 2) * self.at_once, self.row.count // 2)
        for several in (at_once, 2) if at_once > 2 else (at_once,) if at_once > 1 else ():
            step = b.const(several, int32)
            middle = b("add", start, b("mul", b("idiv", b("sub", end, start), step), step))
            results = self.loop(sinks, start, middle, several, early, results, b)
            start = middle
        results = self.loop(sinks, start, end, 1, early, results, b)
        for group in [folds] if not any("ctas" in op.attrs for op in folds) else [[op] for op in folds]:
            n = sum(len(op.operands) for op in group)
            if group:  # one reduction for several: there is one barrier
                joint = joined(group, results[:n], b)
                self.row.now.update(zip((r for op in group for r in op.results), joint.results))
            results = results[n:]
        for op in folds if early else ():
            if "ctas" in op.attrs:  # once, into what all CTAs have
                self.rest[op.result] = op
            else:
                self.fold_rest(op, op.result, b)
        if self.stretch.back in sinks:
            self.put(b)

    def loop(self, sinks: list[Op], start: Value, end: Value, at_once: int, whole: bool, sums: list[Value],
             b: Builder) -> list[Value]:
        """A loop over strips, so many in an iteration: all that they load, then all that they store. Gives the sums."""
        region = Block([int32, *(v.type for v in sums)], ["strip", *(v.name for v in sums)])
        inner, folded = Builder(region, loc=b.loc), list(region.args[1:])
        stores: list[Op] = []
        starts: dict[Value, Value] = {}
        for k in range(at_once):
            i = inner("add", region.args[0], inner.const(k, int32)) if k else region.args[0]
            strip = Strip(self.row, i, inner, self.ends if whole else None, k, starts)
            found = self.strips(sinks, strip, stores)
            ends: list[Value] = []
            for op in found:
                if op.name == "reduce":
                    n = len(op.operands)
                    ends += strip.folded(op, folded[len(ends):len(ends) + n], found[op], self.stretch.fuses)
            folded = ends
        for op in stores:
            inner.insert(op)
        inner.op("yield", *folded)
        return list(b.op("for", start, end, b.const(at_once, int32), *sums, regions=[region]).results)

    def loads(self, v: Value) -> bool:
        """Whether a value comes from global memory, element by element."""
        found = reached([v], lambda x: x.op.operands if self.row.wide(x) and isinstance(x.op, Op) else ())
        return any(self.row.wide(x) and isinstance(x.op, Op) and x.op.name == "load" for x in found)

    def ends_in(self, b: Builder) -> Value:
        """The strip that has the last element before the bound; the first one if there is none."""
        if self.tail is None:
            last = b("sub", self.ends.clamped(1, self.row.shape[0], b), b.const(1, int32))
            last = last if self.row.before is None else b("add", last, self.row.before)
            self.tail = b("idiv", last, b.const(self.row.size, int32))
        return self.tail

    def strips(self, sinks: list[Op], strip: Strip, stores: list[Op]) -> dict[Op, list[Value]]:
        b, found = strip.b, {}
        for op in sinks:
            b.loc = op.loc
            if op is self.stretch.back:
                some = strip.end is None and self.row.before is not None
                limit = [b("sub", self.ends.clamped(0, self.row.shape[0], b), strip.at)] if some else []
                view = strip.view(self.stretch.load.operands[0])
                stores.append(Op("local_store", [view, strip.of(op.operands[1]), *limit], {}, None, None, op.loc))
                continue
            found[op] = [strip.of(v) for v in strip.needed(op)]
            if op.name == "store":
                stores.append(Op(op.name, found[op], op.attrs, None, None, op.loc))
        return found
