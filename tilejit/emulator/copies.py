"""Asynchronous copies: TMA tensor tiles, bulk copies and reductions, cp.async, st.async; their groups.

Loads complete on an mbarrier with their full byte count, out-of-bounds parts included; stores and reductions
belong to the issuing thread's bulk groups and have two steps, reading the source and writing the target.
"""
from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from tilejit.emulator.decode import Address, External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import AsyncOp, Cluster, Site, Waiter, lanes_of
from tilejit.emulator.sync import arrive, barrier_at, complete_tx
from tilejit.emulator.tensormap import ELEMENTS, TensorMap, replaced, unpack
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError

#: Alignment of a tensor tile in shared memory (PTX ISA, cp.async.bulk.tensor).
TILE_ALIGN = 128
_SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}


@lru_cache(maxsize=4096)
def chunk_order(phase: int, chunks: int, swizzle: int, inner: int) -> np.ndarray:
    """Where the n-th 16 bytes of a tile go, in 16-byte units from the start minus `phase` (the start address
    modulo 1024): address bits 4.. are xored with bits 7.. (PTX ISA, "Shared memory layouts and swizzling").
    A swizzled tile whose rows of `inner` bytes are narrower than the swizzle has rows as wide as the swizzle
    (CUDA programming guide, "TMA swizzle": memory for the full swizzle width)."""
    n = np.arange(chunks)
    linear = 16 * n
    if swizzle and inner < swizzle:
        linear = n // (inner // 16) * swizzle + n % (inner // 16) * 16
    at = phase + linear
    return (at ^ (((at >> 7) & _SWIZZLE_MASK[swizzle]) << 4)) >> 4


def signed32(value: int) -> int:
    """The low 32 bits as a signed number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tensor_map_at(c: Cluster, s: Site, address: int) -> TensorMap:
    """The map at a generic address (a parameter, constants or global memory)."""
    window, offset = address >> 56, address & k.OFFSET_MASK
    if address % 64:
        raise c.stop("misaligned", f"tensor map address {address:#x} is not a multiple of 64", s.pc, s.warp)
    if window == k.PARAM_WINDOW >> 56:
        data = c.launch.params[offset:offset + 128].tobytes()
    elif window == k.CONST_WINDOW >> 56:
        data = c.launch.const_bank[offset:offset + 128].tobytes()
    else:
        data = c.global_bytes(address, 128, s.pc, s.warp).tobytes()
    try:
        return unpack(data)
    except EmulatorError as error:
        raise c.stop("descriptor", str(error), s.pc, s.warp) from None


class Tile:
    """The part of a tensor that one box covers: where it lies in global memory and in the box."""

    def __init__(self, c: Cluster, s: Site, m: TensorMap, coords: list[int], write: bool):
        self.map = m
        size = m.elem_bytes
        shape, inner = [], []
        at = m.address
        strides = (size, *m.strides)
        for dim, coord, count, step, stride in zip(m.dims, coords, m.copied, m.elem_strides, strides):
            first = max(0, -(coord // step)) if coord < 0 else 0
            last = min(count, -(-(dim - coord) // step)) if coord < dim else 0
            shape.append(max(0, last - first))
            inner.append(slice(first, max(first, last)))
            at += (coord + first * step) * stride
        self.shape = tuple(reversed(shape))
        self.inner = tuple(reversed(inner))
        self.empty = 0 in self.shape
        self.start = at
        self.strides = tuple(reversed([st * step for st, step in zip(strides, m.elem_strides)]))
        self.kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
        self.box = tuple(reversed(m.copied))
        if not self.empty:
            extent = sum((n - 1) * st for n, st in zip(self.shape, self.strides)) + size
            data = c.global_bytes(self.start, extent, s.pc, s.warp, write)
            self.memory: np.ndarray[Any, Any] = np.ndarray(self.shape, self.kind, data.data if write else data,
                                                           0, self.strides)

    def rows(self) -> np.ndarray:
        """Start addresses of the contiguous innermost rows (for listeners)."""
        at = np.array([self.start], np.int64)
        for n, st in zip(self.shape[:-1], self.strides[:-1]):
            at = (at[:, None] + np.arange(n) * st).reshape(-1)
        return at

    def row_bytes(self) -> int:
        """Bytes of one innermost row."""
        return self.shape[-1] * self.strides[-1]

    def load(self) -> np.ndarray:
        """uint8[box bytes]: the tile, filled where it leaves the tensor."""
        fill = 0
        if self.map.fill == "nan":
            fill = {"fp16": 0x7FFF, "bf16": 0x7FFF, "fp32": 0x7FFFFFFF, "tf32": 0x7FFFFFFF,
                    "fp64": 0x7FFFFFFFFFFFFFFF}[self.map.dtype]
        out = np.full(self.box, fill, self.kind)
        if not self.empty:
            out[self.inner] = self.memory
        return out.reshape(-1).view(np.uint8)


def shared_tile(c: Cluster, cta: int, offset: int, count: int, swizzle: int,
                inner: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint8[n, 16] view of shared memory from a 1024-byte boundary, the chunk order of the tile)."""
    phase = offset % 1024
    order = chunk_order(phase, -(-count // 16), swizzle, inner)
    return c.shared[cta, offset - phase:].reshape(-1, 16), order


def write_shared(c: Cluster, cta: int, offset: int, data: np.ndarray, swizzle: int, inner: int) -> np.ndarray:
    """Write a tile; returns the byte offsets of the 16-byte chunks written."""
    view, order = shared_tile(c, cta, offset, len(data), swizzle, inner)
    if swizzle == 0:
        c.shared[cta, offset:offset + len(data)] = data
    else:
        view[order] = data.reshape(-1, 16)
    return order * 16 + (offset - offset % 1024)


def read_shared(c: Cluster, cta: int, offset: int, count: int, swizzle: int,
                inner: int) -> tuple[np.ndarray, np.ndarray]:
    """A tile's bytes and the byte offsets of its chunks."""
    view, order = shared_tile(c, cta, offset, count, swizzle, inner)
    data = c.shared[cta, offset:offset + count].copy() if swizzle == 0 else view[order].reshape(-1)
    return data, order * 16 + (offset - offset % 1024)


def coordinates(c: Cluster, warp: int, at: Address, lane: int) -> list[int]:
    """Signed tensor coordinates of a lane, innermost first."""
    return [signed32(c.value(warp, reg, lane, 32)) for reg in at.coords]


def targets(c: Cluster, s: Site, cta: int, mask: int | None) -> list[int]:
    """CTAs of the cluster that receive a copy."""
    if mask is None:
        return [cta]
    if mask >> len(c.ctas):
        raise c.stop("multicast", f"the mask {mask:#x} names CTAs outside the cluster of {len(c.ctas)}", s.pc, s.warp)
    return [i for i in range(len(c.ctas)) if mask >> i & 1]


def load_op(c: Cluster, s: Site, lane: int, kind: str, place: tuple[int, int], barrier: tuple[int, int],
            ctas: list[int], count: int, fetch: Any, source: tuple[np.ndarray, int], swizzle: int = 0,
            inner: int = 16, multicast: bool = False) -> None:
    """Start a copy into shared memory that completes on an mbarrier (at the same offset in every target)."""
    op = AsyncOp(c.launch.next_op(), kind, [], [])

    def perform() -> None:
        data = fetch()
        done = []
        if c.listener is not None and len(source[0]):
            c.listener.async_access(op.number, "read", "global", -1, source[0], source[1])
        for cta in ctas:
            chunks = write_shared(c, cta, place[1], data, swizzle, inner)
            if c.listener is not None:
                c.listener.async_access(op.number, "write", "shared", c.ctas[cta], chunks, 16)
            done.append((cta if multicast else barrier[0], barrier[1], count))
        if c.listener is not None:
            c.listener.complete(op.number, [(c.ctas[i], o, n) for i, o, n in done])
        for cta, offset, n in done:
            complete_tx(c, op.number, cta, offset, n, s.pc, s.warp)

    op.steps.append(perform)
    op.describe = f"{kind} of {count} bytes to shared {place[1]:#x}"
    if c.listener is not None:
        c.listener.issue(op.number, kind, c.agent(s.warp), s.pc, lane, "async", (c.ctas[barrier[0]], barrier[1]), count)
    c.start(op)


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
        tile = Tile(c, s, m, coordinates(c, s.warp, source, lane), False)
        src = (tile.rows(), tile.row_bytes()) if c.listener is not None and not tile.empty else (np.zeros(0), 0)
        load_op(c, s, lane, "tma_load", place, bar, targets(c, s, place[0], mask), m.box_bytes, tile.load, src,
                m.swizzle, m.inner_bytes, mask is not None)


def check_rank(c: Cluster, s: Site, e: External, m: TensorMap, at: Address) -> None:
    """The instruction's dimensions, its coordinates and the map must agree."""
    if not int(e.mods["dim"][0]) == len(m.dims) == len(at.coords):
        raise c.stop("descriptor", f"a {len(m.dims)}-d tensor map with {len(at.coords)} coordinates in a "
                     f"{e.mods['dim']} copy", s.pc, s.warp)


def store_op(c: Cluster, s: Site, lane: int, kind: str, read: Any, write: Any) -> None:
    """Start a store: read the source, then write; it joins the lane's open bulk group."""
    op = AsyncOp(c.launch.next_op(), kind, [], [("bulk", s.warp)])
    held: list[np.ndarray] = []

    def first() -> None:
        held.append(read(op.number))
        if c.listener is not None:
            c.listener.source_read(op.number)

    def second() -> None:
        write(op.number, held[0])
        if c.listener is not None:
            c.listener.complete(op.number, [])

    op.steps += [first, second]
    op.describe = kind
    if c.listener is not None:
        c.listener.issue(op.number, kind, c.agent(s.warp), s.pc, lane, "async", None, 0)
    c.warp_states[s.warp].bulk_open.setdefault(lane, []).append(op)
    c.start(op)


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
        tile = Tile(c, s, m, coordinates(c, s.warp, target, lane), True)

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
            values = data.view(tile.kind).reshape(tile.box)[tile.inner]
            if reduction:
                values = reduce_values(tile.memory, values, reduction, ELEMENTS[m.dtype][1])
            tile.memory[...] = values

        store_op(c, s, lane, "tma_reduce" if reduction else "tma_store", read, write)


def reduce_values(old: np.ndarray, new: np.ndarray, op: str, kind: str) -> np.ndarray:
    """old (op) new as bit patterns of type `kind`; f32 sums flush subnormals (PTX ISA, cp.reduce.async.bulk)."""
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, kind) if kind == "bfloat16" else kind)
    bits = old.dtype
    a, b = np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(new).view(dtype)
    if op == "inc":
        r = np.where(a >= b, 0, a + 1).astype(dtype)
    elif op == "dec":
        r = np.where((a == 0) | (a > b), b, a - 1).astype(dtype)
    elif op in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op](old, new)
    elif op == "add" and kind in ("float16", "bfloat16"):
        r = (a.astype(np.float32) + b.astype(np.float32)).astype(dtype)
    elif op == "add":
        r = a + b
        if kind == "float32":
            r = np.where(np.abs(r) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), r), r)
    else:
        r = (np.minimum if op == "min" else np.maximum)(a, b)
    return np.ascontiguousarray(r).view(bits)


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

        load_op(c, s, lane, "bulk_smem", place, bar, [place[0]], count, fetch, (np.zeros(0), 0))


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


@executes("cp.async.bulk.commit_group")
def _bulk_commit(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    for lane in lanes_of(s.mask):
        ops = state.bulk_open.pop(lane, [])
        state.bulk_groups.setdefault(lane, []).append(ops)
        if c.listener is not None:
            c.listener.group_commit(c.agent(s.warp), s.pc, "bulk", lane, [o.number for o in ops])


@executes("cp.async.bulk.wait_group")
def _bulk_wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    keep, read_only = e.operands[0], "read" in e.mods
    state = c.warp_states[s.warp]
    waits: dict[int, list[AsyncOp]] = {}
    for lane in lanes_of(s.mask):
        groups = state.bulk_groups.get(lane)
        if groups:
            waits[lane] = [o for g in groups[:max(0, len(groups) - keep)] for o in g]

    def ready() -> bool:
        return all(o.read_done if read_only else o.done for ops in waits.values() for o in ops)

    def resume() -> None:
        for lane, ops in waits.items():
            if not read_only:
                groups = state.bulk_groups[lane]
                state.bulk_groups[lane] = groups[max(0, len(groups) - keep):]
            if c.listener is not None:
                c.listener.group_wait(c.agent(s.warp), s.pc, "bulk", lane, [o.number for o in ops], read_only)

    if ready():
        resume()
        return None
    return ("bulk", s.warp), Waiter(s.warp, s.split, s.pc, ready, resume, lambda: "waits for bulk stores")


# -- cp.async ---------------------------------------------------------------------------------------------
@executes("cp.async.global")
def _cp_async(c: Cluster, s: Site, e: External) -> None:
    """Each lane copies 4, 8 or 16 bytes; a smaller source size leaves zeros."""
    dst, src, size = e.operands[:3]
    moves = []
    for lane in lanes_of(s.mask):
        place = c.shared_place(s.warp, c.value(s.warp, dst.base, lane) + dst.offset, size, size, s.pc)
        address = c.value(s.warp, src.base, lane) + src.offset
        take = size
        if len(e.operands) > 3 and "hint" not in e.mods:
            take = min(size, c.value(s.warp, e.operands[3], lane, 32))
        if address % size:
            raise c.stop("misaligned", f"global address {address:#x} is not a multiple of {size}", s.pc, s.warp)
        data = c.global_bytes(address, take, s.pc, s.warp) if take else np.zeros(0, np.uint8)
        moves.append((place, data, address))
    op = AsyncOp(c.launch.next_op(), "cp_async", [], [("cp.async", s.warp)])

    def perform() -> None:
        for (cta, offset), data, _ in moves:
            c.shared[cta, offset:offset + len(data)] = data
            c.shared[cta, offset + len(data):offset + size] = 0
        if c.listener is not None:
            where = np.array([o for (_, o), _, _ in moves])
            c.listener.async_access(op.number, "read", "global", -1, np.array([a for _, d, a in moves if len(d)]), size)
            c.listener.async_access(op.number, "write", "shared", c.ctas[s.warp // c.warps_per_cta], where, size)
            c.listener.complete(op.number, [])

    op.steps.append(perform)
    op.describe = "cp.async"
    if c.listener is not None:
        c.listener.issue(op.number, "cp_async", c.agent(s.warp), s.pc, -1, "generic", None, 0)
    c.warp_states[s.warp].copies_open.append((s.mask, op))
    c.start(op)


@executes("cp.async.commit_group")
def _cp_commit(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    mine = [op for lanes, op in state.copies_open if lanes & s.mask]
    state.copies_open = [(lanes & ~s.mask, op) for lanes, op in state.copies_open if lanes & ~s.mask]
    state.copy_groups.append((s.mask, mine))
    if c.listener is not None:
        c.listener.group_commit(c.agent(s.warp), s.pc, "cp_async", -1, [o.number for o in mine])


@executes("cp.async.wait_group", "cp.async.wait_all")
def _cp_wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    state = c.warp_states[s.warp]
    mine = [g for g in state.copy_groups if g[0] & s.mask]
    keep = e.operands[0] if e.operands else 0
    waited = mine[:max(0, len(mine) - keep)]
    ops = [o for _, g in waited for o in g]
    if not e.operands:
        ops += [o for lanes, o in state.copies_open if lanes & s.mask]

    def ready() -> bool:
        return all(o.done for o in ops)

    def resume() -> None:
        state.copy_groups = [g for g in state.copy_groups if g not in waited]
        if c.listener is not None:
            c.listener.group_wait(c.agent(s.warp), s.pc, "cp_async", -1, [o.number for o in ops], False)

    if ready():
        resume()
        return None
    return ("cp.async", s.warp), Waiter(s.warp, s.split, s.pc, ready, resume, lambda: "waits for cp.async copies")


@executes("cp.async.mbarrier.arrive.b64")
def _cp_arrive(c: Cluster, s: Site, e: External) -> None:
    """Arrive when all earlier cp.async of the executing threads have landed; without .noinc the pending count
    rises first, so that the net change is zero."""
    state = c.warp_states[s.warp]
    earlier = [o for lanes, o in state.copies_open if lanes & s.mask and not o.done]
    earlier += [o for lanes, g in state.copy_groups if lanes & s.mask for o in g if not o.done]
    groups: dict[int, int] = {}
    for _, address in c.addresses(s.warp, e.operands[0], s.mask):
        groups[address] = groups.get(address, 0) + 1
    for address, count in groups.items():
        b = barrier_at(c, s, address)
        if "noinc" not in e.mods:
            b.pending += count
        op = AsyncOp(c.launch.next_op(), "cp_async", [], [])

        def perform(op: AsyncOp = op, b: Any = b, count: int = count) -> None:
            if c.listener is not None:
                c.listener.mbarrier_arrive(op.number, s.pc, c.ctas[b.cta], b.offset, b.phase, count, -1, "cta",
                                           "release")
                c.listener.complete(op.number, [])
            arrive(c, s, b, count)

        op.steps.append(perform)
        op.after = list(earlier)
        op.describe = "cp.async.mbarrier.arrive"
        if c.listener is not None:
            c.listener.issue(op.number, "cp_async", c.agent(s.warp), s.pc, -1, "generic", (c.ctas[b.cta], b.offset), 0)
        c.start(op)


# -- st.async, red.async, tensormap -----------------------------------------------------------------------
@executes("st.async.mbarrier::complete_tx::bytes", "red.async.mbarrier::complete_tx::bytes")
def _st_async(c: Cluster, s: Site, e: External) -> None:
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
                fetch, (np.zeros(0), 0))


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
    new = replaced(unpack(view.tobytes()), e.mods["field"], value, ordinal)
    view[...] = np.frombuffer(new.pack(), np.uint8)


@executes("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.sync.aligned")
def _cp_fenceproxy(c: Cluster, s: Site, e: External) -> None:
    lane = lanes_of(s.mask)[0]
    dst, src = e.operands[:2]
    data = _map_bytes(c, s, c.value(s.warp, src.base, lane) + src.offset, True)
    _map_bytes(c, s, c.value(s.warp, dst.base, lane) + dst.offset, False)[...] = data
