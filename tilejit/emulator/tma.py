from __future__ import annotations

import numpy as np

from tilejit.emulator.copies import load_op, store_op, targets
from tilejit.emulator.decode import Address, External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, lanes_of
from tilejit.emulator.tensormap import ELEMENTS, TensorMap, blank, replaced, unpack
from tilejit.emulator.tiles import TILE_ALIGN, Tile, coordinates, read_shared, reduce_values, tensor_map_at
from tilejit.emulator.vm import codes as k


@executes("cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes")
def _tensor_load(c: Cluster, s: Site, e: External) -> None:
    dst, source, barrier = e.operands[:3]
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.at(s, source, lane))
        check_rank(c, s, e, m, source)
        place = c.shared_place(s, c.at(s, dst, lane), m.shared_bytes, TILE_ALIGN)
        bar = c.shared_place(s, c.at(s, barrier, lane), 8, 8)
        mask = c.value(s.warp, e.operands[3], lane, 16) if "multicast" in e.mods else None
        tile = Tile(c, s, m, coordinates(c, s, source, lane, m, False), False)
        src = (tile.rows(), tile.row_bytes()) if c.listener is not None and not tile.empty else (np.zeros(0), 0)
        load_op(c, s, lane, "tma_load", place, bar, targets(c, s, place[0], mask), m.box_bytes, tile.load, src,
                m.swizzle, m.inner_bytes, mask is not None)


def check_rank(c: Cluster, s: Site, e: External, m: TensorMap, at: Address) -> None:
    if not int(e.mods["dim"][0]) == len(m.dims) == len(at.coords):
        raise c.stop("descriptor", f"a {len(m.dims)}-d tensor map with {len(at.coords)} coordinates in a "
                     f"{e.mods['dim']} copy", s)


@executes("cp.async.bulk.prefetch.tensor.L2.global")
def _tensor_prefetch(c: Cluster, s: Site, e: External) -> None:
    at = e.operands[0]
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.at(s, at, lane))
        check_rank(c, s, e, m, at)
        coordinates(c, s, at, lane, m, False)


@executes("cp.async.bulk.tensor.global.shared::cta.bulk_group",
          "cp.reduce.async.bulk.tensor.global.shared::cta.bulk_group")
def _tensor_store(c: Cluster, s: Site, e: External) -> None:
    target, src = e.operands[:2]
    reduction = e.mods.get("op") if e.form.name.startswith("cp.reduce") else None
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.at(s, target, lane))
        check_rank(c, s, e, m, target)
        place = c.shared_place(s, c.at(s, src, lane), m.shared_bytes, TILE_ALIGN)
        tile = Tile(c, s, m, coordinates(c, s, target, lane, m, True), True)

        def read(op: int, place: tuple[int, int] = place, m: TensorMap = m) -> np.ndarray:
            data, chunks = read_shared(c, place[0], place[1], m.box_bytes, m.swizzle, m.inner_bytes)
            if c.listener is not None:
                c.listener.async_access(op, "read", "shared", c.ctas[place[0]], chunks, 16)
            return data

        def write(op: int, data: np.ndarray, tile: Tile = tile, m: TensorMap = m) -> None:
            if tile.empty:
                return
            if c.listener is not None:
                c.listener.async_access(op, "atomic" if reduction else "write", "global", -1, tile.rows(),
                                        tile.row_bytes())
                if tile.beside:
                    c.listener.beside(op, tile.rows() + tile.row_bytes() - tile.beside, tile.beside)
            values = data.view(tile.kind).reshape(tile.box)[tile.inner]
            if reduction:
                values = reduce_values(tile.memory, values, reduction, ELEMENTS[m.dtype][1])
            tile.memory[...] = values

        store_op(c, s, lane, "tma_reduce" if reduction else "tma_store", read, write)


def _map_bytes(c: Cluster, s: Site, address: int, shared: bool) -> np.ndarray:
    if shared or address >> 56 == k.SHARED_WINDOW >> 56:
        cta, offset = c.shared_place(s, address, 128, 64)
        return c.shared[cta, offset:offset + 128]
    return c.global_bytes(s, address, 128, True)


@executes("tensormap.replace.tile.b1024")
def _replace(c: Cluster, s: Site, e: External) -> None:
    lane = lanes_of(s.mask)[0]
    at = e.operands[0]
    view = _map_bytes(c, s, c.at(s, at, lane), "shared" in e.mods.get("space", ""))
    value = c.value(s.warp, e.operands[-1], lane)
    ordinal = c.value(s.warp, e.operands[1], lane, 32) if len(e.operands) > 2 else 0
    new = replaced(unpack(view.tobytes()) if view.any() else blank(), e.mods["field"], value, ordinal)
    view[...] = np.frombuffer(new.pack(), np.uint8)
    if c.listener is not None and e.mods.get("space") == "global":
        c.listener.access(c.agent(s.warp), s.pc, "write", "global", 1 << lane,
                          np.array([c.at(s, at, lane)]), 128, s.warp // c.warps_per_cta)


@executes("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.sync.aligned")
def _cp_fenceproxy(c: Cluster, s: Site, e: External) -> None:
    lane = lanes_of(s.mask)[0]
    dst, src = e.operands[:2]
    data = _map_bytes(c, s, c.at(s, src, lane), True)
    address = c.at(s, dst, lane)
    _map_bytes(c, s, address, False)[...] = data
    if c.listener is not None:
        c.listener.access(c.agent(s.warp), s.pc, "write", "global", 1 << lane, np.array([address]), 128,
                          s.warp // c.warps_per_cta)
        c.listener.fence(c.agent(s.warp), s.pc, "proxy.tensormap", e.mods["scope"])


@executes("fence.proxy.tensormap::generic.acquire")
def _map_acquire(c: Cluster, s: Site, e: External) -> None:
    at = e.operands[0]
    for lane in lanes_of(s.mask):
        address = c.at(s, at, lane)
        if c.fetched_maps.pop((s.warp // c.warps_per_cta, address), None) is None:
            c.global_bytes(s, address, 128)  # it must be there
        if c.listener is not None:
            c.listener.map_acquire(c.agent(s.warp), s.pc, address)
