"""Strip-mining of wide rows: a row that lies in shared memory is worked on strip by strip, once for each reduction.

    %x = local_load %row, %n : bf16[16384]      %v7 = cast (local_load (strip %row, 7), %n - 7 * 2048) : fp32[2048]
    %v = cast %x                                %a = for %i = 0, 7 {(%i, %a0 = %v7)
    %m = reduce %v                     ->         %vi = cast (local_load (strip %row, %i))
    %s = sub %v, splat %m                         yield maximum %a0, %vi }
    store %p, %s, cmp %i, %n                    %m = reduce %a
                                                for %i = 0, 7 {.. store %pi, %si };  store %p7, %s7, cmp %i7, %n

A thread holds a strip at a time, whatever the row's width, and nothing of it while it waits for the others in a
reduction: more programs share a multiprocessor, and 16-bit rows stay what they are. Reductions of which none needs
another one share a pass over the row. Sums of a thread's elements are by position in the strip, strip after strip.

A row that a mask ends (`i < n`) is worked on as far as it goes, not as far as its tile does: the strips behind the one
in which it ends are left out of a pass whose stores the mask stops there, and whose reductions find the same number in
every element: that number is computed once and folded in (for the sum of k elements, k times it). The strips before it
need no mask.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilejit.ir import Block, Builder, Function, Op, Value, clone_op, listed, reached
from tilejit.ir.ahead import argument_of, may_alias
from tilejit.ir.folds import joined
from tilejit.ir.report import Record
from tilejit.ir.types import DType, Tile, Type, elem_of, int1, int32
from tilejit.layout.clusters import strip_size
from tilejit.layout.linear import LinearLayout
from tilejit.schedule.loads import place

#: Elements of a row a thread from which on it is worked on in strips: fewer are held at less cost.
LEAST = 32
#: Registers that a thread then has at least, where more programs would find room on a multiprocessor; of rows that
#: begin anywhere; of numbers of 64 bits.
REGISTERS, UNALIGNED, DOUBLE = 64, 80, 96
#: Bytes of a strip a thread: one access of shared memory. Elements of one where threads hold single elements of rows
#: that begin anywhere: what the last strip costs more, for its masks, is so much less of a row.
STRIP, SINGLE = 16, 2
#: Strips in an iteration where they need other loads, so that those of all are in flight.
AT_ONCE = 4


def strip_rows(fn: Function) -> Function:
    """Work on wide rows in strips, in place; returns the function. The report gets a line for each row."""
    stores = [op for op in listed(fn.body) if "write" in op.define.effects]
    for block in {id(op.parent): op.parent for op in listed(fn.body) if op.name == "local_load"}.values():
        assert block is not None
        for load in [op for op in block.ops if op.name == "local_load" and _is_wide(op.result)]:
            if load.parent is block and load in block.ops:
                strips = _Strips(block, load, stores, fn.attrs.get("num_ctas", 1))
                if strips.legal():
                    strips.write()
                    fn.attrs["resident_registers"] = max(strips.registers(), fn.attrs.get("resident_registers", 0))
                    fn.attrs["report"].append(Record(
                        "strips", f"{load.result.name or 'a row'} at {place(load)} stays in shared memory: "
                        f"{strips.count} strips of {strips.size}, read by each of {strips.passes} passes", place(load),
                        count=strips.count, size=strips.size, passes=strips.passes))
    return fn


def _is_wide(v: Value) -> bool:
    t = v.type
    return isinstance(t, Tile) and t.layout is not None and len(t.shape) == 1 and t.layout.num_registers >= LEAST


class _Strips:
    """What follows from a row in its block, written strip by strip."""

    def __init__(self, block: Block, load: Op, stores: Sequence[Op], ctas: int):
        self.block, self.load, self.stores = block, load, stores
        row = load.result.type
        assert isinstance(row, Tile) and row.layout is not None
        self.shape, self.layout = row.shape, row.layout
        self.alone = ctas == 1
        self.ctas = ctas if strip_size(row.layout, ctas) else 1
        size = max(1, row.elem.bits // 8)
        self.each = STRIP // size            # elements of a thread in a strip
        if self.ctas == 1 and not self.aligned() and row.layout.contiguous_registers(0) * size < STRIP:
            self.each = min(SINGLE, self.each)
        self.at_once = STRIP // size // self.each    # such strips as one
        self.count = max(1, row.layout.num_registers // self.each)
        if self.ctas > 1:                    # a strip of each CTA at least
            self.count = min(self.count, row.shape[0] // (strip_size(row.layout, ctas) or 1) // ctas)
        self.size = row.shape[0] // self.count
        at = block.ops.index(load)
        self.begin = at
        ends = (i for i, op in enumerate(block.ops[at:], at) if "terminator" in op.define.traits
                or op.name == "dot_wait" or op.regions and op.name not in ("reduce", "cluster_fold", "elect"))
        self.end = next(ends, len(block.ops))
        self.passes = 0
        self.back: Op | None = None          # the store that goes through the row's own place in shared memory
        self.bound: Value | None = None      # what a mask compares the elements' index with
        self.tail: Value | None = None       # the strip in which the row ends there
        self.whole = False                   # the strip that is written is one in which the row does not end
        self.ahead = 0                       # how many strips behind an iteration's first one the strip is
        self.starts: dict[Value, Value] = {} # where that one begins in memory
        self.rest: dict[Value, Op] = {}      # results in one CTA, into which that is folded with the other CTAs'
        self.now: dict[Value, Value] = {}    # results of reductions, with what was left out folded in

    def registers(self) -> int:
        """What a thread needs at least."""
        return DOUBLE if elem_of(self.load.result.type).bits >= 64 else REGISTERS if self.aligned() else UNALIGNED

    def aligned(self) -> bool:
        """Whether the row begins with 16 bytes."""
        view = self.load.operands[0].op
        return not isinstance(view, Op) or view.name != "row_view"

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
        after = {v for op in self.block.ops[self.end:] for x in (op, *(y for r in op.regions for y in listed(r)))
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

    # -- what lies behind the end of a row ------------------------------------------------------------------------
    def find_bound(self) -> None:
        """The number that ends the row: the one whose masks stop most of what follows."""
        ends = [v for op in self.block.ops[self.begin:self.end] for x in op.operands
                for v in [self.ends_at(x)] if v is not None]
        if ends and all(v is ends[0] for v in ends):
            self.bound = ends[0]

    def ends_at(self, mask: Value) -> Value | None:
        """The n of a mask `i < n`, i the elements' index in the row."""
        op = mask.op
        if not isinstance(op, Op) or op.name != "cmp" or not self.wide(mask):
            return None
        index, bound = (x.op for x in (op.operands if op.attrs["pred"] == "lt" else reversed(op.operands)))
        known = (op.attrs["pred"] in ("lt", "gt") and isinstance(index, Op) and index.name == "arange"
                 and index.attrs["start"] == 0 and isinstance(bound, Op) and bound.name == "splat")
        return bound.operands[0] if known else None  # type: ignore[union-attr]

    def stops(self, mask: Value, one: Callable[[Iterable[bool]], bool] = any) -> bool:
        """Whether a mask is false behind the end: `one` of what an `and` is made of is enough for that."""
        op = mask.op
        return isinstance(op, Op) and (self.ends_at(mask) is self.bound or op.name == "and"
                                       and one(self.stops(x, one) for x in op.operands))

    def alike(self, v: Value) -> bool:
        """Whether all elements behind the end are the same number, which `beyond` computes."""
        op = v.op
        if not self.wide(v):
            return True
        assert isinstance(op, Op)
        if op.name == "local_load":
            return len(op.operands) > 1 and self.within(op.operands[1])
        if op.name == "load":
            return len(op.operands) > 1 and self.stops(op.operands[1]) and all(map(self.alike, op.operands[2:]))
        if op.name == "select" and self.stops(op.operands[0]):
            return self.alike(op.operands[2])
        if op.name in ("const", "splat"):
            return True
        return bool(op.operands) and (self.stops(v) or "elementwise" in op.define.traits and "packs" not in
                                      op.define.traits and all(map(self.alike, op.operands)))

    def within(self, limit: Value) -> bool:
        """Whether the limit of a copy is at most the bound, or nothing."""
        op = limit.op
        while isinstance(op, Op) and limit is not self.bound and op.name in ("minimum", "maximum", "cast"):
            consts = [x.op.attrs["value"] for x in op.operands if isinstance(x.op, Op) and x.op.name == "const"]
            if op.name != "cast" and (len(consts) != 1 or op.name == "maximum" and consts[0] != 0):
                return False
            limit = next(x for x in op.operands if not (isinstance(x.op, Op) and x.op.name == "const"))
            op = limit.op
        return limit is self.bound

    def beyond(self, v: Value, b: Builder, made: dict[Value, Value]) -> Value:
        """The number that every element of a value is behind the end."""
        op = v.op
        if not self.wide(v):
            return self.now.get(v, v)
        assert isinstance(op, Op)
        if v not in made:
            t = elem_of(v.type)
            if op.name == "local_load":
                made[v] = b.const(op.attrs.get("fill", 0), t)
            elif op.name == "load":
                made[v] = self.beyond(op.operands[2], b, made) if len(op.operands) > 2 else b.const(0, t)
            elif op.name == "const":
                made[v] = b.const(op.attrs["value"], t)
            elif op.name == "splat":
                made[v] = self.now.get(op.operands[0], op.operands[0])
            elif self.stops(v):
                made[v] = b.const(False, t)
            elif op.name == "select" and self.stops(op.operands[0]):
                made[v] = self.beyond(op.operands[2], b, made)
            else:
                attrs = {k: x for k, x in op.attrs.items() if k != "runs"}
                made[v] = b(op.name, *(self.beyond(x, b, made) for x in op.operands), **attrs)
        return made[v]

    def ends_early(self, sinks: list[Op]) -> bool:
        """Whether a pass may leave out the strips behind the end."""
        return self.bound is not None and all(
            len(op.operands) > 2 and self.stops(op.operands[2]) if op.name == "store" else
            times(op) != "" and all(map(self.alike, op.operands)) for op in sinks)

    def fold_rest(self, op: Op, result: Value, b: Builder) -> None:
        """Fold what a pass has left out into a reduction's result."""
        z, mine, t = self.beyond(op.operands[0], b, {}), self.now.get(result, result), op.result.type
        assert self.tail is not None
        left = b("mul", b("sub", b.const(self.count - 1, int32), self.tail), b.const(self.size, int32))
        if times(op) == "many":
            z = b("mul", z, b("cast", left, dtype=t))
        env = dict(zip(op.regions[0].args, (mine, z)))
        for x in op.regions[0].ops[:-1]:
            b.insert(clone_op(x, env))
        some = b("cmp", left, b.const(0, int32), pred="gt")
        total = b("select", some, env[op.regions[0].terminator.operands[0]], mine)
        total.name = mine.name
        self.now[result] = total

    # -- the way back ---------------------------------------------------------------------------------------------
    def goes_back(self, op: Op) -> bool:
        """Whether what is stored may take the place of a row that begins anywhere, to be copied to memory as a whole:
        threads that hold single elements would store them one by one."""
        elem = elem_of(self.load.result.type)
        if op.name != "store" or self.block.parent is not None or not self.alone or self.aligned() or \
                self.each * elem.bits >= 8 * STRIP or elem_of(op.operands[1].type) != elem:
            return False
        pointer, source = op.operands[0].op, argument_of(op.operands[0])
        if not isinstance(pointer, Op) or pointer.name != "ptr_add" or self._from_start(pointer) is None or \
                source is None or op.attrs.get("cache") or op.attrs.get("evict"):
            return False
        if len(op.operands) > 2 and (self.bound is None or self.ends_at(op.operands[2]) is not self.bound):
            return False
        behind = self.block.ops[self.block.ops.index(op) + 1:]
        return not any(self.is_sink(x) or "read" in x.define.effects or "write" in x.define.effects
                       and may_alias(source, x) for x in behind)

    def put(self, b: Builder) -> None:
        """Copy what has taken the row's place to memory, as far as the row goes."""
        assert self.back is not None and isinstance(self.back.operands[0].op, Op)
        found = self._from_start(self.back.operands[0].op)
        assert found is not None
        b.loc = self.back.loc
        base = self.now.get(found[0], found[0])
        if found[1].attrs["start"]:
            base = b("ptr_add", base, b.const(found[1].attrs["start"], int32))
        size = b.const(self.shape[0], int32)
        b.op("row_put", self.load.operands[0], base, size if self.bound is None else self.clamped(0, b))

    # -- writing ----------------------------------------------------------------------------------------------
    def write(self) -> None:
        """Put the strips in place of the row."""
        self.find_bound()
        ops = self.block.ops
        self.back = next((op for op in ops[self.begin:self.end] if self.is_sink(op) and self.goes_back(op)), None)
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
                folded = [self.rest.pop(v) for v in op.operands if v in self.rest]
                op.operands = [self.now.get(v, v) for v in op.operands]
                b.insert(op)
                for x, result in zip(folded, op.results):
                    self.fold_rest(x, result, b)
        self.one_pass(waiting, b)
        for op in given:
            b.insert(op)
        for op in rest:
            for x in (op, *(y for r in op.regions for y in listed(r))):
                x.operands = [self.now.get(v, v) for v in x.operands]
        self.block.ops += rest

    def follows(self, op: Op, other: Op) -> bool:
        """Whether an op needs what another one gives, through ops of this stretch."""
        found = reached(op.operands, lambda v: v.op.operands if isinstance(v.op, Op) else ())
        return any(v.op is other for v in found)

    def one_pass(self, sinks: list[Op], b: Builder) -> None:
        """A loop over the strips of the row for ops of which none needs another one: the first strip stands before it
        if there is a reduction, which begins with it."""
        if not sinks:
            return
        self.passes += 1
        b.loc = sinks[0].loc
        early = self.ends_early(sinks)
        folds = [op for op in sinks if op.name == "reduce"]
        first, end = b.const(0, int32), b.const(self.count, int32)
        start = first
        values: dict[Op, list[Value]] = {}
        stores: list[Op] = []
        if early:                            # the last strip has the mask
            end = self.ends_in(b)
            values = self.strips(sinks, end, b, False, stores)
        elif folds:
            values, start = self.strips(sinks, first, b, False, stores), b.const(1, int32)
        for op in stores:
            b.insert(op)
        results = [v for op in folds for v in values[op]]
        loads = any(self.loads(v) for op in sinks for v in op.operands)
        at_once = min((AT_ONCE if loads else 2) * self.at_once, self.count // 2)
        for several in (at_once, 2) if at_once > 2 else (at_once,) if at_once > 1 else ():
            step = b.const(several, int32)
            middle = b("add", start, b("mul", b("idiv", b("sub", end, start), step), step))
            results = self.loop(sinks, start, middle, several, early, results, b)
            start = middle
        results = self.loop(sinks, start, end, 1, early, results, b)
        for group in [folds] if not any("ctas" in op.attrs for op in folds) else [[op] for op in folds]:
            n = sum(len(op.operands) for op in group)
            if group:
                self.reduce(group, results[:n], b)
            results = results[n:]
        for op in folds if early else ():
            if "ctas" in op.attrs:           # once, into what all CTAs have
                self.rest[op.result] = op
            else:
                self.fold_rest(op, op.result, b)
        if self.back in sinks:
            self.put(b)

    def reduce(self, folds: list[Op], values: list[Value], b: Builder) -> None:
        """One reduction for several: there is one barrier."""
        whole = joined(folds, values, b)
        self.now.update(zip((r for op in folds for r in op.results), whole.results))

    def loop(self, sinks: list[Op], start: Value, end: Value, at_once: int, whole: bool, sums: list[Value],
             b: Builder) -> list[Value]:
        """A loop over strips, so many in an iteration: all that they load, then all that they store. Gives the sums."""
        region = Block([int32, *(v.type for v in sums)], ["strip", *(v.name for v in sums)])
        inner, folded = Builder(region, loc=b.loc), list(region.args[1:])
        stores: list[Op] = []
        for k in range(at_once):
            i = inner("add", region.args[0], inner.const(k, int32)) if k else region.args[0]
            self.ahead = k
            found = self.strips(sinks, i, inner, whole, stores)
            ends: list[Value] = []
            for op in found:
                if op.name == "reduce":
                    n = len(op.operands)
                    ends += self.folded(op, folded[len(ends):len(ends) + n], found[op], inner)
            folded = ends
        self.ahead, self.starts = 0, {}
        for op in stores:
            inner.insert(op)
        inner.op("yield", *folded)
        return list(b.op("for", start, end, b.const(at_once, int32), *sums, regions=[region]).results)

    def loads(self, v: Value) -> bool:
        """Whether a value comes from global memory, element by element."""
        found = reached([v], lambda x: x.op.operands if self.wide(x) and isinstance(x.op, Op) else ())
        return any(self.wide(x) and isinstance(x.op, Op) and x.op.name == "load" for x in found)

    def ends_in(self, b: Builder) -> Value:
        """The strip that has the last element before the bound; the first one if there is none."""
        if self.tail is None:
            self.tail = b("idiv", b("sub", self.clamped(1, b), b.const(1, int32)), b.const(self.size, int32))
        return self.tail

    def clamped(self, least: int, b: Builder) -> Value:
        """The bound, but at least a number and at most the row's size."""
        assert self.bound is not None
        t = self.bound.type
        end = b("minimum", b("maximum", self.bound, b.const(least, t)), b.const(self.shape[0], t))
        return end if t == int32 else b("cast", end, dtype=int32)

    def strips(self, sinks: list[Op], i: Value, b: Builder, whole: bool, stores: list[Op]) -> dict[Op, list[Value]]:
        """Strip i of all that a pass needs: what reductions fold, and the stores, which are left to be inserted.
        whole: the row does not end in it."""
        self.whole = whole
        made: dict[Value, Value] = {}
        found = {}
        at = b("mul", i, b.const(self.size, int32))
        for op in sinks:
            b.loc = op.loc
            if op is self.back:
                view = b("strip", self.load.operands[0], i, size=self.size)
                value = self.strip(op.operands[1], i, at, made, b)
                stores.append(Op("local_store", [view, value], {}, None, None, op.loc))
                continue
            found[op] = [self.strip(v, i, at, made, b) for v in self.needed(op)]
            if op.name == "store":
                stores.append(Op(op.name, found[op], op.attrs, None, None, op.loc))
        return found

    def needed(self, op: Op) -> list[Value]:
        """An op's operands; in a strip in which the row does not end, without a mask that only that decides."""
        if not self.whole:
            return op.operands
        if op.name in ("load", "store") and self.holds(op.operands[-1 if op.name == "store" else 1]):
            return op.operands[:2 if op.name == "store" else 1]
        return op.operands[:1] if op.name == "local_load" and self.within(op.operands[-1]) else op.operands

    def holds(self, mask: Value) -> bool:
        """Whether a mask is true before the end."""
        return elem_of(mask.type) == int1 and self.stops(mask, all)

    def strip(self, v: Value, i: Value, at: Value, made: dict[Value, Value], b: Builder) -> Value:
        """Strip i, which starts `at`, of a value; a value that is no tile, as it is."""
        if not self.wide(v):
            return self.now.get(v, v)
        if v not in made:
            op, t = v.op, Tile((self.size,), v.type.elem, self.part)  # type: ignore[union-attr]
            assert isinstance(op, Op)
            if self.whole and op.name == "select" and self.holds(op.operands[0]):
                return self.strip(op.operands[1], i, at, made, b)
            attrs = dict(op.attrs)
            attrs.update({k: t.shape for k in ("shape",) if k in attrs} | {k: t for k in ("type",) if k in attrs})
            if op.name == "arange":
                range_ = self._new(op, [], {**attrs, "end": attrs["start"] + self.size}, t, b)
                offset = self._new(op, [at], {"shape": t.shape}, t, b, "splat")
                new = self._new(op, [range_, offset], {}, t, b, "add")
            elif op.name == "local_load":
                view = b("strip", op.operands[0], i, size=self.size, **({"ctas": self.ctas} if self.ctas > 1 else {}))
                limit = self.needed(op)[1:]
                attrs = {k: x for k, x in attrs.items() if limit or k != "fill"}
                new = self._new(op, [view, *(b("sub", x, at) for x in limit)], attrs, t, b)
            elif op.name == "ptr_add" and (found := self._from_start(op)):
                base, range_op = found        # the offset of the strip goes into the number
                if self.ahead:               # that of the iteration's first strip, and a constant
                    start = b("ptr_add", self.starts[base], b.const(self.ahead * self.size, int32))
                else:
                    start = self.starts[base] = b("ptr_add", self.now.get(base, base), at)
                range_ = self._new(range_op, [], {**range_op.attrs, "end": range_op.attrs["start"] + self.size},
                                   Tile((self.size,), int32, self.part), b)
                splat = self._new(op, [start], {"shape": t.shape}, t, b, "splat")
                new = self._new(op, [splat, range_], attrs, t, b)
            else:
                new = self._new(op, [self.strip(x, i, at, made, b) for x in self.needed(op)], attrs, t, b)
            new.name = v.name
            made[v] = new
        return made[v]

    def _from_start(self, op: Op) -> tuple[Value, Op] | None:
        """The number and the range of an address that counts up from a number."""
        base, index = (x.op for x in op.operands)
        if isinstance(base, Op) and base.name == "splat" and isinstance(index, Op) and index.name == "arange" and \
                elem_of(op.operands[1].type) == int32:
            return base.operands[0], index
        return None

    def _new(self, op: Op, operands: list[Value], attrs: dict, t: Type, b: Builder, name: str = "") -> Value:
        """An op like `op`, or of another name, whose result has a type."""
        return b.insert(Op(name or op.name, operands, attrs, None, [t], op.loc)).result

    def folded(self, op: Op, left: Sequence[Value], right: Sequence[Value], b: Builder) -> list[Value]:
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


def times(op: Op) -> str:
    """How a number that many elements have is folded into a reduction: `many` times (a sum of wide numbers), `once`, or
    not at all (empty)."""
    region = op.regions[0]
    if len(op.operands) != 1 or len(region.ops) != 2 or set(region.ops[0].operands) != set(region.args):
        return ""
    fold, t = region.ops[0], elem_of(op.operands[0].type)
    if "idempotent" in fold.define.traits:
        return "once"
    return "many" if fold.name == "add" and isinstance(t, DType) and t.bits >= 32 else ""
