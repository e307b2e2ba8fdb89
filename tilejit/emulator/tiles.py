"""Tiles of a tensor map: which global memory a box covers, and how its bytes lie in shared memory."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilejit.emulator.decode import Address
from tilejit.emulator.machine import Cluster, Site
from tilejit.emulator.tensormap import TensorMap, unpack
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
        self.start = at % (1 << 64)                # addresses wrap, as 64-bit sums do
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
