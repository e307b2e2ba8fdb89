"""First operands of products that are computed stay in registers, in the layout that wgmma reads."""
from __future__ import annotations

from tilejit.ir import Op, Value, reached
from tilejit.ir.types import DType, Tile
from tilejit.layout.convert import Registers, plan
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import wgmma_a_operand

#: 32-bit registers a thread may have of a first operand, and of it and the accumulator together.
MOST_WORDS, MOST_REGISTERS = 64, 192


def fragments(dot: Op, num_warps: int) -> LinearLayout | None:
    """The layout in which wgmma takes a product's first operand from registers; None where it should not."""
    a, acc = dot.operands[0].type, dot.result.type
    assert isinstance(a, Tile) and isinstance(acc, Tile) and isinstance(a.elem, DType)
    try:
        layout = wgmma_a_operand(a.shape, num_warps, a.elem.bytes)  # type: ignore[arg-type]
    except ValueError:
        return None
    threads = 32 * num_warps
    words = a.numel * a.elem.bytes // 4 // threads
    if layout.zero_bits("warp") or words > MOST_WORDS or words + acc.numel // threads > MOST_REGISTERS:
        return None
    return None if _through_pointers(dot.operands[0], a.numel // 4) else layout


def in_other_order(dot: Op) -> LinearLayout | None:
    """That layout, where each thread has its elements in another order: then other names of registers are all that it
    takes."""
    a = dot.operands[0].type
    assert isinstance(a, Tile) and isinstance(a.elem, DType)
    if dot.name != "dot" or a.layout is None:
        return None
    layout = fragments(dot, len(a.layout.coords("warp")))
    if layout is None or layout == a.layout or layout.num_registers != a.layout.num_registers:
        return None
    return layout if isinstance(plan(a.layout, layout, a.elem.bytes), Registers) else None


def _through_pointers(v: Value, numel: int) -> bool:
    def sources(v: Value) -> list[Value]:
        op = v.op
        pure = isinstance(op, Op) and isinstance(v.type, Tile) and op.define.pure and not op.regions
        return op.operands if isinstance(op, Op) and pure and op.name != "dot" else []

    return any(isinstance(x.op, Op) and x.op.name == "load" and isinstance(x.type, Tile) and x.type.numel >= numel
               for x in reached([v], sources))
