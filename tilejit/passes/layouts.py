"""Gives every tile in registers a layout, and `convert` ops where two layouts meet.

Before: no tile has a layout. After: every tile has one, except blocks that wgmma reads in place from shared
memory (results of `desc_load` and `trans` whose every use is a `dot` operand).

1. `split_cheap`: ranges, splats and arithmetic on them are cloned for each use, so each copy may take the
   layout of its user instead of being converted.
2. Anchors, strongest first: accumulators of products, then global accesses (coalesced, as wide as the axis
   analysis allows). Each spreads to its neighbours through elementwise ops, shape ops (by layout algebra),
   loops and branches, until it meets a tile that has a layout.
3. What is left takes the default blocked layout.
4. `reconcile`: where an operand's layout is not the one its op needs, a `convert` is inserted.
5. Equal copies are merged again, and memory ops learn their vector width (`vec`).

    %x = load %p : fp32[64x64]              %x = load %p {vec=4} : fp32[64x64, #l1]
    %y = add %acc, %x              ->       %0 = convert %x : fp32[64x64, #l0]
                                            %y = add %acc, %0 : fp32[64x64, #l0]
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tilejit.ir import Block, Builder, Function, Op, Value, clone_op, uses, walk
from tilejit.ir.types import Ptr, Tile, elem_of
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked, wgmma_accumulator
from tilejit.passes.axis import AxisInfo, analyse, vector_width


def assign_layouts(fn: Function) -> Function:
    """Assign layouts in place; appends the conversions that remain to `attrs["report"]`."""
    split_cheap(fn)
    facts = analyse(fn)
    layouts = Assignment(fn, facts).run()
    for v, layout in layouts.items():
        assert isinstance(v.type, Tile)
        v.type = v.type.with_layout(layout)
    fix_results(fn)
    reconcile(fn)
    merge_copies(fn.body, {})
    set_vectors(fn, analyse(fn))
    return fn


# -- 1. copies of cheap values ----------------------------------------------------------------------------
def split_cheap(fn: Function) -> None:
    """Clone cheap tile ops (whose tile operands are cheap too) until each has one use."""
    cheap: set[Op] = set()
    for op in walk(fn.body):
        if op.results and isinstance(op.results[0].type, Tile) and op.define.pure \
                and "cheap" in op.define.traits and len(op.results) == 1 \
                and all(not isinstance(v.type, Tile) or (isinstance(v.op, Op) and v.op in cheap)
                        for v in op.operands):
            cheap.add(op)
    _split_block(fn.body, cheap)


def _split_block(block: Block, cheap: set[Op]) -> None:
    for op in reversed(list(walk(block))):
        if op not in cheap:
            continue
        assert op.parent is not None
        users = uses(block).get(op.result, [])
        at = op.parent.ops.index(op)
        for user, index in users[1:]:
            copy = clone_op(op, {})
            copy.parent = op.parent
            op.parent.ops.insert(at, copy)
            user.operands[index] = copy.result


# -- 2 and 3. anchors and their spread ----------------------------------------------------------------------
class Assignment:
    """The layouts chosen so far, and the queue of tiles whose neighbours have not been visited."""

    def __init__(self, fn: Function, facts: dict[Value, AxisInfo]):
        self.fn, self.facts = fn, facts
        self.warps: int = fn.attrs["num_warps"]
        self.uses = uses(fn.body)
        self.chosen: dict[Value, LinearLayout] = {}
        self.queue: deque[Value] = deque()

    def run(self) -> dict[Value, LinearLayout]:
        """All layouts, by value."""
        ops = list(walk(self.fn.body))
        for op in ops:
            if op.name == "dot":
                t = op.result.type
                assert isinstance(t, Tile)
                self.set(op.result, wgmma_accumulator(t.shape, self.warps))  # type: ignore[arg-type]
        self.spread()
        widths = self.access_widths(ops)
        for op in ops:
            if op.name in ACCESSES and isinstance(op.operands[0].type, Tile):
                self.set(op.operands[0], self.coalesced(op, widths))
        self.spread()
        for op in ops:
            for v in (*op.results, *(a for r in op.regions for a in r.args)):
                if isinstance(v.type, Tile) and v not in self.chosen and not self.in_shared(v):
                    self.set(v, blocked(v.type.shape, self.warps))
                    self.spread()
        return self.chosen

    def in_shared(self, v: Value) -> bool:
        """True for blocks that only products read, in place."""
        if not isinstance(v.op, Op) or v.op.name not in ("desc_load", "trans") or len(v.type.shape) != 2:  # type: ignore[union-attr]
            return False
        if v.op.name == "trans" and not self.in_shared_source(v.op.operands[0]):
            return False
        return all((u.name == "dot" and i < 2) or (u.name == "trans" and self.in_shared(u.result))
                   for u, i in self.uses.get(v, ()))

    def in_shared_source(self, v: Value) -> bool:
        """True if v is a loaded block or a transpose of one."""
        return isinstance(v.op, Op) and (v.op.name == "desc_load" or (
            v.op.name == "trans" and self.in_shared_source(v.op.operands[0])))

    def set(self, v: Value, layout: LinearLayout) -> None:
        """Choose a tile's layout if it has none and lives in registers."""
        if v not in self.chosen and isinstance(v.type, Tile) and not self.in_shared(v):
            self.chosen[v] = layout
            self.queue.append(v)

    def spread(self) -> None:
        """Carry chosen layouts to neighbours until nothing changes."""
        while self.queue:
            v = self.queue.popleft()
            for other, layout in self.neighbours(v, self.chosen[v]):
                self.set(other, layout)

    def neighbours(self, v: Value, layout: LinearLayout) -> Iterator[tuple[Value, LinearLayout]]:
        """Values whose layout follows from v's, through v's own op and its users."""
        if isinstance(v.op, Op):
            yield from self._from_result(v.op, v, layout)
        elif v.op is not None and v.op.parent is not None:
            for other in tied(v.op.parent, v):
                yield other, layout
        for op, index in self.uses.get(v, ()):
            yield from self._from_operand(op, index, v, layout)

    def _from_result(self, op: Op, v: Value, layout: LinearLayout) -> Iterator[tuple[Value, LinearLayout]]:
        if op.name in ("for", "while", "if"):
            for other in tied(op, v):
                yield other, layout
        elif op.name == "dot":
            yield op.operands[2], layout
        elif op.name in BACKWARD:
            source = BACKWARD[op.name](op, layout)
            for operand in op.operands:
                yield operand, source
        elif "elementwise" in op.define.traits:
            for operand in op.operands:
                yield operand, layout

    def _from_operand(self, op: Op, index: int, v: Value, layout: LinearLayout
                      ) -> Iterator[tuple[Value, LinearLayout]]:
        if op.name in ("for", "while", "if", "yield", "condition"):
            owner = op if op.regions else op.parent.parent if op.parent else None
            if owner is not None and owner.name in ("for", "while", "if"):
                for other in tied(owner, v):
                    yield other, layout
        elif op.name == "dot":
            if index == 2:
                yield op.result, layout
        elif op.name == "store":
            if index != 1:           # the address decides how a store is done, the value follows or is converted
                for operand in op.operands:
                    yield operand, layout
        elif op.name in FORWARD:
            for result in op.results:
                yield result, FORWARD[op.name](op, layout)
        elif "elementwise" in op.define.traits:
            for other in (*op.results, *op.operands):
                yield other, layout

    # -- global accesses --------------------------------------------------------------------------------
    def access_widths(self, ops: list[Op]) -> dict[tuple[int, ...], tuple[int, int]]:
        """Per shape: (fastest dimension, elements per access), the widest over all accesses of that shape."""
        widths: dict[tuple[int, ...], tuple[int, int]] = {}
        for op in ops:
            if op.name not in ACCESSES or not isinstance(op.operands[0].type, Tile):
                continue
            shape = op.operands[0].type.shape
            dim, vec = self.width(op)
            if shape not in widths or vec > widths[shape][1]:
                widths[shape] = (dim, vec)
        return widths

    def width(self, op: Op) -> tuple[int, int]:
        """The fastest dimension of one access and how many elements fit one instruction along it."""
        ptr = self.facts[op.operands[0]]
        rank = len(ptr.contiguity)
        dim = max(range(rank), key=lambda d: (ptr.contiguity[d], d))
        vec = access_width(op, self.facts, dim)
        t = op.operands[0].type
        assert isinstance(t, Tile)
        return dim, max(1, min(vec, t.numel // (32 * self.warps)))

    def coalesced(self, op: Op, widths: dict[tuple[int, ...], tuple[int, int]]) -> LinearLayout:
        """Neighbouring threads on neighbouring addresses, each as wide as the widest access of this shape."""
        t = op.operands[0].type
        assert isinstance(t, Tile)
        dim, _ = self.width(op)
        order = (dim, *(d for d in reversed(range(len(t.shape))) if d != dim))
        wide_dim, vec = widths[t.shape]
        return blocked(t.shape, self.warps, vec if wide_dim == dim else 1, order)


#: Ops that touch global memory through a tile of pointers (operand 0).
ACCESSES = ("load", "store", "atomic_rmw", "atomic_cas")


def access_width(op: Op, facts: dict[Value, AxisInfo], dim: int) -> int:
    """Elements per instruction of a load or store along `dim`; atomics go one by one."""
    if op.name not in ("load", "store"):
        return 1
    elem = elem_of(op.operands[0].type)
    assert isinstance(elem, Ptr)
    mask_at = 1 if op.name == "load" else 2
    mask = facts[op.operands[mask_at]] if len(op.operands) > mask_at else None
    return vector_width(facts[op.operands[0]], elem.elem.bytes, mask, dim)


def tied(op: Op, v: Value) -> list[Value]:
    """All values that a loop or branch forces to one layout with v: initial, carried, yielded, result."""
    groups: list[list[Value]] = []
    if op.name == "for":
        body = op.regions[0]
        groups = [list(g) for g in zip(op.operands[3:], body.args[1:], body.terminator.operands, op.results)]
    elif op.name == "while":
        before, body = op.regions
        groups = [list(g) for g in zip(op.operands, before.args, body.terminator.operands)]
        groups += [list(g) for g in zip(before.terminator.operands[1:], body.args, op.results)]
    elif op.name == "if":
        groups = [[r, *(region.terminator.operands[i] for region in op.regions)]
                  for i, r in enumerate(op.results)]
    return [x for g in groups if v in g for x in g if x is not v]


def _source_shape(op: Op) -> tuple[int, ...]:
    t = op.operands[0].type
    assert isinstance(t, Tile)
    return t.shape


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


#: Shape ops: the operand's layout from the result's.
BACKWARD = {
    "expand_dims": lambda op, layout: layout.drop_dim(op.attrs["axis"]),
    "broadcast": lambda op, layout: layout.project(_source_shape(op)),
    "reshape": lambda op, layout: layout.reshape(_source_shape(op)),
    "trans": lambda op, layout: layout.transpose(_inverse(tuple(op.attrs["order"]))),
    "split": lambda op, layout: layout.join(),
}
#: Shape ops: the result's layout from the operand's.
FORWARD = {
    "expand_dims": lambda op, layout: layout.expand_dims(op.attrs["axis"]),
    "reshape": lambda op, layout: layout.reshape(tuple(op.attrs["shape"])),
    "trans": lambda op, layout: layout.transpose(tuple(op.attrs["order"])),
    "reduce": lambda op, layout: layout.reduce(op.attrs["axis"]),
    "join": lambda op, layout: layout.join(),
}


# -- 4. conversions -------------------------------------------------------------------------------------------
def reconcile(fn: Function) -> None:
    """Insert `convert` for every operand (or result) whose layout is not the one its op works in."""
    report = fn.attrs.setdefault("report", [])
    for op in list(walk(fn.body)):
        wanted = _wanted(op)
        for index, layout in wanted.items():
            v = op.operands[index]
            assert isinstance(v.type, Tile)
            if v.type.layout is None or v.type.layout == layout:
                continue
            assert op.parent is not None
            at = op.parent.ops.index(op)
            # A loop's or branch's values are converted before it, or before the end of its region.
            b = Builder(op.parent, at, op.loc)
            new = b.op("convert", v, result_types=[v.type.with_layout(layout)]).result
            new.name = v.name
            op.operands[index] = new
            size = v.type.numel * max(1, v.type.elem.bits // 8)
            where = op.loc.short() if op.loc else "?"
            report.append(f"convert at {where}: {v.type} for {op.name}, {size} bytes")


def _layout(v: Value) -> LinearLayout | None:
    return v.type.layout if isinstance(v.type, Tile) else None


def _wanted(op: Op) -> dict[int, LinearLayout]:
    """For each tile operand that must have a certain layout: that layout."""
    out: dict[int, LinearLayout] = {}

    def want(index: int, layout: LinearLayout | None) -> None:
        if layout is not None and isinstance(op.operands[index].type, Tile):
            out[index] = layout

    if op.name == "for":
        for i, arg in enumerate(op.regions[0].args[1:]):
            want(i + 3, _layout(arg))
    elif op.name == "while":
        for i, arg in enumerate(op.regions[0].args):
            want(i, _layout(arg))
    elif op.name in ("yield", "condition"):
        owner = op.parent.parent if op.parent else None
        if owner is None or owner.name == "reduce":
            return out
        if owner.name == "while" and op.name == "yield":
            targets = list(owner.regions[0].args)
        elif owner.name == "while":
            targets = list(owner.regions[1].args)
        else:
            targets = owner.results
        for i, t in enumerate(targets):
            want(i + (op.name == "condition"), _layout(t))
    elif op.name == "dot":
        want(2, _layout(op.result))
    elif op.name in ACCESSES:
        for i in range(len(op.operands)):
            want(i, _layout(op.operands[0]))
    elif op.name in BACKWARD:
        result = _layout(op.results[0])
        if result is not None:
            source = BACKWARD[op.name](op, result)
            for i in range(len(op.operands)):
                want(i, source)
    elif op.name == "join":
        want(1, _layout(op.operands[0]))
    elif op.name == "reduce":
        for i in range(1, len(op.operands)):
            want(i, _layout(op.operands[0]))
    elif "elementwise" in op.define.traits and op.results:
        for i in range(len(op.operands)):
            want(i, _layout(op.results[0]))
    elif op.name == "device_assert" and len(op.operands) > 1:
        want(1, _layout(op.operands[0]))
    return out


def fix_results(fn: Function) -> None:
    """Ops whose result layout follows from the operand (reduce, join, load): convert the result after them."""
    for op in list(walk(fn.body)):
        for i, r in enumerate(op.results):
            natural = _natural(op)
            if natural is None or not isinstance(r.type, Tile) or r.type.layout in (None, natural):
                continue
            assert op.parent is not None
            want = r.type
            r.type = want.with_layout(natural)
            b = Builder(op.parent, op.parent.ops.index(op) + 1, op.loc)
            new = b.op("convert", r, result_types=[want])
            for user, index in uses(fn.body).get(r, []):
                if user is not new:
                    user.operands[index] = new.result


def _natural(op: Op) -> LinearLayout | None:
    """The layout in which an op produces its results, where its operands decide it."""
    if op.name in ACCESSES:
        return _layout(op.operands[0])
    if op.name in ("reduce", "join"):
        source = _layout(op.operands[0])
        return FORWARD[op.name](op, source) if source is not None else None
    return None


# -- 5. merging and vectors -----------------------------------------------------------------------------------
def merge_copies(block: Block, seen: dict[tuple, Value]) -> None:
    """Give equal pure ops (same operands, attributes and layouts) one result; nested blocks see outer ones."""
    mapping: dict[Value, Value] = {}
    kept: list[Op] = []
    for op in block.ops:
        op.operands = [mapping.get(v, v) for v in op.operands]
        if op.define.pure and not op.regions and len(op.results) == 1 and op.name != "convert":
            key = (op.name, tuple(op.operands), repr(sorted(op.attrs.items(), key=lambda kv: kv[0])),
                   op.result.type)
            if key in seen:
                mapping[op.result] = seen[key]
                continue
            seen[key] = op.result
        for region in op.regions:
            _replace(region, mapping)
            merge_copies(region, dict(seen))
        kept.append(op)
    block.ops = kept


def _replace(block: Block, mapping: dict[Value, Value]) -> None:
    for op in walk(block):
        op.operands = [mapping.get(v, v) for v in op.operands]


def set_vectors(fn: Function, facts: dict[Value, AxisInfo]) -> None:
    """The `vec` attribute of loads and stores: elements per instruction in their final layout."""
    for op in walk(fn.body):
        t = op.operands[0].type if op.name in ("load", "store") else None
        if not isinstance(t, Tile):
            continue
        assert t.layout is not None
        dim, run = register_run(t.layout)
        op.attrs["vec"] = min(run, access_width(op, facts, dim)) if run > 1 else 1


def register_run(layout: LinearLayout) -> tuple[int, int]:
    """(dimension, length) of the run of neighbouring elements that the low registers hold."""
    bases = layout.bases_of("register")
    for dim in range(layout.rank):
        run = 0
        while run < len(bases) and bases[run] == tuple((1 << run) if d == dim else 0 for d in range(layout.rank)):
            run += 1
        if run:
            return dim, 1 << run
    return layout.rank - 1, 1

