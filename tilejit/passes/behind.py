"""What a tile's elements outside the row that masks cut out of it are, where that is known."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.ir import Op, Value
from tilejit.ir.types import DType, elem_of
from tilejit.passes.rules import const_of

#: What adds nothing to a fold.
NOTHING: dict[str, float] = {"add": 0.0, "maximum": float("-inf"), "minimum": float("inf")}
_FOLDS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": max, "minimum": min,
    "abs": abs}


def behind(op: Op, known: Callable[[Value], Any], compared: Callable[[Op], Any]) -> Any:
    """What an op gives outside of the row, or None. known: the same of its operands; compared: what a comparison is
    there.
    """
    ends = [known(v) for v in op.operands]
    if op.name == "const":
        return op.attrs["value"]
    if op.name == "splat":
        return const_of(op.operands[0])
    if op.name == "cmp":
        return compared(op)
    if op.name == "and":
        return False if any(x is False for x in ends) else None
    if op.name == "load":
        return None if len(ends) < 2 or ends[1] is not False else ends[2] if len(ends) > 2 else 0
    if op.name == "select":
        return None if ends[0] is None else ends[1] if ends[0] else ends[2]
    if op.name == "cast":
        t = elem_of(op.result.type)
        return ends[0] if isinstance(t, DType) and t.is_float else None
    if op.name in _FOLDS and None not in ends:
        return _FOLDS[op.name](*ends)
    return None
