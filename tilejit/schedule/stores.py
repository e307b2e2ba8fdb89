"""TMA stores are staged: in pieces, through a ring of shared-memory tiles, each warpgroup its own stripe."""
from __future__ import annotations

from typing import Any

from tilejit.errors import ClusterError
from tilejit.ir import Builder, Function, Op, Value, beside, erase, listed
from tilejit.ir.types import Buffer, DType, Tile
from tilejit.layout.clusters import Cuts, alone, divided
from tilejit.layout.staging import splits_by_registers, stripes_of, turned
from tilejit.records import dataclass
from tilejit.schedule.buffers import alloc, barriers, top_of

#: Staging tiles of a store where the author leaves it open: one is written while another is stored.
STORE_STAGES = 2
#: Bytes of a row of a piece, at most: what TMA swizzles, and a line of L2.
LINE = 128


def is_store(op: Op) -> bool:
    return "tma" in op.define.traits and "write" in op.define.effects


@dataclass(frozen=True)
class Staging:
    """How a store is staged in one CTA: pieces of `size` elements along `axis`, through a `buffer`."""

    size: int
    axis: int
    slots: int
    stripes: int
    buffer: Buffer
    cuts: Cuts

    @property
    def attrs(self) -> dict[str, Any]:
        cut = {"slice": self.cuts} if self.cuts else {}
        return {"size": self.size, "axis": self.axis, "stripes": self.stripes, **cut}


def staging_of(op: Op, t: Tile, fn: Function, in_rounds: bool = False) -> Staging:
    """in_rounds: every store goes through all slots a whole number of times."""
    desc = op.operands[0].desc
    assert isinstance(t.elem, DType) and t.layout is not None
    ctas, shape, layout, cuts = fn.attrs.get("num_ctas", 1), t.shape, t.layout, Cuts()
    merged = desc.ahead_of(len(shape)) is None  # some of its rows would be no block
    if ctas > 1:
        cuts = divided(t.layout, ctas)
        if not cuts or merged:
            raise ClusterError(f"num_ctas={ctas}: what is stored is not divided along one dimension", op.loc)
        layout = alone(t.layout, cuts, ctas)
        shape = layout.shape
    axis = 0 if turned(layout) and not merged else len(shape) - 1
    size, stripes = min(shape[axis] & -shape[axis], LINE // t.elem.bytes), 1
    if not splits_by_registers(layout, size, axis):
        axis, size = len(shape) - 1, shape[-1]
    elif len(shape) == 2 and not merged:
        stripes = stripes_of(layout, 1 - axis, shape[1 - axis], fn.attrs["num_warps"])
    pieces = shape[axis] // size
    slots = min(pieces, fn.attrs.get("store_stages") or fn.attrs.get("staging", STORE_STAGES))
    while in_rounds and pieces % slots:
        slots -= 1
    piece = [size if d == axis else n for d, n in enumerate(shape)]
    if stripes > 1:
        piece[1 - axis] //= stripes
    buffer = Buffer.of(Tile(tuple(piece), t.elem), slots * stripes, tuple(reversed(range(len(shape)))))
    return Staging(size, axis, slots, stripes, buffer, cuts)


def stage_stores(fn: Function) -> Function:
    """Write stores through their staging, in place; those of equal pieces share it, each waits for its slots."""
    stores = [op for op in listed(fn.body) if is_store(op)]
    if not stores:
        return fn
    top, buffers, found = top_of(fn), dict[tuple[Buffer, int], Value](), dict[Op, Staging]()
    for op in sorted(stores, key=lambda op: "channel" not in op.attrs):  # those of a store role first
        t = op.operands[1].tile
        found[op] = s = staging_of(op, t, fn, in_rounds="channel" in op.attrs)
        cut, other = ("columns", "rows") if s.axis == len(s.buffer.shape) - 1 else ("rows", "columns")
        size = s.stripes * s.buffer.slot_bytes
        fn.say("store", f"store at {op.place}: TMA, staged {s.size} {cut} at a time in {s.slots} x {size} bytes"
               + (f", every warpgroup its own {other}" if s.stripes > 1 else ""), op.place, size=s.size, slots=s.slots,
               bytes=size, stripes=s.stripes)
        if (s.buffer, s.stripes) in buffers:
            continue
        name = op.attrs.get("channel") or f"{op.operands[0].name or 'store'}_stage"
        if "channel" in op.attrs:
            streams = fn.attrs["groups"] * s.stripes
            barriers(top, f"{name}.full", s.slots * streams, fn.attrs["num_warps"] // s.stripes)
            barriers(top, f"{name}.empty", s.slots * streams, 1)
        buffers[s.buffer, s.stripes] = alloc(top, name, s.buffer, private=True)
    for op, s in found.items():
        desc, value, *offsets = op.operands
        attrs = {**s.attrs, **{k: v for k, v in op.attrs.items() if k != "channel"}}
        if "role" not in attrs and fn.attrs.get("store_stages") == 1:
            attrs["now"] = True
        beside(op).op("tma_store", desc, value, buffers[s.buffer, s.stripes], *offsets, **attrs)
    erase(set(stores), fn.body)
    Builder(fn.body, len(fn.body.ops) - 1, fn.body.terminator.loc).op("store_wait")
    return fn
