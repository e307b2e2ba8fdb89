"""How much shared scratch ops need. Sizes are of a thread group as layouts have it: a register of each lane of each
warp that a value takes.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilejit.ir.core import Op
from tilejit.ir.types import Buffer, DType, Scalar, Tile, Type, elem_of

if TYPE_CHECKING:
    from tilejit.layout.linear import LinearLayout


def scratch_bytes(op: Op) -> int:
    return op.define.scratch(op) if op.define.scratch is not None else 0


def element_bytes(t: Tile) -> int:
    return max(1, t.elem.bits // 8)


def kept_bytes(t: Tile) -> int:
    """Of a thread's elements, in its own memory."""
    assert t.layout is not None
    return -(-t.layout.num_registers * element_bytes(t) // 16) * 16


def conversion(op: Op) -> object:
    from tilejit.layout.convert import plan

    src, dst = op.operands[0].type, op.result.type
    assert isinstance(src, Tile) and isinstance(dst, Tile) and src.layout and dst.layout
    return plan(src.layout, dst.layout, element_bytes(dst))


def of_convert(op: Op) -> int:
    from tilejit.layout.convert import Halves, ThroughShared

    found = conversion(op)
    return found.bytes if isinstance(found, (Halves, ThroughShared)) else 0


def of_fma(op: Op) -> int:
    return sum(-(-b.slot_bytes // 16) * 16 for b in fma_buffers(op))


def fma_buffers(op: Op) -> list[Buffer]:
    out = []
    for index in (0, 1):
        t = op.operands[index].type
        assert isinstance(t, Tile) and isinstance(t.elem, DType)
        rank = len(t.shape)
        order = (rank - 1, rank - 2) if index else (rank - 2, rank - 1)
        out.append(Buffer(t.shape, t.elem, 1, 0, (*order, *reversed(range(rank - 2)))))
    return out


def of_atomic(op: Op) -> int:
    """Old values go to their other holders: of a scalar, or of elements in several warps."""
    t = op.result.type
    if op.attrs.get("alone"):
        return 0
    if not isinstance(t, Tile):
        return 16
    assert t.layout is not None
    return _of_all(t, t.layout.num_registers) if t.layout.zero_bits("warp") else 0


def of_reduce(op: Op) -> int:
    """One value per register of the result, per lane but those with copies, per warp, if several warps hold parts."""
    total, axis, ctas = 0, op.attrs["axis"], op.attrs.get("ctas", 1)
    for v in op.operands:
        t, layout = v.tile, v.layout
        if warp_bits(t, axis, ctas):
            total += _of_all(t, layout.reduce(axis).num_registers, 32 >> copies_beside(t, axis))
    return total


def copies_beside(t: Tile, axis: int) -> int:
    assert t.layout is not None
    bases = t.layout.reduce(axis).bases_of("lane")
    return next((i for i, b in enumerate(bases) if any(b)), len(bases))


def of_scan(op: Op) -> int:
    """One value per register of other chunks or columns, lane and warp, if the axis runs through several warps."""
    total, axis = 0, op.attrs["axis"]
    for v in op.operands:
        t = v.type
        assert isinstance(t, Tile) and t.layout is not None
        layout = t.layout.canonical()
        where, alone = axis_places(layout, axis), scanned_alone(layout, axis)
        if alone < len(where):
            total += _of_all(t, layout.num_registers >> sum(n == "register" for n, _ in where[:alone]))
    return total


def axis_places(layout: LinearLayout, axis: int) -> list[tuple[str, int]]:
    """In which bits of the register's, lane's or warp's index a layout has a dimension's bits, low to high."""
    found = {b[axis]: (n, i) for n, row in layout.bases for i, b in enumerate(row) if b[axis]}
    return [found[bit] for bit in sorted(found)]


def scanned_alone(layout: LinearLayout, axis: int) -> int:
    names = [n for n, _ in axis_places(layout, axis)]
    return names.index("warp") if "warp" in names else len(names)


def _of_all(t: Tile, registers: int, lanes: int = 32) -> int:
    assert t.layout is not None
    return -(-registers * lanes * t.layout.in_size("warp") * element_bytes(t) // 16) * 16


def warp_bits(t: Tile, axis: int, ctas: int = 1) -> list[int]:
    from tilejit.layout.clusters import within

    assert t.layout is not None
    return [i for i, b in enumerate(within(t.layout, ctas).bases_of("warp")) if b[axis]]


def fold_bytes(t: Type, ctas: int) -> int:
    """Bytes in which a CTA finds what all have of a value folded over them; a multiple of 16."""
    count = t.numel if isinstance(t, Tile) else 1
    return -(-count * sent_bytes(elem_of(t)) * ctas // 16) * 16


def sent_bytes(elem: Scalar) -> int:
    return max(4, elem.bits // 8)


def of_xor_shuffle(op: Op) -> int:
    """One value per register (`swapped` at a time), lane and warp, if elements change warps."""
    return _of_swap(op, op.attrs["mask"])


def of_sort_runs(op: Op) -> int:
    return _of_swap(op, op.attrs["run"] - 1)


def _of_swap(op: Op, mask: int) -> int:
    t = op.result.tile
    return _of_all(t, swapped(t)) if crossed(t, op.attrs["axis"], mask)["warp"] else 0


def swapped(t: Tile) -> int:
    """How many of a tile's registers change warps at a time: 64 KB of all threads."""
    assert t.layout is not None
    return min(t.layout.num_registers, max(1, (1 << 16) // _of_all(t, 1)))


def of_gather(op: Op) -> int:
    t = op.operands[1].tile
    return -(-t.numel * element_bytes(t) // 16) * 16


def of_histogram(op: Op) -> int:
    return -(-4 * op.attrs["bins"] // 16) * 16


def crossed(t: Tile, axis: int, mask: int) -> dict[str, int]:
    assert t.layout is not None
    return {n: sum(1 << i for i, b in enumerate(t.layout.bases_of(n)) if b[axis] & mask)
            for n in ("register", "lane", "warp")}
