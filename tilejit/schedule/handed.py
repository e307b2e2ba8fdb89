"""Operands of products that a trip of a loop hands to the next one lie in shared memory meanwhile, not in registers."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilejit.ir import Builder, Op, Value, beside, edge_at, edge_of, enclosing, keep_edges
from tilejit.ir.types import Tile, elem_of, int32
from tilejit.records import dataclass, field
from tilejit.schedule.buffers import alloc, barriers, top_of
from tilejit.schedule.context import Context
from tilejit.schedule.loads import Uses
from tilejit.schedule.operands import buffer_of
from tilejit.schedule.pieces import from_registers
from tilejit.schedule.thread import thread

SLOTS = 2


@dataclass(eq=False)
class Handed:
    """What loops carry (`edges`: its results), what makes it, and the products that read it as operand `index`,
    permuted by `order`; the views of its buffer that are written and read."""

    index: int
    order: tuple[int, ...]
    edges: dict[Op, Value] = field(default_factory=dict)
    makers: list[Value] = field(default_factory=list)
    readers: list[Op] = field(default_factory=list)
    buffer: list[Value] = field(default_factory=list)
    writes: list[Op] = field(default_factory=list)
    reads: list[Op] = field(default_factory=list)


def find_handed(dots: Iterable[Op], table: Uses) -> list[Handed]:
    """All that products read of what the trip before made."""
    found: list[Handed] = []
    for dot in dots:
        for index in (0, 1):
            v, order = dot.operands[index], (0, 1)
            op = v.op
            if isinstance(op, Op) and op.name == "trans":
                v, order = op.operands[0], tuple(op.attrs["order"])
            if edge_of(v) is not None and not any(dot in x.readers for x in found):
                found += _handed(v, Handed(index, order), table)
    return found


def _handed(v: Value, new: Handed, table: Uses) -> list[Handed]:
    """What becomes of a carried value; nothing if it cannot be handed on so."""
    seen, work = {v}, [v]
    while work:
        x = work.pop()
        edge = edge_of(x)
        if edge is None:
            new.makers.append(x)
            continue
        loop, way = edge
        if loop.name != "for" or new.edges.setdefault(loop, way.result) is not way.result:
            return []
        names = {*way.sources, *way.args, way.result}
        for user, i in table.get(x, ()):
            to = edge_at(user, i)
            if to is not None:
                names.add(to[1].result)
            elif not _is_read(user, i, (0, 1), new, table):
                return []
        work += names - seen
        seen |= names
    turns = Counter(x.parent for x in new.readers)
    turns.subtract(x.op.parent if isinstance(x.op, Op) else None for x in new.makers)
    fits = v.tile.layout is not None and elem_of(v.type).bits == 16 and not any(turns.values())
    return [new] if fits and all(op.name == "for" for x in new.readers for op in enclosing(x)) else []


def _is_read(user: Op, i: int, order: tuple[int, ...], new: Handed, table: Uses) -> bool:
    """Whether only products use a value, which are noted."""
    if user.name == "trans" and order == (0, 1):
        return all(_is_read(op, j, tuple(user.attrs["order"]), new, table) for op, j in table.get(user.result, ()))
    new.readers.append(user)
    return user.name == "dot" and "unit" not in user.attrs and (i, order) == (new.index, new.order) and not (
        i == 0 and from_registers(user))


def write_made(v: Value, handed: Handed, b: Builder, c: Context) -> None:
    """Write a value behind what makes it."""
    t = v.tile
    if handed.order != (0, 1) and t.layout is not None:
        t = Tile(tuple(t.shape[d] for d in handed.order), t.elem, t.layout.transpose(handed.order))
        v = b.op("trans", v, order=handed.order, result_types=[t]).result
    view = _view(handed, handed.writes, t, b, c)
    b.op("local_store", view, v, ring=handed.buffer[0].name)
    b.op("fence_async")


def read_made(dot: Op, handed: Handed, b: Builder, c: Context) -> Value:
    """What a product reads in the place of an operand."""
    return _view(handed, handed.reads, dot.operands[handed.index].tile, b, c)


def _view(handed: Handed, views: list[Op], t: Tile, b: Builder, c: Context) -> Value:
    """A view of a slot that `take_turns` chooses."""
    if not handed.buffer:
        dot, names = handed.readers[0], [op.attrs.get("name", "").partition(".")[0] for op in c.fn.body.ops]
        name = f"{dot.result.name or 'dot'}_{'ab'[handed.index]}"
        while name in names:
            name += "_"
        handed.buffer.append(alloc(c.top, name, buffer_of(t, handed.index, SLOTS), private=True))
        size = handed.buffer[0].buffer.slot_bytes
        c.fn.say("operand", f"dot operand {'ab'[handed.index]} at {dot.place} is handed to the next trip in {SLOTS} x "
                 f"{size} bytes", dot.place, operand=handed.index, bytes=size, slots=SLOTS)
    view = b("view", handed.buffer[0], b.const(0, int32))
    views.append(view.maker)
    return view


def take_turns(handed: Handed, c: Context) -> None:
    """Put in the waits and arrivals of both sides, and have loops carry slots instead of the tile."""
    for loop, result in handed.edges.items():
        keep_edges(loop, [i for i in range(len(loop.results)) if i != result.index])
    name = handed.buffer[0].name
    full, empty = (barriers(c.top, f"{name}.{end}", SLOTS, c.fn.attrs["num_warps"]) for end in ("full", "empty"))

    def turn(view: Op, ticket: list[Value]) -> list[Value]:
        view.operands[1] = ticket[0]
        stored = view in handed.writes
        beside(view, behind=True).op("mbar_wait", empty if stored else full, *ticket)
        at = view.block.ops.index(view) + 2
        b = Builder(view.block, at + 2 * stored, view.loc)  # behind the store, and its fence
        if stored:
            b.op("mbar_arrive", full, ticket[0], per="warp", ctas=1)
        return b.op("ticket_next", *ticket, slots=SLOTS, ring=name).results

    b = top_of(c.fn)
    zero, one = b.const(0, int32), b.const(1, int32)
    for views, parity, end in ((handed.writes, one, "next"), (handed.reads, zero, "slot")):
        thread(c.fn.body, [zero, parity], dict.fromkeys(views, turn), [f"{name}_{end}", f"{name}_{end}_parity"])
