"""What only a TMA store needs is computed where the store stages it, a piece at a time (`ptx/runs.py`)."""
from __future__ import annotations

from tilejit.ir import Function, Op, listed, uses
from tilejit.layout.staging import by_pieces


def sink_runs(fn: Function) -> Function:
    stores = [op for op in listed(fn.body) if "pieces" in op.define.traits]
    table = uses(fn.body) if stores else {}
    for store in stores:
        value = store.operands[1]
        if len(by_pieces(value.layout, store.attrs["size"], store.attrs["axis"])[0][1]) < 2:  # runs go by pairs
            continue
        while isinstance(value.op, Op) and len(table[value]) == 1:
            traits = value.op.define.traits
            if value.op.define.pure and traits & {"elementwise", "permutes"}:
                value.op.attrs["by_pieces"] = True
            if "permutes" not in traits:
                break
            value = value.op.operands[0]
    return fn
