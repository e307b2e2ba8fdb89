"""The numpy meaning of scheduled ops."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilejit.ir import numeric as num
from tilejit.ir.core import Op
from tilejit.ir.ops import block, memory, scheduled
from tilejit.ir.roles import Barriers, Crew, Ring, Role, Stuck, View
from tilejit.ir.table import OpDef
from tilejit.ir.types import Buffer, Desc, DType, Tile, elem_of, shape_of


def nothing(*defines: OpDef) -> None:
    """Ops that order what is in order anyway."""
    def meaning(m: Any, o: Op, *_: Any) -> None:
        pass

    for define in defines:
        define.meaning(meaning)


def same(*defines: OpDef, last: int = 0) -> None:
    """Ops that hand on their operands (but for the `last` ones)."""
    def meaning(m: Any, o: Op, *values: Any) -> list[Any]:
        return list(values[:len(values) - last])

    for define in defines:
        define.meaning(meaning)


nothing(scheduled.peek, scheduled.reuse, scheduled.async_wait, scheduled.fence_async, scheduled.role_sync,
        scheduled.bulk_wait, scheduled.store_wait, scheduled.cluster_barrier, scheduled.order_begin,
        scheduled.order_end, scheduled.order_wait, scheduled.order_arrive, scheduled.order_stay, scheduled.tensor_maps,
        scheduled.mbar_landed, scheduled.launch_wait)
same(scheduled.pend, scheduled.dot_wait, scheduled.dot_fence)
same(scheduled.cluster_broadcast, last=3)
same(scheduled.cluster_fold, last=4)


# -- roles, barriers, tickets --
@scheduled.roles.meaning
def _roles(m: Any, o: Op) -> None:
    crew, bodies = Crew(), []

    def body(region: Any, role: Role) -> Callable[[], None]:
        machine = replace(m, env=dict(m.env), role=role)
        return lambda: machine.whole(region)

    for region, warps, groups in zip(o.regions, o.attrs["warps"], o.attrs["groups"]):
        for group in range(groups):
            bodies.append(body(region, Role(warps // groups, group, o.attrs["groups"][0] == 1, crew=crew)))
    try:
        crew.run(bodies)
    except Stuck as e:
        raise m.error(o, str(e)) from None


@scheduled.elect.meaning
def _elect(m: Any, o: Op, pred: Any = True) -> None:
    if pred:
        machine = replace(m, role=replace(m.role, elected=True))
        machine.whole(o.regions[0])


@scheduled.group_index.meaning
def _group_index(m: Any, o: Op) -> np.ndarray:
    return np.array(m.role.group, np.int32)


@scheduled.warpgroup_index.meaning
def _warpgroup_index(m: Any, o: Op) -> np.ndarray:
    return np.arange(m.role.warps // 4, dtype=np.int32)


@scheduled.ticket_next.meaning
def _ticket_next(m: Any, o: Op, slot: np.ndarray, parity: np.ndarray) -> list[np.ndarray]:
    return _ticket(slot, parity, 1, o.attrs["slots"])


@scheduled.ticket_skip.meaning
def _ticket_skip(m: Any, o: Op, slot: np.ndarray, parity: np.ndarray, count: np.ndarray) -> list[np.ndarray]:
    return _ticket(slot, parity, int(count), o.attrs["slots"])


def _ticket(slot: np.ndarray, parity: np.ndarray, count: int, slots: int) -> list[np.ndarray]:
    rounds, at = divmod(int(slot) + count, slots)
    return [np.array(at, np.int32), np.array((int(parity) + rounds) % 2, np.int32)]


@scheduled.barriers.meaning
def _barriers(m: Any, o: Op) -> list[Any]:
    t = o.attrs["type"]
    return [Barriers(o.attrs["name"], t.slots, t.count)]


@scheduled.mbar_test.meaning
def _mbar_test(m: Any, o: Op, barriers: Barriers, slot: Any, parity: Any) -> np.ndarray:
    return np.array(not barriers.over(slot, parity))


@scheduled.mbar_wait.meaning
def _mbar_wait(m: Any, o: Op, barriers: Barriers, slot: Any, parity: Any, pred: Any = True) -> None:
    if pred:
        m.wait(o, barriers, slot, parity)


@scheduled.mbar_arrive.meaning
def _mbar_arrive(m: Any, o: Op, barriers: Barriers, slot: Any, pred: Any = True) -> None:
    if pred:
        barriers.arrive(slot, m.role.arrivals(o.attrs["per"]) * o.attrs["ctas"])


@scheduled.mbar_expect.meaning
def _mbar_expect(m: Any, o: Op, barriers: Barriers, slot: Any, more: Any = 0) -> None:
    barriers.arrive(slot, 1)


@scheduled.async_arrive.meaning
def _async_arrive(m: Any, o: Op, barriers: Barriers, slot: Any) -> None:
    barriers.arrive(slot, 32 * m.role.warps)


# -- buffers and copies --
@scheduled.alloc.meaning
def _alloc(m: Any, o: Op) -> list[Any]:
    return [Ring(o.attrs["name"], o.attrs["type"].shape, bool(o.attrs.get("private")))]


def _fill(m: Any, ring: Ring, slot: Any, value: Any) -> list[Any]:
    ring.slots[m.role.key(ring, slot)] = value
    return []


def _read(m: Any, o: Op, x: Any) -> Any:
    if not isinstance(x, View):
        return x
    try:
        return x.read()
    except KeyError:
        raise m.error(o, f"slot {x.key[1]} of {x.ring.name} is read before it is filled") from None


@scheduled.tma_load.meaning
def _tma_load(m: Any, o: Op, ring: Ring, slot: Any, barriers: Barriers, desc: Any, *offsets: Any) -> list[Any]:
    t = o.operands[3].type
    assert isinstance(t, Desc)
    parts = {d: count for d, count, _ in o.attrs.get("slice", ())}
    shape = tuple(n * parts.get(d, 1) for d, n in enumerate(ring.shape))
    return _fill(m, ring, slot, memory.read_block(m, o, desc, t.elem, offsets).reshape(shape))


@scheduled.row_copy.meaning
def _row_copy(m: Any, o: Op, ring: Ring, slot: Any, barriers: Barriers, base: Any, size: Any) -> list[Any]:
    if o.attrs.get("unaligned"):
        barriers.arrive(slot, 1)
    elem = o.operands[0].buffer.elem
    index = np.arange(int(np.prod(ring.shape)) * o.attrs.get("ctas", 1), dtype=np.int64) * elem.bytes
    return _fill(m, ring, slot, m.load(o, base + index, elem, index < int(size)))


@scheduled.cluster_share.meaning
def _cluster_share(m: Any, o: Op, limit: Any) -> Any:
    return limit


@scheduled.async_copy.meaning
def _async_copy(m: Any, o: Op, ring: Ring, slot: Any, ptr: Any, mask: Any = None) -> list[Any]:
    elem = elem_of(o.operands[2].type).elem  # type: ignore[union-attr]
    return _fill(m, ring, slot, m.load(o, ptr, elem, mask))


@block.block_copy.meaning
def _block_copy(m: Any, o: Op, ring: Ring, slot: Any, base: Any, *dims: Any) -> list[Any]:
    elem: DType = elem_of(o.operands[2].type).elem  # type: ignore[union-attr, assignment]
    address, inside = block.place_block(m, o, elem, base, dims)
    return _fill(m, ring, slot, m.load(o, address, elem, inside, num.constant(0, elem)).reshape(ring.shape))


@scheduled.fill.meaning
def _fill_next(m: Any, o: Op, *rings: Ring) -> None:
    for ring, tile in zip(rings, m.region(o.regions[0], [])):
        ring.slots[0, ring.filled] = tile
        ring.filled += 1


@scheduled.await_.meaning
def _await(m: Any, o: Op, *rings: Ring) -> list[Any]:
    views, again = [], o.attrs.get("again")
    for ring in rings:
        ring.awaited += again is None
        views.append(View(ring, (0, ring.awaited - 1 - (again or 0))))
    return views


@scheduled.view.meaning
def _view(m: Any, o: Op, ring: Ring, slot: Any) -> list[Any]:
    return [View(ring, m.role.key(ring, slot))]


@scheduled.view_trans.meaning
def _view_trans(m: Any, o: Op, view: View) -> list[Any]:
    return [view.transposed(tuple(o.attrs["order"]))]


@scheduled.row_view.meaning
def _row_view(m: Any, o: Op, view: View, base: Any) -> list[Any]:
    return [view]


@scheduled.row_shift.meaning
def _row_shift(m: Any, o: Op, view: View) -> Any:
    return np.int32(0)


@scheduled.strip.meaning
def _strip(m: Any, o: Op, view: View, i: Any) -> list[Any]:
    return [view.strip(int(i), o.attrs["size"])]


@scheduled.local_load.meaning
def _local_load(m: Any, o: Op, view: View, limit: Any = None) -> Any:
    value, shape = _read(m, o, view), shape_of(o.results[0].type)
    at = o.attrs.get("at") or (0,) * len(shape)
    value = value[tuple(slice(a, a + n) for a, n in zip(at, shape))]
    return value if limit is None else np.where(at[-1] + np.arange(shape[-1]) < limit, value,
                                                    num.constant(o.attrs.get("fill", 0), elem_of(o.result.type)))


@scheduled.local_store.meaning
def _local_store(m: Any, o: Op, view: View, value: Any, limit: Any = None) -> None:
    if view.part is not None:
        view.read()[:limit] = value[:limit]
    else:
        view.ring.slots[view.key] = value if view.order is None else np.transpose(value, np.argsort(view.order))


@scheduled.row_put.meaning
def _row_put(m: Any, o: Op, view: View, base: Any, limit: Any) -> None:
    values = _read(m, o, view)[:int(limit)]
    m.store(o, base + np.arange(len(values), dtype=np.int64) * values.itemsize, values)


@scheduled.part.meaning
def _part(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    axis, start = o.attrs["axis"], o.attrs["start"]
    return np.take(x, range(start, start + shape_of(o.results[0].type)[axis]), axis)


# -- products --
def _product(m: Any, o: Op, a: Any, b: Any, acc: np.ndarray) -> np.ndarray:
    a, b = _read(m, o, a), _read(m, o, b)
    ta, t_acc, at = o.operands[0].type, elem_of(o.operands[2].type), o.attrs.get("k", 0)
    elem = ta.elem if isinstance(ta, (Tile, Buffer)) else ta
    assert isinstance(elem, DType) and isinstance(t_acc, DType)
    first = o.attrs.get("begin", 0)
    used = slice(max(0, first - at), min(a.shape[-1], first + o.attrs.get("depth", at + a.shape[-1]) - at))
    if o.attrs.get("zero"):
        acc = np.zeros_like(acc)
    return num.matmul(a[..., used], b[..., at:, :][..., used, :], acc, elem, t_acc, o.attrs.get("precision"))


scheduled.dot_async.meaning(_product)
scheduled.dot_mma.meaning(_product)


# -- stores --
@scheduled.tma_store.meaning
def _tma_store(m: Any, o: Op, desc: Any, value: np.ndarray, ring: Ring, *offsets: Any) -> list[Any]:
    return _write(m, o, desc, value, offsets)


@scheduled.stage.meaning
def _stage(m: Any, o: Op, ring: Ring, value: np.ndarray, full: Barriers, empty: Barriers, stream: Any,
           parity: Any) -> None:
    size, axis, stripes = (o.attrs[k] for k in ("size", "axis", "stripes"))
    slots = o.operands[0].buffer.slots // stripes
    for which in np.atleast_1d(stream):
        mine = np.split(value, stripes, 1 - axis)[int(which)] if stripes > 1 else value
        for i, piece in enumerate(np.split(mine, value.shape[axis] // size, axis)):
            index = int(which) * slots + i % slots
            m.wait(o, empty, index, int(parity) ^ (i // slots % 2))
            _fill(m, ring, index if stripes > 1 else i % slots, piece)
            full.arrive(index, m.role.warps // stripes)


@scheduled.tma_put.meaning
def _tma_put(m: Any, o: Op, desc: Any, ring: Ring, slot: Any, *offsets: Any) -> list[Any]:
    if m.fn.attrs.get("num_ctas", 1) > 1:
        raise m.error(o, "the store role of a cluster has no numpy meaning: pass store_role=False")
    piece = ring.slots[m.role.key(ring, slot)]
    at, first = [0] * piece.ndim, [int(x) for x in offsets]
    at[o.attrs["axis"]] = o.attrs["piece"] * o.attrs["size"]
    if o.attrs["stripes"] > 1:
        at[1 - o.attrs["axis"]] = m.role.group * piece.shape[1 - o.attrs["axis"]]
    for d, n in enumerate(reversed(at)):
        first[-1 - d] += n
    t = o.operands[0].desc
    ahead = t.ahead_of(piece.ndim)
    block = (*t.block_shape[:-1], piece.shape[-1]) if ahead is None else (*t.block_shape[:ahead], *piece.shape)
    return _write(m, o, replace(desc, block_shape=block), piece, first)


def _write(m: Any, o: Op, desc: Any, value: np.ndarray, offsets: Any) -> list[Any]:
    t = o.operands[0].desc
    address, inside = memory.block_addresses(desc, t.elem, tuple(offsets))
    value = value.reshape(address.shape)
    if "kind" in o.attrs:
        m.read_modify_write(o, t.elem, address, inside, memory.COMBINE[o.attrs["kind"]], value)
    else:
        m.store(o, address, value, inside)
    return []
