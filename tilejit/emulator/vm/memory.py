"""Memory instructions: address translation, ld, st, atom, ldmatrix, stmatrix."""
from __future__ import annotations

import numpy as np

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import (
    load8,
    load16,
    load32,
    load64,
    low,
    njit,
    signed,
    store8,
    store16,
    store32,
    store64,
)
from tilejit.emulator.vm.floating import float_op


@njit
def raw_load(address: int, size: int) -> int:
    if size == 4:
        return load32(address)
    if size == 8:
        return load64(address)
    if size == 2:
        return load16(address)
    return load8(address)


@njit
def raw_store(address: int, value: int, size: int) -> None:
    if size == 4:
        store32(address, value)
    elif size == 8:
        store64(address, value)
    elif size == 2:
        store16(address, value)
    else:
        store8(address, value)


@njit
def fault(st, kind: int, lane: int, address: int) -> int:
    st[k.ST_FAULT] = kind
    st[k.ST_FAULT_LANE] = lane
    st[k.ST_FAULT_ADDRESS] = address
    return 0


@njit
def translate(st, space: int, address: int, size: int, warp: int, lane: int,
              write: bool) -> int:
    """The host address, after bounds and alignment checks; 0 after a fault."""
    if address & (min(size, 16) - 1):
        return fault(st, k.FAULT_ALIGN, lane, address)
    if space == k.GENERIC:
        window = address >> 56
        if window == 0:
            space = k.GLOBAL
        else:
            address &= k.OFFSET_MASK
            space = (k.SHARED, k.PARAM, k.LOCAL, k.CONST)[(window - 1) & 3]
    if space == k.SHARED:
        offset = address & 0xFFFFFF
        cta = (address >> k.RANK_SHIFT) & k.RANK_MASK
        if cta >= st[k.ST_CTAS] or offset < 1024 or offset + size > st[k.ST_SHARED_SIZE]:
            return fault(st, k.FAULT_SHARED_BOUNDS, lane, address)
        return st[k.ST_SHARED] + cta * st[k.ST_SHARED_STRIDE] + offset
    if space == k.GLOBAL:
        p = st[k.ST_RANGES]
        for i in range(st[k.ST_NRANGES]):
            if address >= load64(p + 24 * i) and address + size <= load64(p + 24 * i + 8):
                if write and load64(p + 24 * i + 16):
                    return fault(st, k.FAULT_READONLY, lane, address)
                return address
        return fault(st, k.FAULT_BOUNDS, lane, address)
    if space == k.PARAM:
        if address < 0 or address + size > st[k.ST_PARAM_SIZE] or write:
            return fault(st, k.FAULT_SPACE, lane, address)
        return st[k.ST_PARAM] + address
    if space == k.LOCAL:
        if address < 0 or address + size > st[k.ST_LOCAL_SIZE]:
            return fault(st, k.FAULT_SPACE, lane, address)
        return st[k.ST_LOCAL] + (warp * 32 + lane) * st[k.ST_LOCAL_SIZE] + address
    if address < 0 or address + size > st[k.ST_CONST_SIZE] or write:
        return fault(st, k.FAULT_SPACE, lane, address)
    return st[k.ST_CONST] + address


@njit
def event(st, kind: int, warp: int, pc: int, space: int, size: int, mask: int) -> int:
    p = st[k.ST_EVENTS] + 8 * k.EVENT_WIDTH * st[k.ST_EVENT_COUNT]
    st[k.ST_EVENT_COUNT] += 1
    store64(p + 8 * k.EV_KIND, kind)
    store64(p + 8 * k.EV_WARP, warp)
    store64(p + 8 * k.EV_PC, pc)
    store64(p + 8 * k.EV_SPACE, space)
    store64(p + 8 * k.EV_SIZE, size)
    store64(p + 8 * k.EV_MASK, mask)
    return p + 8 * k.EV_ADDRESS


@njit
def traced_address(st, space: int, address: int, host: int, warp: int) -> int:
    """For shared memory (CTA in the cluster) << 32 | offset, else the host address; -1 for spaces not traced."""
    if space == k.GENERIC:
        window = address >> 56
        space = k.GLOBAL if window == 0 else (k.SHARED if window == 1 else k.PARAM)
    if space == k.SHARED:
        where = host - st[k.ST_SHARED]
        stride = st[k.ST_SHARED_STRIDE]
        return (1 << 62) | ((where // stride) << 32) | (where % stride)
    return host if space == k.GLOBAL else -1


@njit
def load(st, row, regs, pool, warp: int, pc: int, mask: int) -> None:
    space, size, count = row[k.SUB], row[k.FMT], max(row[k.COUNT], 1)
    total = size * count
    record = np.int64(0)
    if st[k.ST_TRACE] and space != k.PARAM and space != k.CONST:
        record = event(st, k.EV_READ, warp, pc, space, total, mask)
    a = row[k.A] * 32
    for lane in range(32):
        if (mask >> lane) & 1:
            address = regs[a + lane] + row[k.IMM]
            if space == k.SHARED:
                address = low(address, 32)
            host = translate(st, space, address, total, warp, lane, np.bool_(False))
            if host == 0:
                return
            if record:
                store64(record + 8 * lane, traced_address(st, space, address, host, warp))
            for i in range(count):
                v = raw_load(host + i * size, size)
                if row[k.FLAGS] & k.SIGNED:
                    v = low(signed(v, 8 * size), row[k.TARGET])
                target = pool[row[k.POOL] + i] if row[k.COUNT] else row[k.D]
                regs[target * 32 + lane] = v


@njit
def store(st, row, regs, pool, warp: int, pc: int, mask: int) -> None:
    space, size, count = row[k.SUB], row[k.FMT], max(row[k.COUNT], 1)
    total = size * count
    record = np.int64(0)
    if st[k.ST_TRACE]:
        record = event(st, k.EV_WRITE, warp, pc, space, total, mask)
    a = row[k.A] * 32
    for lane in range(32):
        if (mask >> lane) & 1:
            address = regs[a + lane] + row[k.IMM]
            if space == k.SHARED:
                address = low(address, 32)
            host = translate(st, space, address, total, warp, lane, np.bool_(True))
            if host == 0:
                return
            if record:
                store64(record + 8 * lane, traced_address(st, space, address, host, warp))
            for i in range(count):
                source = pool[row[k.POOL] + i] if row[k.COUNT] else row[k.B]
                raw_store(host + i * size, regs[source * 32 + lane], size)


# Operations of atom, red and the bulk reductions, in this order everywhere.
A_EXCH, A_ADD, A_MIN, A_MAX, A_INC, A_DEC, A_AND, A_OR, A_XOR, A_CAS = range(10)


@njit
def combine(op: int, fmt: int, old: int, b: int, c: int, flags: int) -> int:
    if op == A_EXCH:
        return b
    if op == A_CAS:
        return c if old == b else old
    if op == A_AND:
        return old & b
    if op == A_OR:
        return old | b
    if op == A_XOR:
        return old ^ b
    if fmt <= k.BF16X2:
        sub = k.FADD if op == A_ADD else (k.FMIN if op == A_MIN else k.FMAX)
        return float_op(sub, old, b, np.int64(0), fmt, np.int64(k.RN), flags)
    w = 64 if fmt == k.U64 or fmt == k.S64 else 32
    if op == A_ADD:
        return low(old + b, w)
    if op == A_INC:
        return 0 if np.uint64(old) >= np.uint64(b) else old + 1
    if op == A_DEC:
        return b if old == 0 or np.uint64(old) > np.uint64(b) else old - 1
    if fmt >= k.S8:
        less = signed(old, w) < signed(b, w)
    else:
        less = np.uint64(old) < np.uint64(b)
    return old if less == (op == A_MIN) else b


@njit
def in_global(space: int, address: int) -> bool:
    return space == k.GLOBAL or (space == k.GENERIC and address >> 56 == 0)


@njit
def format_bytes(fmt: int) -> int:
    if fmt == k.F64 or fmt == k.U64 or fmt == k.S64:
        return 8
    if fmt == k.F16 or fmt == k.BF16 or fmt == k.U16:
        return 2
    return 4


@njit
def atomic(st, row, regs, pool, warp: int, pc: int, mask: int) -> None:
    op, fmt, space = row[k.SUB], row[k.FMT], row[k.TARGET]
    size, count = format_bytes(fmt), max(row[k.COUNT], 1)
    record, flags = np.int64(0), np.int64(0)
    if st[k.ST_TRACE]:
        record = event(st, k.EV_ATOMIC, warp, pc, space, size * count, mask)
    for lane in range(32):
        if (mask >> lane) & 1:
            address = regs[row[k.A] * 32 + lane] + row[k.IMM]
            if space == k.SHARED:
                address = low(address, 32)
            host = translate(st, space, address, size * count, warp, lane, np.bool_(True))
            if host == 0:
                return
            if record:
                store64(record + 8 * lane, traced_address(st, space, address, host, warp))
            if fmt == k.F32:  # sums flush subnormals in global memory, not in shared memory
                flags = np.int64(k.FTZ if in_global(space, address) else 0)
            if row[k.COUNT] == 0:
                old = raw_load(host, size)
                b, c = low(regs[row[k.B] * 32 + lane], 8 * size), low(regs[row[k.C] * 32 + lane], 8 * size)
                raw_store(host, combine(op, fmt, old, b, c, flags), size)
                if row[k.FLAGS] & k.RETURNS:
                    regs[row[k.D] * 32 + lane] = old
            else:
                for i in range(count):
                    old = raw_load(host + i * size, size)
                    b = low(regs[pool[row[k.POOL] + i] * 32 + lane], 8 * size)
                    raw_store(host + i * size, combine(op, fmt, old, b, np.int64(0), flags), size)
                    if row[k.FLAGS] & k.RETURNS:
                        regs[pool[row[k.POOL] + count + i] * 32 + lane] = old


@njit
def matrix(st, row, regs, pool, warp: int, pc: int, mask: int, is_store: bool) -> None:
    """ldmatrix and stmatrix .m8n8.b16."""
    count = row[k.COUNT]
    record = np.int64(0)
    rows = 0xFFFFFFFF if count == 4 else (1 << (8 * count)) - 1
    if st[k.ST_TRACE]:
        record = event(st, k.EV_WRITE if is_store else k.EV_READ, warp, pc, k.SHARED, np.int64(16), rows)
    hosts = np.zeros(32, np.int64)
    for lane in range(8 * count):
        address = low(regs[row[k.A] * 32 + lane] + row[k.IMM], 32)
        hosts[lane] = translate(st, k.SHARED, address, np.int64(16), warp, lane, is_store)
        if hosts[lane] == 0:
            return
        if record:
            store64(record + 8 * lane, traced_address(st, k.SHARED, address, hosts[lane], warp))
    for i in range(count):
        reg = pool[row[k.POOL] + i] * 32
        for t in range(32):
            if row[k.SUB]:  # .trans
                lo = hosts[8 * i + 2 * (t % 4)] + 2 * (t // 4)
                hi = hosts[8 * i + 2 * (t % 4) + 1] + 2 * (t // 4)
            else:
                lo = hosts[8 * i + t // 4] + 4 * (t % 4)
                hi = lo + 2
            if is_store:
                store16(lo, regs[reg + t])
                store16(hi, regs[reg + t] >> 16)
            else:
                regs[reg + t] = load16(lo) | (load16(hi) << 16)
