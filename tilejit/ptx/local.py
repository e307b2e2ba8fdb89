"""Emitters of memory that each thread has for itself: `stack`, `keep` and `kept`."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Op, Value
from tilejit.ir.types import Tile, elem_of
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.pack import load, store

#: Bytes of the widest access.
_VECTOR = 16


@emits("stack")
def _stack(e: Emitter, op: Op) -> None:
    name = f"stack_{sum(d.startswith('.local') for d in e.p.decls)}"
    e.p.decls.append(f".local .align {_VECTOR} .b8 {name}[{op.attrs['slots'] * _bytes(e, op.result)}];")
    e.set(op.result, [e.p.new("b64", "mov.u64", name)] * e.count(op.result.type))


@emits("keep")
def _keep(e: Emitter, op: Op) -> None:
    stack, at, x = op.operands
    t, regs, base = elem_of(x.type), e.get(x), _slot(e, stack, at)
    for i, vec in _vectors(x.tile, len(regs)):
        store(e, "st.local", t, regs[i:i + vec], f"[{base}+{i * max(1, t.bits // 8)}]")


@emits("kept")
def _kept(e: Emitter, op: Op) -> None:
    t, regs, base = elem_of(op.result.type), e.fresh(op.result.type), _slot(e, *op.operands)
    for i, vec in _vectors(op.result.tile, len(regs)):
        load(e, "ld.local", t, regs[i:i + vec], f"[{base}+{i * max(1, t.bits // 8)}]")
    e.set(op.result, regs)


@emits("stacked")
def _stacked(e: Emitter, op: Op) -> None:
    raise CompilationError(f"a sorted tile {op.result.tile} is needed whole, and its threads have no registers for it: "
                           "store it, or sort fewer elements", op.loc)


def _bytes(e: Emitter, v: Value) -> int:
    return -(-e.count(v.type) * max(1, elem_of(v.type).bits // 8) // _VECTOR) * _VECTOR


def _slot(e: Emitter, stack: Value, at: Value) -> str:
    return e.p.new("b64", "mad.wide.s32", e.scalar(at), _bytes(e, stack), e.get(stack)[0])


def _vectors(t: Tile, count: int) -> list[tuple[int, int]]:
    vec = min(count, _VECTOR // max(1, elem_of(t).bits // 8))
    return [(i, vec) for i in range(0, count, vec)]
