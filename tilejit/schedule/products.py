"""Products made asynchronous: wgmma groups and their waits, operands in slots, in registers, or staged on their way."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir import Builder, Function, Op, Value, const_of, edge_of, listed
from tilejit.ir.types import Pending, Tile
from tilejit.schedule.context import Context
from tilejit.schedule.handed import read_made
from tilejit.schedule.loads import Uses, behind, reads_slot, shared_operand
from tilejit.schedule.operands import operand
from tilejit.schedule.pieces import PIECES, from_registers, piece_type, write_piece
from tilejit.schedule.rings import Ring

#: Clocks: from the release of a slot until a TMA copy has filled it again, and what it costs to wait for products
#: before the next are issued; 16-bit floating point operations a clock. (H200, products of 4096 in tiles of
#: 128x128x64, two slots: 1570 clocks a block with a round in flight, 1050 without.)
COPY, DRAIN, FLOPS = 1500, 100, 4096
#: Slots of rings of which one more copy under way is worth waiting for products.
FEW_SLOTS = 3


def find_chains(fn: Function, rings: Sequence[Ring], table: Uses) -> None:
    """Loops whose products only pass their accumulators on (docs/modules.md)."""
    for loop in listed(fn.body):
        dots = [op for r in loop.regions for op in listed(r) if op.name == "dot"] if loop.name == "for" else []
        if not dots or "pipelined" in loop.attrs:
            continue
        # A slot released one iteration late needs a second slot, or the producer and the consumer wait for each other.
        mine = [r for r in rings if r.loop is loop and r.views]
        flows = all(_only_passes_on(dot, loop, table) and (len(dots) == 1 or "pieces" not in dot.attrs) for dot in dots)
        if flows and _is_shallow(fn, mine, dots):
            why = f": with {mine[0].slots} slots more copies are under way so"
        elif flows and all(r.slots > 1 for r in mine):
            loop.attrs["in_flight"] = True
            continue
        elif any(dot.parent is loop.regions[0] and from_registers(dot) for dot in dots):
            why = ", which take first operands from registers"
        else:
            continue
        fn.say("drained", f"loop at {loop.place}: every iteration waits for its products{why}", loop.place)


def _only_passes_on(dot: Op, loop: Op, table: Uses) -> bool:
    """Whether a product adds to what a loop carries for it alone, and reads slots, or a first operand in pieces."""
    body, acc = loop.regions[0], edge_of(dot.operands[2])
    return dot.parent is body and acc is not None and acc[0] is loop and table.get(dot.operands[2]) == [(dot, 2)] and \
        table.get(dot.result) == [(body.terminator, acc[1].index)] and "unit" not in dot.attrs and \
        reads_slot(dot, 1) is not None and ("pieces" in dot.attrs or reads_slot(dot, 0) is not None)


def chain_of(loop: Op) -> dict[Op, int]:
    """The products of a loop that only passes their sums on, in order, and where it carries those."""
    dots = [op for op in listed(loop.regions[0]) if op.name == "dot"]
    return {dot: edge[1].index for dot in dots if (edge := edge_of(dot.operands[2])) is not None}


def _is_shallow(fn: Function, rings: list[Ring], dots: list[Op]) -> bool:
    """Whether a loop waits for copies, not for products."""
    slots = min((r.slots for r in rings), default=0)
    if "producers" not in fn.attrs or not 1 < slots <= FEW_SLOTS or any(r.open or r.kind != "tensor" for r in rings):
        return False
    cycles = 0.0
    for dot in dots:
        (m, k), n = dot.operands[0].tile.shape, dot.result.tile.shape[1]
        cycles += 2 * m * n * k * dot.operands[0].dtype.bits / (16 * FLOPS)
    return (slots - 1) * (cycles + DRAIN) < COPY


def is_added_to(dot: Op, table: Uses) -> bool:
    """Whether a product's sums are nothing but what one behind it adds to, with no loop or branch between."""
    (user, index), *more = table.get(dot.result) or [(dot, 0)]
    if more or index != 2 or user.name != "dot" or user.parent is not dot.parent or "unit" in {*dot.attrs, *user.attrs}:
        return False
    ops = dot.block.ops
    return not any(op.regions for op in ops[ops.index(dot):ops.index(user)])


def write_dot(op: Op, b: Builder, c: Context) -> None:
    extra = {k: v for k, v in op.attrs.items() if k in ("precision", "begin", "depth")}
    if "unit" in op.attrs:
        operands = [_view(op, i, b, c) or c.fragments.get(v) or c.now(v) for i, v in enumerate(op.operands[:2])]
        result = b("dot_mma", *operands, op.operands[2], **extra)
        result.name, result.type = op.result.name, op.result.type
        c.renamed[op.result] = result
        return
    chain = c.chains.get(op.block.parent, {}) if op.block.parent is not None else {}
    acc = op.operands[2] if op in chain else _sums(op, extra, b, c)
    if op in c.pieces:
        _write_pieces(op, acc, op in chain, extra, b, c)
        return
    result = b("dot_async", *(_operand(op, i, b, c) for i in (0, 1)), acc, **extra)
    result.name = op.result.name
    for ring in dict.fromkeys(load.attrs["channel"] for i in (0, 1) if (load := reads_slot(op, i)) in c.tickets):
        if ring in c.peeked:
            b.op("peek", ring=ring)
    if op not in chain and op not in c.flying:
        if op in c.added_to:
            c.renamed[op.result] = result
        else:
            _wait(op, result, b, c)
        return
    c.issued[op] = result
    if op not in chain:
        c.renamed[op.result] = result
    elif op is [*chain][-1]:  # where the products of the trip before are waited for
        fenced = b.op("dot_fence", *(c.issued[dot] for dot in chain)).results
        for dot, value in zip(chain, fenced):
            c.renamed[dot.result], value.name = value, dot.result.name


def _sums(op: Op, extra: dict, b: Builder, c: Context) -> Value:
    """What a product adds to."""
    before = c.flying.get(op)
    if const_of(op.operands[2]) == 0:
        extra["zero"] = True
        if before is not None:
            return before
    start = c.now(op.operands[2])
    return start if isinstance(start.type, Pending) else b("pend", start)


def _wait(dot: Op, product: Value, b: Builder, c: Context) -> None:
    c.renamed[dot.result] = tile = b.op("dot_wait", product).result  # it sinks to where the sums are needed
    tile.name = dot.result.name


def _write_pieces(op: Op, acc: Value, in_chain: bool, extra: dict, b: Builder, c: Context) -> None:
    """A wgmma group for every piece of the first operand, which is computed while the one before multiplies."""
    pieces, bb = c.pieces[op], _operand(op, 1, b, c)
    c.fn.say("operand", f"dot operand a at {op.place} from registers, in {PIECES} pieces", op.place,
             operand=0, pieces=PIECES)
    size = piece_type(pieces, op.operands[0]).shape[1]
    for i in range(PIECES):
        a = write_piece(pieces, i, op.operands[0], c.views, c.now, b)
        acc = b("dot_async", a, bb, acc, k=i * size, **extra)
        extra.pop("zero", None)
        acc.name = op.result.name
        if in_chain:
            acc = b.op("dot_fence", acc).result
            acc.name = op.result.name
    if in_chain:
        c.renamed[op.result] = acc
    else:
        _wait(op, acc, b, c)


def _view(dot: Op, index: int, b: Builder, c: Context) -> Value | None:
    found = shared_operand(dot.operands[index])
    if found is None or not reads_slot(dot, index):
        return None
    view = c.views[found[0]]
    return b("view_trans", view, order=(1, 0)) if found[1] else view


def _operand(dot: Op, index: int, b: Builder, c: Context) -> Value:
    """A dot operand."""
    slot = _view(dot, index, b, c)
    if slot is not None:
        return slot
    if index == 0 and from_registers(dot):
        c.fn.say("operand", f"dot operand a at {dot.place} from registers", dot.place, operand=0)
        return c.now(dot.operands[0])
    if dot in c.handed and index == c.handed[dot].index:
        return read_made(dot, c.handed[dot], b, c)
    return operand(dot, index, _in_registers(dot.operands[index], b, c), b, c)


def _in_registers(v: Value, b: Builder, c: Context) -> Value:
    """A dot operand that wgmma cannot read in place, in registers (transposed copies included)."""
    op, now = v.op, c.now(v)
    if now is not v or not isinstance(op, Op) or op.name != "trans" or \
            isinstance(v.type, Tile) and v.type.layout is not None:
        return now
    inner = _in_registers(op.operands[0], b, c)
    order = tuple(op.attrs["order"])
    t = Tile(tuple(inner.tile.shape[i] for i in order), inner.tile.elem, inner.layout.transpose(order))
    return b.op("trans", inner, order=order, result_types=[t]).result


def write_reuse(op: Op, b: Builder, c: Context) -> None:
    """What `promote_reuse` asks for."""
    source = behind(op.operands[0])
    buffers = [v for x in source for v in c.through.get(x, ())]
    buffers += {c.buffers[x.attrs["channel"], x.attrs["index"]]: None for x in source if x in c.tickets}
    b.op("reuse", *sorted(buffers, key=lambda v: v.name))
    c.renamed[op.result] = op.operands[0]
