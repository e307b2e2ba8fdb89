"""Sums over the CTAs of a cluster: where the parts meet in shared memory, and who may write when.

Every CTA writes what it has of another one's share straight into that one's shared memory, and the bytes count on a
barrier there (`full`); when a share has come from all, its owner sums it in the order of the CTAs and tells all of them
that the slot may be written again (`free`). A tile larger than its slots is handed over in rounds.
"""
from __future__ import annotations

from tilejit.ir import Builder, Op, Value, clone_block
from tilejit.ir.report import Record
from tilejit.ir.scratch import fold_bytes
from tilejit.ir.types import Buffer, Tile, int32, uint8
from tilejit.layout.clusters import cta_bases, rows_from_each
from tilejit.layout.exchange import Parts
from tilejit.schedule.context import Context
from tilejit.schedule.loads import groups_of

#: Bytes of one slot at most; two of them let one share be summed while the next comes.
SLOT_BYTES = 32768


def divided_axis(op: Op, ctas: int) -> bool:
    """Whether the CTAs of a cluster divide the axis of a reduction."""
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    return any(b[op.attrs["axis"]] for b in cta_bases(t.layout, ctas))


def write_exchange(op: Op, b: Builder, c: Context) -> None:
    """`cluster_sum` with its scratch, its barriers and the parity of its first round: as many rounds, at least two if
    there can be, as slots of `SLOT_BYTES` take."""
    t, ctas = op.operands[0].type, op.attrs["ctas"]
    assert isinstance(t, Tile) and t.layout is not None
    parts = Parts(t.layout, rows_from_each(t.layout, ctas), ctas, 1)
    rounds = 1
    while rounds < parts.most_rounds and (rounds < 2 or parts.bytes // rounds > SLOT_BYTES):
        rounds *= 2
    name, slots, size = op.result.name or "sum", min(rounds, 2), parts.bytes // rounds
    c.say(Record("sum", f"{name}: the CTAs' parts are summed in {rounds} rounds through {slots} x {size} bytes of each",
                 name, rounds=rounds, slots=slots, bytes=size))
    total = b("cluster_sum", op.operands[0], *_barriers(name, slots, size, b, c), rounds=rounds, **op.attrs)
    total.type, total.name = op.result.type, op.result.name
    c.renamed[op.result] = total


def write_reduce(op: Op, b: Builder, c: Context) -> None:
    """What a CTA has is folded there, then what all have, where CTAs divide the axis."""
    b.insert(op)
    if c.ctas == 1 or not divided_axis(op, c.ctas):
        return
    name, size = op.results[0].name or "fold", sum(fold_bytes(v.type, c.ctas) for v in op.results)
    c.say(Record("fold", f"{name}: what the CTAs have is folded through {size} bytes of each", name, bytes=size))
    old = c.replaced(op)
    op.attrs["ctas"] = c.ctas
    region = clone_block(op.regions[0], {})
    whole = b.op("cluster_fold", *op.results, *_barriers(name, 1, size, b, c), regions=[region], ctas=c.ctas)
    for before, new in zip(old, whole.results):
        new.name = before.name
        c.renamed[before] = new


def _barriers(name: str, slots: int, size: int, b: Builder, c: Context) -> tuple[Value, ...]:
    """Scratch, the barriers `full` and `free`, and a parity, which `split` carries from round to round."""
    count, warps = slots * groups_of(c.fn), c.fn.attrs["num_warps"] * c.ctas
    return (c.alloc(f"{name}_parts", Buffer((size,), uint8, slots, 0, (0,)), private=True),
            c.barriers(f"{name}.full", count, 1), c.barriers(f"{name}.free", count, warps), b.const(0, int32))
