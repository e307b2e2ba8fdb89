"""Loads through rings: filling tickets, awaiting them, filling them ahead where one role does both.

    tensor   one thread announces the bytes on `full` and starts the TMA copies
    row      one thread announces the bytes and starts the bulk copies
    async    every thread starts its cp.async copies and arrives on `full` when they have landed
"""
from __future__ import annotations

from typing import Any

from tilejit.ir import Block, Builder, Op, Value, clone_op, enclosing
from tilejit.ir.types import DType, Tile, int32
from tilejit.layout.clusters import strip_size
from tilejit.layout.named import default_blocked
from tilejit.schedule.plan import Ring, ahead_slice, in_place, pure_slice, reads_slot, written_by
from tilejit.schedule.role import RoleState


class Channels(RoleState):
    """The part of a role's writer that deals with loads that are copies."""

    def _load(self, op: Op, b: Builder) -> None:
        """Fill or await a ring's ticket, where the last of its loads stands."""
        ring = self.plan.ring_of(op)
        assert ring is not None
        if "again" in op.attrs:
            self._name_again(op, ring, b)
            return
        if op is not ring.loads[-1] or self.role == "producer" and ring not in self.plan.produced:
            return
        if self.role == "producer" or self._fills(ring) and not ring.ahead:
            if ring.kind == "async" or self.role == "producer" and not self.plan.threads_produce:
                self._issue(ring, self.env, b)
            else:
                region = Block()
                self._issue(ring, self.env, Builder(region, loc=op.loc))
                b.op("elect", regions=[region])
            self._advance(ring, "fill", b)
        if self.role == "producer":
            return
        slot, parity = self.state[ring.channel, "use"]
        slot = self._place(ring, slot, b)
        self._advance(ring, "use", b)
        if (ring.channel, "last") in self.state:
            self.earlier[ring.channel] = self.state[ring.channel, "last"][0]
            self.state[ring.channel, "last"] = (slot,)
        for load in ring.loads:          # addresses are known before the bytes are there
            self.views[load] = b("view", self.shared[ring].buffers[load], slot)
            if load.attrs.get("unaligned"):
                self.views[load] = b("row_view", self.views[load], self.env[load.operands[0]])
        pending = [self.tested.pop(ring)] if ring in self.tested else []
        b.op("mbar_wait", self.shared[ring].full, slot, parity, *pending)
        if ring.kind == "async" and any(self._in_place(load) for load in ring.loads):
            b.op("fence_async")          # the copies wrote as threads do, wgmma reads as the async proxy
        for load in ring.loads if not ring.views else ():
            self._to_registers(load, b)

    def _await_copies(self, write: Op, b: Builder) -> None:
        """Before a descriptor is written again: what was copied through it has landed."""
        for ring in self.plan.produced:
            if any(write in written_by(load.operands[0]) for load in ring.loads):
                slot, parity = self.state[ring.channel, "fill"]
                b.op("mbar_landed", self.shared[ring].full, self._place(ring, slot, b), parity)

    def _name_again(self, op: Op, ring: Ring, b: Builder) -> None:
        """The slot of the ring's last load, or the last but one, under another name."""
        if self.role == "producer":
            return
        slot = self.earlier[ring.channel] if op.attrs["again"] else self.state[ring.channel, "last"][0]
        load = next(x for x in ring.loads if x.attrs["ring"] == op.attrs["ring"])
        self.views[op] = b("view", self.shared[ring].buffers[load], slot)

    def _tickets(self, ring: Ring, turns: Op, b: Builder) -> Value:
        """How many tickets of a ring one iteration of `turns` uses."""
        loop = next(x for x in enclosing(ring.loads[0]) if x.name == "for")
        one = b.const(1, int32)
        if loop is turns:
            return one
        env = dict(self.env)
        for x in pure_slice(turns.regions[0], loop.operands[:3]) or []:
            b.insert(clone_op(x, env))
        lo, hi, step = (env[v] for v in loop.operands[:3])
        length = b("sub", hi, lo)
        if not (isinstance(step.op, Op) and step.op.name == "const" and step.op.attrs["value"] == 1):
            length = b("idiv", b("add", length, b("sub", step, b.const(1, step.type))), step)
        return b("cast", b("maximum", length, b.const(0, length.type)), type=int32) if length.type != int32 else \
            b("maximum", length, b.const(0, int32))

    def _in_place(self, load: Op) -> bool:
        """Whether a wgmma reads the load's slot."""
        readers = list(self.uses.get(load.result, ()))
        while readers:
            op, index = readers.pop()
            if op.name == "dot" and index < 2 and "unit" not in op.attrs and reads_slot(op, index) is load:
                return True
            if op.name == "trans":
                readers += self.uses.get(op.result, ())
        return False

    def _to_registers(self, load: Op, b: Builder) -> None:
        """Read a slot in the layouts that are asked for: conversions of the tile are reads of their own."""
        if load in self.piecewise:
            return
        users = [u for u, i in self.uses.get(load.result, ())
                 if not (u.name == "dot" and i < 2 and reads_slot(u, i))
                 and not (u.name in ("trans", "convert") and in_place(u.result, self.uses))]
        limit = [self.env[v] for v in load.operands[1:]] if load.name == "row_load" else []
        for result in dict.fromkeys(u.result if _converts(u, load) else load.result for u in users):
            t = result.type
            assert isinstance(t, Tile)
            if t.layout is None:
                t = t.with_layout(default_blocked(t.shape, self.fn.attrs["num_warps"]))
            fill = {"fill": load.attrs["fill"]} if limit and "fill" in load.attrs else {}
            value = b("local_load", self.views[load], *limit, type=t, **fill)
            value.name = load.result.name
            self.env[result] = value

    def _issue(self, ring: Ring, env: dict[Value, Value], b: Builder) -> None:
        """Wait for the slot of the fill ticket and start its copies, which complete on `full`."""
        s = self.shared[ring]
        slot, parity = self.state[ring.channel, "fill"]
        slot = self._place(ring, slot, b)
        b.op("mbar_wait", s.empty, slot, parity)
        if ring.kind == "async":
            for load in ring.loads:
                b.loc = load.loc
                if load.name == "block_load":
                    b.op("block_copy", s.buffers[load], slot, *(env[v] for v in load.operands),
                         block=load.attrs["block"])
                    continue
                extra: dict[str, Any] = {k: v for k, v in load.attrs.items() if k in ("cache", "vec")}
                b.op("async_copy", s.buffers[load], slot, *(env[v] for v in load.operands[:2]), **extra)
            b.op("async_arrive", s.full, slot)
            return
        if ring.kind == "row":
            self._issue_rows(ring, slot, env, b)
            return
        b.op("mbar_expect", s.full, slot, bytes=ring.bytes)
        for load in ring.loads:
            desc, *offsets = (env[v] for v in load.operands)
            b.loc = load.loc
            copy = b.op("tma_load", s.buffers[load], slot, s.full, desc, *offsets)
            if "evict" in load.attrs:
                copy.attrs["evict"] = load.attrs["evict"]
            if load in ring.slices:
                copy.attrs["slice"] = ring.slices[load]
            elif ring.ctas > 1:
                copy.attrs["multicast"] = ring.ctas

    def _issue_rows(self, ring: Ring, slot: Value, env: dict[Value, Value], b: Builder) -> None:
        """Announce and start the copies of rows, each as long as its limit says."""
        s, known, more, sizes = self.shared[ring], 0, None, []
        if "unaligned" in ring.loads[0].attrs:
            (load,) = ring.loads
            t = load.result.type
            assert isinstance(t, Tile) and isinstance(t.elem, DType)
            limit = env[load.operands[1]] if len(load.operands) > 1 else b.const(t.shape[0], int32)
            b.op("row_copy", s.buffers[load], slot, s.full, env[load.operands[0]],
                 b("mul", limit, b.const(t.elem.bytes, int32)), **_share(ring, load), unaligned=True)
            return
        for load in ring.loads:
            buffer, mine = ring.buffer(load), _share(ring, load)
            if len(load.operands) == 1:
                known += buffer.slot_bytes
                sizes.append(b.const(buffer.slot_bytes, int32))
                continue
            limit = env[load.operands[1]]
            limit = b("cluster_share", limit, **mine) if mine else limit
            sizes.append(b("mul", limit, b.const(buffer.elem.bytes, int32)))
            more = b("add", more, sizes[-1]) if more else sizes[-1]
        b.op("mbar_expect", s.full, slot, *([more] if more else []), bytes=known)
        for load, size in zip(ring.loads, sizes):
            b.loc = load.loc
            b.op("row_copy", s.buffers[load], slot, s.full, env[load.operands[0]], size, **_share(ring, load))

    def _prologue(self, ring: Ring, loop: Op, b: Builder) -> None:
        """Fill slots-1 tickets before the loop, each only if the loop gets that far."""
        lo, _, step = (self.env[v] for v in loop.operands[:3])
        found = ahead_slice(ring)
        assert found is not None
        self.state[ring, "ahead"] = tuple(self.env[e.init] for e in found.carried if e.init)
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
        """Fill the next ticket for the iteration `iv` if there is one, and carry its addresses on."""
        found = ahead_slice(ring)
        assert found is not None
        hi, body = self.env[loop.operands[1]], loop.regions[0]
        step = loop.operands[2].op
        down = isinstance(step, Op) and step.name == "const" and step.attrs["value"] < 0
        inside = b("cmp", iv, hi, pred="gt" if down else "lt")
        env = dict(self.env)
        env[body.args[0]] = iv
        env.update((e.args[0], now) for e, now in zip(found.carried, self.state[ring, "ahead"]))
        region = Block()
        inner = Builder(region, loc=loop.loc)
        for op in found.ops:
            inner.insert(clone_op(op, env))
        self._issue(ring, env, inner)
        if ring.kind == "async":
            inner.op("yield")
            nothing = Block()
            Builder(nothing, loc=loop.loc).op("yield")
            b.op("if", inside, regions=[region, nothing])
        else:
            b.op("elect", inside, regions=[region])
        before = self.state[ring.channel, "fill"]
        self._advance(ring, "fill", b)
        after = self.state[ring.channel, "fill"]
        self.state[ring.channel, "fill"] = tuple(b("select", inside, x, y) for x, y in zip(after, before))
        for op in found.steps:
            b.insert(clone_op(op, env))
        self.state[ring, "ahead"] = tuple(env[e.ends[0]] for e in found.carried)


def _share(ring: Ring, load: Op) -> dict[str, Any]:
    """Attributes of a copy of which each CTA has its own strips."""
    t = load.result.type
    if load not in ring.slices:
        return {}
    assert isinstance(t, Tile) and t.layout is not None
    size = strip_size(t.layout, ring.ctas)
    assert size is not None
    return {"strip": size, "ctas": ring.ctas}


def _converts(op: Op, load: Op) -> bool:
    """Whether an op is a change of layout of a load's tile, where the tile is."""
    return op.name == "convert" and op.parent is load.parent
