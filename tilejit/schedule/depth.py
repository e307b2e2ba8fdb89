"""Binds how deep rings are, last: a function is written for two slots, and everything that knows the number is here."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilejit.ir import Function, listed
from tilejit.ir.flight import rings as guarded
from tilejit.ir.report import Record


def bind(fn: Function, rings: Collection[str], slots: int) -> None:
    buffers = {buffer: name for buffer, name in guarded(fn).items() if name in rings}
    for op in listed(fn.body):
        if op.name in ("ticket_next", "ticket_skip") and op.attrs["ring"] in rings:
            op.attrs["slots"] = slots
        elif op.name == "barriers" and op.attrs["name"].rpartition(".")[0] in rings or \
                op.name == "alloc" and op.result in buffers:
            op.attrs["type"] = op.result.type = replace(op.attrs["type"], slots=slots)
    for i, line in enumerate(fn.attrs["report"]):
        if isinstance(line, Record) and line.kind == "ring" and line.at in rings:
            text = line.replace(f": {line.numbers['slots']} slots", f": {slots} slots", 1)
            fn.attrs["report"][i] = Record(line.kind, text, line.at, **{**line.numbers, "slots": slots})
