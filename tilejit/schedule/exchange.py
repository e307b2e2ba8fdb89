"""Sums over the CTAs of a cluster: where the parts meet in shared memory, and who may write when.

Every CTA writes what it has of another one's share straight into that one's shared memory, and the bytes count on a
barrier there (`full`); when a share has come from all, its owner sums it in the order of the CTAs and tells all of them
that the slot may be written again (`free`). A tile larger than its slots is handed over in rounds.
"""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, clone_block, walk
from tilejit.ir.report import Record
from tilejit.ir.scratch import fold_bytes
from tilejit.ir.types import Barrier, Buffer, Tile, int32, uint8
from tilejit.layout.clusters import cta_bases, rows_from_each
from tilejit.layout.exchange import Parts
from tilejit.schedule.context import Context
from tilejit.schedule.plan import Exchange, Plan

#: Bytes of one slot at most; two of them let one share be summed while the next comes.
SLOT_BYTES = 32768


def plan_exchanges(fn: Function, plan: Plan) -> None:
    """An exchange for every `cluster_sum` and every `reduce` along what CTAs divide: its rounds and slots."""
    for op in walk(fn.body):
        if op.name == "reduce" and divided_axis(op, plan.ctas):
            name = op.results[0].name or "fold"
            size = sum(fold_bytes(v.type, plan.ctas) for v in op.results)
            plan.exchanges.append(Exchange(name, [op], 1, 1, size))
            plan.report.append(Record("fold", f"{name}: what the CTAs have is folded through {size} bytes of each",
                                      name, bytes=size))
        if op.name == "cluster_sum":
            t, ctas = op.operands[0].type, op.attrs["ctas"]
            assert isinstance(t, Tile) and t.layout is not None
            parts = Parts(t.layout, rows_from_each(t.layout, ctas), ctas, 1)
            rounds = 1
            while rounds < parts.most_rounds and (rounds < 2 or parts.bytes // rounds > SLOT_BYTES):
                rounds *= 2
            name = op.result.name or "sum"
            exchange = Exchange(name, [op], rounds, min(rounds, 2), parts.bytes // rounds)
            plan.exchanges.append(exchange)
            plan.report.append(Record(
                "sum", f"{name}: the CTAs' parts are summed in {rounds} rounds through {exchange.slots} x "
                f"{exchange.bytes} bytes of each", name, rounds=rounds, slots=exchange.slots, bytes=exchange.bytes))


def divided_axis(op: Op, ctas: int) -> bool:
    """Whether the CTAs of a cluster divide the axis of a reduction."""
    t = op.operands[0].type
    assert isinstance(t, Tile) and t.layout is not None
    return any(b[op.attrs["axis"]] for b in cta_bases(t.layout, ctas))


def write_exchange(op: Op, b: Builder, c: Context) -> None:
    """`cluster_sum` with its scratch, its barriers and the parity of its first round."""
    exchange = _exchange_of(op, c)
    assert exchange is not None
    total = b("cluster_sum", op.operands[0], *_barriers(exchange, b, c), rounds=exchange.rounds, **op.attrs)
    total.type, total.name = op.result.type, op.result.name
    c.renamed[op.result] = total


def write_reduce(op: Op, b: Builder, c: Context) -> None:
    """What a CTA has is folded there, then what all have, where CTAs divide the axis."""
    b.insert(op)
    exchange = _exchange_of(op, c)
    if exchange is None:
        return
    old = c.replaced(op)
    op.attrs["ctas"] = c.plan.ctas
    region = clone_block(op.regions[0], {})
    whole = b.op("cluster_fold", *op.results, *_barriers(exchange, b, c), regions=[region], ctas=c.plan.ctas)
    for before, new in zip(old, whole.results):
        new.name = before.name
        c.renamed[before] = new


def _exchange_of(op: Op, c: Context) -> Exchange | None:
    return next((x for x in c.plan.exchanges if x.loads[0] is op), None)


def _barriers(exchange: Exchange, b: Builder, c: Context) -> tuple[Value, ...]:
    """Scratch, the barriers `full` and `free`, and a parity, which `split` carries from round to round."""
    slots, name = exchange.slots, exchange.name
    count, warps = slots * c.plan.groups, c.fn.attrs["num_warps"] * c.plan.ctas
    buffer = c.alloc(f"{name}_parts", Buffer((exchange.bytes,), uint8, slots, 0, (0,)), private=True)
    full = c.top("barriers", name=f"{name}.full", type=Barrier(count, 1))
    free = c.top("barriers", name=f"{name}.free", type=Barrier(count, warps))
    buffer.name, full.name, free.name = f"{name}_parts", f"{name}_full", f"{name}_free"
    return buffer, full, free, b.const(0, int32)
