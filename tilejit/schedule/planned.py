"""The plan as text: what `asyncify` and `split` carry out, in attributes of the function's ops and its own.

    load         channel, index    the ring that it goes through, and which of that one's buffers is its own
                 buffer            slots and layout of that buffer
                 slice, strip, ..  its CTA's share of a copy by a cluster
     .. index 0  arrivals          on `empty`, for each time that a slot is given back; 0: what reads is one warp, and
                                   fills again what it has read
                 role="producer"   who fills the ring; else those who read it: so many iterations `ahead`, `prompt`
    desc_store   channel, role="store"
    for          in_flight         one round of its products stays in flight
                 dealt             groups of consumers take its iterations by turns
    dot          pieces            its first operand is made in so many
    convert      fragments         products read what it gives from shared memory
    function     groups, producers, registers (at the launch, of the producer, of a consumer): where there are roles
                 staging           tiles of a store, where the author leaves that open
                 keep_operands     what a loop does not change may stay in shared memory
"""
from __future__ import annotations

from typing import Any

from tilejit.ir import Function, Op, listed
from tilejit.ir.types import Tile
from tilejit.layout.clusters import strip_size
from tilejit.schedule.plan import Plan, Ring

#: Attributes of a load that only say how it is filled.
OF_LOADS = ("channel", "index", "buffer", "arrivals", "role", "ahead", "prompt")


def write_plan(fn: Function, plan: Plan) -> Function:
    """Write a plan of the function down, in place; returns the function."""
    for op in listed(fn.body):
        if "again" in op.attrs:
            ring = next(r for r in plan.rings if op.attrs["ring"] in r.text)
            op.attrs.update(channel=ring.channel.name, index=ring.text.index(op.attrs["ring"]))
    for ring in plan.rings:
        _write_ring(ring, fn, plan)
    for store_ring in plan.store_rings:
        for op in store_ring.stores:
            op.attrs.update(channel=store_ring.name, role="store")
    for loop in plan.chains:
        loop.attrs["in_flight"] = True
    for dot, pieces in plan.pieces.items():
        dot.attrs["pieces"] = pieces.count
    for op in plan.fragments:
        op.attrs["fragments"] = True
    if plan.ping_pong:
        plan.ping_pong.attrs["dealt"] = plan.groups
    if plan.specialised:
        fn.attrs.update(groups=plan.groups, producers=plan.producers, registers=tuple(plan.registers))
    fn.attrs.update(staging=plan.staging, keep_operands=plan.keep_operands)
    return fn


def _write_ring(ring: Ring, fn: Function, plan: Plan) -> None:
    for i, load in enumerate(ring.loads):
        load.attrs.update(channel=ring.channel.name, index=i, buffer=ring.buffer(load), **_share(ring, load))
    warps, first = fn.attrs["num_warps"], ring.loads[0].attrs
    alone = not plan.specialised and warps * ring.groups * ring.peers == 1
    first["arrivals"] = 0 if alone else (warps // 4 if ring.by_group else warps) * ring.peers
    if plan.specialised and not ring.local:
        first["role"] = "producer"
    first.update({k: v for k, v in (("ahead", ring.ahead), ("prompt", ring.prompt)) if v})


def _share(ring: Ring, load: Op) -> dict[str, Any]:
    """What a CTA of a cluster copies of a load: its slice, or its strips of a row; all of it for all of them."""
    if load not in ring.slices:
        return {"multicast": ring.ctas} if ring.ctas > 1 and ring.kind == "tensor" else {}
    if ring.kind != "row":
        return {"slice": ring.slices[load]}
    t = load.result.type
    assert isinstance(t, Tile) and t.layout is not None
    size = strip_size(t.layout, ring.ctas)
    assert size is not None
    return {"strip": size, "ctas": ring.ctas}
