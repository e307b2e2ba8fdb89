"""Software pipelining of copies where one role does all: fills are moved `ahead` by as many iterations as they say."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, clone_op, const_of, inside, listed, reached, uses
from tilejit.ir.ahead import Ahead, address_slice
from tilejit.ir.types import Buffer, Pending


def prefetch(fn: Function) -> Function:
    for loop in [op for op in listed(fn.body) if op.name == "for"]:
        fills = [op for op in loop.regions[0].ops if op.name == "fill" and op.attrs.get("ahead")]
        begin = loop.block.ops.index(loop)
        while begin and "readies" in loop.block.ops[begin - 1].define.traits:
            begin -= 1
        before = Builder(loop.block, begin, loop.loc)
        for fill in fills:
            _move(fill, loop, before)
    return fn


def _move(fill: Op, loop: Op, before: Builder) -> None:
    """Fill `ahead` slots before the loop, and that many iterations early in it."""
    body, distance = loop.regions[0], fill.attrs.pop("ahead")
    prompt = fill.attrs.pop("prompt", False)
    found = address_slice(loop, [v for op in fill.regions[0].ops[:-1] for v in op.operands])
    assert isinstance(found, Ahead)
    rows = any(op.name == "row_load" for op in fill.regions[0].ops)
    at = _behind_readers(fill, loop) if prompt and not rows else len(body.ops) - 1
    at -= body.ops.index(fill) < at
    body.ops.remove(fill)
    lo, _, step = loop.operands[:3]
    iv, carried = lo, [e.init for e in found.carried if e.init]
    for _ in range(distance):
        carried = _fill(fill, found, loop, iv, carried, before)
        iv = before("add", iv, step)
    loop.operands += carried
    args = [body.add_arg(v.type) for v in carried]
    b = Builder(body, at, loop.loc)
    iv = b("add", body.args[0], b("mul", step, b.const(distance, step.type)))
    body.terminator.operands += _fill(fill, found, loop, iv, args, b)
    loop.add_results(v.type for v in carried)


def _behind_readers(fill: Op, loop: Op) -> int:
    """Where in a loop's body all that read the slot of this trip have."""
    body = loop.regions[0]
    table, end = uses(body), len(body.ops) - 1
    named = [v for op in body.ops if op.name == "await" and op.attrs["ring"] == fill.attrs["ring"] for v in op.results]
    views = reached(named, lambda v: [x for op, _ in table.get(v, ()) for x in op.results
                                      if isinstance(x.type, Buffer)])
    readers = {op for v in views for op, _ in table.get(v, ())}
    at = 1 + max(body.ops.index(top) for op in readers if (top := inside(body, op)))
    products = [inside(body, op) for op in listed(body) if op.name == "dot_async"]
    flying = any(isinstance(v.type, Pending) for v in body.args) or any(op in products for op in body.ops[:at])
    return end if flying else min(at, end)


def _fill(fill: Op, found: Ahead, loop: Op, iv: Value, carried: list[Value], b: Builder) -> list[Value]:
    """Fill the next slot for the iteration `iv` if there is one, and carry its addresses on."""
    hi, body = loop.operands[1], loop.regions[0]
    within = b("cmp", iv, hi, pred="gt" if (const_of(loop.operands[2]) or 0) < 0 else "lt")
    env = {body.args[0]: iv, **{e.args[0]: now for e, now in zip(found.carried, carried)}}

    def copies(inner: Builder) -> tuple[Value, ...]:
        for op in (*found.ops, fill):
            inner.insert(clone_op(op, env))
        return ()

    b.branch(within, copies)
    for op in found.steps:
        b.insert(clone_op(op, env))
    return [env.get(v, v) for e in found.carried for v in e.ends[:1]]
