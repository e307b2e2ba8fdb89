"""First operands of products made in pieces of K: the next piece is computed while the one before multiplies."""
from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilejit.ir import Builder, Op, Value, const_of, of_size
from tilejit.ir.scratch import conversion
from tilejit.ir.types import Tile
from tilejit.layout.convert import Registers
from tilejit.layout.named import wgmma_a_operand
from tilejit.records import dataclass
from tilejit.schedule.loads import shared_operand

#: Pieces of K (each of 32 bytes at least, what a wgmma takes): one is written while tensor cores read the other.
PIECES = 2


@dataclass(frozen=True)
class Pieces:
    """What is written once for every piece: `ops`, in order. `axes`: the dimension of a value that runs along K."""

    ops: tuple[Op, ...]
    axes: dict[Value, int]


def from_registers(dot: Op) -> bool:
    """Whether a product's first operand is a computed tile whose layout is wgmma's own."""
    t = dot.operands[0].tile
    if "unit" in dot.attrs or t.layout is None or shared_operand(dot.operands[0]) is not None:
        return False
    try:
        return t.layout == wgmma_a_operand(t.shape, len(t.layout.coords("warp")), t.elem.bytes)  # type: ignore
    except ValueError:
        return False


def find_pieces(dot: Op, table: dict[Value, list[tuple[Op, int]]]) -> Pieces | None:
    """The ops that compute a product's first operand from registers, if they can be written in pieces of K."""
    v = dot.operands[0]
    if "begin" in dot.attrs or not from_registers(dot) or v.tile.shape[1] * v.dtype.bytes < 32 * PIECES:
        return None
    axes, chosen = {v: 1}, {dot}
    ops: list[Op] = []
    block = dot.block.ops
    for op in reversed(block[:block.index(dot)]):
        if len(op.results) != 1 or op.result not in axes or any(
                u not in chosen or u is dot and i != 0 for u, i in table[op.result]):
            continue
        sources = _sources(op, axes[op.result])
        if sources is None or any(axes.get(x, a) != a for x, a in zip(op.operands, sources) if a is not None):
            continue
        chosen.add(op)
        ops.insert(0, op)
        axes.update({x: a for x, a in zip(op.operands, sources) if a is not None})
    found = Pieces(tuple(ops), axes)
    try:
        for x in axes:
            piece_type(found, x)
    except ValueError:
        return None
    return found if _is_new(v, chosen) else None


def piece_type(pieces: Pieces, v: Value) -> Tile:
    """The type of a piece of a value. Raises ValueError where threads do not hold as much of each."""
    t, axis = v.tile, pieces.axes[v]
    if t.layout is None:
        raise ValueError("no layout")
    size = t.shape[axis] // PIECES
    shape = tuple(size if d == axis else n for d, n in enumerate(t.shape))
    return Tile(shape, t.elem, t.layout.part(axis, size))


def write_piece(pieces: Pieces, index: int, v: Value, views: dict[Op, Value], now: Callable[[Value], Value],
                b: Builder) -> Value:
    """Piece `index` of v (the product's first operand), computed by new ops; `now`: what stands for a value."""
    made: dict[Value, Value] = {}

    def operand(x: Value) -> Value:
        if x in made or x not in pieces.axes:
            return made.get(x, now(x))
        t, axis = piece_type(pieces, x), pieces.axes[x]
        if const_of(x) is not None:
            made[x] = b("const", value=const_of(x), type=t)
        else:
            made[x] = b("part", now(x), axis=axis, start=index * t.shape[axis], type=t)
        return made[x]

    for op in pieces.ops:
        t, axis = piece_type(pieces, op.result), pieces.axes[op.result]
        if op.name == "desc_load":
            at = tuple(index * n if d == axis else 0 for d, n in enumerate(t.shape))
            new = b("local_load", views[op], type=t, at=at)
        else:
            new = b.op(op.name, *map(operand, op.operands), result_types=[t], **of_size(op, t)).result
        new.name = op.result.name
        made[op.result] = new
    return operand(v)


def _sources(op: Op, axis: int) -> list[int | None] | None:
    """An operand's dimension along K if `axis` of the result is (None: needed whole); None for no pieces."""
    shape = op.result.tile.shape
    if op.name == "desc_load":
        return [None] * len(op.operands) if len(shape) == 2 else None
    if op.name == "splat":
        return [None]
    if op.name == "broadcast":
        return [axis if op.operands[0].tile.shape[axis] > 1 else None]
    if op.name == "join":
        return [axis, axis] if axis < len(shape) - 1 else None
    if op.name == "trans":
        return [op.attrs["order"][axis]]
    if op.name == "convert":
        return [axis] if isinstance(conversion(op), Registers) else None
    if op.name == "reshape":
        source = op.operands[0].tile.shape
        whole = [d for d, n in enumerate(source) if prod(source[:d]) == prod(shape[:axis]) and n % PIECES == 0]
        return [whole[0]] if shape[axis] % PIECES == 0 and whole else None
    if "elementwise" in op.define.traits and op.define.pure:
        return [axis if isinstance(x.type, Tile) else None for x in op.operands]
    return None


def _is_new(v: Value, chosen: set[Op]) -> bool:
    """Whether a value is computed into registers of its own by the chosen ops, and is no other name of older ones."""
    op = v.op
    if not isinstance(op, Op) or op not in chosen:
        return False
    if "registers" in op.define.traits or op.name in ("bitcast", "convert") or op.name == "cast" and not (
            op.result.dtype.is_float or op.operands[0].dtype.is_float):
        tiles = [x for x in op.operands if isinstance(x.type, Tile)]
        return bool(tiles) and all(_is_new(x, chosen) for x in tiles)
    return True
