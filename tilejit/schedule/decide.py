"""Decides the schedule of a function: which loads share a ring, how deep, which form. Nothing is rewritten here."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, enclosing, inside, listed, uses
from tilejit.ir.ahead import Ahead, address_slice
from tilejit.ir.report import Record
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.target import target_of
from tilejit.schedule.cluster import plan_cluster
from tilejit.schedule.cluster_barrier import of_one_number
from tilejit.schedule.fragments import fragment_reads
from tilejit.schedule.pieces import find_pieces
from tilejit.schedule.ping_pong import choose_ping_pong
from tilejit.schedule.plan import (
    Plan,
    Ring,
    Uses,
    kind_of,
    loop_around,
    needed_by_producer,
    place,
    readers,
    slice_problem,
)
from tilejit.schedule.products import find_chains
from tilejit.schedule.registers import accumulators, register_split, room
from tilejit.schedule.store_role import choose_store_role
from tilejit.schedule.stores import STORE_STAGES

#: kind of a ring -> the copies that fill it, in the report's words.
COPIES = {"tensor": "TMA tiles", "row": "bulk copies of rows", "async": "cp.async"}


@dataclass(frozen=True)
class Wishes:
    """What is given from outside: slots of the rings that no loop gives a depth, groups of consumers, most slots of
    side rings and of any (None: open); staging tiles of stores whose number the author leaves open; whether stores may
    have a role that the author does not ask for; whether operands that a loop does not change may stay in shared
    memory; whether prompt rings have as many slots as iterations are under way otherwise, which is one less."""

    slots: int | None
    groups: int | None
    side: int | None = None
    most: int | None = None
    staging: int = STORE_STAGES
    store_role: bool = True
    keep_operands: bool = True
    tight: bool = False


def make_plan(fn: Function, wishes: Wishes, report: list[Record]) -> Plan:
    """Rings, chains and form for `fn`, with lines of the report; `wishes.slots` must be a number."""
    assert wishes.slots is not None
    plan = Plan(report=report, staging=wishes.staging, keep_operands=wishes.keep_operands)
    table = uses(fn.body)
    loads = [op for op in listed(fn.body) if kind_of(op) and "again" not in op.attrs]
    groups: dict[tuple, Ring] = {}
    homes = _homes(loads)
    for op in loads:
        dots, views = readers(op.result, table)
        loop = homes.get(op.attrs.get("ring"), loop_around(op))
        depth = 1
        if loop is not None:
            depth = loop.attrs.get("num_stages") or wishes.slots
            depth = min(depth, wishes.most or depth)
        kind = kind_of(op)
        if op.name == "load":
            depth = max(depth, 2)        # with one slot it is an ordinary load, and not marked
        key = (kind, op.parent, depth, views, tuple(map(id, dots)) if views else id(op))
        if key in groups:
            groups[key].loads.append(op)
        else:
            groups[key] = Ring("", [op], depth, loop, views, kind=kind, local=kind == "async")
            groups[key].by_warps = any("unit" in dot.attrs for dot in dots)
            if groups[key].side:
                groups[key].slots = min(depth, wishes.side or depth)
            groups[key].open = loop is not None and not loop.attrs.get("num_stages") and not fn.attrs.get("num_stages")
    plan.rings = _merged(list(groups.values()), lambda one, two: _share(one, two, table))
    named: dict[str, int] = {}
    for ring in plan.rings:
        for i, op in enumerate(ring.loads):
            users = [u for u, _ in table.get(op.result, ()) if u.name == "trans"]
            op.result.name = op.result.name or (users[0].result.name if users else "") or f"load{i}"
        ring.name = "_".join(op.result.name for op in ring.loads)
        named[ring.name] = named.get(ring.name, 0) + 1
        if named[ring.name] > 1:                         # reports must tell the mbarriers of two loops apart
            ring.name += f".{named[ring.name]}"
    dots = [op for op in listed(fn.body) if op.name == "dot"]
    plan.pieces = {dot: pieces for dot in dots if (pieces := find_pieces(dot, table)) is not None}
    plan.fragments = fragment_reads(fn, table) if wishes.keep_operands else set()
    _choose_form(fn, plan, wishes, table)
    plan.rings = sorted(_merged(plan.rings, _alike_ahead), key=lambda r: loads.index(r.loads[0]))
    find_chains(fn, plan, table)
    check_warpgroups(fn, plan)
    plan_cluster(fn, plan)
    choose_ping_pong(fn, plan, wishes.groups)
    plan.registers = register_split(fn, fn.attrs["num_warps"] * plan.groups, plan.producers, plan.threads_produce)
    choose_store_role(fn, plan, wishes.store_role)
    if plan.specialised and not plan.threads_produce and not plan.registers.consumer:
        plan.producers = 1 + sum(ring.streams for ring in plan.store_rings[:1])    # setmaxnreg alone wants a warpgroup
    for ring in plan.rings:
        ring.groups = plan.groups if ring.local else 1
    _go_on(plan)
    _say(plan, fn.attrs["num_warps"])
    return plan


def _homes(loads: list[Op]) -> dict[str | None, Op]:
    """The loop, of several the innermost, that each ring which has a name in the text is for: a rotated loop has loads
    of it before and behind."""
    found: dict[str | None, Op] = {}
    for op in loads:
        loop, name = loop_around(op), op.attrs.get("ring")
        if name and loop is not None and (name not in found or found[name] in enclosing(loop)):
            found[name] = loop
    return found


def _merged(rings: list[Ring], alike: Callable[[Ring, Ring], bool]) -> list[Ring]:
    """The same rings, those that are alike made one: one ticket, one wait and one release for all of their loads."""
    made: list[Ring] = []
    for ring in rings:
        block = ring.loads[0].parent
        for other in [r for r in made if alike(r, ring)]:
            assert block is not None
            ring.loads = sorted([*other.loads, *ring.loads], key=block.ops.index)
            ring.name = f"{other.name}_{ring.name}"
            made.remove(other)
        made.append(ring)
    return made


def _share(one: Ring, two: Ring, table: Uses) -> bool:
    """Whether two rings are alike, feed the same product, and all their loads come before the first product: the
    consumers wait where the last load stands."""
    block = one.loads[0].parent
    alike = all(r.views and not r.text and r.loop is not None and r.loads[0].parent is block and
                (r.kind, r.slots, r.by_warps) == (one.kind, one.slots, one.by_warps) for r in (one, two))
    if not alike or block is None:
        return False
    dots = [{dot for x in r.loads for dot in readers(x.result, table)[0]} for r in (one, two)]
    tops = [x for dot in dots[0] | dots[1] if (x := inside(block, dot))]
    last = max(block.ops.index(x) for x in (*one.loads, *two.loads))
    return bool(dots[0] & dots[1]) and last < min(map(block.ops.index, tops))


def _alike_ahead(one: Ring, two: Ring) -> bool:
    """Whether the threads that compute fill two rings ahead for one loop by the same copies: both are filled at the end
    of a trip, or behind what reads them. Not by cp.async: a thread would hold the addresses of both at once."""
    def shape(ring: Ring) -> tuple:
        return (ring.ahead, ring.prompt, ring.loop, ring.kind, ring.slots, ring.views, ring.by_warps, ring.open)

    return shape(one) == shape(two) and one.ahead > 0 and one.kind != "async" and not any(
        r.text or "unaligned" in load.attrs for r in (one, two) for load in r.loads)


def check_warpgroups(fn: Function, plan: Plan) -> None:
    """Raise CompilationError where three warpgroups cannot run a kernel: layouts have bits for four, so no op may count
    on what the fourth would hold."""
    warps = fn.attrs["num_warps"]
    if warps % 3:
        return
    if not plan.specialised or plan.threads_produce:
        raise CompilationError(f"num_warps={warps}: three warpgroups multiply what a producer warp loads by TMA, and "
                               "this kernel has no such loop: use 8 or 16", fn.loc)
    for op in listed(fn.body):
        if scratch_bytes(op) and op.name != "convert" and not of_one_number(op):
            raise CompilationError(f"{op.name}: warps fold in pairs, which num_warps={warps} does not make: use 8 or "
                                   "16", op.loc)


def _choose_form(fn: Function, plan: Plan, wishes: Wishes, table: Uses) -> None:
    """Specialise when wgmma loops read rings that a role of its own can fill: one thread of it by TMA, or where the
    author asks for it (`warp_specialize=True`) as many threads as the consumers' by cp.async.

    Raises CompilationError where the launch option asks for it and it cannot be."""
    say = plan.report.append
    warps = fn.attrs["num_warps"]
    asked = [x.attrs["warp_specialize"] for x in listed(fn.body)
             if x.name == "for" and x.attrs.get("warp_specialize") is not None]
    whole = fn.attrs.get("warp_specialize")
    asked = asked if whole is None else [whole]
    copied = [r for r in plan.rings if r.kind == "async"]
    wanted = [r for r in plan.produced if r.loop is not None and r.views]
    reason = ""
    hopper = target_of(fn).hopper
    if not wanted and not (any(asked) and any(r.views for r in copied)):
        reason = "no loop feeds products from descriptor loads"
        if hopper and any(r.views for r in copied):
            reason = "the threads that compute also copy (cp.async; warp_specialize=True gives them a role)"
    elif asked and not any(asked):
        reason = "warp_specialize=False"
    elif "inline" in fn.attrs:
        reason = fn.attrs["inline"]
    elif warps not in (4, 8, 12, 16):
        reason = f"num_warps={warps} is not 4, 8, 12 or 16"
    else:
        reason = _let_produce(fn, plan, copied, not wanted)
    if any(asked) and not hopper:
        raise CompilationError(f"warp_specialize=True: {target_of(fn).name} has no roles of warps: leave it out, "
                               "or use target=\"sm_90a\"", fn.loc)
    plan.specialised = not reason
    if reason and whole:
        raise CompilationError(f"warp_specialize=True: {reason}", fn.loc)
    if plan.rings and reason:
        say(Record("inline", f"inline: {reason}"))
    for ring in plan.rings:
        if (ring.local or not plan.specialised) and ring.loop is not None and ring.slots > 1:
            problem = ahead_problem(ring)
            if problem:
                ring.slots = 1
                say(Record("not_pipelined", f"ring {ring.name}: not pipelined, {problem}", ring.name))
                continue
            ring.prompt = _is_prompt(ring, plan, table)
            ring.tight = ring.prompt and wishes.tight
            ring.slots -= ring.tight
            ring.ahead = ring.slots - (not ring.prompt)


def _is_prompt(ring: Ring, plan: Plan, table: Uses) -> bool:
    """Whether all that read a ring's slots are done with them where they stand, in the trip that waits for them: loads
    into registers and mma.sync, not wgmma."""
    in_pieces = {op for pieces in plan.pieces.values() for op in pieces.ops}
    return not ring.text and in_pieces.isdisjoint(ring.loads) and all(
        "unit" in dot.attrs for load in ring.loads for dot in readers(load.result, table)[0])


def _let_produce(fn: Function, plan: Plan, copied: list[Ring], threads: bool) -> str:
    """Choose which rings a role of its own fills; why there can be none, or empty."""
    warps = fn.attrs["num_warps"]
    if threads and accumulators(fn) > room(65536 // (64 * warps), "copies"):
        return f"{accumulators(fn)} accumulators a thread leave no registers for {warps} producer warps"
    for ring in copied:
        ring.local = not threads
    plan.producers = warps if threads else 4
    reason = producer_problem(fn, plan)
    for ring in plan.rings:
        if reason and ring.kind == "row":
            ring.local = True
    if reason and any(r.local for r in plan.rings) and plan.produced:
        reason = producer_problem(fn, plan)
    if reason and threads:
        for ring in copied:
            ring.local = True
    return reason


def producer_problem(fn: Function, plan: Plan) -> str:
    """Why the loads cannot be issued by a role of their own; empty if they can."""
    return slice_problem(fn, plan, needed_by_producer(plan), "a load address", plan.threads_produce)


def ahead_problem(ring: Ring) -> str:
    """Why a ring's loads cannot be issued ahead in the inline form; empty if they can."""
    loop = ring.loop
    assert loop is not None
    if loop.name != "for":
        return "the loop is a while"
    body = loop.regions[0]
    if any(op.parent is not body for op in ring.loads):
        return "the load is under a condition"
    if not isinstance(address_slice(loop, [v for op in ring.loads for v in op.operands]), Ahead):
        return "the address cannot be computed ahead of time"
    return ""


def _go_on(plan: Plan) -> None:
    """Loops one after another whose rings are alike use one: the tickets run on, and nothing is drained in between."""
    def shape(ring: Ring) -> tuple:
        return (ring.kind, ring.local, ring.by_warps, ring.slots, ring.open, ring.by_group, ring.ctas, ring.ahead,
                [ring.slices.get(x) for x in ring.loads], [ring.buffer(x) for x in ring.loads])

    for i, ring in enumerate(plan.rings):
        if ring.text:                                   # the text says which loads share one
            ring.before = next((r for r in plan.rings[:i] if r.text == ring.text), None)
    for i, ring in enumerate(plan.rings) if plan.groups == 1 else ():
        if ring.loop is None or ring.slots == 1 and not ring.ahead or ring.text:
            continue
        for other in plan.rings[:i]:
            loops = [r.loop for r in plan.rings[:i] if r.channel is other]
            if loops and shape(other) == shape(ring) and ring.loop not in loops and \
                    all(loop is not None and loop.parent is ring.loop.parent for loop in loops):
                ring.before = other
                break


def _say(plan: Plan, warps: int) -> None:
    """The plan in the report's words."""
    say = plan.report.append
    producer = f"{plan.producers} producer warps" if plan.threads_produce else "producer warp"
    if plan.ping_pong:
        say(Record("specialised", f"specialised: {producer} + {plan.groups} consumer groups of {warps} warps, which "
                   f"take the iterations of the loop at {place(plan.ping_pong)} by turns (ping-pong)",
                   place(plan.ping_pong), producers=plan.producers, groups=plan.groups, warps=warps))
    elif plan.specialised:
        say(Record("specialised", f"specialised: {producer} + {warps // 4} consumer warpgroups",
                   producers=plan.producers, groups=1, warps=warps))
    for ring in plan.rings:
        if ring.before and ring.text:
            continue
        if ring.before:
            say(Record("ring", f"ring {ring.name}: goes on in the slots of {ring.before.name}", ring.name))
        else:
            say(ring_record(plan, ring))
    for loop, dots in plan.chains.items():
        names = ", ".join(dot.result.name or "accumulator" for dot in dots)
        say(Record("round_in_flight", f"loop at {place(loop)}: one round of wgmma stays in flight ({names})",
                   place(loop), products=len(dots)))


def ring_record(plan: Plan, ring: Ring) -> Record:
    """What a ring is, for the report."""
    who = " by the consumers" if ring.local and plan.specialised else ""
    unit = "mma.sync" if ring.by_warps else "wgmma"
    return Record("ring", f"ring {ring.name}: {ring.slots} slots x {ring.bytes} bytes, {COPIES[ring.kind]}{who}, "
                  f"{f'{unit} reads the slots' if ring.views else 'read into registers'}", ring.name, slots=ring.slots,
                  bytes=ring.bytes, copies=ring.kind)
