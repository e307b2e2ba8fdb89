"""Programs of rows that begin anywhere walk over rows that begin alike, so that weights are shifted once."""
from __future__ import annotations

from collections.abc import Callable

from tilejit.ir import Block, Builder, Op, Value, clone_op, reached
from tilejit.ir.dead import drop_dead
from tilejit.ir.types import Tile, elem_of, int32
from tilejit.passes.odd_rows import Row, is_row
from tilejit.passes.rows import Firsts

#: After how many rows programs that are ahead wait; those with two weights in registers do not (H100, layernorm of 8193
#: columns: 0.94 of a copy, 0.93 with it).
EVERY = 4
#: What no element's number reaches.
_NEVER = 1 << 30


def write_walk(row: Row, size: int, whole: int, keeps: bool) -> None:
    """Write the function of a row anew, its tiles of `size` elements, all of them in the row below `whole`, but for
    those ahead of it. It may keep weights in shared memory."""
    _Walk(row, size, whole, keeps).write()
    row.fn.attrs.pop("straight", None)
    drop_dead(row.fn)


class _Walk:
    """The function, and what is made of it."""

    def __init__(self, row: Row, size: int, whole: int, keeps: bool):
        assert row.first is not None
        self.keeps = keeps
        self.row, self.first, self.unit = row, row.first, row.unit
        self.sizes = {"size": size, "whole": whole}
        self.old, row.fn.body.ops = row.fn.body.ops, []
        self.b = Builder(row.fn.body, loc=row.first.loc)
        self.ids = [op.result for op in self.old if op.name == "program_id" and op.attrs["axis"] == 0]
        self.main: dict[Value, Value] = {}  # values of the function -> of the walk, tiles without the ends
        self.ends: dict[Value, Value] = {}  # tiles -> those of the ends

    def write(self) -> None:
        """The walk, in the function's place."""
        row, b, first = self.row, self.b, self.first
        rest = [op for op in self.old[:-1] if not self._once(op)]
        address = self._address_of(first)
        program, step = b("program_id", axis=0), b("num_programs", axis=0, ctas=True)
        total = b("num_programs", axis=0)
        start = address(program, b)
        self.shift, self.end = row.ends_of(b, start)
        self.back = b("sub", b.const(0, int32), self.shift)
        if row.ahead:
            self._find_ends()
        now = self._read(first, start, b)
        kept, zero = dict[Value, Value](), b.const(0, int32)
        for op in rest:
            if is_row(op) and op.name == "load" and op is not first:
                begins = Firsts(b).of(op.operands[0])
                assert begins is not None
                self._put(op.result, self._read(op, begins, b))
                if self.keeps:
                    kept[op.result] = b("stack", slots=1, type=self.main[op.result].type,
                                        threads=32 * row.fn.attrs["num_warps"])
                    b.op("keep", kept[op.result], zero, self.main[op.result])
        names = ["program", first.result.name or "row", "ends"]
        region = Block([int32, *(v.type for v in now)], names[:1 + len(now)])
        at, *args = region.args
        self._put(first.result, args)
        self.main.update(dict.fromkeys(self.ids, at))
        loop = Builder(region, loc=first.loc)
        after = loop("add", at, step)
        later = self._read(first, address(after, loop), loop, loop("cmp", after, total, pred="lt"))
        mask = loop("row_inside", self.shift, self.end, vectors=self.unit, **self.sizes)
        self.main.update(dict.fromkeys(row.inside, mask))
        if row.ahead:
            self.ends.update(dict.fromkeys(row.inside, self.inside))
        for op in rest:
            loop.loc = op.loc
            for v in [v for v in op.operands if v in kept]:  # no sooner: registers are for rows
                self.main[v] = loop("kept", kept.pop(v), zero)
            if not (is_row(op) and op.name == "load") and not any(v in self.main for v in op.results):
                self._again(op, loop)
        loop.op("yield", *later)
        b.op("for", program, total, step, *now, regions=[region],
             in_step=EVERY if self.keeps or row.weights == 1 else 0)
        b.insert(self.old[-1])
        row.fn.attrs["walks"] = self.unit if row.ahead else 1

    def _put(self, v: Value, row: list[Value]) -> None:
        """Row: its tile, and that of its ends if it has any."""
        self.main[v] = row[0]
        self.ends.update(zip([v], row[1:]))

    def _once(self, op: Op) -> bool:
        """Put a scalar that no program differs in ahead of the walk."""
        values = (*op.operands, *op.results)
        once = not any(isinstance(v.type, Tile) for v in values) and self.row.varies.isdisjoint(values) and \
            op.define.effects <= {"read"}
        if once:
            self.b.insert(op)
        return once

    def _address_of(self, access: Op) -> Callable[[Value, Builder], Value]:
        """What computes where the row of a program begins, of the program's number."""
        scalars = Block()
        begins = Firsts(Builder(scalars, loc=access.loc)).of(access.operands[0])
        assert begins is not None
        found, ids = begins, self.ids
        needed = reached([found], lambda v: v.op.operands if isinstance(v.op, Op) else ())
        varies = needed & self.row.varies - {*ids}
        ops = [op for op in (*self.old, *scalars.ops) if op.parent is scalars or not varies.isdisjoint(op.results)]

        def address(program: Value, b: Builder) -> Value:
            env = dict.fromkeys(ids, program)
            for op in ops:
                b.insert(clone_op(op, env))
            return env.get(found, found)

        return address

    def _find_ends(self) -> None:
        """The elements of the vectors in which the row begins and ends, where it has not all of those."""
        b, unit = self.b, self.unit
        none, never = b.const(0, int32), b.const(_NEVER, int32)
        tail = b("and", self.end, b.const(-unit, int32))
        ahead = b("select", b("cmp", self.shift, none, pred="gt"), self.shift, never)
        apart = b("or", b("cmp", tail, none, pred="gt"), b("cmp", self.shift, none, pred="eq"))
        behind = b("select", apart, none, never)
        lane = b("arange", start=0, end=2 * unit)
        head = b("cmp", lane, self._spread(b.const(unit, int32), b), pred="lt")
        at = b("select", head, lane, b("add", lane, self._spread(b("sub", tail, b.const(unit, int32)), b)))
        least = b("select", head, self._spread(ahead, b), self._spread(behind, b))
        self.inside = b("and", b("cmp", at, least, pred="ge"), b("cmp", at, self._spread(self.end, b), pred="lt"))
        self.places = b("sub", at, self._spread(self.shift, b))

    def _spread(self, v: Value, b: Builder) -> Value:
        return b("splat", v, shape=(2 * self.unit,))

    def _read(self, op: Op, begins: Value, b: Builder, live: Value | None = None) -> list[Value]:
        """A row that begins there, and its ends if it has any; where it is not `live`, anything."""
        attrs = self.row.attrs(op) | self.sizes | ({"vectors": self.unit} if op is self.first else {})
        given = [] if live is None else [live]
        main = b("row_read", b("ptr_add", begins, self.back), self.shift, self.end, *given, **attrs)
        if not self.row.ahead:
            return [main]
        inside = self.inside if live is None else b("and", self.inside, self._spread(live, b))
        other = [] if "fill" not in attrs else [b.const(attrs["fill"], Tile((2 * self.unit,), elem_of(main.type)))]
        pointers = b("ptr_add", self._spread(begins, b), self.places)
        return [main, b("load", pointers, inside, *other, **{k: attrs[k] for k in ("cache", "evict") if k in attrs})]

    def _again(self, op: Op, loop: Builder) -> None:
        """An op in the walk."""
        if any(v in self.row.places for v in op.results):
            return
        if is_row(op):
            self._store(op, loop)
        elif op.name == "reduce":
            found = self._copy(op, 0, self.main, loop)
            if self.row.ahead:
                fold = op.regions[0].ops[0]
                found = loop(fold.name, found, self._copy(op, 0, self.main | self.ends, loop), **fold.attrs)
            self.main[op.result] = found
        elif any(isinstance(v.type, Tile) for v in op.results):
            self.main[op.result] = self._copy(op, self.sizes["size"], self.main, loop)
            if self.row.ahead:
                self.ends[op.result] = self._copy(op, 2 * self.unit, self.main | self.ends, loop)
        else:
            loop.insert(clone_op(op, self.main))

    def _copy(self, op: Op, size: int, env: dict[Value, Value], b: Builder) -> Value:
        """What an op computes, of tiles of `size` elements."""
        t = op.result.type
        t = Tile((size,), t.elem) if isinstance(t, Tile) else t
        new = clone_op(op, dict(env))
        new.attrs = op.attrs | {k: x for k, x in (("shape", (size,)), ("type", t)) if k in op.attrs}
        new.result.type = t
        return b.insert(new).result

    def _store(self, op: Op, loop: Builder) -> None:
        scalars = Block()
        begins = Firsts(Builder(scalars, loc=op.loc)).of(op.operands[0])
        assert begins is not None
        env = dict(self.main)
        for x in scalars.ops:
            loop.insert(clone_op(x, env))
        start, attrs = env.get(begins, begins), self.row.attrs(op)
        loop.op("row_write", loop("ptr_add", start, self.back), self.main[op.operands[1]], self.shift, self.end,
                vectors=self.unit, whole=self.sizes["whole"], **attrs)
        if self.row.ahead:
            pointers = loop("ptr_add", self._spread(start, loop), self.places)
            loop.op("store", pointers, self.ends[op.operands[1]], self.inside, **attrs)
