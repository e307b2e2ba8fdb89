"""Emitters that only rename registers: layouts say which source register each result register is."""
from __future__ import annotations

from collections.abc import Callable

from tilejit.errors import CompilationError
from tilejit.ir import Op
from tilejit.ir.types import Tile
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits


def layout_of(tile: object) -> LinearLayout:
    """The layout of a tile type that has one."""
    assert isinstance(tile, Tile) and tile.layout is not None, tile
    return tile.layout


def renamed(src: LinearLayout, dst: LinearLayout, op: Op) -> list[int]:
    """For each register of dst, the register of src that holds the same element in the same thread.

    Both layouts have the same shape. The layout pass inserts `convert` where this is not possible."""
    if src.bases_of("lane") != dst.bases_of("lane") or src.bases_of("warp") != dst.bases_of("warp"):
        raise CompilationError(f"{op.name}: threads hold other elements after than before: {src} -> {dst}",
                               op.loc)
    where: dict[tuple[int, ...], int] = {}
    for r, at in enumerate(src.registers()):
        where.setdefault(at, r)
    return [where[at] for at in dst.registers()]


def _rename(view: Callable[[LinearLayout, Op], LinearLayout]) -> Callable[[Emitter, Op], None]:
    """An emitter whose source, seen through `view`, has the result's shape."""
    def emitter(e: Emitter, op: Op) -> None:
        src = e.get(op.operands[0])
        source = view(layout_of(op.operands[0].type), op)
        e.set(op.result, [src[i] for i in renamed(source, layout_of(op.result.type), op)])
    return emitter


emits("expand_dims")(_rename(lambda layout, op: layout.expand_dims(op.attrs["axis"])))
emits("reshape")(_rename(lambda layout, op: layout.reshape(tuple(op.attrs["shape"]))))
emits("trans")(_rename(lambda layout, op: layout.transpose(tuple(op.attrs["order"]))))


@emits("hint")
def _hint(e: Emitter, op: Op) -> None:
    e.set(op.result, e.get(op.operands[0]))


@emits("splat")
def _splat(e: Emitter, op: Op) -> None:
    e.set(op.result, [e.scalar(op.operands[0])] * e.count(op.result.type))


@emits("broadcast")
def _broadcast(e: Emitter, op: Op) -> None:
    """A result register repeats the source register at its coordinates with repeated dimensions zeroed."""
    src, t = e.get(op.operands[0]), op.operands[0].type
    assert isinstance(t, Tile)
    source, dst = layout_of(t), layout_of(op.result.type)
    target = dst.project(t.shape)
    if any(source.bases_of(n) != target.bases_of(n) for n in ("lane", "warp")):
        raise CompilationError(f"broadcast: {source} does not spread to {dst}", op.loc)
    where: dict[tuple[int, ...], int] = {}
    for r, at in enumerate(source.registers()):
        where.setdefault(at, r)
    out = []
    for at in dst.registers():
        out.append(src[where[tuple(x if s > 1 else 0 for x, s in zip(at, t.shape))]])
    e.set(op.result, out)


@emits("part")
def _part(e: Emitter, op: Op) -> None:
    """The registers of the part: the parts' own bits are those of registers alone."""
    axis, start = op.attrs["axis"], op.attrs["start"]
    where = dict(zip(layout_of(op.operands[0].type).registers(), e.get(op.operands[0])))
    e.set(op.result, [where[at[:axis] + (at[axis] + start,) + at[axis + 1:]]
                      for at in layout_of(op.result.type).registers()])


@emits("arange")
def _arange(e: Emitter, op: Op) -> None:
    """start + (thread part ^ register part); the xor is an addition where their bits are disjoint."""
    layout, p = layout_of(op.result.type), e.p
    thread = e.thread_coord(layout, 0)
    thread_bits = 0
    for name in ("lane", "warp"):
        for (b,) in layout.bases_of(name):
            thread_bits |= b
    out = []
    for (const,) in layout.registers():
        base = thread
        if const & thread_bits:
            base = p.new("b32", "xor.b32", thread, const)
            const = 0
        const += op.attrs["start"]
        out.append(p.new("b32", "add.s32", base, const) if const else base)
    e.set(op.result, out)


@emits("join")
def _join(e: Emitter, op: Op) -> None:
    a, b = (e.get(v) for v in op.operands)
    both = [r for pair in zip(a, b) for r in pair]
    joined = layout_of(op.operands[0].type).join()
    e.set(op.result, [both[i] for i in renamed(joined, layout_of(op.result.type), op)])


@emits("split")
def _split(e: Emitter, op: Op) -> None:
    """Each half takes the registers whose last coordinate is 0 or 1."""
    src, layout = e.get(op.operands[0]), layout_of(op.operands[0].type)
    for half, result in enumerate(op.results):
        dst = layout_of(result.type)
        where = {at: r for r, at in reversed(list(enumerate(layout.registers())))}
        e.set(result, [src[where[at + (half,)]] for at in dst.registers()])
