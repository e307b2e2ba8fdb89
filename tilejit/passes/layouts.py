"""Gives every tile in registers a layout, and `convert` ops where two layouts meet."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, Value, divides_k, edge_at, listed, reached, total_warps, uses
from tilejit.ir.ahead import ahead_problem
from tilejit.ir.types import Tile
from tilejit.layout.clusters import beside, counts_of, cuts_of, in_each, rows_from_each
from tilejit.layout.convert import cost, plan
from tilejit.layout.fma import fma_accumulator
from tilejit.layout.linear import LinearLayout
from tilejit.layout.mma import mma_accumulator
from tilejit.layout.named import blocked, wgmma_accumulator
from tilejit.passes import layouts_convert
from tilejit.passes.axis import analyse
from tilejit.passes.copies import pipelined_loops, refused, wants_copies
from tilejit.passes.layouts_access import Accesses, Facts, loops_around, mark_reductions, set_vectors
from tilejit.passes.layouts_copies import merge_copies, split_cheap
from tilejit.passes.layouts_products import fragments
from tilejit.passes.layouts_rules import (
    backward,
    forward,
    handed_over,
    operand_layout,
    same_layout,
)
from tilejit.passes.products import choose_units


def assign_layouts(fn: Function) -> Function:
    split_cheap(fn)
    choose_units(fn)
    mark_reductions(fn)
    facts = analyse(fn)
    for v, layout in Assignment(fn, facts).run().items():
        v.type = v.tile.with_layout(layout)
    layouts_convert.insert(fn)
    layouts_convert.improve(fn)
    merge_copies(fn.body, {}, {})
    set_vectors(fn, facts)
    fn.attrs.setdefault("report", []).extend(layouts_convert.describe(fn))
    return fn


class Assignment:
    def __init__(self, fn: Function, facts: Facts):
        self.fn = fn
        self.warps: int = total_warps(fn)
        self.ctas: int = fn.attrs.get("num_ctas", 1)
        self.accesses = Accesses(fn, facts)
        loops = pipelined_loops(fn)
        self.copied = {op for op in self.accesses.ops if op.name == "load" and self.ctas == 1
                       and wants_copies(fn, op, loops) and not (refused(op) or ahead_problem(op))}
        self.uses = uses(fn.body)
        self.ops = listed(fn.body)
        self.groups = {v: group for op in self.ops for group in same_layout(op) for v in group}
        self.chosen: dict[Value, LinearLayout] = {}
        self.queue: deque[Value] = deque()

    def run(self) -> dict[Value, LinearLayout]:
        for op in self.ops:
            if op.define.layout == "product":
                self.set(op.result, self.accumulator(op))
        self.spread()
        for op in self.ops:
            for index in (0, 1) if "unit" in op.attrs else ():
                if _arrives_in_shared(op.operands[index]):
                    self.set(op.operands[index], operand_layout(op, index, self.chosen[op.result]))
                    self.spread()
            if op.name == "dot" and "unit" not in op.attrs and not _loaded_block(op.operands[0]):
                layout = fragments(op, self.warps)
                if layout is not None:
                    self.set(op.operands[0], layout)
                    self.spread()
        for op in sorted(self.accesses.ops, key=_weight, reverse=True):
            if op.operands[0] in self.chosen or op.attrs.get("seldom"):
                continue
            near = self.chosen.get(op.operands[1]) if op.name == "store" else \
                self.chosen.get(op.results[0]) if op.name == "load" and self.ctas > 1 else None
            layout = self.coalesced(op, near)
            if op.name == "atomic_rmw" and self.coalesced(op, None, True) == self.chosen.get(op.operands[1]):
                layout = self.chosen[op.operands[1]]  # whatever is best for others of its shape
            self.set(op.operands[0], layout)
            self.spread()
        for op in self.ops:
            if op.define.layout != "block":
                continue
            v = op.result if op.results else op.operands[1]
            self.settle(v, 16)
            if op.results and v in self.chosen and self.chosen[v].rank > 1 and self.chosen[v].odd_dims:
                raise CompilationError(f"{op.name}: registers take a block of sizes that are powers of two, found "
                                       f"{list(v.tile.shape)} (products may read it in place)", op.loc)
        rest = [v for op in self.ops for v in (*op.results, *(a for r in op.regions for a in r.args))
                if isinstance(v.type, Tile) and v not in self.chosen]
        for v in sorted(rest, key=lambda v: v.tile.numel, reverse=True):
            self.settle(v, 4)
        return self.chosen

    def settle(self, v: Value, vector_bytes: int) -> None:
        if v not in self.chosen and not self.in_shared(v):
            self.set(v, self.default(v, vector_bytes))
            self.spread()

    def accumulator(self, dot: Op) -> LinearLayout:
        shape = dot.result.tile.shape
        try:
            if dot.name == "dot_fma":
                return fma_accumulator(shape, self.warps)
            if "unit" in dot.attrs:
                return mma_accumulator(shape, self.warps, self.feeds_product(dot))
            if divides_k(self.fn):
                part = in_each(wgmma_accumulator(shape, self.warps // self.ctas), self.ctas)  # type: ignore[arg-type]
                rows_from_each(part, self.ctas)
                return part
            split = self.fn.attrs.get("cluster_split", "M")
            if self.ctas > 1 and (split != "M" or self.warps % 3 == 0):
                cuts = cuts_of(split, self.ctas)
                high, wide = counts_of(2, cuts)
                part = wgmma_accumulator((shape[0] // high, shape[1] // wide), self.warps // self.ctas)
                for d, n, _ in cuts:
                    part = beside(part, d, n)
                return part
            return wgmma_accumulator(shape, self.warps)  # type: ignore[arg-type]
        except ValueError as e:
            raise CompilationError(f"dot: {e}", dot.loc) from None

    def feeds_product(self, dot: Op) -> bool:
        def follows(v: Value) -> list[Value]:
            return [r for user, _ in self.uses.get(v, ())
                    if "elementwise" in user.define.traits and user.parent is dot.parent for r in user.results]

        return any(user.name == "dot" and index == 0
                   for v in reached([dot.result], follows) for user, index in self.uses.get(v, ()))

    def default(self, v: Value, vector_bytes: int) -> LinearLayout:
        t = v.tile
        spread = max(1, t.numel // (32 * self.warps))
        vector = min(spread, max(1, vector_bytes * 8 // max(8, t.elem.bits)))
        try:
            return blocked(t.shape, self.warps, vector, last=self.accesses.of_ctas(t.shape))
        except ValueError as e:
            raise _no_layout(t, e, v.op) from None

    def coalesced(self, access: Op, near: LinearLayout | None, alone: bool = False) -> LinearLayout:
        try:
            return self.accesses.coalesced(access, near, alone or access in self.copied)
        except ValueError as e:
            raise _no_layout(access.operands[0].tile, e, access) from None

    def in_shared(self, v: Value) -> bool:
        if not _loaded_block(v):
            return False
        return all((u.name == "dot" and i < 2 and ("unit" not in u.attrs or self.by_matrices(v, i)))
                   or (u.name == "trans" and self.in_shared(u.result)) for u, i in self.uses.get(v, ()))

    def by_matrices(self, v: Value, index: int) -> bool:
        """Whether ldmatrix can read an operand of mma.sync from its load's slot (see `reads_slot`)."""
        transposed = False
        while isinstance(v.op, Op) and v.op.name == "trans":
            v, transposed = v.op.operands[0], not transposed
        return v.tile.elem.bits == 16 or transposed == (index == 1)

    def set(self, v: Value, layout: LinearLayout) -> None:
        if v in self.chosen or not isinstance(v.type, Tile) or self.in_shared(v):
            return
        for member in self.groups.get(v, (v,)):
            self.chosen[member] = layout
            self.queue.append(member)

    def set_all(self, values: Iterable[Value], layout: LinearLayout) -> None:
        for v in values:
            if v not in self.chosen:
                self.set(v, layout)

    def spread(self) -> None:
        while self.queue:
            v = self.queue.popleft()
            layout = self.chosen[v]
            if isinstance(v.op, Op):
                self.from_result(v.op, v, layout)
            elif v.op is not None and v.op.parent is not None:
                self.set_all(handed_over(v.op.parent, v), layout)
            for op, index in self.uses.get(v, ()):
                self.from_operand(op, index, v, layout)

    def from_result(self, op: Op, v: Value, layout: LinearLayout) -> None:
        kind = op.define.layout
        if kind == "flow":
            self.set_all(handed_over(op, v), layout)
        elif kind == "product":
            self.set(op.operands[2], layout)
        elif kind == "access":
            if any(x not in self.chosen for x in op.operands) and self.worth_it(op, layout, into=False):
                self.set_all(op.operands, layout)
        elif kind == "same":
            self.set_all((*op.operands, *op.results), layout)
        elif kind == "picks":
            self.set(op.operands[0], layout)
        else:
            for x in op.operands:
                if x not in self.chosen and (found := backward(op, layout)) is not None:
                    self.set(x, found)

    def from_operand(self, op: Op, index: int, v: Value, layout: LinearLayout) -> None:
        kind = op.define.layout
        if kind == "flow":
            into = edge_at(op, index)
            if into is not None:
                self.set_all(handed_over(into[0], v), layout)
        elif kind == "product":
            if index == 2:
                self.set(op.result, layout)
        elif kind == "access":
            # The address decides how an access is done; a value to be written may, if that is cheap.
            if index == 0 or index == 1 and (op.attrs.get("seldom") or
                                             op.name == "store" and self.worth_it(op, layout, into=True)):
                self.set_all((*op.operands, *op.results), layout)
        elif kind == "same":
            self.set_all((*op.results, *op.operands), layout)
        elif kind == "picks":
            if index == 0:
                self.set_all(op.results, layout)
        else:
            if kind == "follows":
                self.set_all(op.operands, layout)
            for r in op.results:
                if r not in self.chosen and (found := forward(op, layout)) is not None:
                    self.set(r, found)

    def worth_it(self, op: Op, layout: LinearLayout, into: bool) -> bool:
        if op.operands[0] not in self.accesses.facts or not isinstance(op.operands[0].type, Tile) \
                or layout.odd_dims and layout.rank > 1:
            return True
        best = self.accesses.coalesced(op, layout, op in self.copied)
        here, there = (self.accesses.cycles(op, x) for x in (layout, best))
        if into and self.accesses.narrower(op, layout):
            return False
        if op in self.copied:  # a conversion next to it only reads the slot in another layout
            return here <= there and self.accesses.vector(op, layout) >= self.accesses.vector(op, best)
        if into and not self.accesses.products and here > there and self.accesses.in_parts(op, layout):
            here *= 2
        if here <= there:
            return True
        ends = (layout, best) if into else (best, layout)
        moved = op.operands[1] if into else op.result
        return here - there <= cost(plan(*ends, max(1, moved.tile.elem.bits // 8)))


def _no_layout(t: Tile, why: ValueError, op: object) -> CompilationError:
    return CompilationError(f"no layout for a tile {t}: {why}: only what is computed with a product may "
                            "have such a size", op.loc if isinstance(op, Op) else None)


def _arrives_in_shared(v: Value) -> bool:
    """Whether a dot operand is read from a ring (perhaps transposed or cast): in any layout alike."""
    while isinstance(v.op, Op) and (v.op.name == "trans" or v.op.name == "cast"):
        v = v.op.operands[0]
    return isinstance(v.op, Op) and v.op.define.layout == "block"


def _weight(access: Op) -> tuple[int, int]:
    t = access.operands[0].tile
    return loops_around(access), t.numel * t.elem.elem.bytes  # type: ignore[union-attr]


def _loaded_block(v: Value) -> bool:
    op = v.op
    if not isinstance(op, Op) or not isinstance(v.type, Tile) or len(v.type.shape) != 2:
        return False
    return op.define.layout == "block" or op.name == "trans" and _loaded_block(op.operands[0])
