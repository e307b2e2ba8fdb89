"""What writing one role keeps track of: values, tickets of its rings, slots in use, products in flight."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tilejit.ir import Block, Builder, Edge, Function, Op, Value, clone_op, edges, walk
from tilejit.ir.types import Buffer, int32
from tilejit.schedule.plan import Drain, Exchange, PingPong, Plan, Ring, StoreRing, needed_by_producer, needed_by_stores
from tilejit.schedule.stores import is_store

#: What a ticket belongs to, and its kind.
Key = tuple[Union[Ring, Exchange, StoreRing, Drain, PingPong], str]
#: Names of a ticket's values, where they are not a slot and its parity.
_NAMES: dict[str, tuple[str, ...]] = {"ahead": (), "parity": ("parity",), "turn": ("left", "parity"), "last": ("last",)}


@dataclass(eq=False)
class Shared:
    """The values that stand for one ring: its barriers and one buffer per load (or store)."""

    full: Value
    empty: Value
    buffers: dict[Op, Value]


class RoleState:
    """The state of one role's writer. `env` maps old values to new ones; `state` holds tickets by (ring, kind).

    kinds: "use" (consumer's ticket), "fill" (producer's), "ahead" (what the loop carries for addresses, in the
    iteration of the fill ticket), "last" (the slot of the last load, where one is read again), "parity" (of an
    exchange's first round, of a store's first slots, of a drain), "turn" (iterations left until the group's own, and
    the parity of its barrier).
    `needed`: what a role that is a slice computes, None if it does the rest; `uses`: those of the function's values."""

    def __init__(self, fn: Function, plan: Plan, shared: dict[Ring | StoreRing | Drain, Shared], top: Builder,
                 env: dict[Value, Value], uses: dict[Value, list[tuple[Op, int]]], role: str):
        self.fn, self.plan, self.shared, self.top, self.env, self.role = fn, plan, shared, top, env, role
        self.uses = uses
        self.needed = {"producer": needed_by_producer, "store": needed_by_stores}[role](plan) \
            if role in ("producer", "store") else None
        self.state: dict[Key, tuple[Value, ...]] = {}
        self.parity: dict[StoreRing, Value] = {}     # of the first stores
        self.other: dict[Value, Value] = {}       # a parity -> the one that it was made from, its opposite
        self.views: dict[Op, Value] = {}          # load -> the slot that holds it now
        self.earlier: dict[Ring, Value] = {}      # ring -> the slot of its last load but one, in this block
        self.tested: dict[Ring, Value] = {}       # ring -> whether the next slot was still being filled, if looked at
        self.piecewise = {op for pieces in plan.pieces.values() for op in pieces.ops}    # made where they are needed
        self.issued: set[Op] = set()                 # products that were issued an iteration ahead, and their loads
        self.turn_begins: dict[Op, Callable[[Builder], object]] = {}     # what waits for a turn, before which op
        self.turn_over: dict[Op, Callable[[Builder], object]] = {}       # what ends a turn, after which op
        self.through: dict[Op, list[Value]] = {}  # product -> buffers of operands that go through registers
        self.staged: dict[tuple[Value, int], tuple[Block, Value]] = {}       # operands that did: where, and the buffer
        self.staging: dict[tuple[Buffer, int], Value] = {}       # pieces and stripes of stores -> their ring
        self.gathered: dict[str, Value] = {}      # where the CTAs of a cluster meet, by name
        self.stores = self.needed is None and not plan.store_rings and any(is_store(op) for op in walk(fn.body))

    def block(self, src: Block, b: Builder) -> None:
        """Write what a block does in this role: `rewrite.RoleWriter` does, which puts a writer's parts together."""
        raise NotImplementedError

    def _load(self, op: Op, b: Builder) -> None:
        """Fill or await a ring's ticket: `channels.Channels` does."""
        raise NotImplementedError

    def fill_pieces(self, op: Op, b: Builder) -> None:
        """Hand a tile to the store role: `store_role.StoreRole` does."""
        raise NotImplementedError

    def _clone(self, op: Op, b: Builder) -> None:
        b.insert(clone_op(op, self.env))

    def _keys(self, op: Op) -> list[Key]:
        """The tickets that an op with regions advances."""
        inside = set(walk_op(op))
        return [key for key in self.state if any(
            x in inside for user in (key[0], *(r for r in self.plan.rings if r.channel is key[0])) for x in user.ops)]

    def _state(self, keys: list[Key]) -> list[Value]:
        return [v for key in keys for v in self.state[key]]

    def _set_state(self, keys: list[Key], values: list[Value]) -> None:
        it = iter(values)
        for key in keys:
            self.state[key] = tuple(next(it) for _ in self.state[key])
            for v, what in zip(self.state[key], _NAMES.get(key[1], ("slot", "parity"))):
                v.name = v.name or f"{key[0].name}_{what}"

    def _fills(self, ring: Ring) -> bool:
        """Whether this role issues a ring's copies, and awaits them too: the only role, or the threads that copy."""
        return self.role == "inline" or self.role == "consumer" and ring.local

    def _place(self, ring: Ring, slot: Value, b: Builder) -> Value:
        """The slot of a ticket among those of all groups of consumers."""
        if ring.groups == 1:
            return slot
        return b("add", slot, b("mul", b("group_index"), b.const(ring.slots, int32)))

    def _kept(self, op: Op) -> list[Edge]:
        """The edges of a loop or branch that this role needs."""
        return [e for e in edges(op) if self.needed is None or not self.needed.isdisjoint((*e.args, e.result))]

    def _advance(self, ring: Ring, kind: str, b: Builder) -> None:
        new = b.op("ticket_next", *self.state[ring.channel, kind], slots=ring.slots, ring=ring.channel.name).results
        self.state[ring.channel, kind] = tuple(new)


def walk_op(op: Op) -> list[Op]:
    """All ops inside the regions of an op."""
    return [x for region in op.regions for x in walk(region)]
