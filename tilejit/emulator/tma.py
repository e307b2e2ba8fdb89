"""TMA: tensor tiles between global and shared memory, reductions, and tensor maps edited on the device.

One-dimensional bulk copies and reductions, and the asynchronous stores st.async and red.async.
"""
from __future__ import annotations

import numpy as np

from tilejit.emulator.copies import load_op, store_op, targets
from tilejit.emulator.decode import Address, External
from tilejit.emulator.machine import Cluster, Site, executes, lanes_of
from tilejit.emulator.tensormap import ELEMENTS, TensorMap, blank, replaced, unpack
from tilejit.emulator.tiles import TILE_ALIGN, Tile, coordinates, read_shared, reduce_values, tensor_map_at
from tilejit.emulator.vm import codes as k


# -- one-dimensional bulk copies --------------------------------------------------------------------------
def bulk_size(c: Cluster, s: Site, count: int) -> int:
    """Bulk copies are multiples of 16 bytes."""
    if count % 16 or count == 0:
        raise c.stop("misaligned", f"a bulk copy of {count} bytes is not a positive multiple of 16", s.pc, s.warp)
    return count


def global_place(c: Cluster, s: Site, address: int) -> int:
    """A global address of a bulk copy."""
    if address % 16:
        raise c.stop("misaligned", f"global address {address:#x} is not a multiple of 16", s.pc, s.warp)
    return address


def needs_cluster(c: Cluster, s: Site, e: External) -> None:
    """Hopper executes asynchronous operations on distributed shared memory only in a launch with clusters, and else
    stops with an illegal instruction, whichever CTA they address (measured on an H200)."""
    if not c.launch.explicit_cluster:
        raise c.stop("no-cluster", f"{e.form.name.split('.mbarrier')[0]} in a launch without clusters", s.pc, s.warp)


@executes("cp.async.bulk.global.mbarrier::complete_tx::bytes")
def _bulk_load(c: Cluster, s: Site, e: External) -> None:
    dst, src, size, barrier = e.operands[:4]
    for lane in lanes_of(s.mask):
        count = bulk_size(c, s, c.value(s.warp, size, lane, 32))
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, count, 16, s.pc)
        bar = c.shared_place(s.warp, c.value(s.warp, barrier.base, lane) + barrier.offset, 8, 8, s.pc)
        address = global_place(c, s, c.value(s.warp, src.base, lane) + src.offset)
        data = c.global_bytes(address, count, s.pc, s.warp)
        mask = c.value(s.warp, e.operands[4], lane, 16) if "multicast" in e.mods else None
        load_op(c, s, lane, "bulk_load", place, bar, targets(c, s, place[0], mask), count, data.copy,
                (np.array([address]), count), multicast=mask is not None)


@executes("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
          "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
def _bulk_shared(c: Cluster, s: Site, e: External) -> None:
    needs_cluster(c, s, e)
    dst, src, size, barrier = e.operands[:4]
    for lane in lanes_of(s.mask):
        count = bulk_size(c, s, c.value(s.warp, size, lane, 32))
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, count, 16, s.pc)
        bar = c.shared_place(s.warp, c.value(s.warp, barrier.base, lane) + barrier.offset, 8, 8, s.pc)
        cta, offset = c.shared_place(s.warp, c.value(s.warp, src.base, lane) + src.offset, count, 16, s.pc)

        def fetch(cta: int = cta, offset: int = offset, count: int = count,
                  place: tuple[int, int] = place) -> np.ndarray:
            new = c.shared[cta, offset:offset + count].copy()
            if "op" not in e.mods:
                return new
            kind = _numpy_name(e.mods["type"])
            bits = np.dtype(f"uint{8 * np.dtype(kind).itemsize}")
            old = c.shared[place[0], place[1]:place[1] + count]
            return reduce_values(old.view(bits), new.view(bits), e.mods["op"], kind).view(np.uint8)

        load_op(c, s, lane, "bulk_smem", place, bar, [place[0]], count, fetch, (np.array([offset]), count),
                source_cta=cta, reduces="op" in e.mods)


def _numpy_name(kind: str) -> str:
    """The numpy name of a PTX type."""
    return {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b32": "uint32", "u32": "uint32",
            "s32": "int32", "b64": "uint64", "u64": "uint64", "s64": "int64"}[kind]


@executes("cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group")
def _bulk_store(c: Cluster, s: Site, e: External) -> None:
    dst, src, size = e.operands[:3]
    reduction = e.mods.get("op")
    for lane in lanes_of(s.mask):
        count = bulk_size(c, s, c.value(s.warp, size, lane, 32))
        address = global_place(c, s, c.value(s.warp, dst.base, lane) + dst.offset)
        memory = c.global_bytes(address, count, s.pc, s.warp, True)
        place = c.shared_place(s.warp, c.value(s.warp, src.base, lane) + src.offset, count, 16, s.pc)

        def read(op: int, place: tuple[int, int] = place, count: int = count) -> np.ndarray:
            data, chunks = read_shared(c, place[0], place[1], count, 0, 16)
            if c.listener is not None:
                c.listener.async_access(op, "read", "shared", c.ctas[place[0]], chunks, 16)
            return data

        def write(op: int, data: np.ndarray, memory: np.ndarray = memory, address: int = address) -> None:
            if c.listener is not None:
                c.listener.async_access(op, "atomic" if reduction else "write", "global", -1, np.array([address]),
                                        len(data))
            if reduction:
                kind = _numpy_name(e.mods["type"])
                bits = np.dtype(f"uint{8 * (2 if kind == 'bfloat16' else np.dtype(kind).itemsize)}")
                data = reduce_values(memory.view(bits), data.view(bits), reduction, kind).view(np.uint8)
            memory[...] = data

        store_op(c, s, lane, "bulk_reduce" if reduction else "bulk_store", read, write)


# -- st.async, red.async, tensormap -----------------------------------------------------------------------
@executes("st.async.mbarrier::complete_tx::bytes", "red.async.mbarrier::complete_tx::bytes")
def _st_async(c: Cluster, s: Site, e: External) -> None:
    needs_cluster(c, s, e)
    dst, value, barrier = e.operands
    regs = value if isinstance(value, tuple) else (value,)
    width = 8 if e.mods["type"].endswith("64") else 4
    for lane in lanes_of(s.mask):
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, width * len(regs),
                               width * len(regs), s.pc)
        bar = c.shared_place(s.warp, c.value(s.warp, barrier.base, lane) + barrier.offset, 8, 8, s.pc)
        kind = np.uint64 if width == 8 else np.uint32
        new = np.array([c.value(s.warp, r, lane, 8 * width) for r in regs], kind)

        def fetch(new: np.ndarray = new, place: tuple[int, int] = place) -> np.ndarray:
            if "op" not in e.mods:
                return new.view(np.uint8)
            old = c.shared[place[0], place[1]:place[1] + new.nbytes].view(new.dtype)
            return reduce_values(old, new, e.mods["op"], _numpy_name(e.mods["type"])).view(np.uint8)

        load_op(c, s, lane, "st_async" if "op" not in e.mods else "red_async", place, bar, [place[0]], new.nbytes,
                fetch, (np.zeros(0), 0), reduces="op" in e.mods)


@executes("cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes")
def _tensor_load(c: Cluster, s: Site, e: External) -> None:
    dst, source, barrier = e.operands[:3]
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.value(s.warp, source.base, lane) + source.offset)
        check_rank(c, s, e, m, source)
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, m.shared_bytes,
                               TILE_ALIGN, s.pc)
        bar = c.shared_place(s.warp, c.value(s.warp, barrier.base, lane) + barrier.offset, 8, 8, s.pc)
        mask = c.value(s.warp, e.operands[3], lane, 16) if "multicast" in e.mods else None
        tile = Tile(c, s, m, coordinates(c, s, source, lane, m, False), False)
        src = (tile.rows(), tile.row_bytes()) if c.listener is not None and not tile.empty else (np.zeros(0), 0)
        load_op(c, s, lane, "tma_load", place, bar, targets(c, s, place[0], mask), m.box_bytes, tile.load, src,
                m.swizzle, m.inner_bytes, mask is not None)


def check_rank(c: Cluster, s: Site, e: External, m: TensorMap, at: Address) -> None:
    """The instruction's dimensions, its coordinates and the map must agree."""
    if not int(e.mods["dim"][0]) == len(m.dims) == len(at.coords):
        raise c.stop("descriptor", f"a {len(m.dims)}-d tensor map with {len(at.coords)} coordinates in a "
                     f"{e.mods['dim']} copy", s.pc, s.warp)


@executes("cp.async.bulk.prefetch.tensor.L2.global")
def _tensor_prefetch(c: Cluster, s: Site, e: External) -> None:
    """Nothing that a program can observe, but the operands must be right."""
    at = e.operands[0]
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.value(s.warp, at.base, lane) + at.offset)
        check_rank(c, s, e, m, at)
        coordinates(c, s, at, lane, m, False)


@executes("cp.async.bulk.tensor.global.shared::cta.bulk_group",
          "cp.reduce.async.bulk.tensor.global.shared::cta.bulk_group")
def _tensor_store(c: Cluster, s: Site, e: External) -> None:
    target, src = e.operands[:2]
    reduction = e.mods.get("op") if e.form.name.startswith("cp.reduce") else None
    for lane in lanes_of(s.mask):
        m = tensor_map_at(c, s, c.value(s.warp, target.base, lane) + target.offset)
        check_rank(c, s, e, m, target)
        place = c.shared_place(s.warp, c.value(s.warp, src.base, lane) + src.offset, m.shared_bytes,
                               TILE_ALIGN, s.pc)
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
        cta, offset = c.shared_place(s.warp, address, 128, 64, s.pc)
        return c.shared[cta, offset:offset + 128]
    return c.global_bytes(address, 128, s.pc, s.warp, True)


@executes("tensormap.replace.tile.b1024")
def _replace(c: Cluster, s: Site, e: External) -> None:
    """tensormap.replace: [address], (ordinal,) new value."""
    lane = lanes_of(s.mask)[0]
    at = e.operands[0]
    view = _map_bytes(c, s, c.value(s.warp, at.base, lane) + at.offset, "shared" in e.mods.get("space", ""))
    value = c.value(s.warp, e.operands[-1], lane)
    ordinal = c.value(s.warp, e.operands[1], lane, 32) if len(e.operands) > 2 else 0
    new = replaced(unpack(view.tobytes()) if view.any() else blank(), e.mods["field"], value, ordinal)
    view[...] = np.frombuffer(new.pack(), np.uint8)
    if c.listener is not None and e.mods.get("space") == "global":
        c.listener.access(c.agent(s.warp), s.pc, "write", "global", 1 << lane,
                          np.array([c.value(s.warp, at.base, lane) + at.offset]), 128, s.warp // c.warps_per_cta)


@executes("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.sync.aligned")
def _cp_fenceproxy(c: Cluster, s: Site, e: External) -> None:
    lane = lanes_of(s.mask)[0]
    dst, src = e.operands[:2]
    data = _map_bytes(c, s, c.value(s.warp, src.base, lane) + src.offset, True)
    address = c.value(s.warp, dst.base, lane) + dst.offset
    _map_bytes(c, s, address, False)[...] = data
    if c.listener is not None:
        c.listener.access(c.agent(s.warp), s.pc, "write", "global", 1 << lane, np.array([address]), 128,
                          s.warp // c.warps_per_cta)
        c.listener.fence(c.agent(s.warp), s.pc, "proxy.tensormap", e.mods["scope"])


@executes("fence.proxy.tensormap::generic.acquire")
def _map_acquire(c: Cluster, s: Site, e: External) -> None:
    """What TMA has fetched of these maps is forgotten."""
    at = e.operands[0]
    for lane in lanes_of(s.mask):
        address = c.value(s.warp, at.base, lane) + at.offset
        if c.fetched_maps.pop((s.warp // c.warps_per_cta, address), None) is None:
            c.global_bytes(address, 128, s.pc, s.warp)         # it must be there
        if c.listener is not None:
            c.listener.map_acquire(c.agent(s.warp), s.pc, address)
