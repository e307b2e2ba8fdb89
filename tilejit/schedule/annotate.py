"""Decides what of a loop runs when: `stage`, `cycle` and `ring` on ops of loops whose products wait for each other."""
from __future__ import annotations

from tilejit.ir import Function, Op, Value, listed, needed
from tilejit.ir.ahead import argument_of
from tilejit.ir.registers import peak, root
from tilejit.ir.target import target_of
from tilejit.schedule.loads import kind_of, reads_slot
from tilejit.schedule.pieces import from_registers
from tilejit.schedule.products_ahead import find_products_ahead, may_issue_ahead
from tilejit.schedule.registers import register_split, room
from tilejit.schedule.rotate import copy_function, steady_state
from tilejit.schedule.stages import mark, places_problem, read, unmark
from tilejit.schedule.stores import is_store

#: Warpgroups from which on loops one after another each drain, unless they take turns: while one drains, the others'
#: products run (causal attention on an H200: joined loops are faster with two warpgroups, slower with three).
JOINED = 3


def annotate(fn: Function) -> Function:
    """A copy of the function with the times of overlapped loops; the function itself where there is none."""
    overlaps, groups = fn.attrs.get("products_ahead") is not False, fn.attrs["num_warps"] // 4
    ping_pong = bool(fn.attrs.get("ping_pong")) and groups > 1
    loops = [op for op in listed(fn.body) if op.name == "for" and (overlaps or ping_pong)]
    if not any(map(_times, loops)) and not may_issue_ahead(fn):
        return fn
    new = copy_function(fn)
    rings: dict[str, tuple] = {}
    found = [(loop, times) for loop in listed(new.body) if loop.name == "for" and loops
             for times in [_times(loop)] if times is not None]
    ahead, registers = find_products_ahead(new)
    for loop, first in ahead.items():
        _ahead(new, loop, first, registers, rings)
    for loop, times in found:
        if overlaps:
            _overlap(new, loop, times, rings)
            loop.attrs.update({"joined": True} if groups < JOINED or ping_pong else {})
        if ping_pong:
            loop.attrs["ping_pong"] = groups
            new.say("ping_pong", f"loop at {loop.place}: {groups} warpgroups issue its products one after the other "
                    "(ping-pong)", loop.place, groups=groups)
    return new if found or ahead or len(new.attrs["report"]) > len(fn.attrs["report"]) else fn


def _ahead(new: Function, loop: Op, first: set[Op], registers: int, rings: dict[str, tuple]) -> None:
    """Mark a loop whose product is issued ahead, where registers suffice or the author asks for it."""
    body = loop.regions[0].ops[:-1]
    early = _of_loads_before(loop, first)
    mark(loop, {op: (0, 0) if op in first else (1, -1 if op in early else 1) for op in body}, rings)
    loop.attrs["pairs"] = True
    if new.attrs.get("products_ahead") is None and peak(steady_state(loop)) > room(registers, "loop"):
        unmark(loop)
        del loop.attrs["pairs"]
        return
    dot = next(op for op in body if op.name == "dot")
    new.say("products_ahead", f"loop at {loop.place}: {dot.result.name or 'the product'} of the next iteration is in "
            "flight while this one's is used (products_ahead)", loop.place)


def _of_loads_before(loop: Op, first: set[Op]) -> set[Op]:
    """What is made of numbers that the iteration before loaded ahead, and of nothing newer, for the head of a trip."""
    body = loop.regions[0]
    loaded = {arg for arg, v in zip(body.args[1:], body.terminator.operands)
              if isinstance(v.op, Op) and v.op.name == "load" and v.op.attrs.get("ahead")}
    found: set[Op] = set()
    for op in body.ops[:-1]:
        inside = [v for v in op.operands if v.home is body]
        if op not in first and inside and op.define.pure and not op.regions and \
                all(v in loaded or v.op in found for v in inside):
            found.add(op)
    return found


def _overlap(new: Function, loop: Op, times: dict[Op, tuple[int, int]], rings: dict[str, tuple]) -> None:
    problem = _problem(new, loop)
    if not problem:
        mark(loop, times, rings)
        need, share = peak(steady_state(loop)), register_split(new, new.attrs["num_warps"]).computing
        share = min(share, new.attrs.get("maxnreg") or share)
        if need <= room(share, "loop") or new.attrs.get("products_ahead"):
            for op, (stage, _) in times.items():
                if stage and op.name == "mul" and _often_one(op):
                    op.attrs["ones"] = True
            first, second = (", ".join(dot.result.name or "a product" for dot in _dots(loop) if times[dot][0] == s)
                             for s in (0, 1))
            new.say("overlap", f"loop at {loop.place}: {first} of the next iteration is in flight with {second} of "
                    f"this one (2 stages; {need} registers a thread for tiles at once)", loop.place, stages=2,
                    registers=need, share=share)
            return
        problem = f"{need} registers a thread for tiles at once, {room(share, 'loop')} of {share} are there for them"
        unmark(loop)
    new.say("no_overlap", f"loop at {loop.place}: products and what is between them do not overlap: {problem}",
            loop.place)


def _dots(loop: Op) -> list[Op]:
    return [op for op in loop.regions[0].ops if op.name == "dot"]


def _stages(loop: Op, users: dict[Op, list[Op]]) -> tuple[dict[Op, int], set[Op]] | None:
    """The stage of every op of a loop's body, and its products that need another one's sums; None if there are none."""
    ops, dots = loop.regions[0].ops[:-1], _dots(loop)
    needs: dict[Op, set[Op]] = {}  # the products of the same iteration behind an op
    for op in ops:
        makers = {v.op for v in read(op) if isinstance(v.op, Op) and v.op in needs}
        adds_to = op.operands[2].op if op.name == "dot" else None  # sums that stay where they are
        needs[op] = {d for m in makers for d in needs[m] | ({m} if m.name == "dot" and m is not adds_to else set())}
    second = {dot for dot in dots if needs[dot]}
    if not second or len(second) == len(dots):
        return None
    stage: dict[Op, int] = {}
    for op in reversed(ops):
        only = bool(users.get(op)) and all(stage.get(u) == 1 for u in users[op])
        renames = "registers" in op.define.traits  # the registers that its operand is carried in
        stage[op] = int(op in second or bool(needs[op] & second) or only and (
            renames or not needs[op] or _later(op, second, users)))
    return stage, second


def _later(op: Op, second: set[Op], users: dict[Op, list[Op]]) -> bool:
    """Whether sums are scaled under the next trip's first product: where that is seldom, nothing waits for it."""
    return all(u in second and u.operands[2] is op.result for u in users[op]) and op.name == "mul" and _often_one(op)


def _often_one(op: Op) -> bool:
    """Whether a factor is exp(old - new), new being the old one where a condition says so."""
    power = root(op.operands[1])[0].op
    less = power.operands[0].op if isinstance(power, Op) and power.name in ("exp", "exp2") else None
    return isinstance(less, Op) and less.name == "sub" and _kept(less.operands[1], less.operands[0])


def _kept(new: Value, old: Value) -> bool:
    op = new.op
    return isinstance(op, Op) and op.name == "select" and any(x is old or _kept(x, old) for x in op.operands[1:])


def _times(loop: Op) -> dict[Op, tuple[int, int]] | None:
    """(stage, cycle) of every op of a loop's body where one product needs another one's sums; else None."""
    if len(_dots(loop)) < 2:
        return None
    body = loop.regions[0]
    users: dict[Op, list[Op]] = {}
    for op in body.ops:
        for v in read(op):
            if v.home is body and isinstance(v.op, Op):
                users.setdefault(v.op, []).append(op)
    found = _stages(loop, users)
    if found is None:
        return None
    stage, second = found
    ops = body.ops[:-1]
    late = {arg for arg, v in zip(body.args[1:], body.terminator.operands) if isinstance(v.op, Op) and stage.get(v.op)}
    behind: set[Op] = set()  # stage 0 that uses what stage 1 has carried on
    for op in ops:
        if stage[op] == 0 and any(v in late or isinstance(v.op, Op) and v.op in behind for v in op.operands):
            behind.add(op)
    ahead = needed(second, {op for op in ops if stage[op]})
    first = needed({op for op in ops if op.name == "dot" and not stage[op]}, set(ops))
    last = {dot.operands[0].op for dot in second if from_registers(dot)}

    def cycle(op: Op) -> int:
        if stage[op]:
            return 1 if op in ahead else 3
        if op in last and all(stage.get(user) for user in users[op]):
            return 5
        if op in behind:
            return 4
        return 0 if op in first else 2

    return {op: (stage[op], cycle(op)) for op in ops}


def _problem(fn: Function, loop: Op) -> str:
    body = loop.regions[0]
    if not target_of(fn).hopper or fn.attrs.get("warp_specialize") is False or "inline" in fn.attrs or \
            loop.attrs.get("warp_specialize") is False or fn.attrs["num_warps"] not in (4, 8, 12, 16):
        return "no role of its own loads"
    for dot in _dots(loop):
        if "unit" in dot.attrs:
            return "mma.sync multiplies"
        if reads_slot(dot, 1) is None:
            return f"the second operand of {dot.result.name or 'a product'} goes through shared memory"
    for op in body.ops[:-1]:
        to = argument_of(op.operands[0]) if is_store(op) else None
        alone = to is not None and not any(  # TMA stores to what nothing else there touches may move
            argument_of(x.operands[0]) in (None, to) for x in listed(body)
            if x.define.effects & {"read", "write"} and x is not op and x.operands)
        if op.define.regions != "fold" and (op.regions or op.define.effects - {"read"}) and not alone:
            return f"{op.name} ({op.place}) may have to wait for others"
        if kind_of(op) not in ("", "tensor"):
            return "the threads that compute also copy"
    return places_problem(body)
