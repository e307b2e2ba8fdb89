"""Named layouts: coalesced blocks and the tensor cores' fragments."""
from __future__ import annotations

from functools import lru_cache

from tilejit.layout.linear import LinearLayout

#: Lanes of a tensor-core fragment: four lanes side by side hold a row's neighbouring pairs, eight rows.
QUADS = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))


def _log2(n: int) -> int:
    return (n - 1).bit_length()


@lru_cache(maxsize=4096)
def blocked(shape: tuple[int, ...], num_warps: int, vector: int = 1, order: tuple[int, ...] | None = None,
            warp: tuple[tuple[int, ...], ...] | None = None,
            last: tuple[tuple[int, ...], ...] = (), own: int | None = None) -> LinearLayout:
    """Coalesced."""
    order = order or tuple(reversed(range(len(shape))))
    bits = [tuple(1 << i if k == d else 0 for k in range(len(shape))) for d in order for i in range(_log2(shape[d]))]
    parts = [b for b in bits if any(x >= s & -s for x, s in zip(b, shape) if s & (s - 1))]
    bits = [b for b in bits if b not in (warp or last) and b not in parts]
    parts = [b for b in parts if b not in (warp or last)]

    def take(n: int) -> list[tuple[int, ...]]:
        out, bits[:n] = bits[:n], []
        return out + [(0,) * len(shape)] * (n - len(out))

    along = sum(1 for b in bits if b[order[0]]) if shape else 0
    registers = take(min(_log2(vector), along))
    spare = max(0, len(bits) - 5 - _log2(num_warps) + len(last))
    mine = [b for b in bits if own is not None and b[own]][:spare]
    bits = [b for b in bits if b not in mine]
    lanes = take(5)
    idle = [(0,) * len(shape)] * (num_warps % 3 == 0)  # four of twelve warps hold copies
    warps = list(warp) if warp is not None else [*take(_log2(num_warps) - len(last) - len(idle)), *idle, *last]
    registers += [*mine, *take(len(bits)), *parts]
    return LinearLayout.from_bases({"register": registers, "lane": lanes, "warp": warps}, shape)


def default_blocked(shape: tuple[int, ...], num_warps: int) -> LinearLayout:
    """As `blocked`, with one element a thread at a time."""
    return blocked(shape, num_warps)


def wgmma_accumulator(shape: tuple[int, int], num_warps: int) -> LinearLayout:
    """The fp32/s32 accumulator of wgmma over num_warps/4 warpgroups (docs/modules.md); ValueError for other shapes."""
    m, n = shape
    slices, warps, groups = _rows(shape, num_warps)
    n_each = n >> groups
    if n & (n - 1) and (groups or n > 256):
        raise ValueError(f"an accumulator of {m}x{n} needs {16 * num_warps} rows, 64 for each of its warpgroups, and "
                         f"at most 256 columns: {n} columns are no power of two")
    if n_each < 8:
        raise ValueError(f"an accumulator of {m}x{n} does not divide over {num_warps} warps: "
                         "each warpgroup needs 64 rows and 8 columns")
    columns = [(0, 8 << i) for i in range(_log2(n_each) - 3)]
    plain = columns if n & (n - 1) == 0 else [b for b in columns if b[1] < n & -n]
    registers = [(0, 1), (8, 0), *plain, *slices, *columns[len(plain):]]
    warps = [*warps, *((0, n_each << i) for i in range(groups))]
    return LinearLayout.from_bases({"register": registers, "lane": QUADS, "warp": warps}, shape)


def _rows(shape: tuple[int, int], num_warps: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """How a fragment's rows are divided."""
    if num_warps % 4:
        raise ValueError(f"wgmma takes warpgroups of 4 warps, found {num_warps} warps")
    m, groups = shape[0], num_warps // 4
    if groups % 3 == 0 and groups != 3:
        raise ValueError(f"three warpgroups divide rows, or a power of two of them: found {num_warps} warps")
    each = m // (3 * 64) if groups % 3 == 0 else m // 64
    if m % (64 * (3 if groups % 3 == 0 else 1)) or each & (each - 1):
        raise ValueError(f"{m}x{shape[1]} does not divide over {num_warps} warps: " + (
            "three warpgroups take 192 rows, or twice or four times as many" if groups % 3 == 0 else
            "each warpgroup needs 64 rows, or twice or four times as many"))
    bits, slices = _log2(groups), _log2(m // 64)
    along = min(bits, slices)
    own = [(64 << i, 0) for i in range(slices)]
    return own[:slices - along], [(16, 0), (32, 0), *own[slices - along:]], bits - along


def wgmma_a_operand(shape: tuple[int, int], num_warps: int, elem_bytes: int) -> LinearLayout:
    """The A operand [M, K] of wgmma in registers (PTX ISA, wgmma register fragments), `p` = 4 / elem_bytes."""
    m, k = shape
    pack = 4 // elem_bytes
    slices, warps, groups = _rows(shape, num_warps)
    if k < 8 * pack:
        raise ValueError(f"an A operand of {m}x{k} has less than {8 * pack} columns")
    registers = [(0, 1 << i) for i in range(_log2(pack))] + [(8, 0)]
    registers += [(0, 4 * pack << i) for i in range(_log2(k // (4 * pack)))]
    lanes = [(0, pack), (0, 2 * pack), (1, 0), (2, 0), (4, 0)]
    return LinearLayout.from_bases({"register": [*registers, *slices], "lane": lanes,
                                    "warp": [*warps, *([(0, 0)] * groups)]}, shape)


def shared(shape: tuple[int, ...], elem_bytes: int, swizzle: int,
           order: tuple[int, ...] | None = None) -> LinearLayout:
    """A shared-memory tile as a layout of `offset` (in elements), swizzled as in `shared.py`."""
    if len(shape) == 1:
        shape = (1 << _log2(shape[0]),)
    order = order or tuple(reversed(range(len(shape))))
    fast = order[0]
    span = min(shape[fast], swizzle // elem_bytes) if swizzle else shape[fast]

    def unit(d: int, value: int) -> tuple[int, ...]:
        return tuple(value if i == d else 0 for i in range(len(shape)))

    offsets = [unit(fast, 1 << i) for i in range(_log2(span))]
    offsets += [unit(d, 1 << i) for d in order[1:] for i in range(_log2(shape[d]))]
    offsets += [unit(fast, span << i) for i in range(_log2(shape[fast] // span))]
    low = _log2(elem_bytes)
    for i in range({0: 0, 32: 1, 64: 2, 128: 3}[swizzle]):
        row, chunk = 7 - low + i, 4 - low + i
        if row < len(offsets):
            offsets[row] = tuple(a ^ b for a, b in zip(offsets[row], offsets[chunk]))
    return LinearLayout.from_bases({"offset": offsets}, shape)
