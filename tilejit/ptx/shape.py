"""Emitters that only rename registers: layouts say which source register each result register is."""
from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tilejit.errors import CompilationError
from tilejit.ir import Op, Value
from tilejit.ir.types import Tile
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits


def layout_of(tile: object) -> LinearLayout:
    """The layout of a tile type that has one."""
    assert isinstance(tile, Tile) and tile.layout is not None, tile
    return tile.layout


def renamed(src: LinearLayout, dst: LinearLayout, op: Op) -> tuple[int, ...]:
    """For each register of dst, the register of src that holds the same element in the same thread.

    Both layouts have the same shape. The layout pass inserts `convert` where this is not possible."""
    if src.bases_of("lane") != dst.bases_of("lane") or src.bases_of("warp") != dst.bases_of("warp"):
        raise CompilationError(f"{op.name}: threads hold other elements after than before: {src} -> {dst}",
                               op.loc)
    return _registers_of(src, dst)


@lru_cache(maxsize=1024)
def _registers_of(src: LinearLayout, dst: LinearLayout, *after: int) -> tuple[int, ...]:
    """The registers of src that hold what those of dst do; `after` are further coordinates in src."""
    return _registers_in(src, [(*at, *after) for at in dst.registers()])


def _registers_in(layout: LinearLayout, elements: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The first register of the layout that holds each of the elements in the first thread."""
    where: dict[tuple[int, ...], int] = {}
    for r, at in enumerate(layout.registers()):
        where.setdefault(at, r)
    return tuple([where[at] for at in elements])


def source_layout(op: Op) -> LinearLayout:
    """The layout of the operand of a rename, seen in the shape of its result."""
    layout = layout_of(op.operands[0].type)
    if op.name == "expand_dims":
        return layout.expand_dims(op.attrs["axis"])
    if op.name == "reshape":
        return layout.reshape(tuple(op.attrs["shape"]))
    return layout.transpose(tuple(op.attrs["order"]))


@emits("expand_dims", "reshape", "trans")
def _rename(e: Emitter, op: Op) -> None:
    src = e.get(op.operands[0])
    e.set(op.result, [src[i] for i in renamed(source_layout(op), layout_of(op.result.type), op)])


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
    repeated = _repeated(source, t.shape, dst)
    if repeated is None:
        raise CompilationError(f"broadcast: {source} does not spread to {dst}", op.loc)
    e.set(op.result, [src[i] for i in repeated])


@lru_cache(maxsize=1024)
def _repeated(source: LinearLayout, shape: tuple[int, ...], dst: LinearLayout) -> tuple[int, ...] | None:
    """For each register of dst, that of a smaller tile `shape` in `source` which it repeats; None if threads differ."""
    target = dst.project(shape)
    if any(source.bases_of(n) != target.bases_of(n) for n in ("lane", "warp")):
        return None
    return _registers_in(source, [tuple(x if s > 1 else 0 for x, s in zip(at, shape)) for at in dst.registers()])


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


def steps_of(v: Value) -> list[int] | None:
    """How far the numbers of a range that a thread holds are from its first one, if that is the same in all threads."""
    if not isinstance(v.op, Op) or v.op.name != "arange":
        return None
    layout = layout_of(v.type)
    threads = {b for name in ("lane", "warp") for (b,) in layout.bases_of(name)}
    steps = [const for (const,) in layout.registers()]
    return None if any(sum(threads) & step for step in steps) else steps


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
        e.set(result, [src[i] for i in _registers_of(layout, layout_of(result.type), half)])
