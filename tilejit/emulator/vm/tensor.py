"""How Hopper's tensor cores add, bit for bit as recorded (tests/conformance)."""
from __future__ import annotations

import math

import numpy as np
from numba import njit as entry
from numba import types

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f32, bits_of_f64, f32_of, f64_of, low, njit
from tilejit.emulator.vm.floating import decode, encode

#: Bits kept below the largest exponent, of fp8 and of all other products.
NARROW, WIDE = 13, 25
#: How sums are rounded: to float32, to 14 bits of it, to float16.
TO_F32, TO_14, TO_F16 = range(3)


@njit
def power(x: float) -> float:
    bits = bits_of_f32(x)
    return f64_of(max((bits >> 23) & 255, 1) + 896 << 52) if bits & 0x7FFFFFFF else 0.0


@njit
def cut(x: float) -> float:
    """A float64 as float32 towards zero; beyond the largest binade infinity."""
    if 2.0**-126 <= abs(x) < 2.0**128:
        return np.float32(f64_of(bits_of_f64(x) & -(1 << 29)))
    r = np.float32(x)
    if abs(x) < 2.0**128 and abs(np.float64(r)) > abs(x):
        r = f32_of(bits_of_f32(r) - 1)
    return r


@njit
def rounded(x: float, form: int) -> float:
    if x != x:
        return f32_of(np.int64(0x7FFFFFFF))
    if form == TO_F16:
        r = np.float32(decode(encode(x, k.F16, k.RN, np.bool_(False)), k.F16))
    else:
        r = cut(x)
        if form == TO_14 and not math.isinf(r):
            r = f32_of(bits_of_f32(r) & 0xFFFFFC00)
    return r if r != 0.0 else np.float32(0.0)


@njit
def ordinary(a, i: int, b, j: int, c: float) -> float:
    total = np.float64(c)
    for n in range(a.shape[1]):
        total += np.float64(a[i, n]) * np.float64(b[j, n])
    return total


@njit
def multiply(a, b, c, fraction: int, form: int, out) -> None:
    """out[M, N] = a[M, K] @ b[N, K].T + c[M, N], all float32 (f16, bf16, tf32 and fp8 values as such)."""
    rows, depth = a.shape
    columns = b.shape[0]
    right, size = np.empty((depth, columns)), np.empty((depth, columns))
    odd = np.zeros(columns, np.bool_)  # has an infinity or a NaN
    for n in range(depth):
        for j in range(columns):
            right[n, j], size[n, j] = b[j, n], power(b[j, n])
            odd[j] |= not abs(b[j, n]) < np.inf
    scale, total, top = np.empty(columns), np.empty(columns), np.empty(columns)
    for i in range(rows):
        strange = False
        for j in range(columns):
            top[j] = power(c[i, j])
        for n in range(depth):
            strange |= not abs(a[i, n]) < np.inf
            left = power(a[i, n])
            for j in range(columns):
                top[j] = max(top[j], left * size[n, j])
        for j in range(columns):
            scale[j] = math.ldexp(1.0, fraction) / top[j] if top[j] > 0.0 else 0.0
            total[j] = np.trunc(c[i, j] * scale[j])
        for n in range(depth):
            left = np.float64(a[i, n])
            for j in range(columns):
                total[j] += np.trunc(left * right[n, j] * scale[j])
        for j in range(columns):
            if strange or odd[j] or not abs(c[i, j]) < np.inf:
                out[i, j] = rounded(ordinary(a, i, b, j, c[i, j]), form)
            else:
                out[i, j] = rounded(total[j] / scale[j] if total[j] != 0.0 else 0.0, form)


@njit
def place(numbers, i: int, j: int, form: int) -> tuple[int, int, int, int]:
    """Where a warpgroup keeps element (i, j) of D: warp, register, lane, bit (PTX ISA, wgmma .m64nNk16, D)."""
    half, lane = i % 16 // 8, i % 8 * 4 + j % 8 // 2
    if form == TO_F16:
        return i // 16, numbers[j // 8 * 2 + half], lane, 16 * (j & 1)
    return i // 16, numbers[j // 8 * 4 + 2 * half + (j & 1)], lane, 0


_MATRIX = types.Array(types.float32, 2, "C")


@entry(types.void(types.Array(types.int64, 3, "C"), types.int64, types.int64[::1], _MATRIX, _MATRIX, types.boolean,
                  types.int64, types.int64), cache=True, nogil=True)
def warpgroup(regs, warp, numbers, a, b, keep, fraction, form):
    """D = a[64, K] @ b[N, K].T (+ D), in the registers `numbers` of four warps from `warp` on."""
    c, out = np.zeros((64, b.shape[0]), np.float32), np.empty((64, b.shape[0]), np.float32)
    if keep:
        for i in range(64):
            for j in range(b.shape[0]):
                w, r, lane, shift = place(numbers, np.int64(i), np.int64(j), form)
                bits = regs[warp + w, r, lane] >> shift
                c[i, j] = np.float32(decode(bits & 0xFFFF, k.F16)) if form == TO_F16 else f32_of(bits)
    multiply(a, b, c, fraction, form, out)
    for i in range(64):
        for j in range(b.shape[0]):
            w, r, lane, shift = place(numbers, np.int64(i), np.int64(j), form)
            if form == TO_F16:
                half = encode(np.float64(out[i, j]), k.F16, k.RN, np.bool_(False))
                other = low(regs[warp + w, r, lane], 32) & (0xFFFF0000 >> shift)
                regs[warp + w, r, lane] = other | half << shift
            else:
                regs[warp + w, r, lane] = bits_of_f32(out[i, j])
