"""Emitters that only rename registers, as layouts say."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.places import registers_of, renamed, repeated, source_layout


@emits("expand_dims", "reshape", "trans")
def _rename(e: Emitter, op: Op) -> None:
    src = e.get(op.operands[0])
    e.set(op.result, [src[i] for i in renamed(source_layout(op), op.result.layout, op)])


@emits("hint")
def _hint(e: Emitter, op: Op) -> None:
    e.set(op.result, e.get(op.operands[0]))


@emits("splat")
def _splat(e: Emitter, op: Op) -> None:
    e.set(op.result, [e.scalar(op.operands[0])] * e.count(op.result.type))


@emits("broadcast")
def _broadcast(e: Emitter, op: Op) -> None:
    src = e.get(op.operands[0])
    e.set(op.result, [src[i] for i in repeated(op)])


@emits("part")
def _part(e: Emitter, op: Op) -> None:
    axis, start = op.attrs["axis"], op.attrs["start"]
    where = dict(zip(op.operands[0].layout.registers(), e.get(op.operands[0])))
    e.set(op.result, [where[at[:axis] + (at[axis] + start,) + at[axis + 1:]]
                      for at in op.result.layout.registers()])


@emits("arange")
def _arange(e: Emitter, op: Op) -> None:
    layout, p = op.result.layout, e.p
    thread = e.thread_coord(layout, 0)
    thread_bits = 0
    for name in ("lane", "warp"):
        for (b,) in layout.bases_of(name):
            thread_bits |= b
    out, asked = [], e.asked(op.result)
    for i, (const,) in enumerate(layout.registers()):
        if asked is not None and i not in asked:
            out.append("")
            continue
        base = thread
        if const & thread_bits:
            base = p.new("b32", "xor.b32", thread, const)
            const = 0
        const += op.attrs["start"]
        out.append(p.new("b32", "add.s32", base, const) if const else base)
    e.set(op.result, out)
    if op not in e.indices:
        e.indices.append(op)


@emits("join")
def _join(e: Emitter, op: Op) -> None:
    a, b = (e.get(v) for v in op.operands)
    both = [r for pair in zip(a, b) for r in pair]
    joined = op.operands[0].layout.join()
    e.set(op.result, [both[i] for i in renamed(joined, op.result.layout, op)])


@emits("split")
def _split(e: Emitter, op: Op) -> None:
    src, layout = e.get(op.operands[0]), op.operands[0].layout
    for half, result in enumerate(op.results):
        e.set(result, [src[i] for i in registers_of(layout, result.layout, half)])
