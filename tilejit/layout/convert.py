"""How to move a tile from one distributed layout to another, as cheaply as the two layouts allow."""
from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Union

from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import shared
from tilejit.records import dataclass

#: A warp's shared-memory access moves at most this many bytes a cycle: 32 banks of 4 bytes.
_BANK_BYTES, _CYCLE_BYTES, _VECTOR_BYTES = 4, 128, 16
#: More possible source registers than this per shuffled element, and shared memory is cheaper.
_MAX_CHOICES = 4
#: More bytes than this go through shared memory half by half.
_MOST_BYTES = 1 << 17
#: Cycles that warps which read what they wrote themselves take to meet before they write: scratch may still be read.
_MEETING = 20
#: More exchanges between lanes than this, and shared memory is cheaper.
_MOST_SWAPS = 2


@dataclass(frozen=True)
class Registers:
    source: tuple[int, ...]


@dataclass(frozen=True)
class Swaps:
    """Lanes exchange halves of what they have, step by step (docs/modules.md)."""

    steps: tuple[tuple[int, int], ...]
    source: tuple[int, ...]

    def words(self, elem_bytes: int) -> int:
        pack = max(1, 4 // elem_bytes)
        firsts = [self.source[r // pack * pack] for r in range(len(self.source))]
        together = all(1 << j >= pack for _, j in self.steps) and len(self.source) % pack == 0 and all(
            x % pack == 0 and at == x + r % pack for r, (x, at) in enumerate(zip(firsts, self.source)))
        return pack if together else 1


@dataclass(frozen=True)
class Shuffles:
    """Result register r comes from another lane of the same warp."""

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
    cycles: int
    within_warp: bool
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Halves:
    """A large tile's halves move by `plan`, one after the other."""

    plan: Plan
    src: LinearLayout
    dst: LinearLayout
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return self.plan.bytes if isinstance(self.plan, (ThroughShared, Halves)) else 0


Plan = Union[Registers, Swaps, Shuffles, ThroughShared, Halves]


@lru_cache(maxsize=1024)
def plan(src: LinearLayout, dst: LinearLayout, elem_bytes: int) -> Plan:
    """The cheapest way from src to dst. Raises ValueError on different shapes."""
    if src.shape != dst.shape:
        raise ValueError(f"cannot convert between tiles {src.shape} and {dst.shape}")
    if src.bases_of("warp") == dst.bases_of("warp"):
        same_thread = src.bases_of("lane") == dst.bases_of("lane")
        with suppress(ValueError):  # where elements are in other lanes only, a thread cannot have them from itself
            if same_thread:
                return Registers(tuple(src.place_of(at, ("register",))["register"] for at in dst.registers()))
        found = _swaps(src, dst) or _shuffles(src, dst)
        warps = src.in_size("warp")
        if found is not None and (src.odd_dims or warps > 2 and isinstance(found, Swaps)):
            return found
        if found is not None:
            through = _through_shared(src, dst, elem_bytes)
            return through if cost(through) + _MEETING * (warps > 1) < _issued(found, elem_bytes) else found
    return prod(src.shape) * elem_bytes > _MOST_BYTES and _halves(src, dst, elem_bytes) \
        or _through_shared(src, dst, elem_bytes)


def _halves(src: LinearLayout, dst: LinearLayout, elem_bytes: int) -> Halves | None:
    for basis in reversed(src.bases_of("register")):
        moved = [d for d, x in enumerate(basis) if x]
        if len(moved) != 1 or basis not in dst.bases_of("register") or src.odd_dims:
            continue
        d, bit = moved[0], basis[moved[0]]
        if all(sum(bool(b[d] & bit) for _, row in x.bases for b in row) == 1 for x in (src, dst)):
            parts = []
            for x in (src, dst):
                rows = {n: tuple((*b[:d], b[d] & bit - 1 | b[d] >> 1 & -bit, *b[d + 1:]) for b in row if b != basis)
                        for n, row in x.bases}
                parts.append(LinearLayout.from_bases(rows, (*x.shape[:d], x.shape[d] // 2, *x.shape[d + 1:])))
            places = [(x.num_registers, x.bases_of("register").index(basis)) for x in (src, dst)]
            before, after = (tuple(tuple(r for r in range(n) if r >> i & 1 == half) for half in (0, 1))
                             for n, i in places)
            return Halves(plan(parts[0], parts[1], elem_bytes), parts[0], parts[1], before, after)
    return None


def _swaps(src: LinearLayout, dst: LinearLayout) -> Swaps | None:
    """The lane bits of src that are register bits in dst, exchanged for others; None if lanes differ otherwise."""
    before, after = src.bases_of("lane"), dst.bases_of("lane")
    registers = list(src.bases_of("register"))
    if len(before) != len(after) or src.odd_dims or src.num_registers != dst.num_registers:
        return None
    steps = []
    for i, (old, new) in enumerate(zip(before, after)):
        if old == new:
            continue
        if new not in registers or not any(old):
            return None
        steps.append((i, registers.index(new)))
        registers[steps[-1][1]] = old
    if len(steps) > _MOST_SWAPS:
        return None
    between = LinearLayout.from_bases({"register": registers, "lane": after, "warp": src.bases_of("warp")}, src.shape)
    try:
        return Swaps(tuple(steps), tuple(between.place_of(at, ("register",))["register"] for at in dst.registers()))
    except ValueError:
        return None


def _shuffles(src: LinearLayout, dst: LinearLayout) -> Shuffles | None:
    """Solve for source lane and register with the warp fixed; None if it cannot or costs too much."""
    inner = ("register", "lane")
    try:
        lanes = [src.place_of(b, inner) for b in dst.bases_of("lane")]
        regs = [src.place_of(at, inner) for at in dst.registers()]
    except ValueError:
        return None
    select = tuple(i for i, p in enumerate(lanes) if p["register"])
    if 1 << len(select) > _MAX_CHOICES:
        return None
    moves = [0]
    for i in select:
        moves += [m ^ lanes[i]["register"] for m in moves]
    return Shuffles(tuple(p["lane"] for p in lanes), tuple(p["lane"] for p in regs), select,
                    tuple(tuple(p["register"] ^ m for m in moves) for p in regs))


def _through_shared(src: LinearLayout, dst: LinearLayout, elem_bytes: int) -> ThroughShared:
    """The shared layout with the fewest cycles both ways. Raises ValueError for sizes that are no powers of two."""
    best = _fewest(src, dst, elem_bytes, _orders(src.rank))
    least = (src.num_registers + dst.num_registers) * max(elem_bytes, _BANK_BYTES) * 32 // _CYCLE_BYTES
    if src.rank == 2 and best.cycles > 2 * least:
        for d, size in enumerate(src.shape):
            for k in {min((b[d] for b in x.bases_of("lane") if b[d]), default=1) for x in (src, dst)} - {1}:
                shape = (*src.shape[:d], size // k, k, *src.shape[d + 1:])
                other = _fewest(src.reshape(shape), dst.reshape(shape), elem_bytes, [(2 - 2 * d, d, d + 1)], True)
                best = min(best, other, key=lambda p: p.cycles)
    return best


def _orders(rank: int) -> list[tuple[int, ...]]:
    return [tuple(reversed(range(rank))), *((d, *(x for x in reversed(range(rank)) if x != d))
                                            for d in range(rank - 1))]


def _fewest(src: LinearLayout, dst: LinearLayout, elem_bytes: int, orders: list[tuple[int, ...]],
            widest: bool = False) -> ThroughShared:
    best, local = None, _same_warp(src, dst)
    for order in orders:
        inner = src.shape[order[0]] * elem_bytes
        for swizzle in (128, 64, 32, 0):
            if swizzle and inner % swizzle:
                continue
            layout = shared(src.shape, elem_bytes, swizzle, order)
            cycles = write_cycles(src, layout, elem_bytes) + read_cycles(dst, layout, elem_bytes)
            if best is None or cycles < best.cycles:
                best = ThroughShared(layout, swizzle, order, prod(src.shape) * elem_bytes, cycles, local, src.shape)
            if widest:
                break
    assert best is not None
    return best


def _same_warp(src: LinearLayout, dst: LinearLayout) -> bool:
    if src.bases_of("warp") != dst.bases_of("warp") or src.zero_bits("warp"):
        return False
    try:
        for basis in dst.bases_of("register") + dst.bases_of("lane"):
            src.place_of(basis, ("register", "lane"))
    except ValueError:
        return False
    return True


def cost(p: Plan) -> int:
    """Roughly the cycles of one warp; meeting the other warps twice counts as 40."""
    if isinstance(p, Registers):
        return 0
    if isinstance(p, Halves):
        return 2 * cost(p.plan)
    if isinstance(p, Swaps):
        return len(p.steps) * len(p.source)
    if isinstance(p, Shuffles):
        return 2 * sum(len(set(options)) for options in p.registers)
    return p.cycles + (10 if p.within_warp else 40)


def _issued(p: Swaps | Shuffles, elem_bytes: int) -> int:
    """How many instructions a thread issues."""
    if isinstance(p, Swaps):
        return 2 * len(p.steps) * len(p.source) // p.words(elem_bytes)
    return sum(len(set(options)) for options in p.registers) * max(3 if elem_bytes < 4 else 2, elem_bytes // 2)


# -- addresses --
@dataclass(frozen=True)
class AddressBits:
    """Offsets (elements) of a distributed tile in a memory layout: one constant per bit, combined by xor."""

    register: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]

    def vector(self, elem_bytes: int) -> int:
        """Elements of the widest access (low registers at consecutive, aligned addresses), 16 bytes at most."""
        vec = 1
        for i, x in enumerate(self.register):
            elsewhere = self.lane + self.warp + self.register[i + 1:]
            if x != vec or 2 * vec * elem_bytes > _VECTOR_BYTES or any(y & x for y in elsewhere):
                break
            vec *= 2
        return vec


@lru_cache(maxsize=1024)
def address_bits(regs: LinearLayout, memory: LinearLayout) -> AddressBits:
    """Where the elements that `regs` holds lie in `memory` (one input, `offset`, without copies)."""
    c = regs.invert_and_compose(memory)
    return AddressBits(*(tuple(b for (b,) in c.bases_of(n)) for n in ("register", "lane", "warp")))


@lru_cache(maxsize=4096)
def bank_conflicts(lane_offsets: tuple[int, ...], elem_bytes: int, vec: int) -> int:
    """Cycles of one warp access of `vec` elements a lane at the xor of `lane_offsets` (elements, one per lane bit)."""
    offsets = [0]
    for x in lane_offsets:
        offsets += [a ^ x for a in offsets]
    width = vec * elem_bytes
    group = min(32, _CYCLE_BYTES // max(width, _BANK_BYTES))
    cycles = 0
    for start in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for a in offsets[start:start + group]:
            first = a * elem_bytes
            for word in range(first // _BANK_BYTES, (first + width - 1) // _BANK_BYTES + 1):
                banks.setdefault(word % 32, set()).add(word)
        cycles += max(len(words) for words in banks.values())
    return cycles


def access_cycles(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> int:
    bits = address_bits(regs, memory)
    vec = bits.vector(elem_bytes)
    return bank_conflicts(bits.lane, elem_bytes, vec) * (regs.num_registers // vec)


def read_cycles(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> int:
    from tilejit.layout.matrices import matrix_cycles

    by_matrices = matrix_cycles(regs, memory, elem_bytes)
    return access_cycles(regs, memory, elem_bytes) if by_matrices is None else by_matrices


def write_cycles(regs: LinearLayout, memory: LinearLayout, elem_bytes: int) -> int:
    copies = regs.zero_bits("lane") or regs.zero_bits("register")
    return access_cycles(regs, memory, elem_bytes) if copies else read_cycles(regs, memory, elem_bytes)
