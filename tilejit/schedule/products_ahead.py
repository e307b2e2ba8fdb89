"""Products of the next iteration, issued before this one's result is used: a loop whose products start from zero."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir import Function, Op, Value, const_of, listed, loop_around, reached, uses
from tilejit.schedule.decide import decide
from tilejit.schedule.loads import in_place, kind_of, reads_slot
from tilejit.schedule.registers import MOST, Shares
from tilejit.schedule.rings import rings_of
from tilejit.schedule.rotate import copy_function
from tilejit.schedule.stages import places_problem


def may_issue_ahead(fn: Function) -> list[Op]:
    """The loops of products that are worth a plan: all if the author asks, else those of a fitting form."""
    asked = fn.attrs.get("products_ahead")
    return [] if asked is False else [
        op for op in listed(fn.body) if op.name == "for" and any(x.name == "dot" for x in op.regions[0].ops)
        and (asked or not _problem(op))]


def find_products_ahead(fn: Function) -> tuple[dict[Op, set[Op]], int]:
    """The loops whose products may be issued ahead, with what that takes: stage 0; registers of a thread that
    computes."""
    found: dict[Op, set[Op]] = {}
    loops = may_issue_ahead(fn)
    if not loops:
        return found, MOST
    planned = decide(copy_function(fn))
    twins = dict(zip(listed(fn.body), listed(planned.body)))
    for op, twin in twins.items():
        if kind_of(op):
            op.result.name = twin.result.name
    for loop in loops:
        if {"in_flight", "dealt"} & set(twins[loop].attrs):
            continue
        problem = _problem(loop) or _problem_of_rings(twins[loop], planned)
        if not problem:
            found[loop] = _first(loop)
        elif fn.attrs.get("products_ahead"):
            fn.say("no_products_ahead", f"loop at {loop.place}: products are not issued ahead: {problem}", loop.place)
    return found, Shares(*planned.attrs["registers"]).computing if found else MOST


def _dots(loop: Op) -> list[Op]:
    return [op for op in listed(loop.regions[0]) if op.name == "dot"]


def _first(loop: Op) -> set[Op]:
    """A loop's product and what that needs of the loop, this iteration's and those before."""
    body, (dot,) = loop.regions[0], _dots(loop)

    def sources(v: Value) -> Sequence[Value]:
        if v.op is body and v.index:
            return [body.terminator.operands[v.index - 1]]
        return v.op.operands if isinstance(v.op, Op) and v.op.parent is body else ()

    return {v.op for v in reached([dot.result], sources) if isinstance(v.op, Op) and v.op.parent is body}


def _problem(loop: Op) -> str:
    body, (dot, *more) = loop.regions[0], _dots(loop)
    if more or "unit" in dot.attrs:
        return "it has more than one product" if more else "mma.sync multiplies"
    if dot.parent is not body or const_of(dot.operands[2]) != 0:
        return "the product does not start from zero"
    if (const_of(loop.operands[2]) or 0) <= 0:
        return "its step is not a positive constant"
    for op in body.ops[:-1]:
        if op is not dot and not kind_of(op) and (op.regions or op.define.effects - {"read"}):
            return f"{op.name} ({op.place}) may have to wait for others"
    return places_problem(body)


def _problem_of_rings(loop: Op, planned: Function) -> str:
    body, (dot,) = loop.regions[0], _dots(loop)
    if "producers" not in planned.attrs:
        return "the kernel is not specialised"
    rings, table = rings_of(planned), uses(planned.body)
    for load in (reads_slot(dot, i) for i in (0, 1)):
        if load is None or load.parent is not body or not in_place(load.result, table) or \
                not rings[load.attrs["channel"]]["role"]:
            return "an operand is not read from a slot that a producer fills"
    mine = [rings[op.attrs["channel"]] for op in listed(body) if kind_of(op) and loop_around(op) is loop]
    if not all(r["role"] for r in mine):
        return "the threads that compute also copy"
    return "a ring has one slot" if any(r["slots"] < 2 for r in mine) else ""
