"""Inputs of elementwise programs: the special values of every kind, in all pairs, and random ones."""
from __future__ import annotations

import ml_dtypes
import numpy as np
from programs import KINDS

F32 = np.array([0x00000000, 0x80000000, 0x3F800000, 0xBFC00000, 0x40490FDB, 0x000116C2, 0x80000001, 0x7F7FFFFF,
                0xFF7FFFFF, 0x00800000, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001, 0xFFC12345,
                0x4B800001, 0x3DCCCCCD, 0x3F000000, 0xC0200000], np.uint32).view(np.float32)
F64 = np.array([0, 1 << 63, 0x3FF0000000000000, 0xBFF8000000000000, 0x400921FB54442D18, 0x0000000000000001,
                0x800FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x0010000000000000, 0x7FF0000000000000,
                0xFFF0000000000000, 0x7FF8000000000000, 0x4340000000000001, 0x3FB999999999999A, 0xC004000000000000,
                0x47EFFFFFF0000000, 0x36A0000000000000], np.uint64).view(np.float64)
F16 = np.array([0x0000, 0x8000, 0x3C00, 0xBE00, 0x4248, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7FFF,
                0x7E01, 0x7C01, 0x3800, 0xC100, 0x6800, 0x2E66], np.uint16).view(np.float16)
BF16 = np.array([0x0000, 0x8000, 0x3F80, 0xBFC0, 0x4049, 0x0001, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80,
                 0x7FFF, 0x7FC1, 0x7F81, 0x3F00, 0xC020, 0x4B80, 0x3DCD], np.uint16).view(ml_dtypes.bfloat16)
_INTEGERS = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256)


def edges(kind: str) -> np.ndarray:
    """The special values of a kind."""
    dtype = np.dtype(KINDS[kind][2])
    floats = {"float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16}
    if dtype.name in floats:
        return floats[dtype.name]
    bits = 8 * dtype.itemsize
    top = (1 << bits) - 1
    values = [v for v in (*_INTEGERS, 1 << bits - 1, (1 << bits - 1) - 1, (1 << bits - 1) + 1, top, top - 1, top - 31,
                          0x123456789ABCDEF & top) if v <= top]
    return np.array(sorted(set(values)), f"uint{bits}").view(dtype)


def scattered(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """n random values: for integers of every magnitude, for floats within a few powers of two, some of any bits."""
    dtype = np.dtype(KINDS[kind][2])
    bits = 8 * dtype.itemsize
    raw = rng.integers(0, (1 << bits) - 1, n, dtype=np.uint64, endpoint=True).astype(f"uint{bits}")
    if dtype.kind in "iu":
        return (raw >> rng.integers(0, bits, n).astype(raw.dtype)).view(dtype)
    near = (rng.standard_normal(n) * np.exp2(rng.integers(-6, 7, n))).astype(dtype)
    return np.where(rng.random(n) < 0.7, near, raw.view(dtype)).astype(dtype)


def singles(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """The special values, then random ones; n registers of a kind."""
    n *= KINDS[kind][3]
    e = edges(kind)
    return np.concatenate([e[:n], scattered(kind, max(0, n - len(e)), rng)])


def tuples(kinds: tuple[str, ...], n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """n registers of every kind such that special values meet each other: all pairs as far as n allows."""
    pools = [edges(k) for k in kinds]
    count = len(pools[0]) * len(pools[1])
    per = [KINDS[k][3] for k in kinds]
    special = n * 3 // 4 * per[0]
    at = rng.permutation(count)[:special]
    at = np.concatenate([at, rng.integers(0, count, max(0, special - len(at)))])
    out = []
    for i, (kind, pool) in enumerate(zip(kinds, pools)):
        if i == 0:
            index = at // len(pools[1])
        elif i == 1:
            index = at % len(pools[1])
        else:
            index = rng.integers(0, len(pool), special)
        out.append(np.concatenate([pool[index[:n * 3 // 4 * per[i]]], scattered(kind, (n - n * 3 // 4) * per[i], rng)]))
    return out
