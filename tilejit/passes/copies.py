"""Which loads through pointers can be asynchronous copies into shared memory."""
from __future__ import annotations

from tilejit.ir import Function, Op, listed, loop_around, read
from tilejit.ir.ahead import ahead_problem, is_volatile
from tilejit.ir.types import DType, Tile
from tilejit.passes.rules import const_of

#: Bytes that one cp.async copies (PTX ISA, cp.async).
SIZES = (4, 8, 16)


def mark_copies(fn: Function) -> Function:
    if fn.attrs.get("num_ctas", 1) > 1:
        return fn
    loops = pipelined_loops(fn)
    for op in listed(fn.body):
        if op.name != "load" or not isinstance(op.result.type, Tile) or loop_around(op) not in loops or _is_ahead(op):
            continue
        problem = "num_stages=1" if _depth(fn, op) == 1 else copy_problem(op) or ahead_problem(op)
        if not problem:
            op.attrs["copy"] = memory_order(op)
            continue
        fn.say("not_pipelined", f"load {op.result.name or 'of a tile'} at {op.place}: not pipelined, {problem}",
               op.place)
    return fn


def mark_ahead(fn: Function) -> Function:
    loops = pipelined_loops(fn)
    for op in listed(fn.body):
        if op.name == "load" and loop_around(op) in loops and _is_ahead(op):
            op.attrs["ahead"] = True
    return fn


def _depth(fn: Function, op: Op) -> int | None:
    loop = loop_around(op)
    return (loop.attrs.get("num_stages") if loop else None) or fn.attrs.get("num_stages")


def pipelined_loops(fn: Function) -> set[Op]:
    loops = set()
    for op in listed(fn.body):
        if op.name in ("dot", "dot_fma") and (loop := loop_around(op)) is not None:
            loops.add(loop)
        elif "loop" in op.define.traits and op.attrs.get("num_stages"):
            loops.add(op)
    return loops


def wants_copies(fn: Function, op: Op, loops: set[Op]) -> bool:
    return loop_around(op) in loops and _depth(fn, op) != 1 and not _is_ahead(op)


def _is_ahead(load: Op) -> bool:
    loop = loop_around(load)
    if loop is None or load.parent is not loop.regions[-1]:
        return False
    values = [load.result]
    for op in load.parent.ops[load.parent.ops.index(load) + 1:]:
        if op.name == "convert" and op.operands[0] in values:
            values.append(op.result)
        elif op is not load.parent.terminator and not set(values).isdisjoint(read(op)):
            return False
    return any(v in load.parent.terminator.operands for v in values)


def refused(op: Op) -> str:
    t = op.result.tile
    if not isinstance(t.elem, DType) or t.elem.family == "bool":
        return f"elements of {t.elem} are not copied as they are"
    if is_volatile(op):
        return "it is volatile"
    if len(op.operands) > 2 and str(const_of(op.operands[2])) not in ("0", "0.0"):
        return "masked elements are not zero"
    return ""


def copy_problem(op: Op) -> str:
    t = op.result.type
    if problem := refused(op):
        return problem
    assert isinstance(t, Tile) and isinstance(t.elem, DType)
    if op.attrs.get("ragged"):
        return "its mask may end among a thread's neighbouring elements"
    size = op.attrs["vec"] * t.elem.bytes
    if size not in SIZES:
        return f"a thread's neighbouring addresses are not known to be aligned to 4 bytes ({size} found)"
    return ""


def memory_order(op: Op) -> tuple[int, ...]:
    """A load's dimensions from fastest to slowest: first the one that its accesses run along."""
    t, layout = op.result.tile, op.result.layout
    rank = len(t.shape)
    fast = max(range(rank), key=lambda d: (layout.contiguous_registers(d), d))
    if op.attrs["vec"] == 1:  # no run of registers says; neighbouring lanes are on neighbouring addresses
        moved = [d for basis in layout.bases_of("lane") for d in range(rank) if basis[d]]
        fast = moved[0] if moved else rank - 1
    return (fast, *(d for d in reversed(range(rank)) if d != fast))
