"""Rows that a program walks block by block, more than once, become whole tiles: read once, and kept."""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.core import Block, Function, Op, Value, computes, listed, replace, total_warps, uses
from tilejit.ir.dead import drop_dead
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.ir.types import Tile, Type, elem_of
from tilejit.passes.behind import NOTHING, behind
from tilejit.passes.rows import ROOM
from tilejit.passes.rules import const_of
from tilejit.passes.totals import adds_up

#: Bytes at most of all rows that are read more than once, so that they are kept: by the CTAs of a cluster.
MOST_BYTES = 2 << 20
#: Elements of a thread at most where a row stays in registers.
REGISTERS = 64


class _NotWhole(Exception):
    """Why the loops stay as they are."""


def whole_rows(fn: Function) -> Function:
    bounds = {a: attrs["most"] for a, attrs in zip(fn.body.args, fn.arg_attrs) if "most" in attrs}
    groups: dict[tuple[Value, int], list[Op]] = {}
    for op in fn.body.ops if bounds else ():
        step = const_of(op.operands[2]) if op.name == "for" else None
        if step and op.operands[1] in bounds and const_of(op.operands[0]) == 0 and not op.attrs.get("num_stages"):
            groups.setdefault((op.operands[1], step), []).append(op)
    for (end, step), loops in groups.items():
        if len(loops) < 2 or not any(x.name == "load" for op in loops for x in op.regions[0].ops):
            continue
        where = loops[0].place
        size = max(bounds[end], step)
        try:
            _Row(fn, loops, end, step, size).write()
            line = Record("whole_row", f"loops over {end.name} from {where} on: a row of {size} is read once, and kept",
                          where, size=size, loops=len(loops))
            drop_dead(fn)
        except _NotWhole as why:
            line = Record("walked_row", f"loops over {end.name} from {where} on read their blocks again: {why}", where,
                          loops=len(loops))
        fn.attrs.setdefault("report", []).append(line)
    return fn


class _Row:
    def __init__(self, fn: Function, loops: list[Op], end: Value, step: int, size: int):
        self.fn, self.loops, self.end, self.step, self.size = fn, loops, end, step, size
        self.table = uses(fn.body)
        self.each = size // (32 * total_warps(fn))  # elements of a thread
        self.body = Block()  # what stands for the loop that is looked at
        self.made: dict[Hashable, Value] = {}  # what is computed already
        self.env: dict[Value, Value] = {}  # value of the loop -> of the whole row
        self.open: dict[Value, Value | None] = {}  # the loop's index, plus what (None: nothing), before its range
        self.ends: dict[Value, Any] = {}  # what elements behind the end are, where that is a number

    def write(self) -> None:
        if self.each > REGISTERS and not target_of(self.fn).hopper:
            raise _NotWhole(f"a thread has no registers for {self.each} elements")
        self._check_memory()
        bodies: dict[Op, list[Op]] = {}
        totals: dict[Value, Value] = {}
        for loop in self.loops:
            self.body, self.env, self.open = Block(), {}, {loop.regions[0].args[0]: None}
            totals.update(self._loop(loop))
            bodies[loop] = self.body.ops
        ops: list[Op] = []
        more: dict[Value, Op] = {}  # what a reduction gives -> that, folded with the beginning
        for op in self.fn.body.ops:
            ops += bodies.get(op, [op])
            if op.name == "reduce" and op.operands[0] in totals:
                start, fold = const_of(self._init(op.operands[0])), op.regions[0].ops[0].name
                op.operands[0] = totals[op.operands[0]]
                if start != NOTHING[fold]:
                    first = Op("const", [], {"value": start, "type": op.result.type}, None, None, op.loc)
                    more[op.result] = Op(fold, [op.result, first.result], {}, None, None, op.loc)
                    ops += [first, more[op.result]]
        for op in ops:
            op.parent = self.fn.body
        self.fn.body.ops = ops
        replace(self.fn.body, {v: op.result for v, op in more.items()})
        for v, op in more.items():
            op.operands[0] = v

    def _init(self, total: Value) -> Value:
        return total.maker.operands[3 + total.maker.results.index(total)]

    def _check_memory(self) -> None:
        stores = [op for op in listed(self.fn.body) if "write" in op.define.effects]
        sizes: dict[Value | None, list[int]] = {}  # what is read -> bytes of an element, once for each loop
        for loop in self.loops:
            here: dict[Value | None, int] = {}
            for op in (x for x in loop.regions[0].ops if x.name == "load"):
                source = argument_of(op.operands[0])
                if is_volatile(op) or any(may_alias(source, x) for x in stores):
                    raise _NotWhole("what they read may be written meanwhile")
                here[source] = max(1, elem_of(op.result.type).bits // 8)
            for source, n in here.items():
                sizes.setdefault(source, []).append(n)
        ctas = self.fn.attrs.get("num_ctas", 1)  # 1: as many as it takes
        most = min(MOST_BYTES, ctas * ROOM) if ctas > 1 else MOST_BYTES
        if self.size * sum(n[0] for n in sizes.values() if len(n) > 1) > most:
            raise _NotWhole(f"rows of {self.size} elements are more than is kept")

    def _loop(self, loop: Op) -> dict[Value, Value]:
        body, found = loop.regions[0], {}
        for i, total in enumerate(loop.results):
            users = [op for op, _ in self.table.get(total, ())]
            if not adds_up(loop, i, self.table) or any(op.parent is not self.fn.body for op in users):
                raise _NotWhole(f"{total.name or 'what one carries'} is more than a sum")
        adds = {body.terminator.operands[i].op: total for i, total in enumerate(loop.results)}
        for op in body.ops[:-1]:
            if op in adds:
                carried = body.args[1 + loop.results.index(adds[op])]
                others = [v for v in op.operands if v is not carried]
                if op.name not in NOTHING:
                    raise _NotWhole(f"{op.name} rounds products into {adds[op].name or 'a sum'}")
                g, fold = self.whole(others[0]), op.name
                if self.ends.get(g) != NOTHING.get(fold):
                    raise _NotWhole(f"elements behind the end count in {adds[op].name or 'a sum'}")
                found[adds[op]] = g
            elif op.name == "store":
                self._store(op)
            elif op.name != "load" and not op.define.pure or op.regions:
                raise _NotWhole(f"{op.name} is done for each block")
        return found

    def _store(self, op: Op) -> None:
        operands = [self.whole(v) for v in op.operands]
        if len(operands) < 3 or self.ends.get(operands[2]) is not False:
            raise _NotWhole("a store's mask does not end with the row")
        self._insert(Op(op.name, operands, op.attrs, None, None, op.loc))

    def whole(self, v: Value) -> Value:
        if v not in self.env:
            self.env[v] = self._whole(v)
        return self.env[v]

    def _whole(self, v: Value) -> Value:
        op = v.op
        if self._is_open(v):
            raise _NotWhole("the number of a block is used for more than its elements' indices")
        if not isinstance(v.type, Tile):
            if isinstance(op, Op) and op.parent in [x.regions[0] for x in self.loops]:
                return self._computed(op, [self.whole(x) for x in op.operands])
            return v
        if v.type.shape != (self.step,) or not isinstance(op, Op):
            raise _NotWhole(f"{v.name or 'a tile'} is no block of the row")
        if op.name in ("add", "ptr_add"):
            for tile, index in (op.operands, op.operands[::-1]):
                if self._is_open(tile) and _is_range(index, self.step):
                    return self._indices(op, self.open[tile])
        if op.name in ("const", "splat"):
            return self._computed(op, [self.whole(x) for x in op.operands])
        if "elementwise" not in op.define.traits or not (op.define.pure or op.name == "load"):
            raise _NotWhole(f"{op.name} is more than arithmetic on elements")
        return self._computed(op, [self.whole(x) for x in op.operands])

    def _is_open(self, v: Value) -> bool:
        op = v.op
        if v in self.open:
            return True
        if not isinstance(op, Op) or not op.operands:
            return False
        if op.name == "splat" and self._is_open(op.operands[0]):
            self.open[v] = self.open[op.operands[0]]
            return True
        if op.name in ("add", "ptr_add") and not isinstance(v.type, Tile):
            for one, other in (op.operands, op.operands[::-1]):
                if self._is_open(one) and self.open[one] is None and not self._is_open(other):
                    self.open[v] = self.whole(other)
                    return True
        return False

    def _indices(self, op: Op, base: Value | None) -> Value:
        range_ = self._insert(Op("arange", [], {"start": 0, "end": self.size}, None, None, op.loc))
        if base is None:
            return range_
        all_ = self._insert(Op("splat", [base], {"shape": (self.size,)}, None, None, op.loc))
        return self._insert(Op(op.name, [all_, range_], {}, None, None, op.loc))

    def _computed(self, op: Op, operands: list[Value]) -> Value:
        attrs = dict(op.attrs)
        if op.name == "load" and self.each > REGISTERS and not _counts_up(operands[0], self.size):
            raise _NotWhole(f"its elements do not follow one another, and a thread has no registers for {self.each}")
        if op.name == "load" and len(operands) > 2 and str(const_of(operands[2])) in ("0", "0.0"):
            operands = operands[:2]  # as without it
        if "shape" in attrs:
            attrs["shape"] = (self.size,)
        if isinstance(attrs.get("type"), Tile):
            attrs["type"] = self._type(attrs["type"])
        new = self._insert(Op(op.name, operands, attrs, None, None, op.loc))
        new.name = new.name or op.result.name
        return new

    def _type(self, t: Type) -> Type:
        return Tile((self.size,), t.elem) if isinstance(t, Tile) else t

    def _insert(self, op: Op) -> Any:
        if not op.results:
            self.body.ops.append(op)
            return None
        key = computes(op)
        if key not in self.made:
            self.made[key] = op.result
            self.body.ops.append(op)
            self.ends[op.result] = self._behind(op)
        return self.made[key]

    def _behind(self, op: Op) -> Any:
        return behind(op, self.ends.get, lambda cmp: _outside(cmp, self.end, self.size))


def _outside(cmp: Op, end: Value, size: int) -> bool | None:
    index, bound, pred = *cmp.operands, cmp.attrs["pred"]
    if not _is_range(index, size):
        index, bound, pred = bound, index, {"gt": "lt", "le": "ge"}.get(pred, "")
    known = isinstance(bound.op, Op) and bound.op.name == "splat" and bound.op.operands[0] is end
    return {"lt": False, "ge": True}.get(pred) if known and _is_range(index, size) else None


def _counts_up(pointer: Value, size: int) -> bool:
    op = pointer.op
    return isinstance(op, Op) and op.name == "ptr_add" and isinstance(op.operands[0].op, Op) and \
        op.operands[0].op.name == "splat" and _is_range(op.operands[1], size)


def _is_range(v: Value, size: int) -> bool:
    return isinstance(v.op, Op) and v.op.name == "arange" and v.op.attrs["start"] == 0 and v.op.attrs["end"] == size
