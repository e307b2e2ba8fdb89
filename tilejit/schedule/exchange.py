"""Sums over the CTAs of a cluster: where the parts meet in shared memory, and who may write when."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, beside, clone_block
from tilejit.ir.scratch import fold_bytes
from tilejit.ir.types import Buffer, int32, uint8
from tilejit.layout.clusters import cta_bases, rows_from_each
from tilejit.layout.exchange import Parts
from tilejit.schedule.buffers import alloc, barriers, renewed
from tilejit.schedule.loads import groups_of

#: Bytes of one slot at most; two of them let one share be summed while the next comes.
SLOT_BYTES = 32768


def write_sum(op: Op, fn: Function, top: Builder) -> dict[Value, Value]:
    """`cluster_sum` with its scratch and barriers, in as many rounds as slots of `SLOT_BYTES` take."""
    layout, ctas = op.operands[0].layout, op.attrs["ctas"]
    parts = Parts(layout, rows_from_each(layout, ctas), ctas, 1)
    rounds = 1
    while rounds < parts.most_rounds and (rounds < 2 or parts.bytes // rounds > SLOT_BYTES):
        rounds *= 2
    name, slots, size = op.result.name or "sum", min(rounds, 2), parts.bytes // rounds
    fn.say("sum", f"{name}: the CTAs' parts are summed in {rounds} rounds through {slots} x {size} bytes of each", name,
           rounds=rounds, slots=slots, bytes=size)
    shared = _shared(name, slots, size, fn, top)
    b = beside(op)
    total = b("cluster_sum", op.operands[0], *shared, b.const(0, int32), rounds=rounds, **op.attrs)
    total.type, total.name = op.result.type, op.result.name
    b.block.ops.remove(op)
    return {op.result: total}


def write_fold(op: Op, fn: Function, top: Builder) -> dict[Value, Value]:
    """Where CTAs divide a reduction's axis, what each has is folded there, then what all have."""
    ctas = fn.attrs["num_ctas"]
    if not any(base[op.attrs["axis"]] for base in cta_bases(op.operands[0].layout, ctas)):
        return {}
    name, size = op.results[0].name or "fold", sum(fold_bytes(v.type, ctas) for v in op.results)
    fn.say("fold", f"{name}: what the CTAs have is folded through {size} bytes of each", name, bytes=size)
    old, shared = renewed(op), _shared(name, 1, size, fn, top)
    op.attrs["ctas"] = ctas
    region, b = clone_block(op.regions[0], {}), beside(op, behind=True)
    whole = b.op("cluster_fold", *op.results, *shared, b.const(0, int32), regions=[region], ctas=ctas)
    for before, new in zip(old, whole.results):
        new.name = before.name
    return dict(zip(old, whole.results))


def _shared(name: str, slots: int, size: int, fn: Function, top: Builder) -> tuple[Value, ...]:
    """Scratch, and the barriers `full` and `free`; `split` carries their parity from round to round."""
    count, warps = slots * groups_of(fn), fn.attrs["num_warps"] * fn.attrs["num_ctas"]
    return (alloc(top, f"{name}_parts", Buffer((size,), uint8, slots, 0, (0,)), private=True),
            barriers(top, f"{name}.full", count, 1), barriers(top, f"{name}.free", count, warps))
