"""Loads through pointers that are asynchronous copies (marked by `passes/copies.py`)."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.report import Record


def unmark(op: Op, problem: str, notes: list[Record]) -> None:
    """Make a marked load an ordinary one again."""
    del op.attrs["copy"]
    where = op.loc.short() if op.loc else "?"
    notes.append(Record("not_pipelined", f"load {op.result.name or 'of a tile'} at {where}: not pipelined, {problem}",
                        where))
