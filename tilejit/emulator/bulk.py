from __future__ import annotations

import numpy as np

from tilejit.emulator.copies import load_op, store_op, targets
from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, lanes_of
from tilejit.emulator.tiles import read_shared, reduce_values


# -- one-dimensional bulk copies --
def bulk_size(c: Cluster, s: Site, count: int) -> int:
    if count % 16 or count == 0:
        raise c.stop("misaligned", f"a bulk copy of {count} bytes is not a positive multiple of 16", s)
    return count


def global_place(c: Cluster, s: Site, address: int) -> int:
    if address % 16:
        raise c.stop("misaligned", f"global address {address:#x} is not a multiple of 16", s)
    return address


def needs_cluster(c: Cluster, s: Site, e: External) -> None:
    """Outside of clusters Hopper stops asynchronous operations on distributed shared memory with an illegal
    instruction, whichever CTA they address."""
    if not c.launch.explicit_cluster:
        raise c.stop("no-cluster", f"{e.form.name.split('.mbarrier')[0]} in a launch without clusters", s)


@executes("cp.async.bulk.global.mbarrier::complete_tx::bytes")
def _bulk_load(c: Cluster, s: Site, e: External) -> None:
    dst, src, size, barrier = e.operands[:4]
    for lane in lanes_of(s.mask):
        count = bulk_size(c, s, c.value(s.warp, size, lane, 32))
        place = c.shared_place(s, c.at(s, dst, lane), count, 16)
        bar = c.shared_place(s, c.at(s, barrier, lane), 8, 8)
        address = global_place(c, s, c.at(s, src, lane))
        data = c.global_bytes(s, address, count)
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
        place = c.shared_place(s, c.at(s, dst, lane), count, 16)
        bar = c.shared_place(s, c.at(s, barrier, lane), 8, 8)
        cta, offset = c.shared_place(s, c.at(s, src, lane), count, 16)

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
    return {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b32": "uint32", "u32": "uint32",
            "s32": "int32", "b64": "uint64", "u64": "uint64", "s64": "int64"}[kind]


@executes("cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group")
def _bulk_store(c: Cluster, s: Site, e: External) -> None:
    dst, src, size = e.operands[:3]
    reduction = e.mods.get("op")
    for lane in lanes_of(s.mask):
        count = bulk_size(c, s, c.value(s.warp, size, lane, 32))
        address = global_place(c, s, c.at(s, dst, lane))
        memory = c.global_bytes(s, address, count, True)
        place = c.shared_place(s, c.at(s, src, lane), count, 16)

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


# -- st.async, red.async, tensormap --
@executes("st.async.mbarrier::complete_tx::bytes", "red.async.mbarrier::complete_tx::bytes")
def _st_async(c: Cluster, s: Site, e: External) -> None:
    needs_cluster(c, s, e)
    dst, value, barrier = e.operands
    regs = value if isinstance(value, tuple) else (value,)
    width = 8 if e.mods["type"].endswith("64") else 4
    for lane in lanes_of(s.mask):
        place = c.shared_place(s, c.at(s, dst, lane), width * len(regs), width * len(regs))
        bar = c.shared_place(s, c.at(s, barrier, lane), 8, 8)
        kind = np.uint64 if width == 8 else np.uint32
        new = np.array([c.value(s.warp, r, lane, 8 * width) for r in regs], kind)

        def fetch(new: np.ndarray = new, place: tuple[int, int] = place) -> np.ndarray:
            if "op" not in e.mods:
                return new.view(np.uint8)
            old = c.shared[place[0], place[1]:place[1] + new.nbytes].view(new.dtype)
            return reduce_values(old, new, e.mods["op"], _numpy_name(e.mods["type"])).view(np.uint8)

        load_op(c, s, lane, "st_async" if "op" not in e.mods else "red_async", place, bar, [place[0]], new.nbytes,
                fetch, (np.zeros(0), 0), reduces="op" in e.mods)
