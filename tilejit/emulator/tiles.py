from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilejit.emulator.decode import Address
from tilejit.emulator.machine import Cluster, Site
from tilejit.emulator.tensormap import TensorMap, check, unpack
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError

#: Alignment of a tensor tile in shared memory (PTX ISA, cp.async.bulk.tensor).
TILE_ALIGN = 128

#: Bytes that stores and reductions write as a whole.
UNIT = 16

#: The NaN that fills tiles, whatever the width of the elements.
_NAN = b"\xF7\x7F"

_SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}


@lru_cache(maxsize=4096)
def chunk_order(phase: int, chunks: int, swizzle: int, inner: int) -> np.ndarray:
    """Where the n-th 16 bytes of a tile go (docs/modules.md)."""
    n = np.arange(chunks)
    linear = 16 * n
    if swizzle and inner < swizzle:
        linear = n // (inner // 16) * swizzle + n % (inner // 16) * 16
    at = phase + linear
    return (at ^ (((at >> 7) & _SWIZZLE_MASK[swizzle]) << 4)) >> 4


def signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tensor_map_at(c: Cluster, s: Site, address: int) -> TensorMap:
    window, offset = address >> 56, address & k.OFFSET_MASK
    if address % 64:
        raise c.stop("misaligned", f"tensor map address {address:#x} is not a multiple of 64", s)
    if window == k.PARAM_WINDOW >> 56:
        data = c.launch.params[offset:offset + 128].tobytes()
    elif window == k.CONST_WINDOW >> 56:
        data = c.launch.const_bank[offset:offset + 128].tobytes()
    else:
        data = _fetched(c, s, address)
    try:
        return check(unpack(data))
    except EmulatorError as error:
        raise c.stop("descriptor", str(error), s) from None


def _fetched(c: Cluster, s: Site, address: int) -> bytes:
    """A map as first fetched, until a fence.proxy.tensormap::generic.acquire by the CTA (PTX ISA, membar / fence)."""
    cta = s.warp // c.warps_per_cta
    now = c.global_bytes(s, address, 128).tobytes()
    known = c.fetched_maps.setdefault((cta, address), now)
    if known != now:
        raise c.stop("stale-map", f"the tensor map at {address:#x} has been written since its CTA fetched it: no "
                     "fence.proxy.tensormap::generic.acquire lies between", s)
    if c.listener is not None:
        c.listener.map_read(c.agent(s.warp), s.pc, address)
    return known


def nearest_tf32(bits: np.ndarray) -> np.ndarray:
    special = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return np.where(special, np.uint32(0x7FFFE000), bits + np.uint32(0xFFF) + (bits >> 13 & 1) & np.uint32(0xFFFFE000))


class Tile:
    """Where the part of a tensor that one box covers lies in memory and in the box."""

    def __init__(self, c: Cluster, s: Site, m: TensorMap, coords: list[int], write: bool):
        self.map = m
        size = m.elem_bytes
        shape: list[int] = []
        inner = []
        at, self.beside = m.address, 0
        strides = (size, *m.strides)
        for dim, coord, count, step, stride in zip(m.dims, coords, m.copied, m.elem_strides, strides):
            first = max(0, -(coord // step)) if coord < 0 else 0
            last = min(count, -(-(dim - coord) // step)) if coord < dim else 0
            if write and not shape and first < last and last * size % UNIT:
                self.beside = UNIT - last * size % UNIT
                last += self.beside // size
            shape.append(max(0, last - first))
            inner.append(slice(first, max(first, last)))
            at += (coord + first * step) * stride
        self.shape = tuple(reversed(shape))
        self.inner = tuple(reversed(inner))
        self.empty = 0 in self.shape
        self.start = at % (1 << 64)  # addresses wrap, as 64-bit sums do
        self.strides = tuple(reversed([st * step for st, step in zip(strides, m.elem_strides)]))
        self.kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
        self.box = tuple(reversed(m.copied))
        if not self.empty:
            extent = sum((n - 1) * st for n, st in zip(self.shape, self.strides)) + size
            data = c.global_bytes(s, self.start, extent, write)
            self.memory: np.ndarray[Any, Any] = np.ndarray(self.shape, self.kind, data.data if write else data,
                                                           0, self.strides)

    def rows(self) -> np.ndarray:
        at = np.array([self.start], np.int64)
        for n, st in zip(self.shape[:-1], self.strides[:-1]):
            at = (at[:, None] + np.arange(n) * st).reshape(-1)
        return at

    def row_bytes(self) -> int:
        return self.shape[-1] * self.strides[-1]

    def load(self) -> np.ndarray:
        fill = int.from_bytes(_NAN * 4, "little") if self.map.fill == "nan" else 0
        out = np.full(self.box, fill & (1 << 8 * self.map.elem_bytes) - 1, self.kind)
        if not self.empty:
            out[self.inner] = nearest_tf32(self.memory) if self.map.dtype == "tf32" else self.memory
        return out.reshape(-1).view(np.uint8)


def shared_tile(c: Cluster, cta: int, offset: int, count: int, swizzle: int,
                inner: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint8[n, 16] view of shared memory from a 1024-byte boundary, the chunk order of the tile)."""
    phase = offset % 1024
    order = chunk_order(phase, -(-count // 16), swizzle, inner)
    return c.shared[cta, offset - phase:].reshape(-1, 16), order


def write_shared(c: Cluster, cta: int, offset: int, data: np.ndarray, swizzle: int, inner: int) -> np.ndarray:
    view, order = shared_tile(c, cta, offset, len(data), swizzle, inner)
    if swizzle == 0:
        c.shared[cta, offset:offset + len(data)] = data
    else:
        view[order] = data.reshape(-1, 16)
    return order * 16 + (offset - offset % 1024)


def read_shared(c: Cluster, cta: int, offset: int, count: int, swizzle: int,
                inner: int) -> tuple[np.ndarray, np.ndarray]:
    view, order = shared_tile(c, cta, offset, count, swizzle, inner)
    data = c.shared[cta, offset:offset + count].copy() if swizzle == 0 else view[order].reshape(-1)
    return data, order * 16 + (offset - offset % 1024)


def coordinates(c: Cluster, s: Site, at: Address, lane: int, m: TensorMap, write: bool) -> list[int]:
    """Signed tensor coordinates, innermost first."""
    found = [signed32(c.value(s.warp, reg, lane, 32)) for reg in at.coords]
    if found[0] * m.elem_bytes % 16:
        raise c.stop("misaligned", f"the innermost coordinate {found[0]} of {m.elem_bytes}-byte elements: a box must "
                     "start at a multiple of 16 bytes", s)
    if write and min(found) < 0:
        raise c.stop("out-of-bounds", f"a store to coordinates {found} (innermost first): they must not be negative", s)
    return found


def floats(a: np.ndarray, b: np.ndarray, op: str) -> np.ndarray:
    if op == "add":
        return a + b
    less = (a < b) | ((a == b) & np.signbit(a)) | np.isnan(b)
    more = (a > b) | ((a == b) & np.signbit(b)) | np.isnan(b)
    return np.where(less if op == "min" else more, a, b)


def reduce_values(old: np.ndarray, new: np.ndarray, op: str, kind: str) -> np.ndarray:
    """old (op) new as bit patterns."""
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
    elif kind.startswith(("uint", "int")):
        r = a + b if op == "add" else (np.minimum if op == "min" else np.maximum)(a, b)
    else:
        with np.errstate(all="ignore"):
            r = floats(a.astype(np.float64), b.astype(np.float64), op).astype(dtype) if kind != "float64" else a + b
        nan = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FF8 << 48}[kind]
        return np.where(np.isnan(r), bits.type(nan), np.ascontiguousarray(r).view(bits))
    return np.ascontiguousarray(r).view(bits)
