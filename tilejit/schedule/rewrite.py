"""Carries a plan out: clones the function once per role and puts the barrier protocol in.

Each role runs its own slice of the whole kernel: the producer keeps control flow, index arithmetic and
the loads; the consumers keep everything else, each load replaced by its wait. Tickets (slot, parity) are
carried through every loop and branch that contains an operation of their ring, so they run on across
outer loops and a persistent kernel never drains its rings between tiles.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from tilejit.errors import CompilationError
from tilejit.ir import Block, Builder, Function, Op, uses, walk
from tilejit.ir.dead import drop_dead
from tilejit.ir.report import Record
from tilejit.ir.types import Barrier, Tile, int32
from tilejit.schedule.channels import Channels
from tilejit.schedule.cluster_barrier import ClusterBarriers
from tilejit.schedule.exchange import Exchanges
from tilejit.schedule.plan import (
    Drain,
    Plan,
    Ring,
    StoreRing,
    check_descriptor,
    in_place,
    kind_of,
    shared_operand,
)
from tilejit.schedule.products_ahead import ProductsAhead
from tilejit.schedule.role import Shared, walk_op
from tilejit.schedule.store_role import allocate_store_rings
from tilejit.schedule.stores import is_store

#: Registers of threads that copy by cp.async: the addresses of a tile, and what it takes to move them on.
THREAD_PRODUCER = 72


def register_split(fn: Function, num_warps: int, producers: int = 4,
                   threads_produce: bool = False) -> tuple[int, int, int]:
    """(launch, producer, consumer) registers per thread for num_warps consumer warps; 0: no setmaxnreg. Consumers get
    all that can be had where a loop has several products, whose sums and operands live at once.

    The CTA's pool is launch count x warpgroups, counts are multiples of 8 (PTX ISA, setmaxnreg)."""
    consuming, filling = num_warps // 4, producers // 4
    groups = consuming + filling
    launch = min(256, 65536 // (128 * groups) // 8 * 8)
    if launch >= 255:
        return launch, 0, 0
    several = any(loop.name == "for" and sum(op.name == "dot" for op in loop.regions[0].ops) > 1
                  for loop in walk(fn.body))
    producer = THREAD_PRODUCER if threads_produce else 40 if groups <= 3 and not several else 24
    return launch, producer, min(240, (launch * groups - producer * filling) // consuming // 8 * 8)


def carry_out(fn: Function, plan: Plan) -> Function:
    """The scheduled function: allocations, then either the inline body or the roles."""
    new = Function(fn.name, [a.type for a in fn.body.args], [a.name for a in fn.body.args],
                   fn.arg_attrs, {**fn.attrs, "report": plan.report, "uncounted": True}, fn.loc)
    warps = fn.attrs["num_warps"]
    top = Builder(new.body, loc=fn.loc)
    shared: dict[Ring | StoreRing | Drain, Shared] = {}
    for ring in plan.rings:
        if ring.before is None:
            shared[ring] = _allocate_ring(top, ring, warps)
        else:
            have = shared[ring.before]
            shared[ring] = Shared(have.full, have.empty, dict(zip(ring.loads, have.buffers.values())))
    shared.update(allocate_store_rings(top, fn, plan))
    args, table = dict(zip(fn.body.args, new.body.args)), uses(fn.body)
    if plan.specialised:
        consumers = warps * plan.groups
        launch, producer_regs, consumer_regs = register_split(fn, consumers, plan.producers, plan.threads_produce)
        streams = plan.store_rings[0].streams if plan.store_rings else 0
        roles = [("consumer", consumers, plan.groups, consumer_regs),
                 ("producer", 1 if streams else plan.producers, 1, producer_regs)]
        if streams:
            roles.append(("store", streams, streams, producer_regs))
        names, counts, groups, registers = zip(*roles)
        top.op("roles", regions=[RoleWriter(fn, plan, shared, top, dict(args), table, name).run() for name in names],
               names=names, warps=counts, groups=groups, registers=registers)
        new.attrs["num_threads"] = 32 * (consumers + plan.producers)
        new.attrs["launch_registers"] = launch
        if consumer_regs:
            if fn.attrs.get("maxnreg"):
                raise CompilationError(
                    f"maxnreg={fn.attrs['maxnreg']} conflicts with the kernel's roles, which share registers out "
                    f"({producer_regs} and {consumer_regs} a thread): leave it out, or pass warp_specialize=False",
                    fn.loc)
            plan.report.append(Record("registers", f"registers: {launch} at launch, {producer_regs} producer, "
                                      f"{consumer_regs} consumers", launch=launch, producer=producer_regs,
                                      consumer=consumer_regs))
    else:
        body = RoleWriter(fn, plan, shared, top, dict(args), table, "inline").run()
        for op in body.ops:
            op.parent = new.body
        new.body.ops += body.ops
        new.attrs["num_threads"] = 32 * warps
    if any(op.name == "write_desc" for op in walk(new.body)):
        drop_dead(new)                   # each role writes the descriptors that it uses
        Builder(new.body, 0, fn.loc).op("tensor_maps")
    top.op("return")
    return new


def _allocate_ring(b: Builder, ring: Ring, warps: int) -> Shared:
    arrivals = warps // 4 if ring.release == "warpgroup" else warps
    full = b("barriers", name=f"{ring.name}.full", type=Barrier(
        ring.slots * ring.groups, 32 * warps if ring.kind == "async" else 1))
    empty = b("barriers", name=f"{ring.name}.empty", type=Barrier(
        ring.slots * ring.groups, arrivals * ring.peers))
    buffers = {}
    for i, load in enumerate(ring.loads):
        if ring.kind == "tensor":
            check_descriptor(load)
        name = load.result.name or f"{ring.name}{i}"
        buffers[load] = b("alloc", name=name, type=ring.buffer(load))
        buffers[load].name = name
    full.name, empty.name = f"{ring.name}_full", f"{ring.name}_empty"
    return Shared(full, empty, buffers)


class RoleWriter(Channels, ProductsAhead, Exchanges, ClusterBarriers):
    """Walks a function and writes one role of it: control flow, tickets, releases."""

    def run(self) -> Block:
        """The role's block."""
        block = Block()
        b = Builder(block, loc=self.fn.loc)
        zero, one = b.const(0, int32), b.const(1, int32)
        rings = {"producer": self.plan.produced, "store": []}.get(self.role, self.plan.rings)
        for ring in (r for r in rings if r.channel is r):
            if self.needed is None:
                self.state[ring, "use"] = (zero, zero)
                if any("again" in op.attrs and op.attrs["ring"] in ring.text for op in walk(self.fn.body)):
                    self.state[ring, "last"] = (zero,)
            if self.role == "producer" or self._fills(ring):
                # A fresh barrier passes a wait for parity 1: the producer's first round never blocks.
                self.state[ring, "fill"] = (zero, one)
        for exchange in self.plan.exchanges if self.needed is None else ():
            self.state[exchange, "parity"] = (zero,)
        if self.plan.ping_pong and self.role == "consumer":
            # The first group's first wait is for the phase before the first, which a fresh barrier has completed.
            group = b("group_index")
            first = b("cmp", group, zero, pred="eq")
            self.state[self.plan.ping_pong, "turn"] = (group, b("select", first, one, zero))
        if self.role == "producer" and self.plan.threads_produce:
            self.block(self.fn.body, b)
            b.op("async_wait")
        elif self.needed is not None:
            region = Block()
            b.op("elect", regions=[region])
            b = Builder(region, loc=self.fn.loc)
            self.first_parities(b)
            self.block(self.fn.body, b)
            if self.role == "store":
                b.op("bulk_wait")
        else:
            self.first_parities(b)
            self.block(self.fn.body, b)
            if self.stores:
                b.op("store_wait")
        return block

    def block(self, src: Block, b: Builder) -> None:
        """Clone the ops of a block."""
        for op in src.ops:
            b.loc = op.loc
            if "terminator" not in op.define.traits:
                if op.name != "for":             # those wait when everything else that they need is there
                    self._before_tickets(op, b)
                self.op(op, b)
                self._after_tickets(op, b)

    def op(self, op: Op, b: Builder) -> None:
        """Clone one op, or put the protocol in its place."""
        if op in self.issued:        # written already, an iteration ahead
            return
        if op.define.carries:
            if self.needed is None or self._keeps_control(op):
                getattr(self, f"_{op.name}")(op, b)
        elif self.role == "store" and (is_store(op) or self.plan.drain and op in self.plan.drain.ops):
            if is_store(op):
                self.put_pieces(op, b)
            else:
                self.drain(b)
        elif kind_of(op):
            if self.role != "store":
                self._load(op, b)
        elif self.needed is not None:
            if not self.needed.isdisjoint(op.results) and not self._is_read_from_slot(op):
                if op.name == "write_desc" and self.role == "producer":
                    self._await_copies(op, b)
                self._clone(op, b)
        elif not self._is_read_from_slot(op) and op not in self.piecewise:
            other = self._atomic if "atomic" in op.define.traits else self._store if is_store(op) else self._clone
            self.writers.get(op.name, other)(op, b)

    @cached_property
    def writers(self) -> dict[str, Callable[[Op, Builder], None]]:
        """What writes ops that are not just cloned, by name."""
        return {"dot": self._dot, "promote_reuse": self._promote_reuse, "cluster_sum": self._exchange,
                "reduce": self._reduce, "debug_barrier": self._debug_barrier}

    def _is_read_from_slot(self, op: Op) -> bool:
        """Whether an op changes a tile that is read from its slot: in the layout that is asked for, or by products."""
        if op.name == "convert" and op.result in self.env:
            return True
        if self.needed is not None or op.name not in ("trans", "convert"):
            return False
        t = op.result.type
        return isinstance(t, Tile) and t.layout is None or \
            shared_operand(op.result) is not None and in_place(op.result, self.uses)

    def _keeps_control(self, op: Op) -> bool:
        assert self.needed is not None
        if any(r in self.needed for r in op.results):
            return True
        inside, plan = walk_op(op), self.plan
        if self.role == "store" and plan.drain and any(x in plan.drain.ops for x in inside):
            return True
        work = plan.store_rings if self.role == "store" else plan.produced
        return any(x in ring.ops for ring in work for x in inside)

    def _for(self, op: Op, b: Builder) -> None:
        turns = self.plan.ping_pong
        if turns and op is turns.loop and self.role == "consumer":
            self._turns(op, b)
            return
        if op in self.plan.products_ahead and self.needed is None:
            self._before_tickets(op, b)
            self._for_ahead(op, b)
            self._after_tickets(op, b)
            return
        body = op.regions[0]
        chain = self.plan.chains.get(op, {}) if self.needed is None else {}
        ahead = [r for r in self.plan.rings if r.ahead and r.loop is op and self._fills(r)]
        for ring in ahead:
            self._prologue(ring, op, b)
        keys = self._keys(op)
        kept = self._kept(op)
        inits = [self.env[v] for e in kept if (v := e.init)]
        for at, e in enumerate(kept):
            if e.index in chain.values():
                inits[at] = b("pend", inits[at])
                inits[at].name = e.init.name if e.init else ""
        region = Block([body.args[0].type, *(v.type for v in inits),
                        *(v.type for v in self._state(keys))],
                       [body.args[0].name, *(e.args[0].name for e in kept),
                        *("" for _ in self._state(keys))])
        self.env[body.args[0]] = region.args[0]
        for e, arg in zip(kept, region.args[1:]):
            self.env[e.args[0]] = arg
        bounds = self.my_turns(op, b) if turns and op is turns.loop and self.role == "store" else \
            [self.env[v] for v in op.operands[:3]]
        starts = self._state(keys)
        self._set_state(keys, region.args[1 + len(kept):])
        inner = Builder(region, loc=op.loc)
        self.block(body, inner)
        for ring in ahead:
            self._issue_ahead(ring, op, inner)
        inner.op("yield", *(self.env[e.ends[0]] for e in kept), *self._state(keys))
        self._before_tickets(op, b)
        loop = b.op("for", *bounds, *inits, *starts, regions=[region], **op.attrs)
        results = loop.results
        self._set_state(keys, results[len(kept):])
        self._after_tickets(op, b)
        for e, res in zip(kept, results):
            res.name = e.result.name
            self.env[e.result] = res
        if chain:
            accs = [op.results[index] for index in chain.values()]
            for old, tile in zip(accs, b.op("dot_wait", *(self.env[v] for v in accs)).results):
                tile.name = old.name
                self.env[old] = tile
        for ring in ahead:
            del self.state[ring, "ahead"]

    def _turns(self, op: Op, b: Builder) -> None:
        """A loop whose iterations the role's groups take in turn; in the others' a group only moves its tickets on.

        A group waits for its turn until the group before has had all of its tickets: a parity tells the phase of a
        barrier from the next one only, so nobody may wait for a phase before the one before has begun."""
        body, groups, turns = op.regions[0], self.plan.groups, self.plan.ping_pong
        assert turns is not None
        keys = self._keys(op)
        starts = self._state(keys)
        barrier = self.top("barriers", name="turn", type=Barrier(groups, self.fn.attrs["num_warps"]))
        barrier.name = "turn"
        group = b("group_index")
        after = b("select", b("cmp", group, b.const(groups - 1, int32), pred="eq"), b.const(0, int32),
                  b("add", group, b.const(1, int32)))
        region = Block([body.args[0].type, int32, int32, *(v.type for v in starts)],
                       [body.args[0].name, "left", "turn_parity", *("" for _ in starts)])
        self.env[body.args[0]], left, phase, *tickets = region.args
        inner = Builder(region, loc=op.loc)
        mine = inner("cmp", left, inner.const(0, int32), pred="eq")
        mine.name = "mine"
        work, skip = Block(), Block()
        self._set_state(keys, tickets)
        worker = Builder(work, loc=op.loc)
        shared = {load for ring in self.plan.produced for load in ring.loads}
        loads = [x for x in body.ops if x in shared or shared.intersection(walk_op(x))]
        self.turn_begins[loads[0]] = lambda at: at.op("mbar_wait", barrier, group, phase)
        self.turn_over[loads[-1]] = lambda at: at.op("mbar_arrive", barrier, after, per="warp", ctas=1)
        self.block(body, worker)
        worker.op("yield", *self._state(keys))
        self._set_state(keys, tickets)
        skipper = Builder(skip, loc=op.loc)
        for ring, kind in keys:
            if not isinstance(ring, Ring) or ring.local:     # each group has its own
                continue
            count = self._tickets(ring, op, skipper)
            self.state[ring, kind] = tuple(
                skipper.op("ticket_skip", *self.state[ring, kind], count, slots=ring.slots, ring=ring.name).results)
        skipper.op("yield", *self._state(keys))
        moved = inner.op("if", mine, regions=[work, skip]).results
        one = inner.const(1, int32)
        inner.op("yield", inner("select", mine, inner.const(groups - 1, int32), inner("sub", left, one)),
                 inner("select", mine, inner("sub", one, phase), phase), *moved)
        loop = b.op("for", *(self.env[v] for v in op.operands), *self.state[turns, "turn"], *starts, regions=[region],
                    **op.attrs)
        self._set_state([(turns, "turn"), *keys], loop.results)

    def _before_tickets(self, op: Op, b: Builder) -> None:
        """If an op takes the first tickets of a turn: wait for the turn."""
        if op in self.turn_begins:
            self.turn_begins.pop(op)(b)

    def _after_tickets(self, op: Op, b: Builder) -> None:
        """If an op took the last tickets of a turn: let the next group begin."""
        if op in self.turn_over:
            self.turn_over.pop(op)(b)

    def _while(self, op: Op, b: Builder) -> None:
        keys, kept = self._keys(op), self._kept(op)
        inits = [self.env[v] for e in kept if (v := e.init)]
        starts = self._state(keys)
        types = [v.type for v in inits + starts]
        regions = []
        for which, src in enumerate(op.regions):
            region = Block(types, [e.args[which].name for e in kept] + [""] * len(starts))
            for e, arg in zip(kept, region.args):
                self.env[e.args[which]] = arg
            self._set_state(keys, region.args[len(kept):])
            inner = Builder(region, loc=op.loc)
            self.block(src, inner)
            end = src.terminator
            handed = [*end.operands[:end.define.fixed], *(e.ends[which] for e in kept)]
            inner.op(end.name, *(self.env[v] for v in handed), *self._state(keys))
            regions.append(region)
        new = b.op("while", *inits, *starts, regions=regions, **op.attrs)
        self._set_state(keys, new.results[len(kept):])
        for e, res in zip(kept, new.results):
            self.env[e.result] = res

    def _if(self, op: Op, b: Builder) -> None:
        keys, kept = self._keys(op), self._kept(op)
        before = {key: self.state[key] for key in keys}
        regions = []
        for which, src in enumerate(op.regions):
            for key in keys:
                self.state[key] = before[key]
            region = Block()
            inner = Builder(region, loc=op.loc)
            self.block(src, inner)
            inner.op("yield", *(self.env[e.ends[which]] for e in kept), *self._state(keys))
            regions.append(region)
        new = b.op("if", self.env[op.operands[0]], regions=regions, **op.attrs)
        self._set_state(keys, new.results[len(kept):])
        for e, res in zip(kept, new.results):
            self.env[e.result] = res
