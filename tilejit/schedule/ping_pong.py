"""Ping-pong: groups of consumers take the iterations of a loop over tiles by turns; others' tickets pass them by."""
from __future__ import annotations

from collections.abc import Collection, Sequence

from tilejit.errors import CompilationError
from tilejit.ir import Block, Builder, Function, Op, Value, beside, clone_op, const_of, enclosing, listed, whole
from tilejit.ir.types import int32
from tilejit.schedule.buffers import barriers
from tilejit.schedule.loads import kind_of
from tilejit.schedule.registers import accumulators, register_split, room
from tilejit.schedule.rings import Ring
from tilejit.schedule.thread import thread


def choose_ping_pong(fn: Function, rings: Sequence[Ring]) -> None:
    """Two groups of consumers take the iterations of a persistent loop by turns."""
    asked = fn.attrs.get("num_consumer_groups")
    if asked == 1 or asked is None and (fn.attrs["num_warps"] != 4 or "producers" not in fn.attrs):
        return
    loop, problem = _dealt_loop(fn, rings)
    if not problem and asked is None and accumulators(fn) > room(register_split(fn, 8).computing, "tile"):
        problem = "the accumulators of a whole tile do not fit one warpgroup's registers"
    if loop is not None and not problem:
        loop.attrs["dealt"] = fn.attrs["groups"] = asked or 2
    elif asked is not None:
        raise CompilationError(f"num_consumer_groups={asked}: {problem}", fn.loc)
    else:
        fn.say("no_ping_pong", f"no ping-pong: {problem}")


def _dealt_loop(fn: Function, rings: Sequence[Ring]) -> tuple[Op | None, str]:
    """The loop whose iterations may be dealt to groups, the outermost of those, or why there is none."""
    if "producers" not in fn.attrs:
        return None, "the kernel is not specialised"
    if fn.attrs["num_warps"] != 4:
        return None, f"a group is one warpgroup, num_warps=4; found {fn.attrs['num_warps']}"
    block, problem = fn.body, ""
    while True:
        loops = [op for op in block.ops if any(kind_of(x) or x.name == "dot" for x in whole(op)[1:])]
        if len(loops) != 1 or loops[0].name != "for":
            return None, problem or "all products must be in one loop over tiles"
        loop = loops[0]
        if any(op is not loop and op is not block.terminator and op.define.effects - {"read"} for op in block.ops):
            return None, problem or "something is stored outside of the loop over tiles"
        within = _deal_problem(loop, rings)
        if not within:
            return loop, ""
        block, problem = loop.regions[0], problem or within


def _deal_problem(loop: Op, rings: Sequence[Ring]) -> str:
    if len(loop.operands) > 3:
        return f"the loop at {loop.place} carries values from tile to tile"
    body = loop.regions[0]
    for ring in rings:
        if ring.local and ring.loop is loop:
            return "consumers copy a load that is directly in the loop over tiles"
        if any(loop not in enclosing(load) for load in ring.loads):
            return "a load is not in the loop over tiles"
        if not ring.local and tickets(body, ring.loads[-1:], Builder(Block())) is None:
            return f"how often it loads {ring.name} is not known before an iteration"
    return ""


def deal_to_groups(fn: Function, block: Block, top: Builder, b: Builder,
                   first: tuple[Value, Value]) -> dict[str, Value]:
    """Deal the loop that says so (`dealt`), in place; by rings, how many tickets the others take."""
    loop = next((op for op in listed(block) if op.attrs.get("dealt")), None)
    if loop is None:
        return {}
    zero, one = first
    # The first group's first wait is for the phase before the first, which a fresh barrier has completed.
    group = b("group_index")
    begin = group, b("select", b("cmp", group, zero, pred="eq"), one, zero)
    skips: dict[str, Value] = {}

    def deal(op: Op, state: list[Value]) -> list[Value]:
        skips.update(_deal(fn, op, top))
        op.operands += state
        return op.add_results([int32, int32], names)

    names = "left", "order_parity"
    thread(block, begin, {loop: deal}, names)
    return skips


def _deal(fn: Function, loop: Op, top: Builder) -> dict[str, Value]:
    """A loop that carries nothing: its body if the iteration is the group's, else what passes by."""
    body, groups = loop.regions[0], loop.attrs.pop("dealt")
    barrier = barriers(top, "order", groups, fn.attrs["num_warps"])
    b = beside(loop)
    group = b("group_index")
    after = b("select", b("cmp", group, b.const(groups - 1, int32), pred="eq"), b.const(0, int32),
              b("add", group, b.const(1, int32)))
    left, phase = body.add_arg(int32, "left"), body.add_arg(int32, "order_parity")
    work, skip = Block(), Block()
    for op in body.ops:
        op.parent = work
    work.ops, body.ops = body.ops, []
    inner = Builder(body, loc=loop.loc)
    mine = inner("cmp", left, inner.const(0, int32), pred="eq")
    mine.name = "mine"
    own = {op.attrs["ring"] for op in listed(work) if op.name == "fill"}  # each group has slots of its own
    shared = {op: op.attrs["ring"] for op in listed(work) if op.name == "await" and op.attrs["ring"] not in own}
    takes = [op for op in work.ops if not shared.keys().isdisjoint(whole(op))]
    beside(takes[0]).op("mbar_wait", barrier, group, phase)
    beside(takes[-1], behind=True).op("mbar_arrive", barrier, after, per="warp", ctas=1)
    skipper = Builder(skip, loc=loop.loc)
    skips: dict[str, Value] = {}
    for ring in dict.fromkeys(shared.values()):
        count = tickets(work, [op for op in shared if shared[op] == ring], skipper)
        assert count is not None
        skips[ring] = count
    skipper.op("yield")
    inner.op("if", mine, regions=[work, skip])
    one = inner.const(1, int32)
    inner.op("yield", inner("select", mine, inner.const(groups - 1, int32), inner("sub", left, one)),
             inner("select", mine, inner("sub", one, phase), phase))
    return skips


def tickets(iteration: Block, takes: Collection[Op], b: Builder) -> Value | None:
    """How often an iteration comes to ops that take a ring's tickets, computed ahead of it; None if that cannot be."""
    inside = {v for op in listed(iteration) for v in (*op.results, *(a for r in op.regions for a in r.args))}
    env: dict[Value, Value] = {}

    def count(block: Block) -> Value:
        total: Value | None = None
        for op in block.ops:
            if op in takes:
                more = b.const(1, int32)
            elif not any(x in takes for x in whole(op)):
                continue
            elif op.name == "for":
                more = loop(op)
            elif op.name == "if":
                condition = copy(op.operands[0])
                more = b("select", condition, *map(count, op.regions))
            else:
                raise LookupError
            total = more if total is None else b("add", total, more)
        return b.const(0, int32) if total is None else total

    def loop(op: Op) -> Value:
        """Its trips, times what one of them takes."""
        lo, hi, step = map(copy, op.operands[:3])
        length = b("sub", hi, lo)
        if const_of(step) != 1:
            length = b("idiv", b("add", length, b("sub", step, b.const(1, step.type))), step)
        trips = b("maximum", length, b.const(0, length.type))
        trips = trips if length.type == int32 else b("cast", trips, type=int32)
        each = sum(x in takes for x in op.regions[0].ops)
        if not each:  # they are in a loop in this one
            raise LookupError
        return trips if each == 1 else b("mul", trips, b.const(each, int32))

    def copy(v: Value) -> Value:
        """A value of the iteration, computed ahead of it."""
        if v not in inside or v in env:
            return env.get(v, v)
        if not isinstance(v.op, Op) or not v.op.define.pure or v.op.regions:
            raise LookupError
        for x in v.op.operands:
            copy(x)
        b.insert(clone_op(v.op, env))
        return env[v]

    try:
        return count(iteration)
    except LookupError:
        return None


def deal_to_own(block: Block, groups: int) -> None:
    """Where a role has a group for each group of consumers: of a loop that is dealt, its own iterations only."""
    for loop in [op for op in listed(block) if op.attrs.pop("dealt", None)]:
        b = beside(loop)
        lo, _, step = loop.operands[:3]
        group = b("group_index")
        if step.type != group.type:
            group = b("cast", group, type=step.type)
        loop.operands[0] = b("add", lo, b("mul", group, step))
        loop.operands[2] = b("mul", step, b.const(groups, step.type))
