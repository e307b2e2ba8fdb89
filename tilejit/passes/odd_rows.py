"""Rows that may begin and end anywhere stay in registers, as vectors from the 16 bytes in which they begin."""
from __future__ import annotations

from typing import Any

from tilejit.ir import Builder, Function, Op, Value, reached, replace
from tilejit.ir.ahead import argument_of, may_alias
from tilejit.ir.dead import drop_dead
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.ir.types import DType, Ptr, Tile, Type, elem_of, int32, int64
from tilejit.passes.axis import AxisInfo, analyse
from tilejit.passes.behind import NOTHING, behind
from tilejit.passes.copies import is_volatile
from tilejit.passes.layouts_access import access_width
from tilejit.passes.merge_programs import varying
from tilejit.passes.rows import UNIT, Firsts
from tilejit.passes.rules import const_of

#: Elements of a row's tile at least: of rows that begin anywhere; of those that consist of vectors, alone, with another
#: one or a weight, with two weights.
LEAST, EVEN = 512, (4096, 16384, 131072)
#: Elements of a thread at most, of 1, 2, 4, .. warps (negative: left to shared memory), by how many other rows and
#: weights there are: of rows that begin anywhere; of rows and weights that consist of vectors; of those with weights
#: that programs walk over (docs/rows.md).
ANYWHERE = (40, 40, 40, 40, 40, 64, 128), (40,)
IN_VECTORS = (40, 40, 40, 40, 40, 64, 128), (40, 40, 40, 40, 40, 40)
WALKS = {1: (40, -40, 40, 40, 40, 40, 64), 2: (-40, 40, 40, 40, 40, 64, 64)}
#: The same of rows that consist of vectors; from how many warps on programs walk over those.
VECTOR_WALKS, WALKERS = {1: (40, 40, 40, 40, 40, 40, -64, 64), 2: (*(-64,) * 6, 64, 64)}, 64
#: Warps of a CTA, twice as many where MANY or more have FEW elements a thread, and if more walk more than SOME; how
#: many of the numbers above are of one CTA, and of walks with 32-bit weights; CTAs of a cluster at most.
PER, MANY, FEW, SOME, ALONE, WIDE, CTAS = 4, 32, 56, 32, 3, 5, 16
#: Warps from which on walks keep two weights in shared memory, and one where more than MANY have more than SOME.
KEEP = 16

Limits = tuple[int, ...]


def _longest(most: int, ahead: int, limits: Limits) -> list[int]:
    return [min(most, (32 << i) * abs(each) - ahead) for i, each in enumerate(limits)]


def form(most: int, unit: int, ahead: int, limits: Limits) -> tuple[int, int] | None:
    """(warps, elements of a tile) for rows of vectors of `unit`, which begin up to `ahead` behind one."""
    for i, each in enumerate(limits):
        if most + ahead <= (32 << i) * abs(each):
            turn = (32 << i) * unit
            return (1 << i, -(-(most + ahead) // turn) * turn) if each > 0 else None
    return None


def span(n: int, most: int, unit: int, ahead: int, limits: Limits) -> tuple[int, int] | None:
    """The least and greatest length for which one function is compiled with n, or None."""
    found = form(n, unit, ahead, limits) if 0 < n <= most else None
    if found is None:
        return None
    warps, size = found
    turn = 32 * warps * unit
    low = max(1, size - turn - ahead + 1, *[x + 1 for x in _longest(most, ahead, limits) if x < n])
    high, whole = min(most, size - ahead), size - turn + unit
    return (max(low, whole), high) if n >= whole else (low, min(high, whole - 1))


def left(n: int, most: int, unit: int, ahead: int, limits: Limits) -> tuple[int, int]:
    """The least and greatest length around n, which has no form, without one."""
    ends = [0, *_longest(most, ahead, limits)]
    return max([x + 1 for x in ends if x < n], default=n), min([x for x in ends if x >= n], default=1 << 62)


def move_odd_rows(fn: Function) -> Function:
    from tilejit.passes.odd_walks import write_walk

    shapes = {v.type.shape for op in fn.body.ops for v in op.results if isinstance(v.type, Tile)}
    asked, ctas = fn.attrs.get("odd_rows"), fn.attrs.get("num_ctas", 1)
    if len(shapes) != 1 or asked is False or ctas > 1 and "row_span" not in fn.attrs or \
            not any(op.name == "reduce" for op in fn.body.ops):
        return fn
    (shape,) = shapes
    if len(shape) != 1 or shape[0] < LEAST:
        return fn
    row = Row(fn, shape[0])
    if not row.legal():
        return fn
    n, between = row.length(), fn.attrs.get("row_span")
    if isinstance(n, str) and between is None:
        fn.attrs["spanned"] = (n, row.size, row.unit, row.ahead, row.limits)
        fn.attrs.pop("mergeable", None)
        fn.attrs.setdefault("report", []).append(Record(
            "spanned", f"rows as long as {n} says: launches keep them in registers, by kernels of their own"))
        return fn
    low, high = between or (n, n)
    found = form(high, row.unit, row.ahead, row.limits) if 0 < high <= row.size else None
    if found is not None:
        warps, size = found
        each, many = size // (32 * warps), row.walks and warps > MANY
        twice = warps >= MANY and (SOME if many else 0) < each <= FEW
        per = max(min(warps, 2 * PER if twice else PER), warps // CTAS)
        fn.attrs["num_warps"], fn.attrs["num_ctas"] = per, warps // per
        turn = 32 * warps * row.unit
        whole = max(0, (low - row.unit) // turn * turn)
        if row.walks and warps >= (2 if row.ahead else WALKERS):
            keeps = row.weights > 1 or many and each > SOME
            write_walk(row, size, whole, keeps and warps >= KEEP)
        else:
            row.write(size, whole)
        fn.attrs.pop("mergeable", None)
        where = " that begin anywhere" if row.ahead else ""
        line = f"rows of {low} to {high} elements{where}: vectors in registers, {warps} warps"
        fn.attrs.setdefault("report", []).append(Record("odd_row", line, size=size, warps=warps))
    return fn


def is_row(op: Op) -> bool:
    """Whether an op loads or stores a tile."""
    return op.name in ("load", "store") and isinstance(op.operands[0].type, Tile)


def _counts(t: Type) -> bool:
    elem = elem_of(t)
    return isinstance(elem, Ptr) or isinstance(elem, DType) and elem.is_int()


def _is_place(t: Type) -> bool:
    return isinstance(t, Tile) and _counts(t)


def _index(v: Value) -> Op | None:
    op = v.op
    while isinstance(op, Op) and op.name == "cast":
        op = op.operands[0].op
    return op if isinstance(op, Op) and op.name == "arange" else None


class Row:
    """The tiles of a function that has one row, of at most `size` elements."""

    def __init__(self, fn: Function, size: int):
        self.fn, self.size, self.unit, self.ahead, self.weights = fn, size, 0, 0, 0
        self.limits: Limits = ()
        self.facts: dict[Value, AxisInfo] = {}
        self.places: set[Value] = set()  # tiles of indices and addresses
        self.inside: dict[Value, Value] = {}  # mask -> what it compares indices with
        self.found: dict[Op, int] = {}  # comparison of places with a number -> which operand that is
        self.first: Op | None = None  # the load that says where the row begins
        self.late: list[Op] = []
        self.varies: set[Value] = set()  # what differs from program to program
        self.walks = False
        self.ends: dict[Value, Any] = {}

    def legal(self) -> bool:
        return self._sorted() and self._has_rows() and self._early() and self._apart() and self._adds_nothing()

    def _sorted(self) -> bool:
        for op in self.fn.body.ops:
            if op.regions and op.name != "reduce":
                return False
            if not any(isinstance(v.type, Tile) for v in (*op.operands, *op.results)):
                continue
            if op.name == "arange" and op.attrs["start"] == 0:
                self.places.add(op.result)
            elif any(v in self.places for v in op.operands):
                if op.name == "cmp" and (self._ends_the_row(op) or self._finds_one(op)):
                    continue
                if "elementwise" in op.define.traits and op.define.pure and _is_place(op.result.type):
                    self.places.add(op.result)
                elif op.name not in ("load", "store") or any(v in self.places for v in op.operands[1:]):
                    return False
            elif op.name in ("load", "store") or op.name not in ("const", "splat", "reduce") and (
                    "elementwise" not in op.define.traits or not op.define.pure or "packs" in op.define.traits):
                return False
        return True

    def _ends_the_row(self, cmp: Op) -> bool:
        index, bound = cmp.operands if cmp.attrs["pred"] == "lt" else reversed(cmp.operands)
        end = bound.op
        if cmp.attrs["pred"] not in ("lt", "gt") or _index(index) is None or not isinstance(end, Op) or \
                end.name not in ("splat", "const"):
            return False
        n = end.operands[0] if end.name == "splat" else bound
        if any(x is not n for x in self.inside.values()):
            return False
        self.inside[cmp.result] = n
        return True

    def _finds_one(self, cmp: Op) -> bool:
        """Whether it compares elements' places with a number."""
        for i, v in enumerate(cmp.operands):
            op = v.op
            if isinstance(op, Op) and op.name == "splat" and elem_of(v.type) == int32 and \
                    _index(cmp.operands[1 - i]) is not None:
                self.found[cmp] = i
                return True
        return False

    def length(self) -> Any:
        """A number, an argument's name, or None."""
        n = next(iter(self.inside.values()))
        if (known := const_of(n)) is not None:
            return int(known)
        while isinstance(n.op, Op) and n.op.name == "cast":
            n = n.op.operands[0]
        return n.name if n.op is self.fn.body else None

    def _has_rows(self) -> bool:
        """Whether all accesses are of rows as long as the mask says, one of which differs from program to program and
        is not known to consist of vectors.
        """
        accesses = [op for op in self.fn.body.ops if is_row(op)]
        for op in accesses:
            pointer, mask = elem_of(op.operands[0].type), op.operands[1 if op.name == "load" else 2:][:1]
            elem = pointer.elem if isinstance(pointer, Ptr) else None
            if not mask or mask[0] not in self.inside or is_volatile(op) or not isinstance(elem, DType) or \
                    elem.bits not in (16, 32) or op.name == "load" and len(op.operands) > 2 \
                    and const_of(op.operands[2]) is None:
                return False
        if not self.inside or self.length() is None:
            return False
        self.first = next((op for op in accesses if op.name == "load" and self._varies(op.operands[0])), None)
        others = [op for op in accesses if op.name == "load" and op is not self.first]
        if self.first is None:
            return False
        self.varies, self.facts = varying(self.fn), analyse(self.fn)
        self.unit = UNIT // elem_of(self.first.result.type).bytes  # type: ignore[union-attr]
        even, weights = self._in_vectors(self.first), all(op.operands[0] not in self.varies for op in others)
        walks, wide = VECTOR_WALKS if even else WALKS, any(elem_of(op.result.type).bits == 32 for op in others)
        self.walks = weights and not self.found and len(others) in walks and self._linear(self.first.operands[0]) and \
            elem_of(self.first.result.type).bits == 16 and not (even and wide)
        forms = dict(enumerate(ANYWHERE if not even else IN_VECTORS if weights else IN_VECTORS[:1]))
        if self.walks:
            forms[len(others)] = walks[len(others)][:WIDE if wide else None]
        clusters = target_of(self.fn).hopper and not self.fn.attrs.get("launch_cooperative_grid")
        self.weights = len(others)
        self.limits, self.ahead = forms.get(len(others), ())[:None if clusters else ALONE], 0 if even else self.unit - 1
        return bool(self.limits) and all(self.facts[op.operands[0]].contiguity[0] >= self.size for op in accesses) and \
            (not even or self.size >= EVEN[len(others)] and all(map(self._in_vectors, accesses)))

    def _in_vectors(self, access: Op) -> bool:
        pointer = elem_of(access.operands[0].type)
        assert isinstance(pointer, Ptr) and isinstance(pointer.elem, DType)
        return access_width(access, self.facts, 0) * pointer.elem.bytes == UNIT

    def _varies(self, address: Value) -> bool:
        found = reached([address], lambda v: v.op.operands if isinstance(v.op, Op) else ())
        return any(isinstance(v.op, Op) and v.op.name == "program_id" for v in found)

    def _linear(self, v: Value) -> bool:
        """Whether a value is the program's number times something, plus something, that no program differs in."""
        op = v.op
        if v not in self.varies or not isinstance(op, Op):
            return v not in self.varies
        if op.name == "mul" and _counts(op.result.type):
            return any(x not in self.varies for x in op.operands) and all(map(self._linear, op.operands))
        sums = op.name in ("add", "sub", "ptr_add") or op.name == "cast" or "spreads" in op.define.traits
        return _counts(op.result.type) and (op.name == "program_id" or sums and all(map(self._linear, op.operands)))

    def _needs_ends(self, op: Op) -> bool:
        return any(v in self.inside for v in op.operands) or is_row(op)

    def _early(self) -> bool:
        assert self.first is not None
        ops = self.fn.body.ops
        of = reached([self.first.operands[0]], lambda v: v.op.operands if isinstance(v.op, Op) else ())
        start = next(i for i, op in enumerate(ops) if self._needs_ends(op))
        self.late = [op for op in ops[start:] if any(v in of and not isinstance(v.type, Tile) for v in op.results)]
        return all(op.define.pure and not op.regions for op in self.late)

    def _apart(self) -> bool:
        loads = [op for op in self.fn.body.ops if "read" in op.define.effects]
        stores = [op for op in self.fn.body.ops if "write" in op.define.effects]
        return all(op.name == "store" and (not may_alias(argument_of(x.operands[0]), op) or
                                           x.operands[0] is op.operands[0]) for op in stores for x in loads)

    def _adds_nothing(self) -> bool:
        for op in self.fn.body.ops:
            for v in op.results:
                if isinstance(v.type, Tile) and v not in self.places:
                    self.ends[v] = 0.0 if self._vanishes(op) else behind(op, self.ends.get, self._compared)
        return all(len(op.operands) == 1 and len(op.regions[0].ops) == 2
                   and (fold := op.regions[0].ops[0].name) in NOTHING
                   and self.ends.get(op.operands[0]) == NOTHING[fold]
                   for op in self.fn.body.ops if op.name == "reduce")

    def _compared(self, cmp: Op) -> bool | None:
        return False if cmp.result in self.inside else None

    def _vanishes(self, op: Op) -> bool:
        """Whether an op is exp(x - max(x)) where x is -inf outside."""
        if op.name not in ("exp", "exp2"):
            return False
        less = op.operands[0].op
        if not isinstance(less, Op) or less.name != "sub" or self.ends.get(less.operands[0]) != float("-inf"):
            return False
        top = less.operands[1].op
        top = top.operands[0].op if isinstance(top, Op) and top.name == "splat" else None
        if isinstance(top, Op) and top.name == "maximum":  # of that and another number
            top = top.operands[0].op
        return isinstance(top, Op) and top.name == "reduce" and top.operands[0] is less.operands[0] and \
            top.regions[0].ops[0].name == "maximum"

    # -- writing --
    def write(self, size: int, whole: int) -> None:
        assert self.first is not None
        old, body = self.fn.body.ops, self.fn.body
        body.ops = []
        b = Builder(body)
        firsts, made = Firsts(b), dict[Value, Value]()
        at = next(i for i, op in enumerate(old) if self._needs_ends(op))
        for op in (*old[:at], *self.late):
            self._insert(op, size, b)
        b.loc = old[at].loc
        shift, end = self.ends_of(b, self._start(self.first, firsts))
        back = b("sub", b.const(0, int32), shift)
        ends = {"whole": whole} | ({} if self.ahead else {"vectors": self.unit})
        inside = b("row_inside", shift, end, size=size, **ends)
        for op in (x for x in old[at:] if x not in self.late):
            b.loc = op.loc
            if op in self.found:
                at = self.found[op]
                number = op.operands[at].op.operands[0]  # type: ignore[union-attr]
                op.operands[at] = b("splat", b("add", number, shift), shape=(size,))
                op.operands[1 - at] = b("arange", start=0, end=size)
            if not is_row(op):
                self._insert(op, size, b)
                continue
            base, attrs = b("ptr_add", self._start(op, firsts), back), self.attrs(op) | ends
            if op.name == "store":
                b.op("row_write", base, op.operands[1], shift, end, **attrs)
                continue
            made[op.result] = b("row_read", base, shift, end, size=size, **attrs)
            made[op.result].name = op.result.name
        replace(body, made | dict.fromkeys(self.inside, inside))
        drop_dead(self.fn)

    def attrs(self, op: Op) -> dict[str, Any]:
        """Those of the access that stands for one."""
        attrs = {k: op.attrs[k] for k in ("cache", "evict") if op.attrs.get(k)}
        if op.name == "store":
            return attrs
        other = const_of(op.operands[2]) if len(op.operands) > 2 else 0
        begins = self.facts[op.operands[0]].multiple(0, self.size, elem_of(op.result.type).bits // 8) % UNIT == 0
        attrs |= {} if str(other) in ("0", "0.0") else {"fill": other}
        return attrs | ({"aligned": True} if op is self.first or not self.ahead else {"begins": True} if begins else {})

    def _insert(self, op: Op, size: int, b: Builder) -> None:
        if any(v in self.inside for v in op.results):
            return
        for v in op.results:
            if isinstance(v.type, Tile) and v not in self.places:
                v.type = Tile((size,), v.type.elem)
                op.attrs.update({k: x for k, x in (("shape", (size,)), ("type", v.type)) if k in op.attrs})
        b.insert(op)

    def ends_of(self, b: Builder, start: Value) -> tuple[Value, Value]:
        """Where the row that starts there begins and ends, counted from the 16 bytes in which it begins."""
        shift = b.const(0, int32)
        if self.ahead:
            address = b("cast", start, dtype=int64)
            ahead = b("cast", b("and", address, b.const(UNIT - 1, int64)), dtype=int32)
            shift = b("idiv", ahead, b.const(UNIT // self.unit, int32))
        n = next(iter(self.inside.values()))
        n = b.const(int(const_of(n)), int32) if const_of(n) is not None else n  # type: ignore[arg-type]
        kept = b("minimum", b("maximum", n, b.const(0, n.type)), b.const(self.size, n.type))
        return shift, b("add", shift, kept if kept.type == int32 else b("cast", kept, dtype=int32))

    def _start(self, access: Op, firsts: Firsts) -> Value:
        found = firsts.of(access.operands[0])
        assert found is not None and isinstance(found.type, Ptr)
        return found

