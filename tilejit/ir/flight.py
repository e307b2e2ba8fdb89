"""Products in flight: which wgmma groups may not have retired at a point of a function, and how old they are."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from tilejit.ir.core import Block, Function, Op, Value, edges, listed, whole
from tilejit.ir.types import Tile
from tilejit.records import dataclass, replace

#: Trips of a loop that are told apart: a product of this trip, of the one before, and of any before that.
_TRIPS = 2
#: Trips until what is in flight at a loop's beginning stays the same; two do.
_ROUNDS = 8


@dataclass(frozen=True)
class Flight:
    """One product."""

    dot: Op
    age: int
    sums: frozenset[Value]
    slots: frozenset[tuple[Value, Value]]
    registers: frozenset[Value]

    def named(self, names: Mapping[Value, Iterable[Value]], gone: Set[Value] = frozenset()) -> Flight:
        def over(v: Value) -> set[Value]:
            return {*names.get(v, ()), *([] if v in gone else [v])}

        return replace(self, sums=frozenset(x for v in self.sums for x in over(v)),
                       slots=frozenset((b, x) for b, v in self.slots for x in over(v)))


#: Products in flight, by the op and how many trips ago it was issued.
Flights = dict[tuple[Op, int], Flight]
Visit = Callable[[Op, Flights], None]


def _meet(a: Flights, b: Flights) -> Flights:
    out = dict(a)
    for key, y in b.items():
        x = out.get(key)
        out[key] = y if x is None else Flight(x.dot, min(x.age, y.age), x.sums | y.sums, x.slots | y.slots,
                                              x.registers | y.registers)
    return out


def _named(state: Flights, pairs: Iterable[tuple[Value | None, Value]], gone: Set[Value] = frozenset()) -> Flights:
    names: dict[Value, list[Value]] = {}
    for v, w in pairs:
        if v is not None:
            names.setdefault(v, []).append(w)
    return {key: x.named(names, gone) for key, x in state.items()}


def _slot(view: Value) -> tuple[Value, Value] | None:
    op = view.op
    while isinstance(op, Op) and op.name == "view_trans":
        op = op.operands[0].op
    return (op.operands[0], op.operands[1]) if isinstance(op, Op) and op.name == "view" else None


def issued(dot: Op) -> Flight:
    slots = [s for s in map(_slot, dot.operands[:2]) if s is not None]
    registers = [v for v in dot.operands[:1] if isinstance(v.type, Tile)]
    return Flight(dot, 0, frozenset(dot.results), frozenset(slots), frozenset(registers))


class _Walker:
    """Follows control flow; repeats loops until what is in flight at their beginnings stays the same."""

    def __init__(self, visit: Visit):
        self.visit = visit

    def block(self, block: Block, state: Flights) -> Flights:
        for op in block.ops:
            self.visit(op, state)
            step = getattr(self, f"_{op.name}", None)
            if step is not None:
                state = step(op, state)
        return state

    def _dot_async(self, op: Op, state: Flights) -> Flights:
        state = {key: replace(x, age=x.age + 1) for key, x in state.items()}
        state[op, 0] = issued(op)
        return state

    def _dot_fence(self, op: Op, state: Flights) -> Flights:
        left = {key: x for key, x in state.items() if x.age < op.attrs["pending"]}
        return _named(left, zip(op.operands, op.results))

    _dot_wait = _dot_fence

    def _elect(self, op: Op, state: Flights) -> Flights:
        return self.block(op.regions[0], state)

    def _roles(self, op: Op, state: Flights) -> Flights:
        for region in op.regions:
            self.block(region, {})
        return {}

    def _if(self, op: Op, state: Flights) -> Flights:
        ends = [self.block(region, dict(state)) for region in op.regions]
        return _meet(*(_named(end, zip(region.terminator.operands, op.results))
                       for end, region in zip(ends, op.regions)))

    def _for(self, op: Op, state: Flights) -> Flights:
        """A loop of one block, which may be passed by, or of two, left behind the first."""
        (first, *second), ways = op.regions, edges(op)
        inner = {v for x in whole(op)[1:] for v in x.results} | {v for region in op.regions for v in region.args}
        head = start = _named(state, [(way.init, way.args[0]) for way in ways])
        for _ in range(_ROUNDS):
            leaving = end = self.block(first, head)
            for last in second:
                end = self.block(last, _named(leaving, [(way.ends[0], way.args[1]) for way in ways]))
            again: Flights = {}
            for (dot, trip), x in end.items():
                back = [(way.ends[-1], way.args[0]) for way in ways]
                again = _meet(again, _named({(dot, min(trip + 1, _TRIPS)): x}, back, inner))
            new = _meet(start, again)
            if new == head:
                break
            head = new
        out = _named(leaving, [(way.ends[0], way.result) for way in ways])
        return out if second else _meet(out, _named(state, [(way.init, way.result) for way in ways]))

    _while = _for


def follow(fn: Function, visit: Visit) -> None:
    """Call `visit(op, products in flight before it)` for every op outside of regions of folds; several times in loops,
    the last time with all that may be in flight."""
    _Walker(visit).block(fn.body, {})


def rings(fn: Function) -> dict[Value, str]:
    """Buffers that copies fill -> the name of the ring (mbarriers NAME.full and NAME.empty)."""
    found: dict[Value, str] = {}
    waiting: list[Value] = []
    for op in listed(fn.body):
        if op.name == "local_store" and "ring" in op.attrs and (slot := _slot(op.operands[0])) is not None:
            found[slot[0]] = op.attrs["ring"]
            continue
        if "cp_async" in op.define.traits:
            waiting.append(op.operands[0])
            continue
        if op.name == "async_arrive":
            full = op.operands[0].op
        elif "fills" in op.define.traits:
            full = op.operands[2].op
        else:
            continue
        assert isinstance(full, Op)
        name = full.attrs["name"].removesuffix(".full")
        found.update(dict.fromkeys([*waiting, op.operands[0]] if op.name == "async_arrive" else [op.operands[0]], name))
        waiting = [] if op.name == "async_arrive" else waiting
    return found


def released(op: Op, rings: Mapping[Value, str], x: Flight) -> bool:
    barrier = op.operands[0].op
    if op.name != "mbar_arrive" or not isinstance(barrier, Op) or not x.slots:
        return False
    name = barrier.attrs["name"].removesuffix(".empty")
    return any(slot is op.operands[1] and rings.get(buffer) == name for buffer, slot in x.slots)


def overwritten(op: Op, x: Flight) -> bool:
    if not x.registers:
        return False
    if op.name == "yield" and op.parent is not None and op.parent.parent is not None \
            and op.parent.parent.name == "for":
        args = op.parent.args[1:]
        return any(arg in x.registers and v is not arg for arg, v in zip(args, op.operands))
    return not x.registers.isdisjoint(op.results)


def needs(op: Op, rings: Mapping[Value, str], state: Flights) -> list[Flight]:
    """The products that must have retired before an op: it gives back their slots, or writes their registers or memory.
    """
    if not state:
        return []
    if op.name == "mbar_arrive":
        return [x for x in state.values() if released(op, rings, x)]
    if op.name == "local_store":
        slot = _slot(op.operands[0])
        return [x for x in state.values() if slot in x.slots]
    return [x for x in state.values() if overwritten(op, x)]
