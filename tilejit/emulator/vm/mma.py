"""mma.sync on one warp (PTX ISA, mma fragments): the products are summed in f64, in k order. tf32 operands lose their
low 13 bits; a sum that rounds to zero is +0, whatever its terms; NaNs are canonical."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import bits_of_f64, low, njit, signed
from tilejit.emulator.vm.floating import decode, encode


@njit
def element(bits: int, fmt: int) -> float:
    """One matrix element as f64."""
    if fmt == k.S8:
        return np.float64(signed(bits, 8))
    if fmt == k.U8:
        return np.float64(bits & 255)
    if fmt == k.TF32:
        return decode(bits & 0xFFFFE000, fmt)
    return decode(bits, fmt)


@njit
def accumulators(row) -> int:  # type: ignore[no-untyped-def]
    """Registers of D (and of C) a thread."""
    n = 2 if row[k.RECONV] == 8 else 4
    return n // 2 if row[k.IMM] == k.F16 else n


@njit
def rounded(x: float, fmt: int) -> int:
    """A sum in the accumulator's format; one that rounds to zero is +0."""
    r = encode(x, fmt, k.RN, np.bool_(False))
    return r if r & (0x7FFF if fmt == k.F16 else 0x7FFFFFFF) else 0


@njit
def warp_mma(row, regs, pool) -> None:  # type: ignore[no-untyped-def]
    """D = A * B + C for m16n8kK: FMT = A's format, SUB = B's, IMM = C and D's, TARGET = K, COUNT unused.

    The pool holds the registers of D, A, B, C in turn. An element of b bits at k has its register and place
    from the fragment of 32 / b consecutive k per register: lane % 4 selects the chunk."""
    fa, fb, fd, depth = row[k.FMT], row[k.SUB], row[k.IMM], row[k.TARGET]
    bits = 16 if fa == k.F16 or fa == k.BF16 else (32 if fa == k.TF32 else (64 if fa == k.F64 else 8))
    per = max(32 // bits, 1)                      # elements of one register
    rows = 8 if row[k.RECONV] == 8 else 16
    slabs = max(depth // (4 * per), 1)            # registers along k
    nd = accumulators(row)
    na = rows // 8 * slabs
    d0 = row[k.POOL]
    a0, b0 = d0 + nd, d0 + nd + na
    c0 = b0 + slabs
    a = np.empty((16, 64), np.float64)
    b = np.empty((64, 8), np.float64)
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
                b[slab * 4 * per + (lane % 4) * per + i, lane // 4] = element(low(part, bits), fb)
    out = np.empty((16, 8), np.float64)
    for i in range(rows):
        for j in range(8):
            total = np.float64(0.0)
            for n in range(depth):
                total += a[i, n] * b[n, j]
            out[i, j] = total
    for lane in range(32):
        for half in range(rows // 8):
            for i in range(2):
                value = out[lane // 4 + 8 * half, 2 * (lane % 4) + i]
                if fd == k.F16:
                    reg, shift = half, 16 * i
                    c = decode(low(regs[pool[c0 + reg] * 32 + lane] >> shift, 16), k.F16)
                    r = rounded(c + value, k.F16)
                    target = pool[d0 + reg] * 32 + lane
                    if i == 0:
                        regs[target] = r | (regs[pool[c0 + reg] * 32 + lane] & 0xFFFF0000)
                    else:
                        regs[target] = (regs[target] & 0xFFFF) | (r << 16)
                    continue
                reg = 2 * half + i
                old = regs[pool[c0 + reg] * 32 + lane]
                if fd == k.S32:
                    total_int = np.int64(value) + signed(old, 32)
                    if row[k.FLAGS] & k.SAT:
                        total_int = min(max(total_int, -(1 << 31)), (1 << 31) - 1)
                    regs[pool[d0 + reg] * 32 + lane] = low(total_int, 32)
                elif fd == k.F64:
                    regs[pool[d0 + reg] * 32 + lane] = bits_of_f64(value + decode(old, k.F64))
                else:
                    regs[pool[d0 + reg] * 32 + lane] = rounded(value + decode(old, k.F32), k.F32)
