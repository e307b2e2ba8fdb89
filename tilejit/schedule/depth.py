"""Binds how deep rings are, last: a function is written for two slots, and everything that knows the number is here.

    %a = alloc {name="a"} : buffer<2x..>                          %a = alloc {name="a"} : buffer<5x..>
    %f = barriers {name="a.full"} : barrier<2, ..>       ->       %f = barriers {name="a.full"} : barrier<5, ..>
    %s, %p = ticket_next %t, %q {slots=2, ring="a"}               %s, %p = ticket_next %t, %q {slots=5, ring="a"}
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilejit.ir import Function, listed
from tilejit.ir.flight import rings as guarded
from tilejit.schedule.decide import ring_record
from tilejit.schedule.plan import Plan, Ring


def can_bind(plan: Plan, rings: Collection[Ring], slots: int) -> bool:
    """Whether so many slots are no other form, and the depth of none of these rings is written into a role: it is where
    who reads them fills them ahead."""
    return slots > 1 and plan.specialised and not any(r.local for r in rings)


def bind(fn: Function, plan: Plan, rings: Collection[Ring], slots: int) -> None:
    """Give these rings so many slots, in place, and in the report."""
    chosen = {ring.channel.name for ring in rings}
    buffers = {buffer: name for buffer, name in guarded(fn).items() if name in chosen}
    for op in listed(fn.body):
        name = op.attrs.get("ring", "") if op.name in ("ticket_next", "ticket_skip") else ""
        if name in chosen:
            op.attrs["slots"] = slots
        elif op.name == "barriers" and op.attrs["name"].rpartition(".")[0] in chosen:
            op.attrs["type"] = op.result.type = replace(op.attrs["type"], slots=slots)
        elif op.name == "alloc" and op.result in buffers:
            op.attrs["type"] = op.result.type = replace(op.attrs["type"], slots=slots)
    for ring in rings:
        was = ring_record(plan, ring)
        ring.slots = slots
        plan.report[:] = [ring_record(plan, ring) if line == was else line for line in plan.report]
