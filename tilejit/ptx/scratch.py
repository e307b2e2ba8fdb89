"""How much shared scratch an op needs: asked by the allocator, used by the emitters of the same op."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.types import Buffer, DType, Scalar, Tile, Type, elem_of
from tilejit.layout.clusters import within
from tilejit.layout.convert import ThroughShared, plan


def element_bytes(t: Tile) -> int:
    """Bytes of one element in scratch (predicates take one)."""
    return max(1, t.elem.bits // 8)


def conversion(op: Op) -> object:
    """The plan of a `convert` op (see layout/convert.py)."""
    src, dst = op.operands[0].type, op.result.type
    assert isinstance(src, Tile) and isinstance(dst, Tile) and src.layout and dst.layout
    return plan(src.layout, dst.layout, element_bytes(dst))


def scratch_bytes(op: Op) -> int:
    """Bytes of scratch for one op; 0 for ops that need none."""
    if op.name == "convert":
        found = conversion(op)
        return found.bytes if isinstance(found, ThroughShared) else 0
    if op.name == "dot_fma":
        return sum(-(-b.slot_bytes // 16) * 16 for b in fma_buffers(op))
    if op.name == "scan":
        return sum(_scan_bytes(v.type, op.attrs["axis"]) for v in op.operands)  # type: ignore[arg-type, misc]
    if op.name == "xor_shuffle":
        t = op.result.type
        assert isinstance(t, Tile)
        return _warps_bytes(t) if crossed(t, op.attrs["axis"], op.attrs["mask"])["warp"] else 0
    if op.name == "reduce":
        axis, ctas = op.attrs["axis"], op.attrs.get("ctas", 1)
        return sum(_reduce_bytes(v.type, axis, ctas) for v in op.operands)  # type: ignore[arg-type, misc]
    if op.name in ("atomic_rmw", "atomic_cas"):
        return 0 if op.attrs.get("alone") else _atomic_bytes(op.result.type)
    return 0


def fma_buffers(op: Op) -> list[Buffer]:
    """How the operands of a product by multiply-adds lie in scratch: K slowest but for batches."""
    out = []
    for index in (0, 1):
        t = op.operands[index].type
        assert isinstance(t, Tile) and isinstance(t.elem, DType)
        rank = len(t.shape)
        order = (rank - 1, rank - 2) if index else (rank - 2, rank - 1)
        out.append(Buffer(t.shape, t.elem, 1, 0, (*order, *reversed(range(rank - 2)))))
    return out


def _atomic_bytes(t: Type) -> int:
    """Old values go to their other holders through scratch: of a scalar, or of elements in several warps."""
    if not isinstance(t, Tile):
        return 16
    assert t.layout is not None
    if not t.layout.zero_bits("warp"):
        return 0
    return -(-t.layout.num_registers * 32 * t.layout.in_size("warp") * element_bytes(t) // 16) * 16


def warp_bits(t: Tile, axis: int, ctas: int = 1) -> list[int]:
    """The warp bits that a reduction along `axis` must combine in one of `ctas` CTAs."""
    assert t.layout is not None
    return [i for i, b in enumerate(within(t.layout, ctas).bases_of("warp")) if b[axis]]


def _reduce_bytes(t: Tile, axis: int, ctas: int) -> int:
    """One value per register of the result, per lane, per warp, if several warps hold parts."""
    assert t.layout is not None
    if not warp_bits(t, axis, ctas):
        return 0
    regs = t.layout.reduce(axis).num_registers
    return -(-regs * 32 * t.layout.in_size("warp") * element_bytes(t) // 16) * 16


def fold_bytes(t: Type, ctas: int) -> int:
    """Bytes in which a CTA finds what all have of a value that is folded over them; a multiple of 16."""
    count = t.numel if isinstance(t, Tile) else 1
    return -(-count * sent_bytes(elem_of(t)) * ctas // 16) * 16


def sent_bytes(elem: Scalar) -> int:
    """Bytes that an element takes on its way to another CTA (`st.async` stores 4 or 8)."""
    return max(4, elem.bits // 8)


def _scan_bytes(t: Tile, axis: int) -> int:
    """One value per register, lane and warp, if the axis runs through several warps."""
    assert t.layout is not None
    return _warps_bytes(t) if warp_bits(t, axis) else 0


def crossed(t: Tile, axis: int, mask: int) -> dict[str, int]:
    """Which bits of the register, lane and warp an xor of the coordinate along `axis` by `mask` changes."""
    assert t.layout is not None
    return {n: sum(1 << i for i, b in enumerate(t.layout.bases_of(n)) if b[axis] & mask)
            for n in ("register", "lane", "warp")}


def _warps_bytes(t: Tile) -> int:
    """One value per register, lane and warp; a multiple of 16."""
    assert t.layout is not None
    return -(-t.layout.num_registers * 32 * t.layout.in_size("warp") * element_bytes(t) // 16) * 16
