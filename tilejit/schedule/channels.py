"""Loads through rings: filling tickets, awaiting them, and filling them ahead where one role does both."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Op, Value, clone_op
from tilejit.ir.types import Tile
from tilejit.layout.named import default_blocked
from tilejit.schedule.plan import Ring, ahead_slice, wgmma_reads
from tilejit.schedule.role import RoleState


class Channels(RoleState):
    """The part of a role's writer that deals with descriptor loads."""

    def _load(self, op: Op, b: Builder) -> None:
        """Fill or await a ring's ticket, where the last of its loads stands."""
        ring = self.plan.ring_of(op)
        assert ring is not None
        if op is not ring.loads[-1]:
            return
        if self.role == "producer":
            self._issue(ring, self.env, b)
            self._advance(ring, "fill", b)
            return
        if self.role == "inline" and not ring.ahead:
            region = Block()
            self._issue(ring, self.env, Builder(region, loc=op.loc))
            b.op("elect", regions=[region])
            self._advance(ring, "fill", b)
        slot, parity = self.state[ring.channel, "use"]
        b.op("mbar_wait", self.shared[ring].full, slot, parity)
        self.current[ring] = slot
        self._advance(ring, "use", b)
        for load in ring.loads:
            self.views[load] = b("view", self.shared[ring].buffers[load], slot)
            if not ring.views:
                self._to_registers(load, b)

    def _to_registers(self, load: Op, b: Builder) -> None:
        in_place = (u.name == "dot" and i < 2 and wgmma_reads(u, i)
                    or u.name == "promote_reuse" and u.result not in self.uses
                    for u, i in self.uses.get(load.result, ()))
        if all(in_place):
            return
        t = load.result.type
        assert isinstance(t, Tile)
        if t.layout is None:
            t = t.with_layout(default_blocked(t.shape, self.fn.attrs["num_warps"]))
        value = b("local_load", self.views[load], type=t)
        value.name = load.result.name
        self.env[load.result] = value

    def _issue(self, ring: Ring, env: dict[Value, Value], b: Builder) -> None:
        """Wait for the slot of the fill ticket, announce the bytes, copy."""
        s = self.shared[ring]
        slot, parity = self.state[ring.channel, "fill"]
        b.op("mbar_wait", s.empty, slot, parity)
        b.op("mbar_expect", s.full, slot, bytes=ring.bytes)
        for load in ring.loads:
            desc, *offsets = (env[v] for v in load.operands)
            b.loc = load.loc
            copy = b.op("tma_load", s.buffers[load], slot, s.full, desc, *offsets)
            if load in ring.rows:
                copy.attrs["slice"] = ring.rows[load]
            elif ring.ctas > 1:
                copy.attrs["multicast"] = ring.ctas

    def _prologue(self, ring: Ring, loop: Op, b: Builder) -> None:
        """Fill slots-1 tickets before the loop, each only if the loop gets that far."""
        lo, _, step = (self.env[v] for v in loop.operands[:3])
        iv = lo
        for _ in range(ring.slots - 1):
            self._issue_if(ring, loop, iv, b)
            iv = b("add", iv, step)

    def _issue_ahead(self, ring: Ring, loop: Op, b: Builder) -> None:
        """At the end of iteration i: fill the ticket of iteration i + slots - 1."""
        step = self.env[loop.operands[2]]
        iv = self.env[loop.regions[0].args[0]]
        distance = b("mul", step, b.const(ring.slots - 1, step.type))
        self._issue_if(ring, loop, b("add", iv, distance), b)

    def _issue_if(self, ring: Ring, loop: Op, iv: Value, b: Builder) -> None:
        hi = self.env[loop.operands[1]]
        inside = b("cmp", iv, hi, pred="lt")
        env = dict(self.env)
        env[loop.regions[0].args[0]] = iv
        region = Block()
        inner = Builder(region, loc=loop.loc)
        for op in ahead_slice(ring) or []:
            inner.insert(clone_op(op, env))
        self._issue(ring, env, inner)
        b.op("elect", inside, regions=[region])
        before = self.state[ring.channel, "fill"]
        self._advance(ring, "fill", b)
        after = self.state[ring.channel, "fill"]
        self.state[ring.channel, "fill"] = tuple(b("select", inside, x, y) for x, y in zip(after, before))
