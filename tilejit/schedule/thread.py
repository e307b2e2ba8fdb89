"""Carries values through control flow, from op to op that uses and advances them: tickets, parities."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilejit.ir import Block, Op, Value, enclosing

#: What one op does with the values that are carried: it is written with them, and gives those for the next one.
Step = Callable[[Op, list[Value]], list[Value]]


def thread(block: Block, values: Sequence[Value], steps: Mapping[Op, Step], names: Sequence[str]) -> list[Value]:
    """Call `steps[op](op, values)` with the values that reach each op, carried through control flow."""
    around = {outer for op in steps for outer in enclosing(op)}

    def follow(block: Block, values: list[Value]) -> list[Value]:
        for op in [*block.ops]:
            if op in steps:
                values = steps[op](op, values)
            elif op in around:
                values = through(op, values)
        return values

    def through(op: Op, values: list[Value]) -> list[Value]:
        if not op.define.carries:
            for region in op.regions:
                values = follow(region, values)
            return values
        types = [v.type for v in values]
        if op.define.variadic:
            op.operands += values
        for region in op.regions:
            here = [region.add_arg(t, name) for t, name in zip(types, names)] if op.define.variadic else values
            region.terminator.operands += follow(region, here)
        return op.add_results(types, names)

    return follow(block, [*values])
