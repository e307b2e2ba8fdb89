"""Ops that scheduling adds: rings of buffers, mbarriers, asynchronous copies and products, roles."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir.core import Op, Value
from tilejit.ir.table import op
from tilejit.ir.types import Buffer, Pending, Tile, Type, int1, int32


@op("alloc", attrs="name type offset? private?", effects="sync", traits="scheduled")
def alloc(o: Op) -> list[Type]:
    """A ring of shared-memory tiles at `offset` (bytes). `private`: one for every group of warps of its role."""
    return [o.attrs["type"]]


@op("barriers", attrs="name type offset?", effects="sync", traits="scheduled")
def barriers(o: Op) -> list[Type]:
    """A ring of mbarriers at `offset` (bytes), initialised before the roles start."""
    return [o.attrs["type"]]


@op("tensor_maps", attrs="offset?", effects="sync", traits="scheduled")
def tensor_maps(o: Op) -> None:
    """Before the roles start each CTA takes memory for the tensor maps that it writes (`write_desc`), freed at its end;
    its address is at `offset` (bytes) of shared memory.
    """


@op("reuse", "buffers*", effects="sync", traits="scheduled")
def reuse(o: Op) -> None:
    """The author's word that nothing needs these buffers any more: the allocator may separate here."""


@op("fill", "buffers*", "ring ahead? prompt? role?", effects="read shared_write sync",
    traits="scheduled structural own_buffer", regions="copies")
def fill(o: Op) -> None:
    """Copy the tiles that the region loads and yields into the next slot of a ring, one for each of its buffers."""


@op("await", "buffers*", "ring again?", effects="sync", traits="scheduled own_buffer")
def await_(o: Op) -> list[Type]:
    """Wait for the ring's oldest filled slot: a view of each of its buffers. Replaced by `split`. With `again` nothing
    is waited for: the slot awaited last but so many, by another name.
    """
    return [view_type(v.type) for v in o.operands]


@op("peek", "", "ring", effects="sync", traits="scheduled")
def peek(o: Op) -> None:
    """Look whether the next slot of a ring is full, so that its `await` need not. Replaced by `split`."""


@op("ticket_next", "slot parity", "slots ring?", traits="scheduled")
def ticket_next(o: Op) -> list[Type]:
    """The next ticket: the parity flips when the slot wraps."""
    return [int32, int32]


@op("ticket_skip", "slot parity count", "slots ring?", traits="scheduled")
def ticket_skip(o: Op) -> list[Type]:
    """The ticket after `count` more, which other consumers take."""
    return [int32, int32]


@op("group_index", "", traits="scheduled")
def group_index(o: Op) -> list[Type]:
    """A thread's group of warps in its role: 0, 1, ... (see `roles`)."""
    return [int32]


@op("warpgroup_index", "", traits="scheduled")
def warpgroup_index(o: Op) -> list[Type]:
    """A thread's warpgroup in its role (in this CTA): 0, 1, ..."""
    return [int32]


@op("mbar_test", "barrier slot parity", effects="sync", traits="scheduled")
def mbar_test(o: Op) -> list[Type]:
    """Whether the phase of barrier[slot] with this parity is still to complete; does not wait."""
    return [int1]


@op("mbar_wait", "barrier slot parity pred?", effects="sync", traits="scheduled")
def mbar_wait(o: Op) -> None:
    """Wait until the phase of the given parity of barrier[slot] has completed."""


@op("mbar_landed", "barrier slot parity", effects="sync", traits="scheduled")
def mbar_landed(o: Op) -> None:
    """Wait until all copies started into a ring have landed: `barrier` is its `full`, slot and parity the next ticket
    to fill.
    """


@op("mbar_arrive", "barrier slot pred?", "per ctas", effects="sync", traits="scheduled")
def mbar_arrive(o: Op) -> None:
    """One arrival on barrier[slot] `per` thread, warp or warpgroup of the role; with several `ctas` on that barrier of
    every CTA of the cluster.
    """


@op("mbar_expect", "barrier slot more?", "bytes", effects="sync", traits="scheduled")
def mbar_expect(o: Op) -> None:
    """Arrive on barrier[slot] and announce `bytes` (and `more`) of asynchronous copies."""


@op("tma_load", "buffer slot barrier desc offsets*", "slice? multicast? evict?",
    effects="read shared_write sync", traits="scheduled fills own_buffer tensor_map")
def tma_load(o: Op) -> None:
    """Copy the block at offsets into buffer[slot], completing its bytes on barrier[slot]."""


@op("cluster_share", "limit", "strip ctas", traits="scheduled")
def cluster_share(o: Op) -> list[Type]:
    """How many of the first `limit` elements of a row are this CTA's, where the CTAs take strips in turn."""
    return [int32]


@op("row_copy", "buffer slot barrier base size", "strip? ctas? unaligned? evict? fill?",
    effects="read shared_write sync", traits="scheduled fills own_buffer")
def row_copy(o: Op) -> None:
    """Copy `size` bytes (a multiple of 16, as base is) from base to buffer[slot], completing on barrier[slot]; nothing
    for size 0."""


@op("row_put", "view base limit", effects="shared_read write sync", traits="scheduled generic own_buffer")
def row_put(o: Op) -> None:
    """Store the first `limit` elements of an unaligned row (`row_view`) from base on; all threads of the role meet
    first. It may be under way until the kernel ends.
    """


@op("async_copy", "buffer slot ptr mask?", "vec cache? evict?", effects="read shared_write",
    traits="scheduled fills cp_async generic own_buffer")
def async_copy(o: Op) -> None:
    """Start copying the tile at ptr into buffer[slot], `vec` elements an access (4, 8 or 16 bytes), by all threads of
    the role (cp.async); zeros where mask is false.
    """


@op("async_arrive", "barrier slot", effects="sync", traits="scheduled")
def async_arrive(o: Op) -> None:
    """Every thread of the role arrives on barrier[slot] once its earlier `async_copy`s have landed."""


@op("async_wait", "", effects="sync", traits="scheduled")
def async_wait(o: Op) -> None:
    """Every thread of the role waits until its `async_copy`s have landed."""


@op("view", "buffer slot", traits="scheduled own_buffer")
def view(o: Op) -> list[Type]:
    """One slot of a ring, to read: its address and matrix descriptors are computed here, ahead of the wait."""
    return [view_type(o.operands[0].type)]


def view_type(b: Type) -> Buffer:
    assert isinstance(b, Buffer)
    return Buffer(b.shape, b.elem, 0, b.swizzle, b.order)


@op("view_trans", "view", "order", traits="scheduled own_buffer")
def view_trans(o: Op) -> list[Type]:
    """The same bytes: dimension i is dimension order[i] of the view."""
    b, order = o.operands[0].type, o.attrs["order"]
    assert isinstance(b, Buffer)
    return [Buffer(tuple(b.shape[i] for i in order), b.elem, b.slots, b.swizzle,
                   tuple(order.index(d) for d in b.order))]


@op("row_view", "view base", traits="scheduled own_buffer")
def row_view(o: Op) -> list[Type]:
    """A slot with an unaligned row, from the first element on."""
    return [o.operands[0].type]


@op("row_shift", "view", "unit", traits="scheduled own_buffer")
def row_shift(o: Op) -> list[Type]:
    """How many elements, 16 bytes at most, an unaligned row (`row_view`) begins behind a multiple of `unit` bytes."""
    return [int32]


@op("strip", "view i", "size ctas? below?", traits="scheduled own_buffer")
def strip(o: Op) -> list[Type]:
    """The i-th part of `size` elements of a row in shared memory; if `ctas` CTAs divide it, of this one's part. Parts
    of an unaligned row begin, with `below`, at the multiple of so many bytes in which its first element lies.
    """
    b = o.operands[0].buffer
    return [Buffer((o.attrs["size"] // o.attrs.get("ctas", 1),), b.elem, b.slots, b.swizzle, b.order)]


@op("local_load", "view limit?", "type at? fill?", effects="shared_read", traits="scheduled generic own_buffer")
def local_load(o: Op) -> list[Type]:
    """A slot's elements in registers, in the result's layout; with `at` the part that starts there. Elements of a row
    from `limit` on, which ends 16 bytes, are `fill`, or zero, and not read.
    """
    return [o.attrs["type"]]


@op("part", "x", "axis start type", traits="scheduled registers")
def part(o: Op) -> list[Type]:
    """A part of a tile, from `start` along a dimension: some of its registers."""
    return [o.attrs["type"]]


@op("local_store", "view value limit?", "ring?", effects="shared_write", traits="scheduled own_buffer readies")
def local_store(o: Op) -> None:
    """Write a tile into a slot (generic proxy), but no 16 bytes behind element `limit` of a row."""


@op("launch_wait", effects="sync", traits="scheduled")
def launch_wait(o: Op) -> None:
    """Wait until the kernel ahead in the stream has ended and its writes are visible (griddepcontrol.wait)."""


@op("fence_async", "", "space?", effects="sync", traits="scheduled readies")
def fence_async(o: Op) -> None:
    """Order this thread's accesses of shared (or, with space="global", global) memory before later async ones."""


@op("role_sync", "", effects="sync", traits="scheduled barrier readies")
def role_sync(o: Op) -> None:
    """A barrier of all threads of the role."""


@op("order_begin", "", "groups", effects="sync", traits="scheduled")
def order_begin(o: Op) -> None:
    """The last of the role's `groups` warpgroups arrives for the first one; once, before all `order_wait`s."""


@op("order_end", "", "groups", effects="sync", traits="scheduled")
def order_end(o: Op) -> None:
    """The first of the role's `groups` warpgroups waits for the last one's last arrival; once, behind all
    `order_arrive`s.
    """


@op("order_wait", "", "groups", effects="sync", traits="scheduled")
def order_wait(o: Op) -> None:
    """A warpgroup waits for the one before it (ping-pong). All of them wait equally often."""


@op("order_arrive", "", "groups", effects="sync", traits="scheduled")
def order_arrive(o: Op) -> None:
    """A warpgroup lets the next one go on."""


@op("order_stay", "", "", effects="sync", traits="scheduled")
def order_stay(o: Op) -> None:
    """A place in a loop that the assembler moves nothing past."""


@op("tma_store", "desc value buffer offsets*", "size axis stripes slice? kind? now? role?",
    effects="write shared_write sync",
    traits="scheduled own_buffer pieces tensor_map")
def tma_store(o: Op) -> None:
    """Stage pieces of a tile, `size` elements along an axis each, through buffer's slots in turn and store each by TMA.
    """


@op("stage", "buffer value full empty stream parity", "size axis stripes", effects="shared_write sync",
    traits="scheduled pieces")
def stage(o: Op) -> None:
    """Write pieces of a tile, as `tma_store`, into buffer's slots in turn (generic proxy), for another role to store.
    """


@op("tma_put", "desc buffer slot offsets*", "piece size axis stripes slice? kind?",
    effects="write shared_read sync", traits="scheduled tensor_map")
def tma_put(o: Op) -> None:
    """One thread starts the store of buffer[slot], the piece with that number, as a bulk group of its own.

    With several `stripes` it stores its group's. `slice`, `kind`: see `tma_store`.
    """


@op("bulk_wait", "", "read?", effects="sync", traits="scheduled")
def bulk_wait(o: Op) -> None:
    """Wait until this thread's bulk groups have been read from shared memory (`read`), or are complete."""


@op("store_wait", "", "read?", effects="sync", traits="scheduled")
def store_wait(o: Op) -> None:
    """Wait until all TMA stores of this role are complete: read from shared memory, and written.

    With `read` only the threads that stored wait, and only for the reads.
    """


@op("cluster_fold", "values* buffer full free parity", "ctas", effects="sync",
    traits="scheduled structural cluster_phase", regions="fold")
def cluster_fold(o: Op) -> list[Type]:
    """Fold what each CTA has of every value with the region (2n scalars in, n out), in the order of the CTAs: the end
    of a `reduce` whose axis they divide. Every CTA gets the results.
    """
    return [v.type for v in o.operands[:-4]]


@op("cluster_barrier", "barrier parity", "release? acquire?", effects="sync",
    traits="scheduled barrier cluster_phase")
def cluster_barrier(o: Op) -> None:
    """A barrier of all threads of the role in all CTAs."""


@op("cluster_broadcast", "value buffer full parity", "acquire?", effects="sync",
    traits="scheduled cluster_phase")
def cluster_broadcast(o: Op) -> list[Type]:
    """The number that the first thread of the first CTA has, for all threads of the role in all CTAs, which have waited
    since the last one. `acquire`: see `cluster_barrier`.
    """
    return [o.operands[0].type]


@op("pend", "acc", traits="scheduled readies")
def pend(o: Op) -> list[Type]:
    """Hand an accumulator to the tensor cores: the start of a chain of `dot_async`."""
    t = o.operands[0].tile
    return [Pending(t)]


@op("dot_async", "a b acc", "precision? begin? depth? k? zero?", effects="shared_read sync",
    traits="scheduled own_buffer takes_pending")
def dot_async(o: Op) -> list[Type]:
    """Issue acc += a @ b (views [M,K] and [K,N], or a in registers) as one wgmma group and commit it.

    `zero`: acc is written, not read. `k`: the rows of b that a's columns meet begin there.
    """
    a, b, acc = (v.type for v in o.operands)
    assert isinstance(a, (Buffer, Tile)) and isinstance(b, Buffer)
    if not isinstance(acc, Pending):
        raise CompilationError(f"dot_async: expected a pending accumulator, found {acc}", o.loc)
    return [acc]


@op("dot_mma", "a b acc", "precision? begin? depth?", effects="shared_read", traits="scheduled generic own_buffer")
def dot_mma(o: Op) -> list[Type]:
    """acc + a @ b by mma.sync; a and b are tiles in its layouts, or views of slots."""
    for v in o.operands[:2]:
        assert isinstance(v.type, (Buffer, Tile))
    return [o.operands[2].type]


@op("dot_wait", "accs*", "pending?", effects="sync", traits="scheduled takes_pending")
def dot_wait(o: Op) -> list[Type]:
    """Wait until at most `pending` later wgmma groups are in flight: then these accumulators are tiles.
    `schedule/sink_waits.py` counts them.
    """
    return [_pending(o, v).tile for v in o.operands]


@op("dot_fence", "accs*", "pending?", effects="sync", traits="scheduled takes_pending")
def dot_fence(o: Op) -> list[Type]:
    """Wait until at most `pending` wgmma groups are in flight; these accumulators stay pending."""
    return [_pending(o, v) for v in o.operands]


def _pending(o: Op, v: Value) -> Pending:
    if not isinstance(v.type, Pending):
        raise CompilationError(f"{o.name}: expected a pending accumulator, found {v.type}", o.loc)
    return v.type


@op("elect", "pred?", effects="sync", traits="scheduled structural", regions="warps")
def elect(o: Op) -> None:
    """Run the region in one elected thread of the role's first warp."""


@op("roles", "", "names warps groups registers private_bytes?", effects="sync control", traits="scheduled structural",
    regions="warps")
def roles(o: Op) -> None:
    """One region per role, each run by its own warps, in order of warp index; ends the kernel's body."""
