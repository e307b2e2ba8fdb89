"""What a kernel can do while the one ahead of it in the stream still runs: ask for its first blocks.

A kernel waits for the one ahead before it reads or writes (`griddepcontrol.wait`). Until then the memory would have
little to do: the last programs of the one kernel end, and the first loads of the next one have not begun. A prefetch
into L2 is no read: all multiprocessors see memory through L2, so a line that is written after it was fetched is not
stale.
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, clone_op, enclosing
from tilejit.ir.target import target_of
from tilejit.schedule.plan import Plan, Ring

#: Blocks of a ring that are asked for beforehand where the author leaves it open.
PREFETCH = 0


def ask_beforehand(fn: Function, plan: Plan, top: Builder, args: dict[Value, Value]) -> None:
    """Put in the wait for the kernel ahead with the prefetches of the blocks that a program's rings load first.

    `launch_prefetch`: of each ring so many blocks, of the loop's first run. `args`: the function's arguments in the new
    function. Rings whose first addresses are not plain arithmetic on arguments and program ids are left out."""
    blocks = fn.attrs.get("launch_prefetch", PREFETCH)
    if not (blocks and plan.specialised and fn.attrs.get("launch_pdl") and target_of(fn).hopper):
        return
    region = Block()
    b, first = Builder(region, loc=fn.loc), First(args)
    asked = [ring.name for ring in plan.rings if ring.kind == "tensor" and not ring.local and ring.loop is not None
             and _ask(ring, blocks, first, b)]
    if asked:
        top.op("grid_wait", regions=[region])
        plan.report.append(f"while the kernel ahead ends: {', '.join(asked)} of up to {blocks} blocks into L2")


class First:
    """Values as they are in the first iterations of the loops around them: arithmetic is cloned, loops are not."""

    def __init__(self, known: dict[Value, Value]):
        self.known = dict(known)

    def __call__(self, v: Value, b: Builder) -> Value | None:
        """The value in the block that b writes; None where it is not plain arithmetic."""
        if v in self.known:
            return self.known[v]
        if isinstance(v.op, Op):
            if not v.op.define.pure or v.op.regions or any(self(x, b) is None for x in v.op.operands):
                return None
            b.insert(clone_op(v.op, self.known))
            return self.known[v]
        loop = v.op.parent if v.op is not None else None
        if loop is None or loop.name != "for":
            return None
        first = self(loop.operands[v.index + 2 if v.index else 0], b)
        if first is not None:
            self.known[v] = first
        return first


def _ask(ring: Ring, blocks: int, first: First, b: Builder) -> bool:
    """Write the prefetches of a ring's first blocks; False (and arithmetic at most) if addresses are not known."""
    loop = ring.loop
    assert loop is not None
    if any(op.name != "for" for load in ring.loads for op in enclosing(load)):
        return False
    lo, hi, step = (first(v, b) for v in loop.operands[:3])
    if lo is None or hi is None or step is None:
        return False
    end = b("minimum", hi, b("add", lo, b("mul", step, b.const(blocks, step.type))))
    body = Block([lo.type], [loop.regions[0].args[0].name])
    count, *carried = loop.regions[0].args
    _steady([v for load in ring.loads for v in load.operands], {count, *carried}, first, b)
    inner, here = Builder(body, loc=loop.loc), First({**first.known, count: body.args[0]})
    for load in ring.loads:
        inner.loc = load.loc
        # What the loop counts may change an address; what it carries is known in the first iteration alone.
        where = [v for v in load.operands if not _uses(v, set(carried)) and here(v, inner) is not None]
        if len(where) < len(load.operands):
            return False
        op = inner.op("tma_prefetch", *(here.known[v] for v in where), type=ring.buffer(load))
        ring.mark(load, op)
    inner.op("yield")
    b.op("for", lo, end, step, regions=[body])
    return True


def _steady(values: list[Value], moving: set[Value], first: First, b: Builder) -> None:
    """Compute ahead of a loop what addresses need that does not depend on these values."""
    for v in values:
        if not _uses(v, moving):
            first(v, b)
        elif isinstance(v.op, Op):
            _steady(list(v.op.operands), moving, first, b)


def _uses(v: Value, wanted: set[Value]) -> bool:
    """Whether a value is computed from one of these."""
    seen, work = set(), [v]
    while work:
        x = work.pop()
        if x in wanted:
            return True
        if x not in seen and isinstance(x.op, Op):
            seen.add(x)
            work.extend(x.op.operands)
    return False
