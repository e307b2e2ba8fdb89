"""How to move a tile from one distributed layout to another, as cheaply as the two layouts allow.

`plan(src, dst)` asks, in this order: is every element already in the right thread (`Registers`), in the
right warp (`Shuffles`), or must it cross warps (`ThroughShared`)? The answer is data; emitters and the
numpy `simulate` carry it out.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import numpy as np

from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import shared


@dataclass(frozen=True)
class Registers:
    """Register r of the result is register `source[r]` of the operand, in the same thread."""

    source: tuple[int, ...]


@dataclass(frozen=True)
class Shuffles:
    """Result register r comes from another lane of the same warp.

    `lane_bases` : the source lane is `constant[r]` xor lane_bases[i] for every set bit i of this lane;
    `registers[r]`: the source register for each value of the selected lane bits (`select`, low first)."""

    lane_bases: tuple[int, ...]
    constant: tuple[int, ...]
    select: tuple[int, ...]
    registers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ThroughShared:
    """One trip through shared memory, stored in `layout` (in-dim `offset`, elements)."""

    layout: LinearLayout
    swizzle: int
    order: tuple[int, ...]
    bytes: int


Plan = Union[Registers, Shuffles, ThroughShared]


def plan(src: LinearLayout, dst: LinearLayout, elem_bytes: int) -> Plan:
    """The cheapest way from src to dst; both hold the same tile. Raises ValueError on different shapes."""
    if src.shape != dst.shape:
        raise ValueError(f"cannot convert between tiles {src.shape} and {dst.shape}")
    if all(src.bases_of(n) == dst.bases_of(n) for n in ("lane", "warp")):
        where = {src.apply(register=r): r for r in reversed(range(src.num_registers))}
        wanted = [dst.apply(register=r) for r in range(dst.num_registers)]
        if all(w in where for w in wanted):
            return Registers(tuple(where[w] for w in wanted))
    if src.bases_of("warp") == dst.bases_of("warp"):
        found = _shuffles(src, dst)
        if found is not None:
            return found
    return _through_shared(src, dst, elem_bytes)


def _shuffles(src: LinearLayout, dst: LinearLayout) -> Shuffles | None:
    """Solve for source lane and register with the warp fixed; None if it cannot or costs too much."""
    inner = LinearLayout(tuple((n, row) for n, row in src.bases if n != "warp"), src.shape)
    reach = {tuple(c) for c in (inner.coords("register")[:, None] ^ inner.coords("lane")[None]).reshape(
        -1, src.rank).tolist()}
    needed = dst.bases_of("register") + dst.bases_of("lane")
    if any(b not in reach for b in needed):
        return None
    place = _place_finder(inner)
    lanes = [place(b) for b in dst.bases_of("lane")]
    select = tuple(i for i, p in enumerate(lanes) if p["register"])
    if len(select) > 2:
        return None          # more than four shuffles an element: shared memory is cheaper
    constant, registers = [], []
    for r in range(dst.num_registers):
        p = place(dst.apply(register=r))
        constant.append(p["lane"])
        options = []
        for choice in range(1 << len(select)):
            reg = p["register"]
            for j, bit in enumerate(select):
                if choice >> j & 1:
                    reg ^= lanes[bit]["register"]
            options.append(reg)
        registers.append(tuple(options))
    return Shuffles(tuple(p["lane"] for p in lanes), tuple(constant), select, tuple(registers))


def _place_finder(layout: LinearLayout):
    """place(coords) -> {'register': r, 'lane': l}, linear in coords over xor."""
    columns = layout.columns()
    pivots: list[tuple[int, int, int]] = []      # (leading bit, value, mask of columns)
    for index, (_, _, column) in enumerate(columns):
        value, mask = column, 1 << index
        for top, v, m in pivots:
            if value >> top & 1:
                value, mask = value ^ v, mask ^ m
        if value:
            pivots.append((value.bit_length() - 1, value, mask))
    pivots.sort(reverse=True)

    def place(coords: tuple[int, ...]) -> dict[str, int]:
        flat, mask = layout._flat(coords), 0
        for top, v, m in pivots:
            if flat >> top & 1:
                flat, mask = flat ^ v, mask ^ m
        assert flat == 0, f"{coords} is not held by {layout}"
        out = {"register": 0, "lane": 0}
        for index, (name, bit, _) in enumerate(columns):
            if mask >> index & 1:
                out[name] |= 1 << bit
        return out

    return place


def _through_shared(src: LinearLayout, dst: LinearLayout, elem_bytes: int) -> ThroughShared:
    """The shared layout, among row orders and swizzles, with the fewest bank-conflict cycles both ways."""
    rank, best = src.rank, None
    orders = [tuple(reversed(range(rank)))]
    if rank > 1:
        orders += [(d, *[x for x in reversed(range(rank)) if x != d]) for d in range(rank - 1)]
    total = int(np.prod(src.shape)) * elem_bytes
    for order in orders:
        inner = src.shape[order[0]] * elem_bytes
        for swizzle in (128, 64, 32, 0):
            if swizzle and inner % swizzle:
                continue
            layout = shared(src.shape, elem_bytes, swizzle, order)
            cost = sum(access_cycles(regs, layout, elem_bytes) for regs in (src, dst))
            if best is None or cost < best[0]:
                best = (cost, ThroughShared(layout, swizzle, order, total))
    assert best is not None
    return best[1]


def access_cycles(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> int:
    """Shared-memory cycles of one warp moving all its registers, each access as wide as possible.

    A warp's access moves 128 bytes a cycle; lanes that hit one bank (4 bytes, 32 of them) at different
    addresses take turns. A vector access is served in groups of lanes of 128 bytes in all."""
    offset = _offsets(memory)
    lane = [offset(b) for b in regs.bases_of("lane")]
    reg = [offset(b) for b in regs.bases_of("register")]
    vec = 1
    for o in reg:
        if o != vec or vec * elem_bytes * 2 > 16 or any(x & o for x in lane):
            break
        vec *= 2
    width = vec * elem_bytes
    group = min(32, 128 // max(width, 4))
    addresses = [0]
    for o in lane:
        addresses += [a ^ o for a in addresses]
    cycles = 0
    for start in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for a in addresses[start:start + group]:
            for word in range(a * elem_bytes // 4, (a * elem_bytes + width + 3) // 4):
                banks.setdefault(word % 32, set()).add(word)
        cycles += max(len(w) for w in banks.values())
    return cycles * (regs.num_registers // vec)


def _offsets(memory: LinearLayout):
    """coords -> offset in elements."""
    return lambda coords: memory.place_of(coords)["offset"]


def simulate(p: Plan, src: LinearLayout, dst: LinearLayout, held: np.ndarray) -> np.ndarray:
    """Carry a plan out on `held` [warps, lanes, src registers]: [warps, lanes, dst registers]."""
    warps, lanes = held.shape[:2]
    out = np.zeros((warps, lanes, dst.num_registers), held.dtype)
    if isinstance(p, Registers):
        return held[:, :, list(p.source)]
    if isinstance(p, Shuffles):
        for r in range(dst.num_registers):
            for lane in range(lanes):
                source = p.constant[r]
                for i, b in enumerate(p.lane_bases):
                    source ^= b if lane >> i & 1 else 0
                choice = sum((lane >> bit & 1) << j for j, bit in enumerate(p.select))
                out[:, lane, r] = held[:, source, p.registers[r][choice]]
        return out
    memory = {}
    for at, value in zip(src.table().reshape(-1, src.rank).tolist(), held.reshape(-1)):
        memory[p.layout.place_of(tuple(at))["offset"]] = value
    flat = [memory[p.layout.place_of(tuple(at))["offset"]] for at in dst.table().reshape(-1, dst.rank).tolist()]
    return np.array(flat, held.dtype).reshape(out.shape)
