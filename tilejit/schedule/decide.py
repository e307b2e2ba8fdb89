"""Decides the schedule of a function, and writes it down: what `asyncify` and `split` carry out, as attributes."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, listed, uses
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.target import target_of
from tilejit.ir.types import Buffer, Tile
from tilejit.layout.clusters import counts_of
from tilejit.schedule.cluster import divide
from tilejit.schedule.cluster_barrier import of_one_number
from tilejit.schedule.fragments import fragment_reads, write_at_once
from tilejit.schedule.handed import find_handed
from tilejit.schedule.loads import backward_slice, memory_order, slice_problem
from tilejit.schedule.pieces import PIECES, find_pieces
from tilejit.schedule.ping_pong import choose_ping_pong
from tilejit.schedule.products import chain_of, find_chains
from tilejit.schedule.registers import accumulators, register_split, room
from tilejit.schedule.rings import Ring, fill_ahead, find_rings
from tilejit.schedule.store_role import choose_store_role

#: kind of a ring -> the copies that fill it, in the report's words.
COPIES = {"tensor": "TMA tiles", "row": "bulk copies of rows", "async": "cp.async"}


def decide(fn: Function) -> Function:
    table, ops = uses(fn.body), listed(fn.body)
    rings = find_rings(fn, ops, table)
    dots = [op for op in ops if op.name == "dot"]
    pieces = {dot: found for dot in dots if (found := find_pieces(dot, table)) is not None}
    for dot in pieces:
        dot.attrs["pieces"] = PIECES
    for op in fragment_reads(fn, table) if fn.attrs.get("keep_operands", True) else ():
        op.attrs["fragments"] = True
        write_at_once(op, table)
    _choose_form(fn, rings)
    rings = fill_ahead(fn, ops, rings, {op for found in pieces.values() for op in found.ops})
    find_chains(fn, rings, table)
    threads = "producers" in fn.attrs and any(r.kind == "async" and not r.local for r in rings)
    check_warpgroups(fn, threads)
    divide(fn, rings)
    choose_ping_pong(fn, rings)
    alone = "producers" in fn.attrs and fn.attrs["groups"] * fn.attrs.get("num_ctas", 1) == 1
    for handed in find_handed(dots, table) if alone and fn.attrs.get("hand_on", True) else ():
        for dot in handed.readers:
            dot.attrs["handed"] = True
    streams = choose_store_role(fn, rings, threads)
    if "producers" in fn.attrs:
        warps = fn.attrs["num_warps"] * fn.attrs["groups"]
        registers = register_split(fn, warps, fn.attrs["producers"], threads)
        fn.attrs["registers"] = tuple(registers)
        if not threads and not registers.consumer:
            fn.attrs["producers"] = 1 + streams  # setmaxnreg alone wants a warpgroup
        _say_roles(fn, threads)
    _write_rings(fn, ops, rings)
    for loop in [op for op in ops if op.name == "for" and op.attrs.get("in_flight")]:
        names = [dot.result.name or "accumulator" for dot in chain_of(loop)]
        fn.say("round_in_flight", f"loop at {loop.place}: one round of wgmma stays in flight ({', '.join(names)})",
               loop.place, products=len(names))
    return fn


def check_warpgroups(fn: Function, threads: bool) -> None:
    """Three warpgroups."""
    warps = fn.attrs["num_warps"]
    if warps % 3:
        return
    if "producers" not in fn.attrs or threads:
        raise CompilationError(f"num_warps={warps}: three warpgroups multiply what a producer warp loads by TMA, and "
                               "this kernel has no such loop: use 8 or 16", fn.loc)
    for op in listed(fn.body):
        if scratch_bytes(op) and op.name != "convert" and not of_one_number(op):
            raise CompilationError(f"{op.name}: warps fold in pairs, which num_warps={warps} does not make: use 8 or "
                                   "16", op.loc)


def _choose_form(fn: Function, rings: list[Ring]) -> None:
    """Specialise where wgmma loops read what one thread of a role loads by TMA, or the author asks for roles that
    copy."""
    warps, whole = fn.attrs["num_warps"], fn.attrs.get("warp_specialize")
    asked = [whole] if whole is not None else [
        x.attrs["warp_specialize"] for x in listed(fn.body)
        if x.name == "for" and x.attrs.get("warp_specialize") is not None]
    copied = any(r.views for r in rings if r.kind == "async")
    wanted = any(r.loop is not None and r.views for r in rings if not r.local)
    reason = ""
    hopper = target_of(fn).hopper
    if not wanted and not (any(asked) and copied):
        reason = "no loop feeds products from descriptor loads"
        if hopper and copied:
            reason = "the threads that compute also copy (cp.async; warp_specialize=True gives them a role)"
    elif asked and not any(asked):
        reason = "warp_specialize=False"
    elif "inline" in fn.attrs:
        reason = fn.attrs["inline"]
    elif warps not in (4, 8, 12, 16):
        reason = f"num_warps={warps} is not 4, 8, 12 or 16"
    else:
        reason = _let_produce(fn, rings, not wanted)
    if any(asked) and not hopper:
        raise CompilationError(f"warp_specialize=True: {target_of(fn).name} has no roles of warps: leave it out, "
                               "or use target=\"sm_90a\"", fn.loc)
    if reason and whole:
        raise CompilationError(f"warp_specialize=True: {reason}", fn.loc)
    if not reason:
        fn.attrs.update(groups=1, producers=4 if wanted else warps)
    elif rings:
        fn.say("inline", f"inline: {reason}")


def _let_produce(fn: Function, rings: list[Ring], threads: bool) -> str:
    def problem() -> str:
        needed = backward_slice({op: op.operands for r in rings if not r.local for op in r.loads})
        return slice_problem(fn, needed, "a load address", threads)

    warps = fn.attrs["num_warps"]
    if threads and accumulators(fn) > room(65536 // (64 * warps), "copies"):
        return f"{accumulators(fn)} accumulators a thread leave no registers for {warps} producer warps"
    copied = [r for r in rings if r.kind == "async"]
    for ring in copied:
        ring.local = not threads
    reason = problem()
    for ring in rings:
        if reason and ring.kind == "row":
            ring.local = True
    if reason and any(r.local for r in rings) and not all(r.local for r in rings):
        reason = problem()
    for ring in copied if reason else ():
        ring.local = True
    return reason


def _say_roles(fn: Function, threads: bool) -> None:
    groups, producers, warps = fn.attrs["groups"], fn.attrs["producers"], fn.attrs["num_warps"]
    where = next((op.place for op in listed(fn.body) if "dealt" in op.attrs), "")
    turns = f"take the iterations of the loop at {where} by turns (ping-pong)"
    consumers = f"{groups} consumer groups of {warps} warps, which {turns}" if groups > 1 else \
        f"{warps // 4} consumer warpgroups"
    fn.say("specialised", f"specialised: {f'{producers} producer warps' if threads else 'producer warp'} + {consumers}",
           where, producers=producers, groups=groups, warps=warps)


def _write_rings(fn: Function, ops: Sequence[Op], rings: list[Ring]) -> None:
    """Write rings down on their loads."""
    groups, warps = fn.attrs.get("groups", 1), fn.attrs["num_warps"]
    for i, ring in enumerate(rings):
        each = groups if ring.local else 1
        for k, load in enumerate(ring.loads):
            load.attrs.update(index=k, buffer=_buffer(load, ring.slots * each, fn.attrs.get("num_ctas", 1)))
        peers = fn.attrs.get("num_ctas", 1) if any("multicast" in load.attrs for load in ring.loads) else 1
        alone = ring.kind == "async" and "producers" not in fn.attrs and warps * each * peers == 1
        ring.channel = next((r.name for r in rings[:i] if r.channel == r.name and _goes_on(ring, r, rings[:i], groups)),
                            ring.name)
        for load in ring.loads:
            load.attrs["channel"] = ring.channel
        how = {key: v for key in ("ahead", "prompt", "tight", "open", "side") if (v := getattr(ring, key))}
        how |= {"role": "producer"} if "producers" in fn.attrs and not ring.local else {}
        ring.loads[0].attrs.update(how, arrivals=0 if alone else (warps // 4 if ring.by_group else warps) * peers)
        if ring.channel == ring.name:
            size, copies = sum(load.attrs["buffer"].slot_bytes for load in ring.loads), COPIES[ring.kind]
            who = " by the consumers" if ring.local and "producers" in fn.attrs else ""
            unit = "mma.sync" if ring.by_warps else "wgmma"
            reads = f"{unit} reads the slots" if ring.views else "read into registers"
            fn.say("ring", f"ring {ring.name}: {ring.slots} slots x {size} bytes, {copies}{who}, {reads}", ring.name,
                   slots=ring.slots, bytes=size, copies=ring.kind)
        elif not ring.text:
            fn.say("ring", f"ring {ring.name}: goes on in the slots of {ring.channel}", ring.name)
    for op in ops:
        if "again" in op.attrs:
            ring = next(r for r in rings if op.attrs["ring"] in r.text)
            op.attrs.update(channel=ring.channel, index=ring.text.index(op.attrs["ring"]))


def _buffer(load: Op, slots: int, ctas: int) -> Buffer:
    t, size = load.result.tile, load.result.dtype.bytes
    cuts = ((0, ctas, 0),) if "strip" in load.attrs else load.attrs.get("slice", ())
    shape = tuple(n // parts for n, parts in zip(t.shape, counts_of(len(t.shape), cuts)))
    if load.attrs.get("unaligned"):  # 16 bytes more for each strip, or the row
        strip = load.attrs.get("strip")
        shape = (shape[0] + (shape[0] // strip if strip else 1) * 16 // size,)
    return Buffer.of(Tile(shape, t.elem), slots, memory_order(load))


def _goes_on(ring: Ring, other: Ring, before: list[Ring], groups: int) -> bool:
    """Whether a ring is that of a loop before, further on: as the text says, or by alike loads side by side."""
    def shape(r: Ring) -> tuple:
        return (r.kind, r.local, r.by_warps, r.slots, r.open, r.by_group, r.ahead,
                [{k: x.attrs.get(k) for k in ("buffer", "slice", "strip", "multicast")} for x in r.loads])

    if ring.text or groups > 1 or ring.loop is None or ring.slots == 1 and not ring.ahead:
        return bool(ring.text) and ring.text == other.text
    loops = [r.loop for r in before if r.channel == other.name]
    return shape(other) == shape(ring) and ring.loop not in loops and all(
        loop is not None and loop.parent is ring.loop.parent for loop in loops)
