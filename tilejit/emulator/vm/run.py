"""The interpreter loop: runs one warp until it must wait, exits, faults or meets what Python carries out."""
from __future__ import annotations

import numpy as np
from numba import carray, types
from numba import njit as entry

from tilejit.emulator.vm import codes as k
from tilejit.emulator.vm.bits import load64, low, njit, store64, trailing_zeros
from tilejit.emulator.vm.convert import convert
from tilejit.emulator.vm.floating import float_op
from tilejit.emulator.vm.integer import int_op
from tilejit.emulator.vm.memory import atomic, event, load, matrix, store
from tilejit.emulator.vm.mma import accumulators, warp_mma
from tilejit.emulator.vm.pointers import as_int32, as_int64, as_uint8
from tilejit.emulator.vm.warp import carry, match, redux, set_predicate, shuffle, vote


@njit
def guard_mask(regs, reg: int, negate: int, mask: int) -> int:
    bits = 0
    for lane in range(32):
        bits |= (regs[reg * 32 + lane] & 1) << lane
    return mask & (~bits if negate else bits)


@njit
def finish(sp, s: int) -> int:
    sp[s, k.SP_STATE] = k.FREE
    p = sp[s, k.SP_PARENT]
    while p >= 0:
        sp[p, k.SP_CHILDREN] -= 1
        if sp[p, k.SP_CHILDREN] > 0:
            return -1
        if sp[p, k.SP_MASK] != 0:
            sp[p, k.SP_STATE] = k.READY
            return p
        sp[p, k.SP_STATE] = k.FREE
        p = sp[p, k.SP_PARENT]
    return -1


@njit
def new_split(sp, pc: int, mask: int, reconv: int, parent: int) -> int:
    for s in range(k.SPLITS):
        if sp[s, k.SP_STATE] == k.FREE:
            sp[s, k.SP_PC] = pc
            sp[s, k.SP_MASK] = mask
            sp[s, k.SP_RECONV] = reconv
            sp[s, k.SP_PARENT] = parent
            sp[s, k.SP_CHILDREN] = 0
            sp[s, k.SP_STATE] = k.READY
            if parent >= 0:
                sp[parent, k.SP_CHILDREN] += 1
            return s
    return -1


@njit
def first_ready(sp) -> int:
    for s in range(k.SPLITS):
        if sp[s, k.SP_STATE] == k.READY:
            return s
    return -1


@njit
def diverge(sp, s: int, taken: int, target: int, other: int, after: int,
            reconv: int) -> int:
    if reconv == sp[s, k.SP_RECONV]:
        p = sp[s, k.SP_PARENT]
        if target == reconv and p >= 0:
            sp[p, k.SP_MASK] |= taken
            sp[s, k.SP_MASK], sp[s, k.SP_PC] = other, after
        elif after == reconv and p >= 0:
            sp[p, k.SP_MASK] |= other
            sp[s, k.SP_MASK], sp[s, k.SP_PC] = taken, target
        else:
            sp[s, k.SP_MASK], sp[s, k.SP_PC] = other, after
            new_split(sp, target, taken, reconv, p)
        return s
    sp[s, k.SP_STATE] = k.JOINING
    sp[s, k.SP_PC], sp[s, k.SP_MASK], sp[s, k.SP_CHILDREN] = reconv, 0, 0
    go = -1
    if after == reconv:
        sp[s, k.SP_MASK] |= other
    else:
        go = new_split(sp, after, other, reconv, s)
    if target == reconv:
        sp[s, k.SP_MASK] |= taken
    else:
        child = new_split(sp, target, taken, reconv, s)
        go = child if go < 0 else go
    return go


@njit
def check_registers(st, row, pool, states, warp: int, pc: int, mask: int) -> None:
    op = row[k.OP]
    if row[k.GUARD] >= 0:
        touch(st, states, warp, pc, row[k.GUARD], np.bool_(False))
    if op == k.EXTERNAL or op == k.TRACED or mask == 0:
        return
    touch(st, states, warp, pc, row[k.A], np.bool_(False))
    touch(st, states, warp, pc, row[k.B], np.bool_(False))
    touch(st, states, warp, pc, row[k.C], np.bool_(False))
    if op == k.INT:
        touch(st, states, warp, pc, row[k.E], np.bool_(False))
    if op == k.MMA:
        n = accumulators(row)
        for i in range(row[k.COUNT] - n):
            touch(st, states, warp, pc, np.int64(pool[row[k.POOL] + n + i]), np.bool_(False))
        for i in range(n):
            touch(st, states, warp, pc, np.int64(pool[row[k.POOL] + i]), np.bool_(True))
        return
    pooled_reads = op == k.STORE or op == k.PACK or op == k.STMATRIX or op == k.ATOM
    pooled_writes = op == k.LOAD or op == k.UNPACK or op == k.LDMATRIX
    if pooled_reads or pooled_writes:
        for i in range(row[k.COUNT]):
            touch(st, states, warp, pc, np.int64(pool[row[k.POOL] + i]), pooled_writes)
            if op == k.ATOM and row[k.FLAGS] & k.RETURNS:
                touch(st, states, warp, pc, np.int64(pool[row[k.POOL] + row[k.COUNT] + i]), np.bool_(True))
    touch(st, states, warp, pc, row[k.D], np.bool_(True))
    if op != k.INT:
        touch(st, states, warp, pc, row[k.E], np.bool_(True))


@njit
def touch(st, states, warp: int, pc: int, reg: int, write: bool) -> None:
    state = states[reg]
    states[reg] = state | k.TOUCHED
    if state & ~k.TOUCHED == 0:
        return
    if state & k.UNINIT:
        states[reg] = (state & ~k.UNINIT) | k.TOUCHED
        if not write:
            event(st, k.EV_UNINIT, warp, pc, reg, np.int64(0), np.int64(0))
    if state & k.ACC_IN_FLIGHT or (write and state & k.A_IN_FLIGHT):
        event(st, k.EV_REGISTER, warp, pc, reg, np.int64(write), np.int64(state))


@njit
def leave(st, sp, split: int, pc: int, mask: int) -> None:
    sp[split, k.SP_PC] = pc
    st[k.ST_SPLIT] = split
    st[k.ST_MASK] = mask


@entry(types.int64(types.int64[::1], types.int64, types.int64), cache=True, nogil=True)
def run(st, warp, split):
    """Run a warp, split `split` (-1: any that is ready); returns why it stopped."""
    nregs, wpc = st[k.ST_NREGS], st[k.ST_WARPS_PER_CTA]
    code = carray(as_int64(st[k.ST_CODE]), (1 << 40,))
    pool = carray(as_int32(st[k.ST_POOL]), (1 << 40,))
    regs = carray(as_int64(st[k.ST_REGS] + warp * nregs * 256), (nregs * 32,))
    states = carray(as_uint8(st[k.ST_STATES] + warp * nregs), (nregs,))
    sp = carray(as_int64(st[k.ST_SPLITS] + warp * k.SPLITS * k.SP_FIELDS * 8), (k.SPLITS, k.SP_FIELDS))
    live = st[k.ST_LIVE] + 8 * warp
    fuel, executed = st[k.ST_FUEL], np.int64(0)
    trace = st[k.ST_TRACE]
    if split < 0:
        split = first_ready(sp)
        if split < 0:
            return k.R_SWITCH
    pc, mask, reconv = sp[split, k.SP_PC], sp[split, k.SP_MASK], sp[split, k.SP_RECONV]
    result = np.int64(k.R_FUEL)
    while fuel > 0:
        if pc == reconv:
            p = sp[split, k.SP_PARENT]
            sp[p, k.SP_MASK] |= mask
            split = finish(sp, split)
            if split < 0:
                split = first_ready(sp)
            if split < 0:
                result = k.R_SWITCH
                break
            pc, mask, reconv = sp[split, k.SP_PC], sp[split, k.SP_MASK], sp[split, k.SP_RECONV]
            continue
        row = code[pc * k.WIDTH:(pc + 1) * k.WIDTH]
        op = row[k.OP]
        m = mask
        if row[k.GUARD] >= 0:
            m = guard_mask(regs, row[k.GUARD], row[k.NEG], mask)
        fuel -= 1
        executed += 1
        if trace:
            if st[k.ST_EVENT_COUNT] + 64 > st[k.ST_EVENT_CAPACITY]:
                leave(st, sp, split, pc, mask)
                executed -= 1
                result = k.R_EVENTS
                break
            check_registers(st, row, pool, states, warp, pc, m)
            if k.SHFL <= op <= k.MMA and m:
                together = load64(live)
                if op <= k.ELECT:
                    together &= regs[row[k.A if op == k.ELECT else k.IMM] * 32 + trailing_zeros(m)]
                if m != together:
                    event(st, k.EV_DIVERGED, warp, pc, together, np.int64(0), m)
        if op == k.BRA:
            if m == mask:
                pc = row[k.TARGET]
            elif m == 0:
                pc += 1
            else:
                split = diverge(sp, split, m, row[k.TARGET], mask & ~m, pc + 1, row[k.RECONV])
                pc, mask, reconv = sp[split, k.SP_PC], sp[split, k.SP_MASK], sp[split, k.SP_RECONV]
            continue
        if m == 0:
            pc += 1
            continue
        if op == k.INT:
            d, a, b, c, e = row[k.D] * 32, row[k.A] * 32, row[k.B] * 32, row[k.C] * 32, row[k.E] * 32
            sub, w, flags, imm = row[k.SUB], row[k.FMT], row[k.FLAGS], row[k.IMM]
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[d + lane] = int_op(sub, regs[a + lane], regs[b + lane], regs[c + lane], regs[e + lane],
                                            w, flags, imm)
        elif op == k.FLOAT:
            d, a, b, c = row[k.D] * 32, row[k.A] * 32, row[k.B] * 32, row[k.C] * 32
            sub, w, flags, imm = row[k.SUB], row[k.FMT], row[k.FLAGS], row[k.IMM]
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[d + lane] = float_op(sub, regs[a + lane], regs[b + lane], regs[c + lane], w, imm, flags)
        elif op == k.MOV:
            d, a = row[k.D] * 32, row[k.A] * 32
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[d + lane] = regs[a + lane]
        elif op == k.SETP:
            set_predicate(row, regs, m)
        elif op == k.CVT:
            d, a, b = row[k.D] * 32, row[k.A] * 32, row[k.B] * 32
            w = row[k.TARGET]
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[d + lane] = low(convert(regs[a + lane], regs[b + lane], row[k.SUB], row[k.FMT],
                                                 row[k.IMM], row[k.FLAGS]), w)
        elif op == k.LOAD:
            load(st, row, regs, pool, warp, pc, m)
            if st[k.ST_FAULT]:
                result = k.R_FAULT
                break
        elif op == k.STORE:
            store(st, row, regs, pool, warp, pc, m)
            if st[k.ST_FAULT]:
                result = k.R_FAULT
                break
        elif op == k.PACK:
            w, n = row[k.FMT], row[k.COUNT]
            for lane in range(32):
                if (m >> lane) & 1:
                    v = np.int64(0)
                    for i in range(n):
                        v |= low(regs[pool[row[k.POOL] + i] * 32 + lane], w) << (w * i)
                    regs[row[k.D] * 32 + lane] = v
        elif op == k.UNPACK:
            w, n = row[k.FMT], row[k.COUNT]
            for lane in range(32):
                if (m >> lane) & 1:
                    v = regs[row[k.A] * 32 + lane]
                    for i in range(n):
                        regs[pool[row[k.POOL] + i] * 32 + lane] = low(v >> (w * i), w)
        elif op == k.EXTERNAL or (op == k.TRACED and trace):
            pc += 1
            leave(st, sp, split, pc, m)
            st[k.ST_PC] = pc - 1
            result = k.R_EXTERNAL
            break
        elif op == k.SHFL:
            shuffle(row, regs, m)
        elif op == k.VOTE:
            vote(row, regs, m)
        elif op == k.ELECT:
            members = m & regs[row[k.A] * 32 + trailing_zeros(m)]
            leader = trailing_zeros(members if members else m)
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[row[k.D] * 32 + lane] = leader
                    regs[row[k.E] * 32 + lane] = 1 if lane == leader else 0
        elif op == k.LDMATRIX or op == k.STMATRIX:
            matrix(st, row, regs, pool, warp, pc, m, op == k.STMATRIX)
            if st[k.ST_FAULT]:
                result = k.R_FAULT
                break
        elif op == k.MMA:
            warp_mma(row, regs, pool)
        elif op == k.ATOM:
            atomic(st, row, regs, pool, warp, pc, m)
            if st[k.ST_FAULT]:
                result = k.R_FAULT
                break
        elif op == k.MATCH:
            match(row, regs, m)
        elif op == k.REDUX:
            redux(row, regs, m)
        elif op == k.CARRY:
            carry(row, regs, m)
        elif op == k.MAPA:
            for lane in range(32):
                if (m >> lane) & 1:
                    v = regs[row[k.A] * 32 + lane]
                    if row[k.SUB]:  # getctarank
                        regs[row[k.D] * 32 + lane] = (v >> k.RANK_SHIFT) & k.RANK_MASK
                    else:
                        kept = v & ~np.int64(k.RANK_MASK << k.RANK_SHIFT)
                        rank = regs[row[k.B] * 32 + lane] & k.RANK_MASK
                        regs[row[k.D] * 32 + lane] = kept | (rank << k.RANK_SHIFT)
        elif op == k.CLOCK:
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[row[k.D] * 32 + lane] = low(st[k.ST_CLOCK] + executed, row[k.FMT])
        elif op == k.ACTIVE:
            for lane in range(32):
                if (m >> lane) & 1:
                    regs[row[k.D] * 32 + lane] = mask
        elif op == k.ISSPACE:
            for lane in range(32):
                if (m >> lane) & 1:
                    v = regs[row[k.A] * 32 + lane]
                    far = row[k.SUB] and (v >> k.RANK_SHIFT) & k.RANK_MASK != warp // wpc
                    regs[row[k.D] * 32 + lane] = 1 if v >> 56 == row[k.IMM] and not far else 0
        elif op == k.BRX:
            first = trailing_zeros(m)
            index = regs[row[k.A] * 32 + first]
            same = np.int64(0)
            for lane in range(32):
                if (m >> lane) & 1 and regs[row[k.A] * 32 + lane] == index:
                    same |= 1 << lane
            target = np.int64(pool[row[k.POOL] + index])
            if same == mask:
                pc = target
            else:  # the other lanes come back to this instruction
                split = diverge(sp, split, same, target, mask & ~same, pc, row[k.RECONV])
                pc, mask, reconv = sp[split, k.SP_PC], sp[split, k.SP_MASK], sp[split, k.SP_RECONV]
            continue
        elif op == k.RET:
            store64(live, load64(live) & ~m)
            mask &= ~m
            if mask == 0:
                split = finish(sp, split)
                if load64(live) == 0:
                    result = k.R_EXITED
                    break
                if split < 0:
                    split = first_ready(sp)
                if split < 0:
                    result = k.R_SWITCH
                    break
                pc, mask, reconv = sp[split, k.SP_PC], sp[split, k.SP_MASK], sp[split, k.SP_RECONV]
                continue
            sp[split, k.SP_MASK] = mask
        elif op == k.TRAP:
            leave(st, sp, split, pc, m)
            st[k.ST_PC] = pc
            result = k.R_TRAP
            break
        pc += 1
    if result == k.R_FUEL:
        leave(st, sp, split, pc, mask)
    if result == k.R_FAULT:
        st[k.ST_PC] = pc
        st[k.ST_SPLIT] = split
    st[k.ST_EXECUTED] += executed
    st[k.ST_CLOCK] += executed
    return result
