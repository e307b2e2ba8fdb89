"""Separations: what orders all accesses of an area before those of the next owner of its bytes."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Op, Value, beside, inside
from tilejit.ir.report import Record
from tilejit.ir.types import int32
from tilejit.schedule.buffers import barriers
from tilejit.schedule.liveness import Area, Liveness, Step
from tilejit.schedule.thread import thread

#: What a separation may cost, in rising order: it is there (or the author asked for it); one more barrier; a role waits
#: for another one, or for stores in every iteration; rings do not run ahead from tile to tile; there can be none.
FREE, MEET, WAIT, DRAIN, NEVER = range(5)


def cost(live: Liveness, x: Area, y: Area) -> int:
    steps = live.steps(x, y)
    if steps is None:
        return NEVER
    most = FREE
    for step in steps if not any(step.hint for step in steps) else ():
        needs = [] if step.there else missing(live, step)
        if step.there:
            most = max(most, DRAIN if step.loops else WAIT)
        elif needs:
            most = max(most, WAIT if "store_wait" in needs and step.loops else MEET)
    return most


def missing(live: Liveness, step: Step) -> list[str]:
    """The ops that a separation within a role still needs, in order."""
    ops, end, start = step.block.ops, live.span(step.first, 0, step.block)[1], live.span(step.then, 0, step.block)[0]
    between = ops[end + 1:] + ops[:start] if step.wraps else ops[end + 1:start]
    by_proxy = any("fills" in op.define.traits and "cp_async" not in op.define.traits
                   for ops in step.then.accesses for op in ops)
    wanted = {"store_wait": step.first.kind == "store", "fence_async": step.first.generic and by_proxy}
    for op in between:
        if op.name in wanted and "space" not in op.attrs:
            wanted[op.name] = False
        if not any(wanted.values()) and live.barrier(op):
            return []
    needs = [name for name, want in wanted.items() if want]
    return needs if step.then.barrier else [*needs, "role_sync"]


def separate(live: Liveness, shared: list[tuple[Area, Area]]) -> list[Record]:
    steps = [step for x, y in shared for step in live.steps(x, y) or ()]
    said: list[Record] = []
    for step in sorted((s for s in steps if not s.there), key=lambda s: live.order[0][s.then.accesses[0][0]]):
        needs = missing(live, step)
        if needs:
            _meet(live, step, needs)
            said.append(Record("separation", f"separation: {', '.join(needs)} between {step.first.name} and "
                               f"{step.then.name}", step.then.name))
    across: dict[tuple, list[Step]] = {}
    for step in steps:
        if step.there:
            gate = step.there.ops[live.span(step.then, 1, step.there)[0]]
            across.setdefault((gate, step.block, step.wraps), []).append(step)
    for (gate, block, wraps), group in across.items():
        _hand_over(live, gate, block, wraps, group)
        firsts = ", ".join(dict.fromkeys(s.first.name for s in group))
        said.append(Record("separation", f"separation: an mbarrier between {firsts} and {group[0].then.name}"
                           + (", in every iteration" if group[0].loops else ""), group[0].then.name))
    return said


def _meet(live: Liveness, step: Step, needs: list[str]) -> None:
    """Behind the author's hint if there is one on the way, else right before the next owner."""
    at = live.span(step.then, 0, step.block)[0]
    if step.hint is not None and not step.wraps:
        at = step.block.ops.index(inside(step.block, step.hint)) + 1  # type: ignore[arg-type]
    b = Builder(step.block, at, step.block.ops[at].loc)
    for name in needs:
        if name == "store_wait":
            b.op(name, read=True)
        else:
            b.op(name)


def _fenced(area: Area, ops: list[Op]) -> bool:
    """Whether a fence follows what threads did last with an area, among these ops of a block."""
    own = {x for op in area.accesses[0] if area.kind == "scratch" or "generic" in op.define.traits
           if (x := inside(ops[0].block, op))}
    last = max(i for i, op in enumerate(ops) if op in own)
    return any(op.name == "fence_async" for op in ops[last:])


def _hand_over(live: Liveness, gate: Op, block: Block, wraps: bool, group: list[Step]) -> None:
    """The role that computes arrives on a new mbarrier; the one that loads waits for it before `gate`."""
    fn, roles = live.fn, live.roles
    assert roles is not None
    ctas = fn.attrs.get("num_ctas", 1)
    barrier = barriers(Builder(fn.body, fn.body.ops.index(roles), group[0].then.accesses[0][0].loc),
                       f"{group[0].then.name}.room", 1, roles.attrs["warps"][0] * ctas)
    end = max(live.span(step.first, 0, block)[1] for step in group)
    b = Builder(block, end + 1, block.ops[end].loc)
    if any(step.first.kind == "store" for step in group):
        b.op("store_wait", read=True)
    if any(step.first.generic and not _fenced(step.first, block.ops[:end + 1]) for step in group):
        b.op("fence_async")
    b.op("mbar_arrive", barrier, b.const(0, int32), per="warp", ctas=ctas)

    def wait(op: Op, parity: list[Value]) -> list[Value]:
        b = beside(op)
        b.op("mbar_wait", barrier, b.const(0, int32), *parity)
        return [b("sub", b.const(1, int32), *parity)]

    # A fresh mbarrier passes a wait for parity 1: nobody waits for what was before the first iteration.
    frame = live.frames[1]
    first = Builder(frame, 0, frame.ops[0].loc).const(int(wraps), int32)
    thread(frame, [first], {gate: wait}, ["room_parity"])
