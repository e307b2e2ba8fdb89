"""wgmma: descriptors, fragments, the products themselves, groups."""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import AsyncOp, Cluster, Site, Waiter
from tilejit.emulator.numbers import from_bits
from tilejit.emulator.vm import codes as k

#: Largest linear offset that the swizzle pattern depends on.
_PERIOD = 1024
_SWIZZLE = {0: (0, 0), 1: (7, 7), 2: (3, 7), 3: (1, 7)}  # mode -> (mask of chunk bits, source bit)


@dataclass(frozen=True)
class Descriptor:
    start: int
    leading: int
    stride: int
    base: int
    mode: int


def read_descriptor(bits: int) -> Descriptor:
    return Descriptor((bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4,
                      bits >> 49 & 7, bits >> 62 & 3)


@lru_cache(maxsize=4096)
def element_offsets(phase: int, leading: int, stride: int, mode: int, transposed: bool, rows: int, depth: int,
                    size: int, base: int) -> np.ndarray:
    """int64[rows, depth]."""
    r = np.arange(rows)[:, None]
    kk = np.arange(depth)[None, :]
    span = {0: 16, 1: 128, 2: 64, 3: 32}[mode]
    if not transposed:
        kb = kk * size
        if mode == 0:
            linear = (r // 8) * stride + (r % 8) * 16 + (kb // 16) * leading + kb % 16
        else:
            linear = (r // 8) * stride + (r % 8) * span + kb
    else:
        rb = r * size
        atom, inside = rb // span, rb % span
        if mode == 0:
            linear = atom * stride + inside + (kk // 8) * leading + (kk % 8) * 16
        else:
            linear = atom * leading + inside + (kk // 8) * stride + (kk % 8) * span
    at = linear + phase
    mask, source = _SWIZZLE[mode]
    return at ^ (((at - 128 * base >> source) & mask) << 4)


@lru_cache(maxsize=4096)
def element_chunks(*layout: Any) -> np.ndarray:
    return np.unique(element_offsets(*layout) >> 4) << 4


def read_matrix(c: Cluster, s: Site, bits: int, transposed: bool, rows: int, depth: int, dtype: str,
                op: int) -> np.ndarray:
    """float32[rows, depth] from shared memory."""
    d = read_descriptor(bits)
    size = {"tf32": 4, "f16": 2, "bf16": 2}.get(dtype, 1)
    phase = d.start % _PERIOD
    layout = (phase, d.leading, d.stride, d.mode, transposed, rows, depth, size, d.base)
    offsets = element_offsets(*layout)
    base = d.start - phase
    cta = s.warp // c.warps_per_cta
    low, high = base + int(offsets.min()), base + int(offsets.max()) + size
    if low < 1024 or high > c.shared_bytes:
        raise c.stop("out-of-bounds", f"the matrix at {d.start:#x} (descriptor {bits:#018x}) covers shared bytes "
                     f"[{low:#x}, {high:#x})", s)
    if c.listener is not None:
        c.listener.async_access(op, "read", "shared", c.ctas[cta], base + element_chunks(*layout), 16)
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
    raw = c.shared[cta].view(kind)[(base + offsets) // size]
    return from_bits(raw, dtype)


@lru_cache(maxsize=64)
def contiguous(regs: tuple[int, ...]) -> bool:
    return regs == tuple(range(regs[0], regs[0] + len(regs)))


def registers(c: Cluster, warp: int, regs: tuple[int, ...]) -> np.ndarray:
    if contiguous(regs):
        return c.regs[warp:warp + 4, regs[0]:regs[0] + len(regs)]
    return c.regs[warp:warp + 4, list(regs)]


def a_fragment(c: Cluster, warp: int, regs: tuple[int, ...], dtype: str) -> np.ndarray:
    """float32[64, depth] from A's registers (PTX ISA, register fragments of wgmma .m64nNk16, k8, k32)."""
    raw = np.ascontiguousarray(registers(c, warp, regs).astype(np.uint32))  # warp, reg, lane
    per = {"tf32": 1, "f16": 2, "bf16": 2}.get(dtype, 4)
    kind = {1: np.uint32, 2: np.uint16, 4: np.uint8}[per]
    parts = raw[..., None].view(kind).reshape(4, 2, 2, 8, 4, per)  # warp, half, g, row, chunk, e
    return from_bits(parts.transpose(0, 2, 3, 1, 4, 5).reshape(64, 8 * per), dtype)


def accumulate(c: Cluster, warp: int, regs: tuple[int, ...], product: np.ndarray, keep: bool,
               saturate: bool) -> None:
    n = product.shape[1]
    tiles = product.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 3, 1, 5, 2, 4)  # warp, j, half, bit, row, chunk
    old = registers(c, warp, regs)
    total = np.rint(tiles.reshape(4, n // 2, 32)).astype(np.int64)
    if keep:
        total = total + np.ascontiguousarray(old.astype(np.uint32)).view(np.int32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    out = total & 0xFFFFFFFF
    if contiguous(regs):
        c.regs[warp:warp + 4, regs[0]:regs[0] + len(regs)] = out
    else:
        c.regs[warp:warp + 4, list(regs)] = out


@dataclass
class Pending:
    """A wgmma that some warps have issued; `scalars`: (A and B descriptors, scale-d)."""

    op: AsyncOp
    issued: int
    text: External
    scalars: tuple[int, int, bool]


@executes("wgmma.mma_async.sync.aligned")
def _mma(c: Cluster, s: Site, e: External) -> None:
    first = s.warp // c.warps_per_cta * c.warps_per_cta
    group = first + (s.warp - first) // 4 * 4
    state = c.warp_states[s.warp]
    key = (group, state.wgmma_issued)
    scalars = uniform_operands(c, s, e)
    state.wgmma_issued += 1
    pending = c.wgmma_pending.get(key)
    if pending is None:
        op = AsyncOp(c.launch.next_op(), "wgmma", [], [("wgmma", w) for w in range(group, group + 4)])
        pending = c.wgmma_pending[key] = Pending(op, 0, e, scalars)
    elif pending.text is not e:
        c.report("divergent", "the warps of a warpgroup execute different wgmma instructions", s)
    elif pending.scalars != scalars:
        c.report("descriptor", "the matrix descriptors or scale-d differ between the warps of a warpgroup", s)
    pending.issued += 1
    state.wgmma_open.append(pending.op)
    if c.listener is not None:
        own_registers(c, s, e, pending.op, scalars[2])
    if pending.issued < 4:
        return
    del c.wgmma_pending[key]
    _issue(c, Site(group, s.split, s.mask, s.pc), e, pending)


def own_registers(c: Cluster, s: Site, e: External, op: AsyncOp, keep: bool) -> None:
    assert c.listener is not None
    accumulator, a = list(e.operands[0]), list(e.operands[1]) if isinstance(e.operands[1], tuple) else []
    states = c.states[s.warp]
    mine = accumulator + a
    unfenced = np.flatnonzero(states[mine] & k.TOUCHED)
    if len(unfenced):
        c.listener.wgmma_unfenced(c.agent(s.warp), s.pc, mine[unfenced[0]])
    if keep:
        for i in np.flatnonzero(states[accumulator] & k.UNINIT):
            c.listener.uninitialised(c.agent(s.warp), s.pc, accumulator[i])
    states[accumulator] = (states[accumulator] & ~np.uint8(k.UNINIT)) | k.ACC_IN_FLIGHT
    if a:
        states[a] |= k.A_IN_FLIGHT
    c.flight_registers[op.number] = (accumulator, a)


def uniform_operands(c: Cluster, s: Site, e: External) -> tuple[int, int, bool]:
    _, a, b, scale = e.operands[:4]
    negated = isinstance(scale, tuple)
    keep = bool(c.value(s.warp, scale[1] if negated else scale, 0) & 1) != negated
    return 0 if isinstance(a, tuple) else c.value(s.warp, a, 0), c.value(s.warp, b, 0), keep


def _issue(c: Cluster, s: Site, e: External, pending: Pending) -> None:
    op = pending.op
    bits_a, bits_b, keep = pending.scalars
    d, a = e.operands[:2]
    rest = e.operands[4:]
    shape = e.mods["shape"]
    n, depth = int(shape[4:].split("k")[0]), int(shape.split("k")[1])
    atype, btype, dtype = e.mods["atype"], e.mods["btype"], e.mods["dtype"]
    if len(d) != (n // 4 if dtype == "f16" else n // 2):
        raise c.stop("operands", f"{shape} takes {n // (4 if dtype == 'f16' else 2)} accumulator registers, "
                     f"{len(d)} given", s)
    from_registers = isinstance(a, tuple)
    sign_a, sign_b = (rest[0], rest[1]) if len(rest) >= 2 else (1, 1)
    flips = rest[2:]
    trans_a = bool(flips[0]) if not from_registers and len(flips) == 2 else False
    trans_b = bool(flips[-1]) if flips else False

    def perform() -> None:
        left = a_fragment(c, s.warp, a, atype) if from_registers else read_matrix(
            c, s, bits_a, trans_a, 64, depth, atype, op.number)
        right = read_matrix(c, s, bits_b, trans_b, n, depth, btype, op.number)
        if dtype == "s32":
            accumulate(c, s.warp, d, left @ right.T, keep, "satf" in e.mods)
        else:
            from tilejit.emulator.vm import tensor

            narrow = atype in ("e4m3", "e5m2")
            form = tensor.TO_F16 if dtype == "f16" else (tensor.TO_14 if narrow else tensor.TO_F32)
            tensor.warpgroup(c.regs, s.warp, np.array(d), np.ascontiguousarray(left if sign_a * sign_b > 0 else -left),
                             np.ascontiguousarray(right), keep, tensor.NARROW if narrow else tensor.WIDE, form)
        if c.listener is not None:
            c.listener.complete(op.number, [])

    earlier = c.launch.last_wgmma.get((id(c), s.warp))
    op.steps.append(perform)
    op.after = [earlier] if earlier is not None and not earlier.done else []
    op.describe = f"{e.form.name}.{shape}"
    c.launch.last_wgmma[id(c), s.warp] = op
    if c.listener is not None:
        c.listener.issue(op.number, "wgmma", c.agent(s.warp), s.pc, -1, "async", None, 0)
        c.listener.wgmma_registers(op.number, *c.flight_registers[op.number])
    c.start(op)


@executes("wgmma.fence.sync.aligned")
def _fence(c: Cluster, s: Site, e: External) -> None:
    if c.listener is not None:
        c.states[s.warp] &= ~np.uint8(k.TOUCHED)
        c.listener.wgmma_fence(c.agent(s.warp), s.pc)


@executes("wgmma.commit_group.sync.aligned")
def _commit(c: Cluster, s: Site, e: External) -> None:
    state = c.warp_states[s.warp]
    if c.listener is not None:
        c.listener.group_commit(c.agent(s.warp), s.pc, "wgmma", -1, [o.number for o in state.wgmma_open])
    state.wgmma_groups.append(state.wgmma_open)
    state.wgmma_open = []


@executes("wgmma.wait_group.sync.aligned")
def _wait(c: Cluster, s: Site, e: External) -> tuple[Hashable, Waiter] | None:
    keep = e.operands[0]
    state = c.warp_states[s.warp]
    split = max(0, len(state.wgmma_groups) - keep)
    ops = [o for g in state.wgmma_groups[:split] for o in g]

    def ready() -> bool:
        return all(o.done for o in ops)

    def resume() -> None:
        state.wgmma_groups = state.wgmma_groups[split:]
        if c.listener is None:
            return
        c.listener.group_wait(c.agent(s.warp), s.pc, "wgmma", -1, [o.number for o in ops], False)
        release_registers(c, s.warp)

    return c.wait(s, ("wgmma", s.warp), ready, resume, lambda: f"waits for {sum(not o.done for o in ops)} wgmma (not "
                  "all four warps of the warpgroup have issued them)")


def release_registers(c: Cluster, warp: int) -> None:
    w = c.warp_states[warp]
    c.states[warp] &= ~np.uint8(k.ACC_IN_FLIGHT | k.A_IN_FLIGHT)
    for op in [o for g in w.wgmma_groups for o in g] + w.wgmma_open:
        accumulator, a = c.flight_registers.get(op.number, ([], []))
        c.states[warp, accumulator] |= k.ACC_IN_FLIGHT
        if a:
            c.states[warp, a] |= k.A_IN_FLIGHT
