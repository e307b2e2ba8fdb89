"""mma.sync on one warp (PTX ISA, mma fragments): floats as in tensor.py, f64 by fused multiply-adds, integers
exactly."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f64, f32_of, fma64, low, njit, signed
from tilejit.emulator.vm.floating import decode, encode
from tilejit.emulator.vm.tensor import TO_F16, TO_F32, WIDE, multiply


@njit
def element(bits: int, fmt: int) -> float:
    if fmt == k.S8:
        return np.float64(signed(bits, 8))
    if fmt == k.U8:
        return np.float64(bits & 255)
    if fmt == k.TF32:
        return decode(bits & 0xFFFFE000, fmt)
    return decode(bits, fmt)


@njit
def accumulators(row) -> int:
    n = 2 if row[k.RECONV] == 8 else 4
    return n // 2 if row[k.IMM] == k.F16 else n


@njit
def single(x):
    """(Loops: astype and slices take numba seconds to compile.)"""
    out = np.empty(x.shape, np.float32)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j]
    return out


@njit
def sums(a, b, c, narrow: bool, form: int):
    """float32[16, 8]: a[16, K] @ b[8, K].T + c[16, 8]."""
    out = np.empty((16, 8), np.float32)
    if not narrow:
        multiply(a, b, c, np.int64(WIDE), form, out)
        return out
    k2 = a.shape[1] // 2
    x, y, part = np.empty((16, k2), np.float32), np.empty((8, k2), np.float32), np.zeros((16, 8), np.float32)
    for half in range(2):
        for n in range(k2):
            at = n // 2 * 4 + 2 * half + n % 2
            for i in range(16):
                x[i, n] = a[i, at]
            for i in range(8):
                y[i, n] = b[i, at]
        multiply(x, y, part, np.int64(WIDE), np.int64(TO_F32), out)
        part, out = out, part  # the last result is in part; out is overwritten below
    for i in range(16):
        for j in range(8):
            total = c[i, j] + part[i, j]
            out[i, j] = total if total == total else f32_of(np.int64(0x7FFFFFFF))
    return out


@njit
def warp_mma(row, regs, pool) -> None:
    """D = A * B + C for m16n8kK: FMT, SUB, IMM: formats of A, B, C and D; TARGET = K."""
    fa, fb, fd, depth = row[k.FMT], row[k.SUB], row[k.IMM], row[k.TARGET]
    bits = 16 if fa == k.F16 or fa == k.BF16 else (32 if fa == k.TF32 else (64 if fa == k.F64 else 8))
    per = max(32 // bits, 1)  # elements of one register
    rows = 8 if row[k.RECONV] == 8 else 16
    slabs = max(depth // (4 * per), 1)  # registers along k
    nd = accumulators(row)
    na = rows // 8 * slabs
    d0 = row[k.POOL]
    a0, b0 = d0 + nd, d0 + nd + na
    c0 = b0 + slabs
    a, b, c = np.zeros((16, depth)), np.zeros((8, depth)), np.zeros((16, 8))
    for lane in range(32):
        for slab in range(slabs):
            for half in range(rows // 8):
                v = regs[pool[a0 + slab * (rows // 8) + half] * 32 + lane]
                for i in range(per):
                    part = v >> (bits * i) if bits < 64 else v
                    a[lane // 4 + 8 * half, slab * 4 * per + (lane % 4) * per + i] = element(
                        low(part, bits), fa)
            v = regs[pool[b0 + slab] * 32 + lane]
            for i in range(per):
                part = v >> (bits * i) if bits < 64 else v
                b[lane // 4, slab * 4 * per + (lane % 4) * per + i] = element(low(part, bits), fb)
        for half in range(rows // 8):
            for i in range(2):
                v = regs[pool[c0 + (half if fd == k.F16 else 2 * half + i)] * 32 + lane]
                c[lane // 4 + 8 * half, 2 * (lane % 4) + i] = np.float64(signed(v, 32)) if fd == k.S32 else decode(
                    low(v >> 16 * i, 16) if fd == k.F16 else v, fd)
    if fd == k.F32 or fd == k.F16:
        form = np.int64(TO_F16 if fd == k.F16 else TO_F32)
        narrow = fa == k.E4M3 or fa == k.E5M2
        total32 = sums(single(a), single(b), single(c), narrow, form)
        for i in range(16):
            for j in range(8):
                c[i, j] = total32[i, j]
    else:
        for i in range(rows):
            for j in range(8):
                for n in range(depth):
                    c[i, j] = fma64(a[i, n], b[j, n], c[i, j])
    for lane in range(32):
        for half in range(rows // 8):
            x, y = c[lane // 4 + 8 * half, 2 * (lane % 4)], c[lane // 4 + 8 * half, 2 * (lane % 4) + 1]
            if fd == k.F16:
                first = encode(x, k.F16, k.RN, np.bool_(False))
                regs[pool[d0 + half] * 32 + lane] = first | encode(y, k.F16, k.RN, np.bool_(False)) << 16
                continue
            for i in range(2):
                z, target = y if i else x, pool[d0 + 2 * half + i] * 32 + lane
                if fd == k.S32:
                    total = np.int64(z)
                    if row[k.FLAGS] & k.SAT:
                        total = min(max(total, -(1 << 31)), (1 << 31) - 1)
                    regs[target] = low(total, 32)
                elif fd == k.F64:
                    regs[target] = bits_of_f64(z)
                else:
                    regs[target] = encode(z, k.F32, k.RN, np.bool_(False))
