"""Instructions across the lanes of a warp."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import low, njit
from tilejit.emulator.vm.floating import compare_float
from tilejit.emulator.vm.integer import compare_int, int_op


@njit
def shuffle(row, regs, mask: int) -> None:
    source = np.empty(32, np.int64)
    for lane in range(32):
        source[lane] = regs[row[k.A] * 32 + lane]
    for lane in range(32):
        if (mask >> lane) & 1:
            b, c = regs[row[k.B] * 32 + lane] & 31, regs[row[k.C] * 32 + lane]
            segment, limit = (c >> 8) & 31, c & 31
            top = (lane & segment) | (limit & ~segment)
            if row[k.SUB] == 0:  # up
                j = lane - b
                ok = j >= top
            elif row[k.SUB] == 1:  # down
                j = lane + b
                ok = j <= top
            elif row[k.SUB] == 2:  # bfly
                j = lane ^ b
                ok = j <= top
            else:  # idx
                j = (lane & segment) | (b & ~segment)
                ok = j <= top
            regs[row[k.D] * 32 + lane] = low(source[j if ok else lane], 32)
            regs[row[k.E] * 32 + lane] = 1 if ok else 0


@njit
def vote(row, regs, mask: int) -> None:
    """Over the active lanes of the member mask."""
    bits, member = 0, 0
    for lane in range(32):
        if (mask >> lane) & 1:
            member |= regs[row[k.B] * 32 + lane] & (1 << lane)
            v = regs[row[k.A] * 32 + lane] & 1
            bits |= (v ^ (1 if row[k.FLAGS] & k.NEGATED else 0)) << lane
    bits &= member
    if row[k.SUB] == 0:
        r = 1 if bits == member else 0
    elif row[k.SUB] == 1:
        r = 1 if bits else 0
    elif row[k.SUB] == 2:
        r = 1 if bits == 0 or bits == member else 0
    else:
        r = bits
    for lane in range(32):
        if (mask >> lane) & 1:
            regs[row[k.D] * 32 + lane] = r


@njit
def match(row, regs, mask: int) -> None:
    """Over the active lanes."""
    w = row[k.FMT]
    out = np.zeros(32, np.int64)
    for lane in range(32):
        if (mask >> lane) & 1:
            for other in range(32):
                if (mask >> other) & 1 and \
                        low(regs[row[k.A] * 32 + lane], w) == low(regs[row[k.A] * 32 + other], w):
                    out[lane] |= 1 << other
    for lane in range(32):
        if (mask >> lane) & 1:
            if row[k.SUB]:  # all
                same = out[lane] == mask
                regs[row[k.D] * 32 + lane] = mask if same else 0
                regs[row[k.E] * 32 + lane] = 1 if same else 0
            else:
                regs[row[k.D] * 32 + lane] = out[lane]


@njit
def redux(row, regs, mask: int) -> None:
    total, zero, width = np.int64(0), np.int64(0), np.int64(32)
    first = True
    for lane in range(32):
        if (mask >> lane) & 1:
            v = low(regs[row[k.A] * 32 + lane], 32)
            total = v if first else int_op(row[k.SUB], total, v, zero, zero, width, row[k.FLAGS], zero)
            first = False
    for lane in range(32):
        if (mask >> lane) & 1:
            regs[row[k.D] * 32 + lane] = total


@njit
def carry(row, regs, mask: int) -> None:
    w = row[k.FMT]
    for lane in range(32):
        if (mask >> lane) & 1:
            a, b = low(regs[row[k.A] * 32 + lane], w), low(regs[row[k.B] * 32 + lane], w)
            c = regs[row[k.E] * 32 + lane] & 1 if row[k.FLAGS] & k.RETURNS else 0
            if row[k.SUB] == 0:
                r = low(a + b + c, w)
                out = np.uint64(r) < np.uint64(a) or (c == 1 and r == a)
            else:
                r = low(a - b - c, w)
                out = np.uint64(a) < np.uint64(b) or (c == 1 and a == b)
            regs[row[k.D] * 32 + lane] = r
            if row[k.IMM]:
                regs[row[k.E] * 32 + lane] = 1 if out else 0


@njit
def set_predicate(row, regs, mask: int) -> None:
    """setp and set: compare, combine with predicate C, write D and the complement to E."""
    fmt, is_float = row[k.FMT], row[k.IMM] & 2 != 0
    for lane in range(32):
        if (mask >> lane) & 1:
            a, b = regs[row[k.A] * 32 + lane], regs[row[k.B] * 32 + lane]
            c = (regs[row[k.C] * 32 + lane] & 1) ^ (1 if row[k.FLAGS] & k.NEGATED else 0)
            if row[k.COUNT]:
                half = k.F16 if fmt == k.F16X2 else k.BF16
                r = compare_float(row[k.SUB], a & 0xFFFF, b & 0xFFFF, half, row[k.FLAGS])
                n = compare_float(row[k.SUB], (a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF, half, row[k.FLAGS])
            elif is_float:
                r = compare_float(row[k.SUB], a, b, fmt, row[k.FLAGS])
                n = not r
            else:
                r = compare_int(row[k.SUB], a, b, fmt, row[k.FLAGS] & k.SIGNED != 0)
                n = not r
            x, y = (1 if r else 0), (1 if n else 0)
            if row[k.RECONV] == 1:
                x, y = x & c, y & c
            elif row[k.RECONV] == 2:
                x, y = x | c, y | c
            elif row[k.RECONV] == 3:
                x, y = x ^ c, y ^ c
            if row[k.IMM] & 1:
                regs[row[k.D] * 32 + lane] = row[k.TARGET] if x else 0
            else:
                regs[row[k.E] * 32 + lane] = y
                regs[row[k.D] * 32 + lane] = x
