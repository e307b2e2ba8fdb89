"""Loads of contiguous rows become `row_load`, one bulk copy: in pipelined loops, and of rows that stay in shared
memory."""
from __future__ import annotations

from typing import Any

from tilejit.ir import Block, Builder, Function, Op, Value, erase, listed, reached, replace, total_warps, uses
from tilejit.ir.ahead import ahead_problem, argument_of, is_volatile, may_alias
from tilejit.ir.target import target_of
from tilejit.ir.types import DType, Tile, elem_of, int32
from tilejit.passes.axis import AxisInfo, analyse
from tilejit.passes.copies import SIZES, pipelined_loops, refused, wants_copies
from tilejit.passes.rules import const_of

#: Elements of a row a thread from which on it is kept in shared memory where it is needed behind a reduction.
LEAST = 32
#: The same of rows of which half the warps have LEAST, and of those that may begin anywhere, of which single elements
#: are loaded otherwise.
LEAST_HALVED, LEAST_UNEVEN = 16, 8
#: Bytes of such rows in a CTA at most.
ROOM = 224 * 1024
#: What addresses and sizes of bulk copies are multiples of, in bytes (PTX ISA, cp.async.bulk).
UNIT = 16


def find_rows(fn: Function) -> Function:
    loops = pipelined_loops(fn)
    table, ops = uses(fn.body), listed(fn.body)
    folded = reached([v for op in ops if op.name == "reduce" for v in op.operands],
                     lambda v: v.op.operands if isinstance(v.op, Op) and _goes_on(v.op) else ())
    loads = [op for op in ops if op.name == "load" and isinstance(op.result.type, Tile)
             and len(op.result.type.shape) == 1 and (
                 wants_copies(fn, op, loops) or op.result in folded and _is_read_again(fn, op, table))]
    if not loads or not target_of(fn).hopper:
        return fn
    facts = analyse(fn)
    room = ROOM * fn.attrs.get("num_ctas", 1)
    for load in loads:
        block, t = load.parent, load.result.type
        assert block is not None and isinstance(t, Tile)
        kept = not wants_copies(fn, load, loops)
        if not kept and _is_few(fn, load, loops):
            continue
        if kept and t.shape[0] >= LEAST * 32 * total_warps(fn) and (room := room - t.numel * elem_of(t).bits // 8) < 0:
            fn.say("in_registers", f"load {load.result.name or 'of a row'} at {load.place}: held in registers, there "
                   "is no shared memory for it", load.place, bytes=t.numel * elem_of(t).bits // 8, size=t.numel)
            continue
        new = Block()
        row = _Row(fn, load, facts, Builder(new, loc=load.loc), kept and _in_strips(load, table))
        problem = row.problem()
        if kept and t.shape[0] < LEAST * 32 * total_warps(fn):
            halved = t.shape[0] >= LEAST_HALVED * 32 * total_warps(fn) and (row.ends or _meets_twice(load, table))
            if not problem and (row.unaligned or halved):
                how = "element by element, as the row may begin anywhere" if row.unaligned else "held in registers"
                fn.say("few_elements", f"load {load.result.name or 'of a row'} at {load.place}: {how}", load.place,
                       size=t.shape[0], bytes=t.numel * elem_of(t).bits // 8, anywhere=row.unaligned)
                fn.attrs.pop("mergeable", None)  # programs that copy rows as a whole stay as they are
            continue
        if problem:
            if problem != _NO_ROW:
                    fn.say("no_bulk_copy", f"load {load.result.name or 'of a row'} at {load.place}: no bulk copy, "
                       f"{problem}", load.place)
            continue
        at = block.ops.index(load)
        for op in new.ops:
            op.parent = block
        block.ops[at:at] = new.ops
        replace(fn.body, {load.result: row.result})
        erase({load}, block)
        fn.attrs.pop("mergeable", None)
    return fn


def _is_few(fn: Function, load: Op, loops: set[Op]) -> bool:
    """Whether a row of one warp goes with tiles that are copied by cp.async."""
    t = load.result.type
    assert isinstance(t, Tile) and isinstance(t.elem, DType)
    few = total_warps(fn) == 1 and max(1, t.numel // 32) * t.elem.bytes in SIZES
    return few and any(op.name == "load" and isinstance(op.result.type, Tile) and len(op.result.type.shape) > 1
                       and op.parent is load.parent and wants_copies(fn, op, loops) and not refused(op)
                       for op in listed(fn.body))


def _is_read_again(fn: Function, load: Op, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    """Whether a load outside of loops is of a row that is reduced and needed again, so wide that it is better kept in
    shared memory meanwhile (`schedule/strips.py`).
    """
    size = load.result.tile.shape[0]
    if load.parent is not fn.body or size < LEAST_UNEVEN * 32 * total_warps(fn):
        return False
    of_row = _follow([load.result], table)
    folds = _folds(of_row, table)
    used = any(op not in folds and not (op.results and op.results[0] in of_row)
               for v in of_row for op, _ in table.get(v, ()))
    known = _follow([r for op in folds for r in op.results], table)
    return bool(folds) and (used or not of_row.isdisjoint(known))


def _folds(values: set[Value], table: dict[Value, list[tuple[Op, int]]]) -> set[Op]:
    return {op for v in values for op, _ in table.get(v, ()) if op.name == "reduce"}


def _meets_twice(load: Op, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    """Whether a row is reduced again with what a reduction of it has found: its warps meet once more, the more they are
    the longer.
    """
    folds = _folds(_follow([load.result], table), table)
    known = _follow([r for op in folds for r in op.results], table)
    return any(v in known for op in folds for v in op.operands)


def _follow(values: list[Value], table: dict[Value, list[tuple[Op, int]]]) -> set[Value]:
    return {*reached(values, lambda v: [r for op, _ in table.get(v, ()) if _goes_on(op) for r in op.results])}


def _goes_on(op: Op) -> bool:
    return op.define.pure and ("elementwise" in op.define.traits or op.name in ("splat", "broadcast"))


def _in_strips(load: Op, table: dict[Value, list[tuple[Op, int]]]) -> bool:
    """Whether only arithmetic, stores and reductions follow from a row: it is worked on in strips."""
    def arithmetic(op: Op) -> bool:
        return op.define.pure and "elementwise" in op.define.traits

    row = reached([load.result], lambda v: [r for op, _ in table.get(v, ()) if arithmetic(op) for r in op.results])
    return all(arithmetic(op) or op.name in ("reduce", "store") and op.parent is load.parent
               for v in row for op, _ in table.get(v, ()))


class Firsts:
    def __init__(self, b: Builder):
        self.b = b
        self.made: dict[Value, Value] = {}

    def of(self, v: Value) -> Value | None:
        if not isinstance(v.type, Tile):
            return v
        if v not in self.made:
            found = self._first(v)
            if found is None:
                return None
            self.made[v] = found
        return self.made[v]

    def _first(self, v: Value) -> Value | None:
        op, t = v.op, elem_of(v.type)
        if not isinstance(op, Op):
            return None
        if op.name in ("const", "arange"):
            return self.b.const(op.attrs["value" if op.name == "const" else "start"], t)
        if op.define.traits & {"shape", "identity"} and len(op.operands) == 1 == len(op.results):
            return self.of(op.operands[0])
        if "elementwise" not in op.define.traits or not op.define.pure:
            return None
        operands = [self.of(x) for x in op.operands]
        if any(x is None for x in operands):
            return None
        return self.b(op.name, *operands, **op.attrs)  # type: ignore[arg-type]


_NO_ROW = "its addresses do not count up"


class _Row:
    def __init__(self, fn: Function, load: Op, facts: dict[Value, AxisInfo], b: Builder, anywhere: bool):
        self.fn, self.load, self.facts, self.b = fn, load, facts, b
        self.anywhere = anywhere  # it may begin and end between multiples of 16 bytes
        self.unaligned = False
        self.ends = False  # it may end before its tile does
        self.first = Firsts(b).of
        self.result = load.result
        self.size: int = load.result.tile.shape[0]

    def problem(self) -> str:
        """Why the load stays a load, or "" if `result` replaces it."""
        load, elem = self.load, self.load.result.tile.elem
        info = self.facts[load.operands[0]]
        if info.contiguity[0] < self.size or is_volatile(load):
            return _NO_ROW
        if load.parent is not self.fn.body and ahead_problem(load):
            return _NO_ROW
        source = argument_of(load.operands[0])
        if any("write" in x.define.effects and may_alias(source, x) for x in listed(self.fn.body)):
            return "the kernel may write what it reads, through another proxy"
        if not isinstance(elem, DType) or elem.family == "bool" or self.size * elem.bytes % UNIT:
            return _NO_ROW
        other = const_of(load.operands[2]) if len(load.operands) > 2 else 0
        if other is None:
            return "masked elements are not a constant"
        self.unaligned = bool(info.multiple(0, self.size, elem.bytes) % UNIT)
        if self.unaligned and not self.anywhere:
            return f"the row is not known to start at a multiple of {UNIT} bytes"
        base = self.first(load.operands[0])
        if base is None:
            return "its address is not computed from one number"
        operands = [base]
        if len(load.operands) > 1:
            limit = self.limit(load.operands[1], elem.bytes)
            if limit is None:
                return f"its mask is not known to end at a multiple of {UNIT} bytes"
            operands.append(limit)
            self.ends = self.facts[load.operands[1]].constancy[0] < self.size
        fill = {} if str(other) in ("0", "0.0") else {"fill": other}
        where = {"unaligned": True} if self.unaligned else {}
        hint = {"evict": load.attrs["evict"]} if load.attrs.get("evict") else {}
        self.result = self.b("row_load", *operands, size=self.size, **fill, **where, **hint)
        self.result.name = load.result.name
        return ""

    def limit(self, mask: Value, elem_bytes: int) -> Value | None:
        """How many elements a mask leaves, from the first on (int32, at most the row's), or None."""
        op = mask.op
        if not isinstance(op, Op):
            return None
        if self.facts[mask].constancy[0] >= self.size:
            whole = self.first(mask)
            return None if whole is None else self.b("select", whole, self._count(self.size), self._count(0))
        if op.name == "and":
            both = [self.limit(x, elem_bytes) for x in op.operands]
            return None if None in both else self.b("minimum", *both)  # type: ignore[arg-type]
        if op.name in ("broadcast", "convert") and op.operands[0].type == mask.type:
            return self.limit(op.operands[0], elem_bytes)
        if op.name != "cmp" or op.attrs["pred"] not in ("lt", "gt"):
            return None
        index, bound = op.operands if op.attrs["pred"] == "lt" else reversed(op.operands)
        counts, stands = self.facts[index], self.facts[bound]
        if counts.contiguity[0] < self.size or stands.constancy[0] < self.size:
            return None
        if counts.multiple(0, self.size) * elem_bytes % UNIT or stands.multiple(0, 1) * elem_bytes % UNIT:
            if not self.anywhere:
                return None
            self.unaligned = True
        start, end = self.first(index), self.first(bound)
        if start is None or end is None:
            return None
        left = self.b("sub", end, start)
        none, all_ = (self._count(n, left.type) for n in (0, self.size))
        inside = self.b("minimum", self.b("maximum", left, none), all_)
        return inside if inside.type == int32 else self.b("cast", inside, dtype=int32)

    def _count(self, n: int, t: Any = int32) -> Value:
        return self.b.const(n, t)
