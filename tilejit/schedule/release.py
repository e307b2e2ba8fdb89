"""Gives slots back: an arrival on `empty` behind whatever retires the last reader of what `full` was awaited for."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilejit.ir import Block, Function, Op, Value, beside, const_of, edge_at, edge_of, inside, listed, loop_around, uses
from tilejit.ir.flight import rings
from tilejit.ir.types import int32
from tilejit.records import dataclass, field
from tilejit.schedule.buffers import barriers_of


@dataclass(eq=False)
class Ring:
    """What guards buffers: both barriers, and the products that read a slot last, with that slot."""

    full: Value
    empty: Value
    buffers: set[Value] = field(default_factory=set)
    last: dict[Op, Value] = field(default_factory=dict)
    #: names of slots that are read once more, a trip later
    later: set[Value] = field(default_factory=set)
    #: what carries slots along with products: (loop, edge) -> the slot in the loop, and behind it
    carried: dict[tuple[Op, int], tuple[Value, Value]] = field(default_factory=dict)


def release(fn: Function) -> Function:
    _Release(fn).run()
    return fn


class _Release:
    def __init__(self, fn: Function):
        self.fn, self.uses = fn, uses(fn.body)
        self.rings = _rings(fn)
        self.behind: dict[Op, list[tuple[Ring, Value]]] = {}  # op -> what is given back behind it

    def run(self) -> None:
        ops = listed(self.fn.body)
        for ring in self.rings:
            rows = [x for x in ops if x.name == "row_copy" and x.operands[0] in ring.buffers]
            if rows and all(loop_around(x) is None for x in rows):
                continue  # a row that is copied once
            for op in [x for x in ops if x.name == "mbar_wait" and x.operands[0] is ring.full]:
                self._find_last(ring, op)
            for op in [x for x in ops if x.name in ("dot_wait", "dot_fence")] if ring.last else ():
                for v in _retired(op):
                    if self._reads(ring, v, set()):
                        self.behind.setdefault(op, []).append((ring, self._slot(ring, v)))
        for op, given in self.behind.items():
            b = beside(op, behind=True)
            for ring, slot in given:
                some = [b("cmp", slot, b.const(0, int32), pred="ge")] if self._may_be_none(ring, slot) else []
                b.op("mbar_arrive", ring.empty, slot, *some, **self._arrivals(ring))

    def _find_last(self, ring: Ring, wait: Op) -> None:
        """What reads a slot last."""
        later = self._read_later(ring, wait.operands[1])
        for slot in later:
            if slot not in ring.later:
                ring.later.add(slot)
                view = self._views(ring, slot)[0]
                self._free(ring, slot, view.block, view)
        if not later:
            self._free(ring, wait.operands[1], wait.block, wait)

    def _views(self, ring: Ring, slot: Value) -> list[Op]:
        return [op for op, i in self.uses[slot] if op.name == "view" and i == 1 and op.operands[0] in ring.buffers]

    def _read_later(self, ring: Ring, slot: Value) -> list[Value]:
        """The names under which a slot is read once more without another wait, in a later trip or behind a loop."""
        found: list[Value] = []
        work, seen = [slot], set()
        while work:
            v = work.pop()
            for op, i in self.uses.get(v, ()):
                edge = edge_at(op, i)
                for name in (*edge[1].args, edge[1].result) if edge is not None else ():
                    if name in seen:
                        continue
                    seen.add(name)
                    users = [x for x, _ in self.uses.get(name, ())]
                    if ring.full not in [x.operands[0] for x in users if x.name == "mbar_wait"]:
                        (found if users and self._views(ring, name) else work).append(name)
        return found

    def _free(self, ring: Ring, slot: Value, block: Block, start: Op) -> None:
        """Give a slot back behind what reads it last in a block, from `start` on."""
        views = [op.result for op in self._views(ring, slot) if op.parent is block]
        readers = [op for v in views for op in self._readers(v)]
        last = max([x for op in readers if (x := inside(block, op))], key=block.ops.index, default=start)
        if last.name == "dot_async":
            ring.last[last] = slot
            return
        if "at" in last.attrs:  # a piece of an operand: no arrival between its load and its product
            last = next(op for op in block.ops[block.ops.index(last):] if op.name == "dot_async")
        waits = [op for v in last.results for op, _ in self.uses.get(v, ())
                 if op.name in ("dot_wait", "dot_fence") and op.parent is block]
        if last.name == "local_load":
            last = self._first_use(ring, last, block)
        self.behind.setdefault(max([last, *waits], key=block.ops.index), []).append((ring, slot))

    def _first_use(self, ring: Ring, load: Op, block: Block) -> Op:
        """What uses first what a load from a slot gives, or comes ahead of that."""
        users, work = [], list(load.results)
        while work:
            for op, _ in self.uses.get(work.pop(), ()):
                if op.parent is block and "registers" in op.define.traits:
                    work += op.results  # the same registers under another name
                elif (x := inside(block, op)) is not None:
                    users.append(x)
        first = min(users, key=block.ops.index, default=load)
        between = block.ops[block.ops.index(load):block.ops.index(first)]
        waits = any(x.name == "mbar_wait" and x.operands[0] in (ring.full, ring.empty)
                    for op in between for x in (op, *(y for region in op.regions for y in listed(region))))
        return load if waits or first.regions or "terminator" in first.define.traits else first

    def _readers(self, view: Value) -> Iterator[Op]:
        for op, _ in self.uses.get(view, ()):
            if op.name == "view_trans":
                yield from self._readers(op.result)
            else:
                yield op

    def _arrivals(self, ring: Ring) -> dict[str, Any]:
        """Who arrives."""
        views = [op.result for x in ring.buffers for op, _ in self.uses[x] if op.name == "view"]
        readers = [op for v in views for op in self._readers(v)]
        per = "warpgroup" if readers and all(op.name == "dot_async" for op in readers) else "warp"
        warps = self.fn.attrs["num_warps"]
        return {"per": per, "ctas": ring.empty.barrier.count // (warps // 4 if per == "warpgroup" else warps)}

    # -- slots of products in flight --
    def _reads(self, ring: Ring, v: Value, seen: set[Value]) -> bool:
        """Whether a product behind sums in flight reads a slot of the ring last."""
        if v in seen:
            return False
        seen.add(v)
        edge = edge_of(v)
        if edge is not None:
            return any(self._reads(ring, x, seen) for x in edge[1].sources)
        before = _before(v)
        return isinstance(v.op, Op) and v.op in ring.last or before is not None and self._reads(ring, before, seen)

    def _slot(self, ring: Ring, v: Value) -> Value:
        """The slot that the product behind sums in flight reads, where those sums are; -1: none yet."""
        edge, op = edge_of(v), v.op
        if edge is not None:
            return self._carry(ring, edge[0], edge[1].index)[v.op is edge[0]]
        if isinstance(op, Op) and op in ring.last:
            return ring.last[op]
        before = _before(v)
        return beside(v.maker).const(-1, int32) if before is None else self._slot(ring, before)

    def _carry(self, ring: Ring, loop: Op, index: int) -> tuple[Value, Value]:
        """The slot of what a loop carries as its value `index`, in the loop and behind it."""
        if (loop, index) not in ring.carried:
            body = loop.regions[0]
            init, end = loop.operands[loop.define.fixed + index], body.terminator.operands[index]
            loop.operands.append(self._slot(ring, init))
            (result,) = loop.add_results([int32])
            name = f"{ring.empty.name.removesuffix('_empty')}_last"
            ring.carried[loop, index] = body.add_arg(int32, name), result
            body.terminator.operands.append(self._slot(ring, end))
        return ring.carried[loop, index]

    def _may_be_none(self, ring: Ring, slot: Value) -> bool:
        """Whether a slot may be -1: what carries it begins without a product."""
        edge = edge_of(slot)
        if edge is None or not any(slot in found for found in ring.carried.values()):
            return False
        init = edge[1].init
        assert init is not None
        return const_of(init) == -1 or self._may_be_none(ring, init)


def _rings(fn: Function) -> list[Ring]:
    made, named = barriers_of(fn), rings(fn)
    found = {base: Ring(full, made[f"{base}.empty"]) for name, full in made.items()
             if (base := name.removesuffix(".full")) != name and base in named.values() and f"{base}.empty" in made}
    for buffer, name in named.items():
        if name in found:
            found[name].buffers.add(buffer)
    return list(found.values())


def _before(v: Value) -> Value | None:
    """The sums that a product adds to, or that a fence hands on."""
    op = v.op
    if isinstance(op, Op) and op.name in ("dot_async", "dot_fence"):
        return op.operands[2 if op.name == "dot_async" else v.index]
    return None


def _retired(op: Op) -> list[Value]:
    """The sums whose products have read their slots behind a wait, or behind the first fence of a loop's trip."""
    if op.name == "dot_wait":
        return op.operands
    found = []
    for v in op.operands:
        while isinstance(v.op, Op) and v.op.name == "dot_async":
            v = v.op.operands[2]
        if isinstance(v.op, Block):
            found.append(v)
    return found
