"""Decides the schedule of a function, as data: rings, depths, accumulator chains, roles.

Nothing is rewritten here. A `Ring` groups the descriptor loads with the same producer point (block), the
same consumers and the same depth: they share one pair of `full`/`empty` barriers and one expect_tx.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from tilejit.errors import CompilationError
from tilejit.ir import Block, Function, Op, Value, enclosing, uses, walk
from tilejit.ir.types import Buffer, Desc, DType, Tile
from tilejit.ptx.smem import tile_buffer


@dataclass(eq=False)
class Ring:
    """A channel: `slots` buffers per load, filled by TMA; see design.md on the protocol."""

    name: str
    loads: list[Op]
    slots: int
    loop: Op | None                       # the innermost loop around the loads
    views: bool                           # all loads are read by wgmma only, straight from the slot
    deferred: bool = False                # slot released one iteration late, behind `wait_group 1`
    ahead: bool = False                   # inline form: issued slots-1 iterations ahead

    @property
    def bytes(self) -> int:
        """Bytes that complete on `full` per ticket."""
        return sum(buffer_of(op, self.slots).slot_bytes for op in self.loads)

    @property
    def release(self) -> str:
        """Who arrives on `empty`: one thread per warpgroup after wgmma, one lane per warp after reads."""
        return "warpgroup" if self.views else "warp"


@dataclass
class Plan:
    """Everything that the rewrite carries out."""

    rings: list[Ring] = field(default_factory=list)
    chains: dict[Op, tuple[int, Op]] = field(default_factory=dict)   # loop -> (carried index, its dot)
    specialised: bool = False
    report: list[str] = field(default_factory=list)

    def ring_of(self, op: Op) -> Ring | None:
        """The ring that a descriptor load goes through."""
        return next((r for r in self.rings if op in r.loads), None)


def buffer_of(load: Op, slots: int) -> Buffer:
    """The ring buffer of a descriptor load: memory order is the tensor's, last dimension fastest."""
    t = load.result.type
    assert isinstance(t, Tile)
    return tile_buffer(t, slots, tuple(reversed(range(len(t.shape)))))


def shared_operand(v: Value) -> tuple[Op, bool] | None:
    """(descriptor load, transposed) if a dot operand is a loaded block or its transpose."""
    op = v.op
    if isinstance(op, Op) and op.name == "desc_load" and len(op.results[0].type.shape) == 2:  # type: ignore
        return op, False
    if isinstance(op, Op) and op.name == "trans" and tuple(op.attrs["order"]) == (1, 0):
        inner = shared_operand(op.operands[0])
        return (inner[0], not inner[1]) if inner else None
    return None


def wgmma_reads(dot: Op, index: int) -> Op | None:
    """The descriptor load that a dot operand can be read from in place, or None.

    8- and 32-bit operands must be K-major (PTX ISA, wgmma: transposes exist for 16-bit types only)."""
    found = shared_operand(dot.operands[index])
    if found is None:
        return None
    load, transposed = found
    k_fastest = transposed if index == 1 else not transposed
    elem = load.result.type.elem  # type: ignore[union-attr]
    return load if k_fastest or elem.bits == 16 else None


def make_plan(fn: Function) -> Plan:
    """Rings, chains and form for `fn`."""
    plan = Plan(report=fn.attrs.setdefault("report", []))
    table = uses(fn.body)
    loads = [op for op in walk(fn.body) if op.name == "desc_load"]
    groups: dict[tuple, Ring] = {}
    for op in loads:
        dots, views = _consumers(op.result, table)
        loop = next((x for x in enclosing(op) if x.name in ("for", "while")), None)
        depth = 1
        if loop is not None:
            depth = loop.attrs.get("num_stages") or fn.attrs["num_stages"]
        key = (op.parent, depth, views, tuple(map(id, dots)) if views else id(op))
        if key in groups:
            groups[key].loads.append(op)
        else:
            groups[key] = Ring("", [op], depth, loop, views)
    plan.rings = list(groups.values())
    for ring in plan.rings:
        for i, op in enumerate(ring.loads):
            users = [u for u, _ in table.get(op.result, ()) if u.name == "trans"]
            op.result.name = op.result.name or (users[0].result.name if users else "") or f"load{i}"
        ring.name = "_".join(op.result.name for op in ring.loads)
    _find_chains(fn, plan, table)
    _choose_form(fn, plan)
    return plan


def _consumers(value: Value, table: dict[Value, list[tuple[Op, int]]]) -> tuple[list[Op], bool]:
    """The dots that read a loaded block in place, and whether nothing else reads it."""
    dots, only = [], True
    for op, index in table.get(value, ()):
        if op.name == "dot" and index < 2 and wgmma_reads(op, index):
            dots.append(op)
        elif op.name == "trans" and all(u.name == "dot" and i < 2 and wgmma_reads(u, i)
                                        for u, i in table.get(op.result, ())):
            dots += [u for u, _ in table.get(op.result, ())]
        else:
            only = False
    return dots, only and bool(dots)


def _find_chains(fn: Function, plan: Plan, table: dict[Value, list[tuple[Op, int]]]) -> None:
    """Loops whose accumulator only passes through one dot: one wgmma group stays in flight."""
    for loop in walk(fn.body):
        if loop.name != "for":
            continue
        body = loop.regions[0]
        dots = [op for op in walk(body) if op.name == "dot"]
        if len(dots) != 1 or dots[0].parent is not body:
            continue
        dot = dots[0]
        acc = dot.operands[2]
        if acc not in body.args[1:] or table.get(acc) != [(dot, 2)]:
            continue
        index = body.args.index(acc) - 1
        if table.get(dot.result) != [(body.terminator, index)]:
            continue
        sources = [wgmma_reads(dot, i) for i in (0, 1)]
        if any(s is None for s in sources):
            continue
        # A slot released one iteration late needs a second slot, or the producer and the consumer wait
        # for each other.
        if any(r.slots < 2 for r in plan.rings if r.loop is loop and r.views):
            continue
        plan.chains[loop] = (index, dot)
        for ring in plan.rings:
            if ring.views and ring.loop is loop and all(op.parent is body for op in ring.loads):
                ring.deferred = True


def _choose_form(fn: Function, plan: Plan) -> None:
    """Specialise when wgmma loops read TMA rings and the loads' addresses do not need the results."""
    say = plan.report.append
    warps = fn.attrs["num_warps"]
    wanted = [r for r in plan.rings if r.loop is not None and r.views]
    asked = [x.attrs["warp_specialize"] for x in walk(fn.body)
             if x.name == "for" and x.attrs.get("warp_specialize") is not None]
    reason = ""
    if not wanted:
        reason = "no loop feeds wgmma from descriptor loads"
    elif asked and not any(asked):
        reason = "warp_specialize=False"
    elif warps not in (4, 8, 16):
        reason = f"num_warps={warps} is not 4, 8 or 16"
    else:
        reason = producer_problem(fn, plan)
    plan.specialised = not reason
    if plan.rings:
        say("specialised: producer warp + "
            f"{warps // 4} consumer warpgroups" if plan.specialised else f"inline: {reason}")
    if not plan.specialised:
        for ring in plan.rings:
            if ring.loop is None or ring.slots == 1:
                continue
            problem = ahead_problem(ring)
            ring.ahead = not problem
            if problem:
                ring.slots = 1
                say(f"ring {ring.name}: not pipelined, {problem}")
    for ring in plan.rings:
        say(f"ring {ring.name}: {ring.slots} slots x {ring.bytes} bytes, "
            f"{'wgmma reads the slots' if ring.views else 'read into registers'}")
    for loop, (_, dot) in plan.chains.items():
        say(f"loop at {loop.loc.short() if loop.loc else '?'}: one wgmma group stays in flight"
            f" ({dot.result.name or 'accumulator'})")


def needed_by_producer(fn: Function, plan: Plan) -> set[Value]:
    """The backward slice of all loads' addresses: values that the producer role must compute."""
    needed: set[Value] = set()
    work: list[Value] = []

    def control(op: Op) -> None:
        for outer in enclosing(op):
            if outer.name == "for":
                work.extend(outer.operands[:3])
            elif outer.name == "if":
                work.append(outer.operands[0])
            elif outer.name == "while":
                work.append(outer.regions[0].terminator.operands[0])

    for ring in plan.rings:
        for load in ring.loads:
            work.extend(load.operands)
            control(load)
    while work:
        v = work.pop()
        if v in needed:
            continue
        needed.add(v)
        if isinstance(v.op, Block):
            owner = v.op.parent
            if owner is None:
                continue
            if owner.name == "for":
                if v.index == 0:
                    work.extend(owner.operands[:3])
                else:
                    work.append(owner.operands[v.index + 2])
                    work.append(v.op.terminator.operands[v.index - 1])
            elif owner.name == "while":
                work.append(owner.operands[v.index])
                work.append(owner.regions[0].terminator.operands[v.index + 1])
                work.append(owner.regions[1].terminator.operands[v.index])
            continue
        op = v.op
        assert isinstance(op, Op)
        control(op)
        if op.name == "for":
            work.append(op.operands[v.index + 3])
            work.append(op.regions[0].terminator.operands[v.index])
        elif op.name == "while":
            work.append(op.operands[v.index])
            work.append(op.regions[0].terminator.operands[v.index + 1])
            work.append(op.regions[1].terminator.operands[v.index])
        elif op.name == "if":
            work.append(op.operands[0])
            work.extend(r.terminator.operands[v.index] for r in op.regions)
        else:
            work.extend(op.operands)
            for region in op.regions:
                for inner in walk(region):
                    work.extend(inner.operands)
    return needed


def producer_problem(fn: Function, plan: Plan) -> str:
    """Why the loads cannot be issued by a role of their own; empty if they can."""
    for v in needed_by_producer(fn, plan):
        if isinstance(v.op, Op) and v.op.define.effects & {"read", "write"} and not _both_may_read(v.op, fn, plan):
            line = f" ({v.op.loc.short()})" if v.op.loc else ""
            return f"a load address depends on {v.op.name}{line}"
        if isinstance(v.type, Tile):
            return "a load address depends on a tile"
    return ""


def _both_may_read(op: Op, fn: Function, plan: Plan) -> bool:
    """Whether producer and consumers may each do a load: of one number, outside the pipelined loops, from an
    argument that the kernel does not write."""
    source = _argument_of(op.operands[0])
    return (op.name == "load" and not isinstance(op.result.type, Tile) and source is not None
            and not any(outer is ring.loop for outer in enclosing(op) for ring in plan.rings)
            and not any(_argument_of(x.operands[0]) is source for x in walk(fn.body)
                        if "write" in x.define.effects and x.operands))


def _argument_of(v: Value) -> Value | None:
    """The argument that a pointer (or descriptor) is computed from, or None if that is not plain."""
    while isinstance(v.op, Op):
        if v.op.name not in ("ptr_add", "splat", "broadcast", "expand_dims", "hint", "make_desc"):
            return None
        v = v.op.operands[0]
    return v if v.op is not None and v.op.parent is None else None


def ahead_problem(ring: Ring) -> str:
    """Why a ring's loads cannot be issued ahead in the inline form; empty if they can."""
    loop = ring.loop
    assert loop is not None
    if loop.name != "for":
        return "the loop is a while"
    body = loop.regions[0]
    if any(op.parent is not body for op in ring.loads):
        return "the load is under a condition"
    if ahead_slice(ring) is None:
        return "the address depends on a value carried by the loop"
    return ""


def ahead_slice(ring: Ring) -> list[Op] | None:
    """The pure ops of the loop body that the loads' operands need, in order; None if that is not enough."""
    assert ring.loop is not None
    body = ring.loop.regions[0]
    wanted: set[Op] = set()
    work = [v for op in ring.loads for v in op.operands]
    while work:
        v = work.pop()
        if v.op is body:
            if v.index:
                return None
        elif isinstance(v.op, Op) and v.op.parent is body and v.op not in wanted:
            if not v.op.define.pure or v.op.regions:
                return None
            wanted.add(v.op)
            work.extend(v.op.operands)
    return [op for op in body.ops if op in wanted]


def check_descriptor(load: Op) -> None:
    """A block must be at least 16 bytes wide for TMA."""
    t = load.operands[0].type
    assert isinstance(t, Desc) and isinstance(t.elem, DType)
    if t.block_shape[-1] * t.elem.bytes < 16:
        raise CompilationError(
            f"the last block dimension must be at least 16 bytes, found {t.block_shape[-1]} x {t.elem}",
            load.loc)
