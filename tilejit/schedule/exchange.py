"""Sums over the CTAs of a cluster: where the parts meet in shared memory, and who may write when.

Every CTA writes what it has of another one's share straight into that one's shared memory, and the bytes count on a
barrier there (`full`); when a share has come from all, its owner sums it in the order of the CTAs and tells all of them
that the slot may be written again (`free`). A tile larger than its slots is handed over in rounds.
"""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, walk
from tilejit.ir.types import Barrier, Buffer, DType, Tile, int32
from tilejit.layout.clusters import rows_from_each
from tilejit.layout.exchange import Parts
from tilejit.schedule.plan import Exchange, Plan
from tilejit.schedule.role import RoleState

#: Bytes of one slot at most; two of them let one share be summed while the next comes.
SLOT_BYTES = 32768


def plan_exchanges(fn: Function, plan: Plan) -> None:
    """An exchange for every `cluster_sum`: its rounds and slots."""
    for op in walk(fn.body):
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
            plan.report.append(f"{name}: the CTAs' parts are summed in {rounds} rounds through {exchange.slots} x "
                               f"{exchange.bytes} bytes of each")


class Exchanges(RoleState):
    """The part of a role's writer that deals with `cluster_sum`."""

    def _exchange(self, op: Op, b: Builder) -> None:
        """The op with its scratch, its barriers and the parity of its first round."""
        exchange = next(x for x in self.plan.exchanges if x.loads[0] is op)
        t, slots, name = op.result.type, exchange.slots, exchange.name
        assert isinstance(t, Tile) and isinstance(t.elem, DType)
        count = slots * self.plan.groups
        warps = self.fn.attrs["num_warps"] * self.plan.ctas
        buffer = self.top("alloc", name=f"{name}_parts", private=True,
                          type=Buffer((exchange.bytes // t.elem.bytes,), t.elem, slots, 0, (0,)))
        full = self.top("barriers", name=f"{name}.full", type=Barrier(count, 1))
        free = self.top("barriers", name=f"{name}.free", type=Barrier(count, warps))
        buffer.name, full.name, free.name = f"{name}_parts", f"{name}_full", f"{name}_free"
        (parity,) = self.state[exchange, "parity"]
        total = b("cluster_sum", self.env[op.operands[0]], buffer, full, free, parity, rounds=exchange.rounds,
                  **op.attrs)
        total.type, total.name = t, op.result.name
        self.env[op.result] = total
        if exchange.rounds // slots % 2:
            self.state[exchange, "parity"] = (b("sub", b.const(1, int32), parity),)
