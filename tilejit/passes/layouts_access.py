"""Global accesses and layouts: an access's coalesced layout, and its cost in another one."""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilejit.ir import Block, Function, Op, Value, edges, enclosing, listed, needed, reached, total_warps, walk
from tilejit.ir.target import target_of
from tilejit.ir.types import DType, Ptr, Tile, bf16, elem_of, fp16, fp32, int32, int64
from tilejit.layout.clusters import copies, cta_bases, parts_of, strips_of
from tilejit.layout.convert import cost, plan
from tilejit.layout.linear import Basis, LinearLayout
from tilejit.layout.named import blocked
from tilejit.passes.axis import AxisInfo, vector_width

Facts = dict[Value, AxisInfo]
#: Accesses that may share a layout: shape, fastest dimension, and which side of transposes that keep the shape.
Key = tuple[tuple[int, ...], int, Value | None]
#: Bytes of a cache line, which one cycle looks up, and of a sector, the least that moves.
_LINE, _SECTOR = 128, 32
#: Elements along a dimension that a CTA has at least where the CTAs of a cluster divide it; the same beside products,
#: whose biases and scales are smaller.
LEAST_DIVIDED, LEAST_BESIDE_PRODUCTS = 128, 512


def beside(layout: LinearLayout, dim: int) -> tuple[Basis, ...]:
    """Warps that divide other dimensions than `dim` as far as threads have several of those."""
    spare = [b for b in layout.bases_of("register") if any(b) and not b[dim]]
    return tuple([spare.pop() if b[dim] and spare else b for b in layout.bases_of("warp")])


class Accesses:
    """All accesses through tiles of pointers."""

    def __init__(self, fn: Function, facts: Facts):
        self.warps: int = total_warps(fn)
        self.ctas: int = fn.attrs.get("num_ctas", 1)
        self.facts = facts
        self.products = any(op.name == "dot" for op in listed(fn.body))
        self.ops = [op for op in listed(fn.body)
                    if op.define.layout == "access" and isinstance(op.operands[0].type, Tile)]
        #: Tiles whose innermost accesses all are of 4 bytes and more, if only by masks that end among those; none where
        #: products need the registers.
        self.ragged: set[Key] = set()
        #: Elements an access, the widest of all accesses of a kind, so that they share a layout.
        self.widths: dict[Key, int] = {}
        sides = turned_apart(fn) if self.ops else {}
        self.key: dict[Op, Key] = {op: (op.operands[0].tile.shape, fastest(op, facts), sides.get(op.operands[0]))
                                   for op in self.ops}
        self.alike: dict[Key, list[Op]] = {}
        for op in self.ops:
            self.alike.setdefault(self.key[op], []).append(op)
        for key, ops in self.alike.items():
            deepest = max(map(loops_around, ops))
            if not self.products and all(loops_around(op) < deepest or
                                         access_width(op, facts, key[1], True) * _bytes(op) >= 4 for op in ops):
                self.ragged.add(key)
        for op in self.ops:
            key = self.key[op]
            self.widths[key] = max(self.widths.get(key, 1), self._width(op))
        #: Shape of tiles that scans and networks go along a dimension of, which is cheapest within a thread -> it
        self.along = {v.type.shape: op.attrs["axis"] for op in listed(fn.body)
                      if op.define.layout == "follows" and "axis" in op.attrs for v in op.results
                      if isinstance(v.type, Tile) and v.type.shape == getattr(op.operands[0].type, "shape", None)}
        #: (shape, dimension) of tiles that are folded along it.
        self.folded = {(op.operands[0].tile.shape, op.attrs["axis"]) for op in listed(fn.body) if op.name == "reduce"}
        for key in self.widths if self.ctas == 1 and not self.products else ():
            if self.along.get(key[0]) != key[1]:
                self.widths[key] = self._of_whole_sectors(key)
        #: Length of a row -> bytes of the narrowest elements that are loaded or stored of one.
        self.narrowest: dict[int, int] = {}
        for op in walk(fn.body) if self.ctas > 1 else ():
            if op.name in ("load", "store", "row_load"):
                t = op.operands[1].type if op.name == "store" else op.result.type
                if isinstance(t, Tile) and len(t.shape) == 1:
                    size = max(1, elem_of(t).bits // 8)
                    self.narrowest[t.shape[0]] = min(size, self.narrowest.get(t.shape[0], size))

    def _width(self, op: Op) -> int:
        spread = max(1, op.operands[0].tile.numel // (32 * self.warps))
        return min(self._widest(op, fastest(op, self.facts)), spread)

    def _widest(self, op: Op, dim: int) -> int:
        return access_width(op, self.facts, dim, self.key[op] in self.ragged)

    def _of_whole_sectors(self, key: Key) -> int:
        """How many elements each of a kind takes."""
        (shape, dim, _), widest, ops = key, self.widths[key], self.alike[key]
        deepest = max(map(loops_around, ops))
        vectors = [self._width(op) for op in ops if (op.name == "store" or op.attrs.get("unread"))
                   and loops_around(op) == deepest and not op.attrs.get("seldom")
                   and self._width(op) * _bytes(op) == 16]
        if min(vectors, default=widest) == widest:
            return widest
        order = (dim, *(d for d in reversed(range(len(shape))) if d != dim))
        widths = [widest >> i for i in range((widest // min(vectors)).bit_length())]
        work = [sum(self.cycles(op, blocked(shape, self.warps, n, order)) for op in ops) for n in widths]
        return widths[work.index(min(work))]

    def of_ctas(self, shape: tuple[int, ...]) -> tuple[Basis, ...]:
        """What the CTAs of a cluster hold of a tile that nothing else decides."""
        d = max(range(len(shape)), key=lambda i: (shape[i], i), default=0)
        if not shape or shape[d] < (LEAST_BESIDE_PRODUCTS if self.products else LEAST_DIVIDED) * self.ctas:
            return copies(len(shape), self.ctas)
        strip = 16 // self.narrowest.get(shape[0], 16) * 32 * self.warps // self.ctas
        if len(shape) == 1 and not self.products and shape[0] % (2 * strip * self.ctas) == 0:
            return strips_of(shape[0], strip, self.ctas)
        return parts_of(shape, d, self.ctas)

    def coalesced(self, op: Op, near: LinearLayout | None = None, alone: bool = False) -> LinearLayout:
        """Neighbouring threads on neighbouring addresses; at no cost, with the warps of `near`."""
        t = op.operands[0].tile
        dim = fastest(op, self.facts)
        width = self._width(op) if alone else self.widths[self.key[op]]
        order = (dim, *(d for d in reversed(range(len(t.shape))) if d != dim))
        last = cta_bases(near, self.ctas) if near is not None else self.of_ctas(t.shape)
        own = axis if (axis := self.along.get(t.shape)) != dim else None  # along dim lanes are neighbours
        best = blocked(t.shape, self.warps, width, order, last=last, own=own)
        if (t.shape, dim) in self.folded and not any(map(any, last)):
            best = blocked(t.shape, self.warps, width, order, beside(best, dim))
        if near is not None and all(sum(x != 0 for x in b) == 1 and sum(b).bit_count() == 1
                                    for b in near.bases_of("warp")):
            other = blocked(t.shape, self.warps, width, order, near.bases_of("warp"))
            if self.cycles(op, other) <= self.cycles(op, best):
                best = other
        turned = self.turned(op, near)
        if turned is not None and near is not None:
            size = max(1, elem_of(t).elem.bits // 8)  # type: ignore[union-attr]
            costs = [self.cycles(op, x) + cost(plan(near, x, size)) for x in (turned, best)]
            if costs[0] <= costs[1]:
                return turned
        return best

    def turned(self, op: Op, held: LinearLayout | None) -> LinearLayout | None:
        """The layout of a store nearest to its value's in which threads write whole vectors."""
        if op.name != "store" or held is None or held.odd_dims or held.rank < 2 or held.zero_bits("lane"):
            return None
        dim = fastest(op, self.facts)
        width = min(self._widest(op, dim), self.widths[self.key[op]])
        return with_vectors(held, dim, width) if held.contiguous_registers(dim) < width else None

    def narrower(self, op: Op, layout: LinearLayout) -> bool:
        better = self.turned(op, layout)
        return better is not None and self.cycles(op, better) <= self.cycles(op, layout)

    def vector(self, op: Op, layout: LinearLayout) -> int:
        dim = fastest(op, self.facts)
        return min(self._widest(op, dim), layout.contiguous_registers(dim))

    def cycles(self, op: Op, layout: LinearLayout) -> float:
        """Cycles of one warp."""
        t = op.operands[0].tile
        elem = elem_of(t)
        assert isinstance(elem, Ptr)
        info, dim = self.facts[op.operands[0]], fastest(op, self.facts)
        vec = self.vector(op, layout)
        sectors = _distinct(layout, info, dim, elem.elem.bytes, _SECTOR)
        lines = _distinct(layout, info, dim, elem.elem.bytes, _LINE)
        least = 3 if mask_of(op) is not None else 1
        return layout.num_registers // vec * max(lines, sectors * (0.5 if op.name == "load" else 1.0), least)

    def in_parts(self, op: Op, layout: LinearLayout) -> bool:
        """Whether instructions of a store write parts of sectors, which takes L2 twice as long at least."""
        dim, size = fastest(op, self.facts), _bytes(op)
        written = (32 >> len(layout.zero_bits("lane"))) * self.vector(op, layout) * size
        return _distinct(layout, self.facts[op.operands[0]], dim, size, _SECTOR) * _SECTOR > written


def turned_apart(fn: Function) -> dict[Value, Value]:
    """A tile -> one of those that it may share a layout with, where transposes of square tiles stand between some."""
    ops, first = listed(fn.body), dict[Value, Value]()
    if not any(op.name == "trans" and len(set(op.result.tile.shape)) == 1 for op in ops):
        return first

    def of(v: Value) -> Value:
        while first.setdefault(v, v) is not v:
            v = first[v]
        return v

    for op in ops:
        if op.name != "trans":
            for same in [[*op.operands, *op.results], *(e.values for e in edges(op))]:
                tiles = [v for v in same if isinstance(v.type, Tile)]
                for v in tiles[1:]:
                    if v.tile.shape == tiles[0].tile.shape:
                        first[of(v)] = of(tiles[0])
    return {v: of(v) for v in first}


def loops_around(op: Op) -> int:
    return sum("loop" in x.define.traits for x in enclosing(op))


def _bytes(op: Op) -> int:
    elem = elem_of(op.operands[0].type)
    assert isinstance(elem, Ptr)
    return elem.elem.bytes


@lru_cache(maxsize=4096)
def _distinct(layout: LinearLayout, info: AxisInfo, dim: int, elem_bytes: int, unit: int) -> int:
    at = layout.coords("lane")
    blocks = at // np.array(info.constancy)
    run = info.contiguity[dim]
    if run > 1:
        blocks[:, dim] = at[:, dim] // run * run + at[:, dim] % run * elem_bytes // unit
    return len(set(map(tuple, blocks.tolist())))


@lru_cache(maxsize=1024)
def with_vectors(held: LinearLayout, dim: int, width: int) -> LinearLayout | None:
    """The layout, with registers and lanes exchanged, whose low registers are `width` neighbours along `dim`; None
    where other warps hold some, or the thread has no register to give.
    """
    registers, lanes = list(held.bases_of("register")), list(held.bases_of("lane"))
    vector = [tuple(1 << i if d == dim else 0 for d in range(held.rank)) for i in range(width.bit_length() - 1)]
    free = [b for b in registers if b not in vector]
    free.sort(key=lambda b: (any(x for d, x in enumerate(b) if d != dim), b[dim]))
    for b in vector:
        if b in registers:
            continue
        if b not in lanes or not free:
            return None
        given = free.pop(0)
        registers[registers.index(given)], lanes[lanes.index(b)] = b, given
    rest = [b for b in registers if b not in vector]
    return LinearLayout.from_bases({"register": [*vector, *rest], "lane": lanes, "warp": held.bases_of("warp")},
                                   held.shape)


def fastest(op: Op, facts: Facts) -> int:
    run = facts[op.operands[0]].contiguity
    return max(range(len(run)), key=lambda d: (run[d], d))


def access_width(op: Op, facts: Facts, dim: int, ragged: bool = False) -> int:
    """Elements per instruction along `dim`; atomics go one by one, unless reductions take vectors."""
    elem = elem_of(op.operands[0].type)
    assert isinstance(elem, Ptr)
    if "atomic" in op.define.traits and not op.attrs.get("unread"):
        return 1
    mask, size, info = mask_of(op), elem.elem.bytes, facts[op.operands[0]]
    width = vector_width(info, size, None if mask is None else facts[mask], dim)
    if ragged and mask is not None and width * size < 4 and op.name in ("load", "store") and \
            isinstance(elem.elem, DType) and elem.elem.family != "bool" and not op.attrs.get("volatile"):
        whole = vector_width(info, size, None, dim)
        return whole if whole * size >= 4 and _is_run(mask, facts, dim, whole) else width
    return width


def _is_run(mask: Value, facts: Facts, dim: int, width: int) -> bool:
    """Whether of each `width` elements along a dimension those in the mask lie side by side."""
    if facts[mask].constancy[dim] >= width:
        return True
    op = mask.op
    if not isinstance(op, Op):
        return False
    if op.name == "and" or op.name == "convert":
        return all(_is_run(v, facts, dim, width) for v in op.operands)
    if op.name in ("broadcast", "expand_dims"):
        at = dim - (op.name == "expand_dims" and dim > op.attrs["axis"])
        return _is_run(op.operands[0], facts, at, width)
    if op.name != "cmp" or op.attrs["pred"] == "ne" or elem_of(op.operands[0].type) not in (int32, int64):
        return False
    a, b = (facts[v] for v in op.operands)
    return a.contiguity[dim] >= width <= b.constancy[dim] or b.contiguity[dim] >= width <= a.constancy[dim]


def mask_of(op: Op) -> Value | None:
    named = op.define.operands
    at = named.index("mask?") if "mask?" in named else len(op.operands)
    return op.operands[at] if len(op.operands) > at else None


def mark_reductions(fn: Function) -> None:
    """`unread` atomics."""
    sums = [op for op in listed(fn.body) if op.name == "atomic_rmw" and op.attrs["kind"] == "add"
            and isinstance(op.result.type, Tile) and elem_of(op.result.type) in (fp16, bf16, fp32)]
    if sums and target_of(fn).hopper:
        used = {v for op in listed(fn.body) for v in op.operands}
        for op in sums:
            if op.result not in used:
                op.attrs["unread"] = True


def set_vectors(fn: Function, facts: Facts) -> None:
    """`vec` of loads and stores."""
    products = any(op.name == "dot" for op in listed(fn.body))
    for op in listed(fn.body):
        if op.name == "convert":
            facts[op.result] = facts[op.operands[0]]
        if op.name == "cmp" and isinstance(op.result.type, Tile) and op.result in facts:
            layout, constancy = op.result.type.layout, facts[op.result].constancy
            runs = max((min(layout.contiguous_registers(d), constancy[d]) for d in range(len(constancy))), default=1) \
                if layout is not None else 1
            if runs > 1:
                op.attrs["runs"] = runs
        if op.define.layout != "access" or "atomic" in op.define.traits and not op.attrs.get("unread"):
            continue
        t = op.operands[0].type
        if not isinstance(t, Tile):
            continue
        assert t.layout is not None
        op.attrs["vec"], strict = (max(
            (min(t.layout.contiguous_registers(d), access_width(op, facts, d, ragged)) for d in range(len(t.shape))),
            default=1) for ragged in (not products, False))
        if strict < op.attrs["vec"]:
            op.attrs["ragged"] = True
            for v in reached([mask_of(op)], lambda v: v.op.operands if v.op.name == "and" else ()):  # type: ignore
                if v.op.name == "cmp":  # type: ignore[union-attr]
                    v.op.attrs["ragged"] = True  # type: ignore[union-attr]
    if any(op.attrs.get("ragged") for op in listed(fn.body)):
        for block in {op.parent for op in listed(fn.body)}:
            assert block is not None
            _load_together(block)


def _load_together(block: Block) -> None:
    """Ragged loads right behind the loads before them: nothing moves over their branches later."""
    ops, at = list[Op](), 0  # where the next may stand
    for op in block.ops:
        if op.attrs.get("ragged") and op.name == "load":
            first = needed([op], ops[at:])
            ops[at:] = [*(x for x in ops[at:] if x in first), op, *(x for x in ops[at:] if x not in first)]
            at += len(first)
        else:
            ops.append(op)
            if op.name == "load" or not op.define.pure or op.regions:
                at = len(ops)
    block.ops[:] = ops
